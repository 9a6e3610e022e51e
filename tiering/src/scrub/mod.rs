//! Compares buckets with their manifests, and repairs what can be repaired. Needs only the bucket.
//!
//! - [`Scrubber::verify`] checks that every object a manifest names is there and whole.
//! - [`Scrubber::rebuild_index`] writes a manifest anew from the segments alone.
//! - [`Scrubber::plan_garbage`] says what could be deleted and why; [`Scrubber::delete_garbage`]
//!   does it.
//!
//! All may run beside live agents, except that a forced rebuild takes the partition away from its
//! leader: let its agent rest meanwhile, and start it again afterwards.

mod chain_choice;
mod command;
mod gc;
mod inventory;
mod rebuild;
mod report;
pub(crate) mod segment;
#[cfg(test)]
mod tests;
mod verify;

use std::{fmt, time::Duration};

pub use chain_choice::Candidate;
pub use command::{quoted, repair_command, verify_command};
pub use gc::{GarbageObject, GarbagePlan, Unjudged};
pub use rebuild::{RebuildOptions, RebuildReport, Refusal};
pub use report::{Anomaly, Damage, Progress, VerifyReport};
pub use verify::Depth;

use crate::{env::TaskSet, store::Store};

/// Requests side by side, unless told otherwise.
const CONCURRENCY: usize = 16;

/// Works on one bucket.
pub struct Scrubber {
    store: Store,
    tasks: TaskSet,
    concurrency: usize,
    patience: Duration,
    on_progress: Box<dyn Fn(&Progress) + Send + Sync>,
}

impl Scrubber {
    /// Prepares to work on a bucket. Asks it nothing.
    pub fn new(store: Store, tasks: TaskSet) -> Self {
        Self {
            store,
            tasks,
            concurrency: CONCURRENCY,
            patience: Duration::ZERO,
            on_progress: Box::new(|_| {}),
        }
    }

    /// Sets how many requests are made side by side.
    #[must_use]
    pub fn with_concurrency(self, concurrency: usize) -> Self {
        Self {
            concurrency: concurrency.max(1),
            ..self
        }
    }

    /// Sets how long a verification waits for a running agent to commit what it has uploaded, before
    /// it reports it.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Has every step forward reported.
    #[must_use]
    pub fn with_progress(self, on_progress: impl Fn(&Progress) + Send + Sync + 'static) -> Self {
        Self {
            on_progress: Box::new(on_progress),
            ..self
        }
    }

    fn report(&self, progress: &Progress) {
        (self.on_progress)(progress);
    }
}

impl fmt::Debug for Scrubber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrubber")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}
