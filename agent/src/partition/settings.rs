//! A partition's settings: what its topic was told, over the agent's defaults.

use std::time::Duration;

use esker_index::retention::RetentionPolicy;
use esker_proto::topic_limits;

use super::timestamps::TimestampPolicy;
use crate::{config::Settings, control::TopicConfig};

/// The settings in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionSettings {
    /// What is removed from the bucket.
    pub retention: RetentionPolicy,
    /// Tiered bytes also kept on local disk.
    pub local_retention_bytes: u64,
    /// Size at which a segment is sealed.
    pub segment_bytes: u64,
    /// Age at which a segment is sealed.
    pub segment_age: Duration,
    /// Largest batch accepted.
    pub batch_bytes_max: u32,
    /// What times its records may carry.
    pub timestamps: TimestampPolicy,
    /// Whether the records of compressed batches are checked.
    pub is_compressed_checked: bool,
}

impl PartitionSettings {
    /// Lays a topic's settings over the agent's.
    pub fn resolve(defaults: &Settings, config: &TopicConfig) -> Self {
        let limit = |own: Option<i64>, default: Option<u64>| match own {
            Some(own) => u64::try_from(own).ok(),
            None => default,
        };
        let default_age = defaults.retention.map(crate::config::Millis::get);
        let default_size = defaults.retention_bytes.map(crate::config::ByteCount::get);
        let default_before = defaults
            .timestamp_before_max
            .map(crate::config::Millis::get);
        let default_after = defaults.timestamp_after_max.map(crate::config::Millis::get);
        let own_age = config.segment_ms.map(Duration::from_millis);
        let default_batch = u32::try_from(defaults.batch_bytes_max.get()).unwrap_or(u32::MAX);
        let own_age = own_age.unwrap_or_else(|| defaults.segment_age.duration());
        let retention = RetentionPolicy {
            age_ms: limit(config.retention_ms, default_age),
            size_bytes: limit(config.retention_bytes, default_size),
        };
        Self {
            retention,
            local_retention_bytes: config
                .local_retention_bytes
                .unwrap_or_else(|| defaults.local_retention_bytes.get()),
            segment_bytes: config
                .segment_bytes
                .unwrap_or_else(|| defaults.segment_bytes.get()),
            segment_age: sealed_within_retention(own_age, retention),
            batch_bytes_max: config.batch_bytes_max.unwrap_or(default_batch),
            timestamps: TimestampPolicy {
                kind: config.timestamps.unwrap_or(defaults.timestamps),
                before_max_ms: limit(config.timestamp_before_max_ms, default_before),
                after_max_ms: limit(config.timestamp_after_max_ms, default_after),
            },
            is_compressed_checked: config.check_compressed.unwrap_or(defaults.check_compressed),
        }
    }
}

/// A segment is sealed after the retention time at the latest, or an idle partition would keep records
/// for as long as its segments may grow.
fn sealed_within_retention(age: Duration, retention: RetentionPolicy) -> Duration {
    let retention = retention.age_ms.map(Duration::from_millis);
    let least = Duration::from_millis(topic_limits::SEGMENT_MS.least);
    retention.map_or(age, |retention| age.min(retention.max(least)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_sealed_no_later_than_retention_asks() {
        let age = Duration::from_secs(600);
        let sealed = |age_ms| {
            let retention = RetentionPolicy {
                age_ms,
                size_bytes: None,
            };
            sealed_within_retention(age, retention)
        };
        assert_eq!(sealed(None), age);
        assert_eq!(sealed(Some(700_000)), age);
        assert_eq!(sealed(Some(60_000)), Duration::from_secs(60));
        assert_eq!(sealed(Some(1)), Duration::from_millis(100));
    }
}
