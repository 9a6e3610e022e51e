//! What the agent's services share.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use esker_tiering::{
    env::{Clock, TaskSet},
    reader::Reader,
    store::Store,
};

use tonic_health::server::HealthReporter;

use crate::{
    config::Settings, control::Controller, health::Health, limits::Limits, log,
    memory::MemoryBudget, registry::Registry, topics::Topics,
};

/// The running agent, as its services see it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) store: Store,
    pub(crate) reader: Reader,
    pub(crate) controller: Arc<Controller>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) topics: Topics,
    pub(crate) limits: Arc<Limits>,
    pub(crate) produce_memory: MemoryBudget,
    /// Room for requests of other kinds that are being received.
    pub(crate) request_memory: MemoryBudget,
    /// Room for the records of compressed batches that are being checked.
    pub(crate) check_memory: MemoryBudget,
    pub(crate) health: Health,
    pub(crate) grpc_health: HealthReporter,
    pub(crate) tasks: TaskSet,
    /// Where the next keyless plain record goes.
    pub(crate) round_robin: AtomicU32,
}

impl Shared {
    /// Writes down how far the logs are flushed. Blocks.
    pub(crate) fn write_checkpoint(&self, is_final: bool) -> Result<(), log::Error> {
        let checkpoint = &self.topics.opening.checkpoint;
        checkpoint.advance(self.registry.flushed(), is_final)
    }

    /// Returns the partition whose turn it is.
    pub(crate) fn next_partition(&self, partition_count: u32) -> u32 {
        self.round_robin.fetch_add(1, Ordering::Relaxed) % partition_count.max(1)
    }
}
