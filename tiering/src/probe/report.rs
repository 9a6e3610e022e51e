//! What the probe found, in lines for people and as data.

use std::fmt;

use serde::Serialize;

use crate::store::Fault;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it must be.
    Ok,
    /// Safe, but costs money or speed.
    Warning,
    /// Unsafe or unusable.
    Unfit,
    /// Not learned: the store did not answer, or refuses whoever asks.
    Failed,
    /// Could not be looked at.
    Skipped,
}

impl Verdict {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Unfit => "UNFIT",
            Self::Failed => "FAILED",
            Self::Skipped => "skipped",
        }
    }
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// How it came out.
    pub verdict: Verdict,
    /// What was seen, and what to do about it.
    pub detail: String,
}

/// All checks of one store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The store, without secrets.
    pub store: String,
    /// In the order they were made.
    pub checks: Vec<Check>,
    /// What the store's own error came to, if one ended the probe.
    #[serde(skip)]
    pub fault: Option<Fault>,
}

impl Report {
    /// Whether data is safe in the store.
    pub fn is_fit(&self) -> bool {
        self.first_fault().is_none()
    }

    /// Whether the store was seen to break a promise. One that is not fit and not that either did not
    /// answer, or refuses this agent.
    pub fn is_unfit(&self) -> bool {
        let failed = self.failed_check();
        failed.is_some_and(|check| check.verdict == Verdict::Unfit)
    }

    /// Whether the probe failed for what may be gone a moment later, such as a connection that broke.
    pub fn may_pass(&self) -> bool {
        !self.is_fit() && !self.is_unfit() && self.fault.as_ref().is_none_or(Fault::is_fleeting)
    }

    fn failed_check(&self) -> Option<&Check> {
        let mut checks = self.checks.iter();
        checks.find(|check| matches!(check.verdict, Verdict::Unfit | Verdict::Failed))
    }

    /// The first check that failed, as one line.
    pub fn first_fault(&self) -> Option<String> {
        let (Self { store, .. }, fault) = (self, self.failed_check()?);
        Some(format!(
            "store cannot be used: {}: {}. store=`{store}`",
            fault.name, fault.detail
        ))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "store {}", self.store)?;
        for Check {
            name,
            verdict,
            detail,
        } in &self.checks
        {
            writeln!(f, "  {:8} {name:22} {detail}", verdict.word())?;
        }
        let fit = if self.is_fit() {
            "fit for use"
        } else {
            "not fit for use"
        };
        writeln!(f, "{fit}")
    }
}
