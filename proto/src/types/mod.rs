//! The coordinates of the log, one type each, so that no two of them can be swapped.
//!
//! Every range of offsets is half-open, `[base, next)`; "everything below n" is a `RangeTo`.

mod epoch;
mod id;
mod offset;
mod producer;
mod topic_name;

pub use epoch::{AgentEpoch, ControllerEpoch, LeaderEpoch, ManifestVersion};
pub use id::{AgentId, ClusterId, PartitionId, SegmentId, TopicId, TopicPartition};
pub use offset::{Offset, OffsetRange, Position, TimestampMs};
pub use producer::{ProducerEpoch, ProducerId, Sequence};
pub use topic_name::{InvalidTopicName, TOPIC_NAME_BYTES_MAX, TopicName};
