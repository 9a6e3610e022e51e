//! What scrubbing found.

use std::fmt;

use esker_proto::types::{Offset, OffsetRange, TopicPartition};

/// How far a scrub has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Partitions begun.
    pub partitions: u64,
    /// Segments looked at.
    pub segments: u64,
    /// Segments to look at in the partitions begun.
    pub segments_total: u64,
    /// Bytes of segments read.
    pub bytes_read: u64,
}

/// Something that is not as the manifest says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anomaly {
    /// The partition.
    pub topic_partition: TopicPartition,
    /// The object.
    pub key: String,
    /// What is wrong with it.
    pub damage: Damage,
    /// Offsets that cannot be read because of it, as far as known.
    pub offsets: Option<OffsetRange>,
}

/// What can be wrong with an object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// It is not there.
    Missing,
    /// It is shorter than it should be at least.
    Truncated {
        /// Bytes there should be at least.
        expected_bytes: u64,
        /// Bytes there are.
        actual_bytes: u64,
    },
    /// Its bytes are not what was put.
    Corrupt {
        /// What does not hold.
        reason: String,
    },
    /// There are segments, but no manifest that can be read.
    NoManifest {
        /// Why not.
        reason: String,
    },
    /// A whole segment at or above the end of the newest manifest. Either an upload that was not
    /// committed yet, or what a lost manifest named.
    Unnamed {
        /// Where the manifest ends.
        tiered_offset: Offset,
    },
    /// Its bytes are not what was put, but nothing needs them any more.
    Unneeded {
        /// What does not hold.
        reason: String,
    },
    /// An object whose name is not one of ours.
    Stranger,
}

impl Damage {
    /// Whether records cannot be read because of it.
    pub const fn loses_records(&self) -> bool {
        !matches!(self, Self::Stranger | Self::Unneeded { .. })
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("missing"),
            Self::Truncated {
                expected_bytes,
                actual_bytes,
            } => {
                write!(
                    f,
                    "truncated to {actual_bytes} of at least {expected_bytes} bytes"
                )
            }
            Self::Corrupt { reason } => write!(f, "corrupt: {reason}"),
            Self::NoManifest { reason } => write!(f, "no manifest: {reason}"),
            Self::Unnamed { tiered_offset } => {
                write!(
                    f,
                    "no manifest names it: the newest ends at {tiered_offset}"
                )
            }
            Self::Unneeded { reason } => write!(f, "corrupt, but not needed: {reason}"),
            Self::Stranger => f.write_str("not an object of ours"),
        }
    }
}

/// What [`super::Scrubber::verify`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Partitions looked at.
    pub partitions: u64,
    /// Segments that manifests name.
    pub segments: u64,
    /// Bytes of their batches.
    pub segment_bytes: u64,
    /// Index pages that manifests name.
    pub pages: u64,
    /// Objects that may be deleted.
    pub orphans: u64,
    /// Their bytes.
    pub orphan_bytes: u64,
    /// Files of puts that did not end, or not yet, where the store is a directory.
    pub unfinished: u64,
    /// Their bytes.
    pub unfinished_bytes: u64,
    /// Whether every byte was read.
    pub is_deep: bool,
    /// What is wrong.
    pub anomalies: Vec<Anomaly>,
}

impl VerifyReport {
    /// Whether every record that should be there is.
    pub fn is_intact(&self) -> bool {
        !self
            .anomalies
            .iter()
            .any(|anomaly| anomaly.damage.loses_records())
    }
}
