//! Finding rows by offset and by timestamp.

use esker_proto::types::{Offset, TimestampMs};

use super::Rows;

/// Rows that share one maximum timestamp, so that a search by time skips them together.
pub(super) const BLOCK_ROWS: usize = 512;

impl Rows {
    /// Returns the row that holds `offset`; `None` if no row does.
    pub fn seek(&self, offset: Offset) -> Option<usize> {
        let is_within = offset < self.next_offset()?;
        let after = self.0.base_offsets.partition_point(|&base| base <= offset);
        after.checked_sub(1).filter(|_| is_within)
    }

    /// Returns the first row with a record at or above `from` whose maximum timestamp is at least
    /// `timestamp`; `None` if there is none.
    ///
    /// That row need not hold such a record at or above `from`, when `from` lies within it: the
    /// caller scans its batches and, if they hold none, asks again from the row's end.
    pub fn seek_timestamp(&self, timestamp: TimestampMs, from: Offset) -> Option<usize> {
        let first = if from < self.base_offset()? {
            0
        } else {
            self.seek(from)?
        };
        let is_new_enough = |&max: &TimestampMs| max >= timestamp;
        let rest_of_block = first.next_multiple_of(BLOCK_ROWS).min(self.len());
        let maxima = &self.0.max_timestamps;
        if let Some(skipped) = maxima[first..rest_of_block].iter().position(is_new_enough) {
            return Some(first + skipped);
        }
        let blocks = self
            .0
            .block_max_timestamps
            .get(rest_of_block.div_ceil(BLOCK_ROWS)..)?;
        let block = rest_of_block + blocks.iter().position(is_new_enough)? * BLOCK_ROWS;
        Some(block + maxima[block..].iter().position(is_new_enough)?)
    }
}
