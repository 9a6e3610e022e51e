//! What archives count.
//!
//! | metric | labels | says |
//! | --- | --- | --- |
//! | `esker_tiering_upload_bytes_total` | | bytes of segments that were put and confirmed |
//! | `esker_tiering_upload_duration_seconds` | | from reading a segment to the confirmed put |
//! | `esker_tiering_upload_failures_total` | | uploads that ended in an error, cancelled ones included |
//! | `esker_tiering_commits_total` | `outcome` | manifest commits: `won`, `lost`, `unknown` |
//! | `esker_tiering_deleted_objects_total` | `reason` | garbage deleted, by why it was garbage |

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry};

use super::plan::Reason;
use crate::error::Error;

/// Counts of all archives of a process. Cheap to clone; all clones count together.
#[derive(Clone, Debug)]
pub struct ArchiveMetrics {
    pub(super) upload_bytes: IntCounter,
    pub(super) upload_duration: Histogram,
    pub(super) upload_failures: IntCounter,
    commits: IntCounterVec,
    deleted_objects: IntCounterVec,
}

impl ArchiveMetrics {
    /// Starts counting into `registry`.
    ///
    /// # Errors
    ///
    /// When they are registered already.
    pub fn register(registry: &Registry) -> Result<Self, Error> {
        Self::try_register(registry).map_err(|_| Error::MetricsTaken)
    }

    /// Counts that nobody reads, for tools and tests.
    pub fn detached() -> Self {
        Self::try_register(&Registry::new()).expect("a fresh registry holds no metric")
    }

    fn try_register(registry: &Registry) -> prometheus::Result<Self> {
        let duration = HistogramOpts::new(
            "esker_tiering_upload_duration_seconds",
            "From reading a segment to its confirmed put",
        )
        .buckets(vec![0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]);
        let metrics = Self {
            upload_bytes: IntCounter::new(
                "esker_tiering_upload_bytes_total",
                "Bytes of segments put and confirmed",
            )?,
            upload_duration: Histogram::with_opts(duration)?,
            upload_failures: IntCounter::new(
                "esker_tiering_upload_failures_total",
                "Uploads that ended in an error",
            )?,
            commits: IntCounterVec::new(
                Opts::new("esker_tiering_commits_total", "Manifest commits by outcome"),
                &["outcome"],
            )?,
            deleted_objects: IntCounterVec::new(
                Opts::new(
                    "esker_tiering_deleted_objects_total",
                    "Garbage deleted, by reason",
                ),
                &["reason"],
            )?,
        };
        registry.register(Box::new(metrics.upload_bytes.clone()))?;
        registry.register(Box::new(metrics.upload_duration.clone()))?;
        registry.register(Box::new(metrics.upload_failures.clone()))?;
        registry.register(Box::new(metrics.commits.clone()))?;
        registry.register(Box::new(metrics.deleted_objects.clone()))?;
        Ok(metrics)
    }

    pub(super) fn committed(&self, outcome: &str) {
        self.commits.with_label_values(&[outcome]).inc();
    }

    pub(super) fn deleted(&self, reason: Reason, objects: u64) {
        self.deleted_objects
            .with_label_values(&[reason.name()])
            .inc_by(objects);
    }
}
