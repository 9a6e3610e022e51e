//! What the probe found, in lines for people and as data.

use std::fmt;

use serde::Serialize;

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
    /// Could not be looked at.
    Skipped,
}

impl Verdict {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Unfit => "UNFIT",
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
}

impl Report {
    /// Whether data is safe in the store.
    pub fn is_fit(&self) -> bool {
        self.first_fault().is_none()
    }

    /// The first check that failed, as one line.
    pub fn first_fault(&self) -> Option<String> {
        let fault = self
            .checks
            .iter()
            .find(|check| check.verdict == Verdict::Unfit)?;
        let Self { store, .. } = self;
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
