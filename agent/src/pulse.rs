//! Whether everything that owns state still answers. This is what the watchdog of a service manager
//! is told, so it has to mean something: a process that merely exists is not alive.
//!
//! Asked are the runtime's own threads, those that read files, the pool that flushes logs, and each
//! partition's task. A task that panicked is no question here: the process aborts on it.
//!
//! The owner of the metadata log is not asked. It waits for the bucket while it writes, and a bucket
//! that is away must not end an agent that has the only copy of something.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use tokio::time::timeout;

use crate::{
    config::ByteCount,
    health::{Health, Phase},
    shared::Shared,
};

/// Asks the owners of an agent's state. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Pulse(Arc<Shared>);

impl Pulse {
    pub(crate) const fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// Asks everybody. Returns who did not answer within `patience`.
    pub(crate) async fn silent(&self, patience: Duration) -> Option<&'static str> {
        let shared = Arc::clone(&self.0);
        // On a thread of the runtime, which the caller's need not be.
        let asked = self.0.tasks.spawn("pulse", async move {
            let (blocking, flushing, partitions) = tokio::join!(
                timeout(patience, shared.tasks.spawn_blocking(|| ())),
                timeout(patience, shared.topics.opening.flush_pool.pulse()),
                timeout(patience, partitions(&shared)),
            );
            [
                ("threads that read files", blocking.is_err()),
                ("threads that flush logs", flushing.is_err()),
                ("tasks that own partitions", partitions.is_err()),
            ]
        });
        let Ok(Ok(asked)) = timeout(patience.saturating_mul(2), asked).await else {
            return Some("threads of the runtime");
        };
        let silent = asked.into_iter().find(|(_, is_silent)| *is_silent);
        silent.map(|(who, _)| who)
    }

    /// Returns the local bytes that are not in the bucket.
    pub(crate) fn unuploaded_bytes(&self) -> u64 {
        self.0.limits.unuploaded_bytes()
    }

    /// Returns how far the agent has come.
    pub(crate) fn health(&self) -> &Health {
        &self.0.health
    }

    /// Says in one line how the agent is.
    pub(crate) fn status(&self) -> String {
        let phase = self.0.health.phase();
        let left = ByteCount::new(self.unuploaded_bytes());
        match phase {
            Phase::Starting | Phase::Fenced => phase.as_str().to_owned(),
            Phase::Draining => format!("draining: {left} not in the bucket yet"),
            Phase::Serving => {
                let topics = self.0.registry.topics();
                let partitions: usize = topics.iter().map(|topic| topic.partitions().len()).sum();
                format!(
                    "serving: topics {}, partitions {partitions}, not in the bucket yet {left}",
                    topics.len()
                )
            }
        }
    }
}

async fn partitions(shared: &Shared) {
    let topics = shared.registry.topics();
    let partitions: Vec<_> = topics.iter().flat_map(|topic| topic.partitions()).collect();
    join_all(partitions.iter().map(|partition| partition.pulse())).await;
}
