//! Brings chunks into memory: from the memory tier, from disk, or from the store.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use esker_proto::{batch::crc32c, types::TopicPartition};
use tokio::time::Instant;

use super::{
    budget::{Budget, Charge, Counts, Limits, Side},
    chunk::{Chunk, Flaw, FlawReason, Origin, check},
    disk::DiskCache,
    flights::{Boarding, Failure, Flights, Ticket},
    memory::MemoryCache,
    metrics::{InFlight, Metrics},
    plan::{ChunkId, ChunkPlan},
};
use crate::{
    env::TaskSet,
    error::{Error, ErrorKind},
    keys::Key,
    store::{Fault, Store},
};

/// Bytes that fail their check are fetched again: they may have been damaged on their way. The same
/// wrong bytes twice are the object's own.
const FETCHES_MAX: usize = 4;

/// What a fetcher is made of.
#[derive(Debug)]
pub(super) struct FetcherParts {
    pub(super) store: Store,
    pub(super) disk: Option<DiskCache>,
    pub(super) cache_bytes: u64,
    pub(super) limits: Limits,
    pub(super) deadline: Duration,
    pub(super) metrics: Metrics,
    pub(super) tasks: TaskSet,
}

/// The chunks of one agent.
#[derive(Debug)]
pub(super) struct Fetcher {
    store: Store,
    memory: MemoryCache,
    disk: Option<DiskCache>,
    flights: Flights<ChunkId, Arc<Chunk>, Error>,
    budget: Budget,
    metrics: Metrics,
    deadline: Duration,
}

/// How a chunk is had.
pub(super) enum Request {
    Ready(Arc<Chunk>),
    Pending(Pending),
}

/// A chunk that is on its way.
pub(super) struct Pending {
    ticket: Ticket<Arc<Chunk>, Error>,
    /// Whether nobody had asked for it before.
    pub(super) is_first: bool,
    key: Key,
    deadline: Duration,
}

impl Fetcher {
    pub(super) fn new(parts: FetcherParts) -> Self {
        let counts = Counts {
            held_bytes: parts.metrics.memory_bytes.clone(),
            tail_bytes: parts.metrics.tail_bytes.clone(),
            shortages: parts.metrics.shortages.clone(),
        };
        let budget = Budget::new(parts.limits, counts);
        Self {
            store: parts.store,
            memory: MemoryCache::new(parts.cache_bytes),
            disk: parts.disk,
            flights: Flights::new(parts.tasks, parts.deadline),
            budget,
            metrics: parts.metrics,
            deadline: parts.deadline,
        }
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(super) fn budget(&self) -> &Budget {
        &self.budget
    }

    #[cfg(test)]
    pub(super) fn is_busy(&self) -> bool {
        self.flights.is_busy()
    }

    #[cfg(test)]
    pub(super) fn memory(&self) -> &MemoryCache {
        &self.memory
    }

    pub(super) async fn close(&self) {
        if let Some(disk) = &self.disk {
            disk.close().await;
        }
    }

    /// Whether a chunk is here, on its way, or probably on disk.
    pub(super) fn has(&self, id: &ChunkId) -> bool {
        self.memory.contains(id)
            || self.flights.contains(id)
            || self.disk.as_ref().is_some_and(|disk| disk.may_contain(id))
    }

    /// How long a demand waits for memory: what is left of the deadline is for the store.
    pub(super) fn patience(&self) -> Duration {
        self.deadline / 2
    }

    /// Asks for a chunk that a reader needs now.
    pub(super) fn demand(self: &Arc<Self>, tp: TopicPartition, plan: &ChunkPlan) -> Request {
        let key = Key::Segment(tp, plan.segment);
        let pending = |ticket, is_first| {
            Request::Pending(Pending {
                ticket,
                is_first,
                key,
                deadline: self.deadline,
            })
        };
        if let Some(chunk) = self.cached(&plan.id) {
            return Request::Ready(chunk);
        }
        let load = || self.clone().load(key, plan.clone(), None);
        match self.flights.board(plan.id, || self.cached(&plan.id), load) {
            Boarding::Landed(chunk) => Request::Ready(chunk),
            Boarding::Joined(ticket) => pending(ticket, false),
            Boarding::Started(ticket) => pending(ticket, true),
        }
    }

    /// Starts to fetch a chunk that a reader will need soon, unless it is there, or on its way.
    /// Returns whether the budget allowed it.
    pub(super) fn prefetch(self: &Arc<Self>, tp: TopicPartition, plan: &ChunkPlan) -> bool {
        if self.memory.contains(&plan.id) || self.flights.contains(&plan.id) {
            return true;
        }
        let Some(charge) = self.speculate(u64::from(plan.id.length)) else {
            return false;
        };
        let key = Key::Segment(tp, plan.segment);
        let load = || self.clone().load(key, plan.clone(), Some(charge));
        // The ticket is dropped: the chunk waits in the memory tier.
        drop(
            self.flights
                .board(plan.id, || self.memory.get(&plan.id), load),
        );
        true
    }

    fn speculate(&self, bytes: u64) -> Option<Charge> {
        self.budget.try_speculate(bytes).or_else(|| {
            self.budget.holds().release_idle();
            self.budget.try_speculate(bytes)
        })
    }

    fn cached(&self, id: &ChunkId) -> Option<Arc<Chunk>> {
        let chunk = self.memory.get(id)?;
        self.metrics.memory_hits.inc();
        Some(chunk)
    }

    async fn load(
        self: Arc<Self>,
        key: Key,
        plan: ChunkPlan,
        charge: Option<Charge>,
    ) -> Result<Arc<Chunk>, Error> {
        let is_speculative = charge.is_some();
        let charge = match charge {
            Some(charge) => charge,
            None => self.charge(u64::from(plan.id.length)).await?,
        };
        let start = Instant::now();
        let from_disk = self.load_from_disk(&plan).await;
        let is_from_disk = from_disk.is_some();
        let bytes = match from_disk {
            Some(bytes) => bytes,
            None => self.fetch(key, &plan, is_speculative).await?,
        };
        let origin = Origin {
            is_speculative,
            took: start.elapsed(),
        };
        let wasted_bytes = self.metrics.wasted_bytes.clone();
        let chunk = Arc::new(Chunk::new(bytes, charge, origin, wasted_bytes));
        self.memory.insert(plan.id, chunk.clone());
        if let Some(disk) = self.disk.as_ref().filter(|_| !is_from_disk) {
            disk.offer(plan.id, chunk.clone());
        }
        Ok(chunk)
    }

    /// Takes its turn.
    async fn charge(&self, bytes: u64) -> Result<Charge, Error> {
        if let Some(charge) = self.budget.try_demand(Side::Bucket, bytes) {
            return Ok(charge);
        }
        if !self.budget.has_spare(bytes) {
            self.memory.clear();
        }
        let patience = self.patience();
        self.budget.demand(Side::Bucket, bytes, patience).await
    }

    async fn load_from_disk(&self, plan: &ChunkPlan) -> Option<Bytes> {
        let disk = self.disk.as_ref()?;
        let bytes = disk.load(&plan.id).await?;
        if let Err(flaw) = check(plan, &bytes) {
            tracing::warn!(position = %flaw.position, reason = %flaw.reason, "chunk on disk is rotten");
            disk.forget(&plan.id);
            return None;
        }
        self.metrics.disk_hits.inc();
        Some(bytes)
    }

    async fn fetch(
        &self,
        key: Key,
        plan: &ChunkPlan,
        is_speculative: bool,
    ) -> Result<Bytes, Error> {
        if !is_speculative {
            self.metrics.misses.inc();
        }
        let _in_flight = InFlight::new(&self.metrics.in_flight_bytes, u64::from(plan.id.length));
        let key = key.to_string();
        let mut seen = Vec::with_capacity(FETCHES_MAX);
        loop {
            let bytes = self.fetch_once(&key, plan, is_speculative).await?;
            let Err(flaw) = check(plan, &bytes) else {
                return Ok(bytes);
            };
            self.metrics.corrupt.inc();
            let error = corrupt(&key, &flaw);
            let digest = (bytes.len(), crc32c(&bytes));
            if seen.contains(&digest) {
                return Err(error);
            }
            seen.push(digest);
            if seen.len() == FETCHES_MAX {
                let reason = flaw.reason.to_string();
                return Err(Error::DamagedOnTheWay { key, reason });
            }
            tracing::info!(%error, "checksum failed, fetching again");
        }
    }

    async fn fetch_once(
        &self,
        key: &str,
        plan: &ChunkPlan,
        is_speculative: bool,
    ) -> Result<Bytes, Error> {
        let bytes = match self.store.get_range(key, plan.range()).await {
            Ok(bytes) => bytes,
            Err(error) => return Err(self.explain(key, plan, error).await),
        };
        self.metrics.fetched_bytes.inc_by(bytes.len() as u64);
        if is_speculative {
            self.metrics.prefetched_bytes.inc_by(bytes.len() as u64);
        }
        Ok(bytes)
    }

    /// A range past the end of an object is refused in as many ways as there are stores, so the
    /// object's size tells whether that was it.
    async fn explain(&self, key: &str, plan: &ChunkPlan, error: Error) -> Error {
        let may_be_short = match &error {
            Error::Store {
                fault: Fault::Other | Fault::Disk(_),
                ..
            } => true,
            error => error.kind() == ErrorKind::Invalid,
        };
        if !may_be_short {
            return error;
        }
        let Ok(object) = self.store.head(key).await else {
            return error;
        };
        if object.size_bytes >= plan.range().end {
            return error;
        }
        let expected_bytes = plan.range().end;
        let reason = FlawReason::Truncated {
            expected_bytes,
            actual_bytes: object.size_bytes,
        };
        corrupt(
            key,
            &Flaw {
                position: plan.id.position,
                reason,
            },
        )
    }
}

impl Pending {
    /// Waits for the chunk. Cancel safe: the fetch goes on, for whoever asks next.
    pub(super) async fn arrived(self) -> Result<Arc<Chunk>, Error> {
        let Self {
            ticket,
            key,
            deadline,
            ..
        } = self;
        ticket
            .landed()
            .await
            .map_err(|failure| failure.into_error("read", key, deadline))
    }
}

impl Failure<Error> {
    pub(super) fn into_error(self, operation: &'static str, key: Key, waited: Duration) -> Error {
        match self {
            Self::Failed(error) => error,
            Self::TimedOut => Error::Timeout {
                operation,
                key: key.to_string(),
                waited,
            },
            Self::Gone => Error::Cancelled { operation },
        }
    }
}

fn corrupt(key: &str, flaw: &Flaw) -> Error {
    Error::corrupt(
        key,
        format!("{} at position {}", flaw.reason, flaw.position),
    )
}
