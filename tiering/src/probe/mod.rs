//! Finds out whether a store keeps the promises everything else relies on, by trying.
//!
//! Many stores that speak S3 ignore the condition of a conditional put, check it before rather
//! than while writing, or list late. On such a store two agents can own one partition and both
//! believe it, so an agent refuses to start on it. The probe writes scratch objects under `probe/`,
//! and deletes them again. It costs about 300 requests.

mod checks;
mod report;
#[cfg(test)]
mod tests;

use std::{error::Error as _, time::Duration};

use uuid::Uuid;

pub use report::{Check, Report, Verdict};

use crate::{
    env::IdGenerator,
    error::{Error, ErrorKind},
    keys::Key,
    store::{Fault, Store},
};

/// How long a probe takes at most, unless told otherwise.
pub const PROBE_DEADLINE: Duration = Duration::from_secs(30);
/// Time kept back for deleting what the probe put.
const CLEANING: Duration = Duration::from_secs(3);

/// Tries `store` out, in `deadline` at most. What was found until then stands.
pub async fn check_store(store: &Store, ids: &dyn IdGenerator, deadline: Duration) -> Report {
    let mut probe = Probe {
        store,
        ids,
        run: ids.uuid(),
        used: 0,
        checks: Vec::new(),
        fault: None,
    };
    let ended = tokio::time::timeout(deadline.saturating_sub(CLEANING), probe.run()).await;
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(Stop)) => probe.clean().await,
        Err(_) => {
            let detail = format!("no verdict within {deadline:?}: the store is too slow");
            probe.note("deadline", Verdict::Failed, detail);
            probe.clean().await;
        }
    }
    Report {
        store: store.name().to_owned(),
        checks: probe.checks,
        fault: probe.fault,
    }
}

/// Says that nothing more can be learned.
struct Stop;

struct Probe<'a> {
    store: &'a Store,
    ids: &'a dyn IdGenerator,
    run: Uuid,
    used: u32,
    checks: Vec<Check>,
    fault: Option<Fault>,
}

impl Probe<'_> {
    async fn run(&mut self) -> Result<(), Stop> {
        self.write().await?;
        self.read_after_write().await?;
        self.create_after_exists().await?;
        self.create_race().await?;
        self.checksums_and_ranges().await?;
        self.list_after_write().await;
        self.delete().await?;
        self.clock();
        self.bucket().await;
        Ok(())
    }

    fn note(&mut self, name: &'static str, verdict: Verdict, detail: impl Into<String>) {
        self.checks.push(Check {
            name,
            verdict,
            detail: detail.into(),
        });
    }

    /// Notes that the store breaks a promise.
    fn refuse(&mut self, name: &'static str, detail: impl Into<String>) -> Stop {
        self.note(name, Verdict::Unfit, detail);
        Stop
    }

    /// Notes that a check ended in an error, which may say nothing about the store.
    fn fail(&mut self, name: &'static str, error: &Error) -> Stop {
        self.fail_with(name, error, "")
    }

    fn fail_with(&mut self, name: &'static str, error: &Error, hint: &str) -> Stop {
        let mut detail = explain(error) + hint;
        if let Error::Store { fault, .. } = error {
            self.fault.get_or_insert_with(|| fault.clone());
            if *fault == Fault::ClockSkew {
                detail += &self.clock_difference();
            }
        }
        let verdict = match tells_of_store(error) {
            true => Verdict::Unfit,
            false => Verdict::Failed,
        };
        self.note(name, verdict, detail);
        Stop
    }

    fn clock_difference(&self) -> String {
        let Some(skew) = self.store.clock_skew_ms() else {
            return String::new();
        };
        format!(
            "; it differs from the store's by {} s",
            skew.unsigned_abs() / 1000
        )
    }

    fn fresh_key(&mut self) -> String {
        self.used += 1;
        self.key(self.used - 1)
    }

    fn key(&self, number: u32) -> String {
        Key::Probe {
            run: self.run,
            number,
        }
        .to_string()
    }

    fn keys(&self) -> Vec<String> {
        (0..self.used).map(|number| self.key(number)).collect()
    }

    async fn clean(&self) {
        let cleaned = tokio::time::timeout(CLEANING, self.store.delete(self.keys())).await;
        if !matches!(cleaned, Ok(Ok(()))) {
            tracing::info!(run = %self.run, "scratch objects of the probe were left behind");
        }
    }
}

/// Whether an error shows what the store is, and not only that it is away, busy, or that this agent
/// asks the wrong one or has no right to.
fn tells_of_store(error: &Error) -> bool {
    if let Error::Store {
        fault: Fault::NoSuchBucket | Fault::WrongRegion(_),
        ..
    } = error
    {
        return false;
    }
    !matches!(
        error.kind(),
        ErrorKind::Unavailable | ErrorKind::Forbidden | ErrorKind::Unknown
    )
}

/// What to tell about an error in one line: its causes only where no advice is known.
fn explain(error: &Error) -> String {
    let Error::Store { fault, source, .. } = error else {
        return error.to_string();
    };
    if fault.is_plain() {
        return fault.to_string();
    }
    let mut text = format!("{fault}: {source}");
    let mut cause = source.source();
    while let Some(deeper) = cause {
        text = format!("{text}: {deeper}");
        cause = deeper.source();
    }
    text.chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .take(400)
        .collect()
}
