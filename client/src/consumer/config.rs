//! Settings of a consumer, and where it starts and ends.

use std::time::Duration;

use esker_proto::types::{Offset, PartitionId, TimestampMs};

use super::position::SavedPosition;

/// Settings of a [`Consumer`](super::Consumer).
#[derive(Clone, Debug)]
pub struct ConsumerConfig {
    /// Bytes fetched and not handed out yet, over all partitions, beyond what the connection itself
    /// holds (4 MiB for each 64 partitions). Shared by the partitions as they are assigned: those of
    /// later calls get less, and those of earlier ones keep their share. At least one batch per
    /// partition is always held. They are held as they came,
    /// compressed ones compressed: see `response_bytes`. Default: 64 MiB.
    pub buffer_bytes: usize,
    /// About how many bytes an agent puts into one response, and how many bytes of decompressed
    /// records are handed out at a time. A batch always comes whole: it has at most 64 MiB
    /// decompressed. Default: 1 MiB.
    pub response_bytes: u32,
    /// At the tail an agent waits until it has so many bytes... Default: 1.
    pub wait_bytes_min: u32,
    /// ...but at most this long; 0: the agent's default. Default: 0.
    pub wait_ms_max: u32,
    /// What to do when the log does not hold the offset to go on from. Default:
    /// [`OutOfRange::Error`].
    pub out_of_range: OutOfRange,
    /// What to do with records that cannot be read. Default: [`OnDamage::Fail`].
    pub on_damage: OnDamage,
    /// A partition that no agent has answered for so long, while errors that may pass were met,
    /// hands out the last of them. Every answer counts, also one without records; choose it longer
    /// than agents are left waiting at the tail (`wait_ms_max`). Default: none, a consumer waits
    /// for its agents until it is dropped.
    pub give_up_after: Option<Duration>,
    /// An agent that sends nothing of a fetch for this long and `wait_ms_max`, not even an answer
    /// without records, counts as broken although its connection is alive: the fetch is opened again,
    /// over another connection, from the offset it had reached. Agents wait up to 90 s for the bucket,
    /// 60 s for each of an index page and a chunk, and 30 s each for memory to read and to send; a
    /// bound below the sum of these asks again for what is under way. Default: 5 minutes.
    pub silence_max: Duration,
}

impl Default for ConsumerConfig {
    fn default() -> Self {
        Self {
            buffer_bytes: 64 << 20,
            response_bytes: 1 << 20,
            wait_bytes_min: 1,
            wait_ms_max: 0,
            out_of_range: OutOfRange::Error,
            on_damage: OnDamage::Fail,
            give_up_after: None,
            silence_max: Duration::from_secs(300),
        }
    }
}

/// What to do when the log does not hold the offset to go on from, or not the record that was read
/// before it: it was trimmed, or a leader lost records that were acknowledged by it alone
/// ([`ErrorKind::Truncated`](crate::ErrorKind::Truncated)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OutOfRange {
    /// Hand the error out and stop the partition, until a seek.
    #[default]
    Error,
    /// Go on from the log start offset: skips what was trimmed. In a truncated log go on from where it
    /// left what was read ([`Error::divergent_offset`](crate::Error::divergent_offset)), if the agent
    /// knows, else from the log start offset.
    Earliest,
    /// Go on from the high watermark. Skips.
    Latest,
}

/// What to do with records that cannot be read: bytes that were damaged on their way or in the
/// store, or a gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnDamage {
    /// Hand the error out and stop the partition, until a seek. [`Error::offsets`] says which
    /// records it is about.
    ///
    /// [`Error::offsets`]: crate::Error::offsets
    #[default]
    Fail,
    /// Leave them out and read on behind them. [`Fetched::skipped`](super::Fetched::skipped) says
    /// what was left out. Every record is decoded twice: once to see whether it can be.
    Skip,
}

/// Where to start in a partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StartAt {
    /// The log start offset.
    Earliest,
    /// The high watermark: only records to come.
    Latest,
    /// This offset.
    Offset(Offset),
    /// The first record at or after a time; the high watermark if there is none.
    Timestamp(TimestampMs),
    /// Where an earlier consumer stopped: see
    /// [`Consumer::saved_positions`](super::Consumer::saved_positions). Positions of other topics
    /// are ignored. A partition without a position is read from the log start: it was added since.
    ///
    /// Fails with [`ErrorKind::TopicRecreated`](crate::ErrorKind::TopicRecreated) if the topic is
    /// not the one they were saved for. A log that no longer has the record before a position is told
    /// by the first [`Consumer::next`](super::Consumer::next): see [`OutOfRange`].
    Saved(Vec<SavedPosition>),
}

/// Where to end in a partition. Whatever it says is made an offset when the partition is assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The high watermark: everything there is by now.
    Latest,
    /// Before this offset.
    Offset(Offset),
    /// Before the first record at or after a time; the high watermark if there is none.
    Timestamp(TimestampMs),
}

/// Which partitions of a topic.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Partitions {
    /// All there are when they are assigned.
    All,
    /// These.
    Only(Vec<PartitionId>),
}

impl From<Vec<PartitionId>> for Partitions {
    fn from(partitions: Vec<PartitionId>) -> Self {
        Self::Only(partitions)
    }
}

impl From<PartitionId> for Partitions {
    fn from(partition: PartitionId) -> Self {
        Self::Only(vec![partition])
    }
}
