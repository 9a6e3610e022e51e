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

use crate::{env::IdGenerator, error::Error, keys::Key, store::Store};

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
    };
    let ended = tokio::time::timeout(deadline.saturating_sub(CLEANING), probe.run()).await;
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(Stop)) => probe.clean().await,
        Err(_) => {
            let detail = format!("no verdict within {deadline:?}: the store is too slow");
            probe.note("deadline", Verdict::Unfit, detail);
            probe.clean().await;
        }
    }
    Report {
        store: store.name().to_owned(),
        checks: probe.checks,
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

    /// Notes that the store cannot be used, and why.
    fn refuse(&mut self, name: &'static str, detail: impl Into<String>) -> Stop {
        self.note(name, Verdict::Unfit, detail);
        Stop
    }

    fn refuse_for(&mut self, name: &'static str, error: &Error) -> Stop {
        self.refuse(name, explain(error))
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
