//! What the index knows of one segment object, and of one run of batches in it.

use esker_proto::types::{LeaderEpoch, Offset, Position, SegmentId, TimestampMs};

/// Most index entries of one segment. [`crate::IndexBuilder`] makes its entries longer to stay
/// within it.
pub const SEGMENT_ENTRIES_MAX: usize = 4096;

/// One run of whole batches, about [`crate::INDEX_INTERVAL_BYTES`] long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Offset of the run's first record.
    pub base_offset: Offset,
    /// Where the run begins in the segment; the segment's first batch is at 0.
    pub position: Position,
    /// Length of the run, in bytes.
    pub length: u32,
    /// Records in the run.
    pub record_count: u32,
    /// The smallest base timestamp of its batches. Records may carry older ones.
    pub min_timestamp: TimestampMs,
    /// The largest maximum timestamp of its batches.
    pub max_timestamp: TimestampMs,
}

impl IndexEntry {
    /// Returns the offset after the run's last record.
    pub fn next_offset(&self) -> Offset {
        self.base_offset.advance(self.record_count)
    }

    /// Returns the position after the run's last byte.
    pub fn next_position(&self) -> Position {
        self.position.advance(u64::from(self.length))
    }
}

/// One segment object: enough to make its key and to check what is read from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentMeta {
    /// The upload attempt.
    pub segment_id: SegmentId,
    /// Epoch of the leader that uploaded it.
    pub leader_epoch: LeaderEpoch,
    /// Offset of its first record.
    pub base_offset: Offset,
    /// Offset after its last record.
    pub next_offset: Offset,
    /// Length of its batches, in bytes; the trailer follows them.
    pub size_bytes: u64,
    /// CRC-32C of its batches.
    pub crc32c: u32,
    /// The smallest base timestamp of its batches.
    pub min_timestamp: TimestampMs,
    /// The largest timestamp of its batches.
    pub max_timestamp: TimestampMs,
    /// When it was uploaded; 0 where the index does not say.
    pub uploaded_at: TimestampMs,
}

impl SegmentMeta {
    /// Returns from when on retention counts the segment's age: the later of its newest record's
    /// time and its upload. Records may be older than the log they are written to.
    pub fn retained_since(&self) -> TimestampMs {
        self.max_timestamp.max(self.uploaded_at)
    }

    /// Describes the segment that `entries` cover, without the time of its upload; `None` without
    /// entries.
    pub fn of_entries(
        segment_id: SegmentId,
        leader_epoch: LeaderEpoch,
        crc32c: u32,
        entries: &[IndexEntry],
    ) -> Option<Self> {
        let (first, last) = (entries.first()?, entries.last()?);
        Some(Self {
            segment_id,
            leader_epoch,
            base_offset: first.base_offset,
            next_offset: last.next_offset(),
            size_bytes: last.next_position().get(),
            crc32c,
            min_timestamp: entries.iter().map(|entry| entry.min_timestamp).min()?,
            max_timestamp: entries.iter().map(|entry| entry.max_timestamp).max()?,
            uploaded_at: TimestampMs::default(),
        })
    }
}
