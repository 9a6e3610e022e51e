//! Rows of the index in memory: one per index entry, grouped by segment.
//!
//! What follows from a neighbour is not stored twice: an entry's length and record count are the
//! distances to the next entry, so that gaps and overlaps within a segment cannot be represented.

mod builder;
mod invariants;
mod seek;

use std::sync::Arc;

use esker_proto::types::{Offset, Position, TimestampMs};

pub use builder::RowsBuilder;
pub(crate) use invariants::check_segment;

use crate::{IndexEntry, SegmentMeta};

/// Rows of the head or of one page; immutable and cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows(Arc<Columns>);

/// One row: an index entry and the segment it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The segment.
    pub segment: SegmentMeta,
    /// The run of batches.
    pub entry: IndexEntry,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Columns {
    segments: Vec<SegmentMeta>,
    /// Row at which each segment begins.
    first_rows: Vec<usize>,
    base_offsets: Vec<Offset>,
    positions: Vec<Position>,
    min_timestamps: Vec<TimestampMs>,
    max_timestamps: Vec<TimestampMs>,
    /// Largest timestamp of each run of `seek::BLOCK_ROWS` rows.
    block_max_timestamps: Vec<TimestampMs>,
}

impl Rows {
    /// Returns how many rows there are.
    pub fn len(&self) -> usize {
        self.0.base_offsets.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.0.base_offsets.is_empty()
    }

    /// Returns the segments, in offset order.
    pub fn segments(&self) -> &[SegmentMeta] {
        &self.0.segments
    }

    /// Returns the first offset; `None` without rows.
    pub fn base_offset(&self) -> Option<Offset> {
        Some(self.0.segments.first()?.base_offset)
    }

    /// Returns the offset after the last record; `None` without rows.
    pub fn next_offset(&self) -> Option<Offset> {
        Some(self.0.segments.last()?.next_offset)
    }

    /// Returns the bytes of all segments' batches.
    pub fn segment_bytes(&self) -> u64 {
        self.0
            .segments
            .iter()
            .fold(0, |sum: u64, meta| sum.saturating_add(meta.size_bytes))
    }

    /// Returns about how much memory the rows take, for caches.
    pub fn memory_bytes(&self) -> usize {
        let per_segment = size_of::<SegmentMeta>() + size_of::<usize>();
        let per_row = 4 * size_of::<u64>();
        self.len() * per_row + self.0.segments.len() * per_segment
    }

    /// Returns row `index`.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn row(&self, index: usize) -> Row {
        let segment = self.segment_index_of(index);
        Row {
            segment: self.0.segments[segment],
            entry: self.entry(segment, index),
        }
    }

    /// Returns the rows, in offset order.
    pub fn iter(&self) -> impl Iterator<Item = Row> + '_ {
        self.0
            .segments
            .iter()
            .enumerate()
            .flat_map(move |(index, &segment)| {
                self.rows_of(index).map(move |row| Row {
                    segment,
                    entry: self.entry(index, row),
                })
            })
    }

    /// Returns the index entries of the segment `segments()[segment]`.
    ///
    /// # Panics
    ///
    /// If there is no such segment.
    pub fn entries(&self, segment: usize) -> Vec<IndexEntry> {
        self.rows_of(segment)
            .map(|row| self.entry(segment, row))
            .collect()
    }

    /// Rows of one segment.
    pub(crate) fn rows_of(&self, segment: usize) -> std::ops::Range<usize> {
        let end = self
            .0
            .first_rows
            .get(segment + 1)
            .copied()
            .unwrap_or_else(|| self.len());
        self.0.first_rows[segment]..end
    }

    fn segment_index_of(&self, row: usize) -> usize {
        assert!(
            row < self.len(),
            "row out of range. row=`{row}`, len=`{}`",
            self.len()
        );
        let after = self.0.first_rows.partition_point(|&first| first <= row);
        after
            .checked_sub(1)
            .expect("the first segment begins at row 0")
    }

    fn entry(&self, segment: usize, row: usize) -> IndexEntry {
        let columns = &*self.0;
        let meta = &columns.segments[segment];
        let is_last = row + 1 == self.rows_of(segment).end;
        let (next_offset, next_position) = if is_last {
            (meta.next_offset, meta.size_bytes)
        } else {
            (
                columns.base_offsets[row + 1],
                columns.positions[row + 1].get(),
            )
        };
        let (base_offset, position) = (columns.base_offsets[row], columns.positions[row]);
        let fits = "checked when the row was built";
        IndexEntry {
            base_offset,
            position,
            length: u32::try_from(next_position - position.get()).expect(fits),
            record_count: u32::try_from(next_offset.since(base_offset)).expect(fits),
            min_timestamp: columns.min_timestamps[row],
            max_timestamp: columns.max_timestamps[row],
        }
    }
}

#[cfg(test)]
mod tests;
