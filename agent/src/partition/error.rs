//! What a partition answers when it cannot do what was asked.

use std::{path::Path, sync::Arc};

use esker_index::producers::ProducerError;
use esker_proto::{
    batch::BatchError,
    types::{LeaderEpoch, Offset, TopicPartition},
    v1::ErrorKind,
};
use esker_tiering::scrub::quoted;

use super::{open::OpenError, timestamps::TimestampError};

/// What is damaged in a partition's local log, and what to do about it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{source}; {}", repair(*at, data_dir, source))]
pub struct Damaged {
    /// Which partition.
    pub at: TopicPartition,
    /// The agent's data directory.
    pub data_dir: Arc<Path>,
    /// What is wrong, and where.
    pub source: Arc<crate::log::Error>,
}

/// Says how an operator repairs a local log.
pub(super) fn repair(at: TopicPartition, data_dir: &Path, error: &crate::log::Error) -> String {
    let how = match error.is_repaired_by_a_cut() {
        true => "",
        false => " --discard",
    };
    // It may be pasted into a shell that stands elsewhere.
    let data_dir = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
    let data_dir = quoted(&data_dir.to_string_lossy());
    format!(
        "stop the agent, and restore the files or run `esker-agent log repair --data-dir {data_dir} \
         --partition {at}{how}`; see docs/damage.md"
    )
}

/// Why a partition refused or failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PartitionError {
    /// The bytes are no legal batch.
    #[error("record batch refused: {0}")]
    Batch(Arc<BatchError>),
    /// The batch is larger than the topic allows.
    #[error("record batch is too large. size_bytes=`{size_bytes}`, batch_bytes_max=`{max}`")]
    BatchTooLarge { size_bytes: u32, max: u32 },
    /// A record's time is out of the topic's bounds.
    #[error(transparent)]
    Timestamp(TimestampError),
    /// The producer's sequence does not follow, or its epoch is old.
    #[error(transparent)]
    Producer(ProducerError),
    /// Local data has reached its limit.
    #[error("{reason}; retry later")]
    Throttled { reason: String, retry_after_ms: u32 },
    /// The local disk failed: what was in flight may or may not be there after a restart.
    #[error("partition is offline after a storage failure: {0}")]
    Storage(Arc<str>),
    /// The local log turned out to be damaged while the agent served. Nothing of it is changed.
    #[error("partition is offline, its local log is damaged: {0}")]
    Damaged(Arc<Damaged>),
    /// The partition was damaged when the agent started. Nothing of it was changed.
    #[error("partition is offline since the agent started: {0}")]
    Unopened(Arc<OpenError>),
    /// Another agent leads this partition.
    #[error("partition is led by another agent with a newer epoch")]
    Fenced,
    /// Another agent took over before the batch was acknowledged.
    #[error("another agent took over before the batch was acknowledged")]
    FencedInFlight,
    /// The agent is going away.
    #[error("agent is shutting down")]
    ShuttingDown,
    /// The offset is not in the log.
    #[error(
        "offset is out of range. offset=`{offset}`, log_start_offset=`{start}`, log_end_offset=`{end}`"
    )]
    OutOfRange {
        offset: Offset,
        start: Offset,
        end: Offset,
    },
    /// The log no longer has what a reader read.
    #[error(
        "records that were read are gone, the log was truncated and offsets from \
         `{divergent_offset}` on may stand for other records. offset=`{offset}`, \
         leader_epoch=`{leader_epoch}`, divergent_offset=`{divergent_offset}`"
    )]
    Truncated {
        offset: Offset,
        leader_epoch: LeaderEpoch,
        divergent_offset: Offset,
    },
    /// Only what is in the bucket can be trimmed.
    #[error(
        "cannot trim above the tiered offset. offset=`{offset}`, tiered_offset=`{tiered_offset}`"
    )]
    TrimAboveTiered {
        offset: Offset,
        tiered_offset: Offset,
    },
    /// The bucket did not do what was asked.
    #[error(transparent)]
    Store(Arc<esker_tiering::Error>),
    /// The bucket's bytes of these offsets are not what was put there.
    #[error("{source}; offsets=`{offset}..{end_offset}`")]
    Unreadable {
        offset: Offset,
        /// What is behind it can be read.
        end_offset: Offset,
        source: Arc<esker_tiering::Error>,
    },
    /// The local log could not be read.
    #[error("local log cannot be read: {0}")]
    Log(Arc<crate::log::Error>),
    /// It took too long; it may still happen.
    #[error("timed out waiting for {0}")]
    TimedOut(&'static str),
}

impl PartitionError {
    /// The wire's name for it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Batch(_) => ErrorKind::CorruptBatch,
            Self::BatchTooLarge { .. } => ErrorKind::BatchTooLarge,
            Self::Timestamp(_) | Self::TrimAboveTiered { .. } => ErrorKind::InvalidArgument,
            Self::Producer(ProducerError::Fenced { .. }) => ErrorKind::ProducerFenced,
            Self::Producer(_) => ErrorKind::OutOfOrderSequence,
            Self::Throttled { .. } => ErrorKind::Throttled,
            Self::Damaged(_) => ErrorKind::CorruptData,
            Self::Log(error) if error.kind() == crate::log::ErrorKind::Corrupt => {
                ErrorKind::CorruptData
            }
            Self::Storage(_) | Self::Log(_) => ErrorKind::Storage,
            Self::Unopened(error) if error.is_corrupt() => ErrorKind::CorruptData,
            Self::Unopened(_) => ErrorKind::Storage,
            Self::Fenced | Self::FencedInFlight => ErrorKind::Fenced,
            Self::ShuttingDown => ErrorKind::ShuttingDown,
            Self::OutOfRange { .. } => ErrorKind::OffsetOutOfRange,
            Self::Truncated { .. } => ErrorKind::LogTruncated,
            Self::Store(error) | Self::Unreadable { source: error, .. } => store_kind(error),
            Self::TimedOut(_) => ErrorKind::TimedOut,
        }
    }

    /// Whether it is certain that nothing was written.
    pub const fn has_no_side_effects(&self) -> bool {
        !matches!(
            self,
            Self::Storage(_) | Self::TimedOut(_) | Self::Store(_) | Self::FencedInFlight
        )
    }
}

fn store_kind(error: &esker_tiering::Error) -> ErrorKind {
    match error.kind() {
        // What is not found is an object that the newest manifest names.
        esker_tiering::ErrorKind::Corrupt | esker_tiering::ErrorKind::NotFound => {
            ErrorKind::CorruptData
        }
        esker_tiering::ErrorKind::OutOfRange => ErrorKind::OffsetOutOfRange,
        esker_tiering::ErrorKind::Fenced => ErrorKind::Fenced,
        esker_tiering::ErrorKind::Busy => ErrorKind::Throttled,
        // Also a bucket that is gone, or refuses the agent's requests: no request of a client can be
        // at fault for that, and an operator may repair it.
        _ => ErrorKind::BucketUnavailable,
    }
}
