//! The agent's own metrics. Uploads, the store's requests and the reader's cache count in
//! `esker-tiering`.
//!
//! | name | type | labels | meaning |
//! |---|---|---|---|
//! | `esker_agent_produced_batches_total` | counter | | batches appended |
//! | `esker_agent_produced_records_total` | counter | | records appended |
//! | `esker_agent_produced_bytes_total` | counter | | bytes of batches appended |
//! | `esker_agent_produce_duplicates_total` | counter | | batches that were in the log already |
//! | `esker_agent_produce_refused_total` | counter | | batches refused, for any reason |
//! | `esker_agent_fetched_bytes_total` | counter | `source` | bytes sent to consumers from `tail` or `bucket` |
//! | `esker_agent_unuploaded_bytes` | gauge | | local bytes that are not in the bucket: the bytes at risk with one replica; without those of partitions that are offline |
//! | `esker_agent_disk_free_bytes` | gauge | | free on the volume of the logs |
//! | `esker_agent_retention_clock_lag_seconds` | gauge | | how far the time of retention is behind the later of this machine's clock and the store's; above 300 a clock jumped, or the two disagree |
//! | `esker_agent_produce_memory_bytes` | gauge | | messages of producers that are being received or are not yet on the disk |
//! | `esker_agent_high_watermark` | gauge | `topic`, `partition` | |
//! | `esker_agent_log_end_offset` | gauge | `topic`, `partition` | |
//! | `esker_agent_log_start_offset` | gauge | `topic`, `partition` | |
//! | `esker_agent_tiered_offset` | gauge | `topic`, `partition` | |
//! | `esker_agent_partition_unuploaded_bytes` | gauge | `topic`, `partition` | |
//! | `esker_agent_partition_offline` | gauge | `topic`, `partition` | 1 if it takes no batches |
//!
//! The gauges of partitions stop at [`PARTITION_GAUGES_MAX`] partitions, so that a large agent does
//! not drown its monitoring.

use prometheus::{
    Error, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry as Metrics,
};

use crate::{
    limits::Limits, memory::MemoryBudget, partition::PartitionHandle, partition::Source,
    registry::Registry,
};

/// Partitions that get gauges of their own.
const PARTITION_GAUGES_MAX: usize = 1000;

fn register<C: prometheus::core::Collector + Clone + 'static>(
    metrics: &Metrics,
    collector: Result<C, Error>,
) -> Result<C, Error> {
    let collector = collector?;
    metrics.register(Box::new(collector.clone()))?;
    Ok(collector)
}

fn counter(metrics: &Metrics, name: &str, help: &str) -> Result<IntCounter, Error> {
    register(metrics, IntCounter::new(name, help))
}

/// What producing and fetching count.
#[derive(Clone, Debug)]
pub(crate) struct TrafficMetrics {
    batches: IntCounter,
    records: IntCounter,
    bytes: IntCounter,
    duplicates: IntCounter,
    refused: IntCounter,
    fetched: IntCounterVec,
}

impl TrafficMetrics {
    /// Registers the counters.
    ///
    /// # Errors
    ///
    /// If their names are taken in this registry.
    pub(crate) fn register(metrics: &Metrics) -> Result<Self, Error> {
        let fetched = Opts::new("esker_agent_fetched_bytes_total", "bytes sent to consumers");
        Ok(Self {
            batches: counter(
                metrics,
                "esker_agent_produced_batches_total",
                "batches appended",
            )?,
            records: counter(
                metrics,
                "esker_agent_produced_records_total",
                "records appended",
            )?,
            bytes: counter(
                metrics,
                "esker_agent_produced_bytes_total",
                "bytes appended",
            )?,
            duplicates: counter(
                metrics,
                "esker_agent_produce_duplicates_total",
                "batches that were in the log already",
            )?,
            refused: counter(
                metrics,
                "esker_agent_produce_refused_total",
                "batches refused",
            )?,
            fetched: register(metrics, IntCounterVec::new(fetched, &["source"]))?,
        })
    }

    pub(crate) fn note_append(&self, records: u32, bytes: u32) {
        self.batches.inc();
        self.records.inc_by(records.into());
        self.bytes.inc_by(bytes.into());
    }

    pub(crate) fn note_duplicate(&self) {
        self.duplicates.inc();
    }

    pub(crate) fn note_refused(&self) {
        self.refused.inc();
    }

    pub(crate) fn note_fetch(&self, source: Source, bytes: u32) {
        let label = match source {
            Source::Tail => "tail",
            Source::Bucket => "bucket",
        };
        self.fetched
            .with_label_values(&[label])
            .inc_by(bytes.into());
    }
}

/// What a gauge shows of a partition.
type Reading = fn(&PartitionHandle) -> u64;

/// Gauges that are read off the agent when somebody looks.
#[derive(Clone, Debug)]
pub(crate) struct Gauges {
    unuploaded: IntGauge,
    disk_free: IntGauge,
    produce_memory: IntGauge,
    partitions: [(IntGaugeVec, Reading); 6],
}

impl Gauges {
    /// Registers the gauges.
    pub(crate) fn register(metrics: &Metrics) -> Result<Self, Error> {
        let gauge = |name: &str, help: &str| register(metrics, IntGauge::new(name, help));
        let of_partition = |name: &str, read: Reading| {
            let opts = Opts::new(name, "of one partition");
            register(metrics, IntGaugeVec::new(opts, &["topic", "partition"]))
                .map(|gauge| (gauge, read))
        };
        Ok(Self {
            unuploaded: gauge(
                "esker_agent_unuploaded_bytes",
                "local bytes not in the bucket",
            )?,
            disk_free: gauge(
                "esker_agent_disk_free_bytes",
                "free on the volume of the logs",
            )?,
            produce_memory: gauge(
                "esker_agent_produce_memory_bytes",
                "bytes of producers' messages that are being received or are not yet on the disk",
            )?,
            partitions: [
                of_partition("esker_agent_high_watermark", |p| {
                    p.view().high_watermark.get()
                })?,
                of_partition("esker_agent_log_end_offset", |p| {
                    p.view().log_end_offset.get()
                })?,
                of_partition("esker_agent_log_start_offset", |p| {
                    p.manifest().log_start_offset().get()
                })?,
                of_partition("esker_agent_tiered_offset", |p| {
                    p.manifest().tiered_offset().get()
                })?,
                of_partition("esker_agent_partition_unuploaded_bytes", |p| {
                    p.view().unuploaded_bytes
                })?,
                of_partition("esker_agent_partition_offline", |p| {
                    u64::from(p.view().offline.is_some())
                })?,
            ],
        })
    }

    /// Reads the agent.
    pub(crate) fn refresh(&self, registry: &Registry, limits: &Limits, memory: &MemoryBudget) {
        self.unuploaded.set(signed(limits.unuploaded_bytes()));
        self.disk_free.set(signed(limits.free_bytes()));
        self.produce_memory.set(signed(memory.in_use()));
        let topics = registry.topics();
        let partitions = topics.iter().flat_map(|topic| {
            topic
                .partitions()
                .into_iter()
                .map(|partition| (topic.name.as_str(), partition))
        });
        self.partitions.iter().for_each(|(gauge, _)| gauge.reset());
        for (topic, partition) in partitions.take(PARTITION_GAUGES_MAX) {
            let number = partition.topic_partition().partition.to_string();
            for (gauge, read) in &self.partitions {
                gauge
                    .with_label_values(&[topic, number.as_str()])
                    .set(signed(read(&partition)));
            }
        }
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
