//! Builds rows from segments, in offset order.

use std::sync::Arc;

use esker_proto::types::Offset;

use super::{Columns, Rows, invariants, seek::BLOCK_ROWS};
use crate::{Error, IndexEntry, SegmentMeta};

/// Rows that still grow.
#[derive(Clone, Debug, Default)]
pub struct RowsBuilder(Columns);

impl RowsBuilder {
    /// Starts without rows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns how many rows there are.
    pub fn len(&self) -> usize {
        self.0.base_offsets.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.0.base_offsets.is_empty()
    }

    /// Returns the segments so far.
    pub fn segments(&self) -> &[SegmentMeta] {
        &self.0.segments
    }

    /// Adds the segment that follows the last one.
    pub fn push(&mut self, meta: SegmentMeta, entries: &[IndexEntry]) -> Result<(), Error> {
        invariants::check_segment(&meta, entries)?;
        if let Some(last) = self.0.segments.last() {
            invariants::check_neighbours(last, &meta)?;
        }
        self.0.segments.push(meta);
        self.0.first_rows.push(self.len());
        for entry in entries {
            self.push_row(entry);
        }
        Ok(())
    }

    /// Adds the segments of `rows` that end above `log_start_offset`.
    pub fn extend_live(&mut self, rows: &Rows, log_start_offset: Offset) -> Result<(), Error> {
        for (index, meta) in rows.segments().iter().enumerate() {
            if meta.next_offset > log_start_offset {
                self.push(*meta, &rows.entries(index))?;
            }
        }
        Ok(())
    }

    /// Returns the rows.
    pub fn finish(self) -> Rows {
        Rows(Arc::new(self.0))
    }

    fn push_row(&mut self, entry: &IndexEntry) {
        let columns = &mut self.0;
        if columns.base_offsets.len().is_multiple_of(BLOCK_ROWS) {
            columns.block_max_timestamps.push(entry.max_timestamp);
        }
        let block_max = columns
            .block_max_timestamps
            .last_mut()
            .expect("pushed with its first row");
        *block_max = entry.max_timestamp.max(*block_max);
        columns.base_offsets.push(entry.base_offset);
        columns.positions.push(entry.position);
        columns.min_timestamps.push(entry.min_timestamp);
        columns.max_timestamps.push(entry.max_timestamp);
    }
}

impl From<&Rows> for RowsBuilder {
    fn from(rows: &Rows) -> Self {
        Self((*rows.0).clone())
    }
}
