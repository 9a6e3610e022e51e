//! What the cold-read path counts.
//!
//! | metric | labels | meaning |
//! | --- | --- | --- |
//! | `esker_tiering_chunk_hits_total` | `tier`: `memory`, `disk` | chunks a reader needed that a cache had |
//! | `esker_tiering_chunk_misses_total` | | chunks a reader needed that had to be fetched |
//! | `esker_tiering_fetched_bytes_total` | | chunk bytes fetched from the store |
//! | `esker_tiering_prefetched_bytes_total` | | of these, fetched ahead of need |
//! | `esker_tiering_prefetch_wasted_bytes_total` | | of these, evicted before anybody read them |
//! | `esker_tiering_in_flight_bytes` | | bytes of the fetches under way |
//! | `esker_tiering_chunk_memory_bytes` | | the budget in use by the bucket: in flight, cached and pinned |
//! | `esker_tiering_tail_memory_bytes` | | the budget in use by reads of the local log |
//! | `esker_tiering_read_memory_short_total` | | reads refused because the budget was taken |
//! | `esker_tiering_corrupt_chunks_total` | | fetches whose bytes did not hold |
//! | `esker_tiering_page_misses_total` | | index pages fetched and decoded |
//! | `esker_tiering_cold_readers` | | cursors that are reading from the bucket |

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry, core::Collector};

use crate::error::Error;

#[derive(Clone, Debug)]
pub(super) struct Metrics {
    pub(super) memory_hits: IntCounter,
    pub(super) disk_hits: IntCounter,
    pub(super) misses: IntCounter,
    pub(super) fetched_bytes: IntCounter,
    pub(super) prefetched_bytes: IntCounter,
    pub(super) wasted_bytes: IntCounter,
    pub(super) in_flight_bytes: IntGauge,
    pub(super) memory_bytes: IntGauge,
    pub(super) tail_bytes: IntGauge,
    pub(super) shortages: IntCounter,
    pub(super) corrupt: IntCounter,
    pub(super) page_misses: IntCounter,
    pub(super) cold_readers: IntGauge,
}

impl Metrics {
    /// # Errors
    ///
    /// If the registry has a reader's metrics already.
    pub(super) fn register(registry: &Registry) -> Result<Self, Error> {
        let hits = Opts::new(
            "esker_tiering_chunk_hits_total",
            "chunks served from a cache",
        );
        let hits = IntCounterVec::new(hits, &["tier"]).expect("a legal name");
        let hits = registered(registry, hits)?;
        Ok(Self {
            memory_hits: hits.with_label_values(&["memory"]),
            disk_hits: hits.with_label_values(&["disk"]),
            misses: counter(
                registry,
                "chunk_misses_total",
                "chunks that had to be fetched",
            )?,
            fetched_bytes: counter(registry, "fetched_bytes_total", "chunk bytes fetched")?,
            prefetched_bytes: counter(registry, "prefetched_bytes_total", "bytes fetched ahead")?,
            wasted_bytes: counter(
                registry,
                "prefetch_wasted_bytes_total",
                "bytes fetched ahead and never read",
            )?,
            in_flight_bytes: gauge(registry, "in_flight_bytes", "bytes of fetches under way")?,
            memory_bytes: gauge(registry, "chunk_memory_bytes", "bytes of chunks in memory")?,
            tail_bytes: gauge(
                registry,
                "tail_memory_bytes",
                "bytes of the local log in memory",
            )?,
            shortages: counter(
                registry,
                "read_memory_short_total",
                "reads refused because their memory was taken",
            )?,
            corrupt: counter(
                registry,
                "corrupt_chunks_total",
                "fetches whose bytes did not hold",
            )?,
            page_misses: counter(registry, "page_misses_total", "index pages fetched")?,
            cold_readers: gauge(registry, "cold_readers", "cursors reading from the bucket")?,
        })
    }
}

/// Counts a cursor for as long as it lives.
#[derive(Debug)]
pub(super) struct Active(IntGauge);

impl Active {
    pub(super) fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Counts bytes under way for as long as it lives.
#[derive(Debug)]
pub(super) struct InFlight(IntGauge, i64);

impl InFlight {
    pub(super) fn new(gauge: &IntGauge, bytes: u64) -> Self {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        gauge.add(bytes);
        Self(gauge.clone(), bytes)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.sub(self.1);
    }
}

fn counter(registry: &Registry, name: &str, help: &str) -> Result<IntCounter, Error> {
    let counter = IntCounter::new(format!("esker_tiering_{name}"), help).expect("a legal name");
    registered(registry, counter)
}

fn gauge(registry: &Registry, name: &str, help: &str) -> Result<IntGauge, Error> {
    let gauge = IntGauge::new(format!("esker_tiering_{name}"), help).expect("a legal name");
    registered(registry, gauge)
}

fn registered<C>(registry: &Registry, collector: C) -> Result<C, Error>
where
    C: Collector + Clone + 'static,
{
    let boxed = Box::new(collector.clone());
    registry.register(boxed).map_err(|_| Error::MetricsTaken)?;
    Ok(collector)
}
