//! Settings of a producer.

use std::time::Duration;

use esker_proto::{batch::Compression, v1};

use super::partitioner::Partitioner;
use crate::error::{Error, Result};

/// Batches of one producer that agents remember per partition, to tell a repeated one.
const IN_FLIGHT_MAX: usize = 5;

/// When a record counts as delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Acks {
    /// Durable at the partition's leader.
    Leader,
    /// Durable at every in-sync replica, and at least `min_in_sync` of them.
    #[default]
    All,
}

impl From<Acks> for v1::Acks {
    fn from(acks: Acks) -> Self {
        match acks {
            Acks::Leader => Self::Leader,
            Acks::All => Self::All,
        }
    }
}

/// Settings of a [`Producer`](super::Producer).
///
/// Change some and take the rest from the default:
///
/// ```
/// use std::time::Duration;
/// use esker_client::{Compression, ProducerConfig};
///
/// let config = ProducerConfig {
///     linger: Duration::from_millis(20),
///     compression: Compression::Zstd,
///     ..ProducerConfig::default()
/// };
/// ```
#[derive(Clone, Debug)]
pub struct ProducerConfig {
    /// When a record counts as delivered. Default: [`Acks::All`].
    pub acks: Acks,
    /// How long a batch waits for more records. With zero it waits only while earlier ones of its
    /// partition fill the in-flight window. Default: 5 ms.
    pub linger: Duration,
    /// A batch is sent once it has this size, uncompressed. The topic's own limit, if lower, is
    /// kept too. Default: 512 KiB.
    pub batch_bytes: usize,
    /// How batches are compressed. Default: not at all.
    pub compression: Compression,
    /// Whether agents tell a batch sent again from a new one. Without it records may be doubled
    /// when a connection breaks, and one batch per partition is in flight at a time, so that at
    /// least the order is kept. Default: true.
    pub idempotent: bool,
    /// Batches of one partition under way at a time: 1 to 5. Default: 5.
    pub in_flight_max: usize,
    /// Bytes of records that may wait, for more of their batch or for their acknowledgement; then
    /// [`Producer::send`](super::Producer::send) waits. Default: 64 MiB.
    pub buffer_bytes: usize,
    /// How long a record may take from [`Producer::send`](super::Producer::send) to its
    /// acknowledgement, all tries included; then it fails. Also how long a send waits for room.
    /// Default: 2 minutes.
    pub delivery_timeout: Duration,
    /// Which partition a record goes to that names none. Default: [`Partitioner::Key`].
    pub partitioner: Partitioner,
}

impl Default for ProducerConfig {
    fn default() -> Self {
        Self {
            acks: Acks::All,
            linger: Duration::from_millis(5),
            batch_bytes: 512 << 10,
            compression: Compression::None,
            idempotent: true,
            in_flight_max: IN_FLIGHT_MAX,
            buffer_bytes: 64 << 20,
            delivery_timeout: Duration::from_secs(120),
            partitioner: Partitioner::Key,
        }
    }
}

impl ProducerConfig {
    /// Names every fault, not just the first.
    pub(crate) fn validate(&self) -> Result<()> {
        let mut faults = Vec::new();
        if self.batch_bytes == 0 {
            faults.push("batch_bytes must not be 0".to_owned());
        }
        if self.buffer_bytes < self.batch_bytes {
            faults.push("buffer_bytes must be at least batch_bytes".to_owned());
        }
        if !(1..=IN_FLIGHT_MAX).contains(&self.in_flight_max) {
            faults.push(format!("in_flight_max must be 1 to {IN_FLIGHT_MAX}"));
        }
        if self.delivery_timeout <= self.linger {
            faults.push("delivery_timeout must be longer than linger".to_owned());
        }
        match faults.is_empty() {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "producer settings: {}",
                faults.join("; ")
            ))),
        }
    }

    /// Batches of one partition that may be under way.
    pub(crate) const fn window(&self) -> usize {
        // Without sequences an agent would append a later batch before the repeat of an earlier.
        if self.idempotent {
            self.in_flight_max
        } else {
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_of_the_settings_is_named() {
        let config = ProducerConfig {
            batch_bytes: 2,
            buffer_bytes: 1,
            in_flight_max: 6,
            linger: Duration::from_secs(1),
            delivery_timeout: Duration::from_secs(1),
            ..ProducerConfig::default()
        };
        let text = config.validate().unwrap_err().to_string();
        for name in ["buffer_bytes", "in_flight_max", "delivery_timeout"] {
            assert!(text.contains(name), "{text}");
        }
        ProducerConfig::default().validate().unwrap();
    }
}
