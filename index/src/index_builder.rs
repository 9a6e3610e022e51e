//! Builds a segment's index entries from its batches, in order.

use esker_proto::{batch::BatchHeader, types::Position};

use crate::{IndexEntry, SEGMENT_ENTRIES_MAX};

/// An entry is closed by the batch that makes it at least this long.
pub const INDEX_INTERVAL_BYTES: u32 = 1 << 20;

/// Grows the index of one segment, batch by batch.
///
/// A segment too long for [`SEGMENT_ENTRIES_MAX`] entries of [`INDEX_INTERVAL_BYTES`] gets entries
/// twice as long, as often as it takes.
#[derive(Clone, Debug)]
pub struct IndexBuilder {
    entries: Vec<IndexEntry>,
    interval_bytes: u32,
}

impl Default for IndexBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl IndexBuilder {
    /// Starts the index of an empty segment.
    pub const fn new() -> Self {
        Self {
            entries: Vec::new(),
            interval_bytes: INDEX_INTERVAL_BYTES,
        }
    }

    /// Adds the batch that follows the last one; its offset must be the final one.
    pub fn push(&mut self, header: &BatchHeader) {
        let BatchHeader {
            base_timestamp,
            max_timestamp,
            ..
        } = *header;
        let batch = IndexEntry {
            base_offset: header.base_offset,
            position: self.next_position(),
            length: header.size_bytes,
            record_count: header.record_count,
            // Batches of earlier releases may name a maximum below the base.
            min_timestamp: base_timestamp.min(max_timestamp),
            max_timestamp: base_timestamp.max(max_timestamp),
        };
        let open = self
            .entries
            .last_mut()
            .filter(|open| open.length < self.interval_bytes);
        if !open.is_some_and(|open| join(open, &batch)) {
            self.open_entry(batch);
        }
    }

    /// Returns the entries so far; the last one may still grow.
    pub fn entries(&self) -> &[IndexEntry] {
        &self.entries
    }

    /// Returns the entries.
    pub fn finish(self) -> Vec<IndexEntry> {
        self.entries
    }

    fn next_position(&self) -> Position {
        self.entries
            .last()
            .map_or(Position::ZERO, IndexEntry::next_position)
    }

    fn open_entry(&mut self, batch: IndexEntry) {
        if self.entries.len() == SEGMENT_ENTRIES_MAX {
            self.widen();
        }
        self.entries.push(batch);
    }

    /// Joins entries in pairs and makes the ones to come twice as long.
    fn widen(&mut self) {
        self.interval_bytes = self.interval_bytes.saturating_mul(2);
        let mut wider: Vec<IndexEntry> = Vec::with_capacity(self.entries.len());
        for entry in self.entries.drain(..) {
            let half_done = wider
                .last_mut()
                .filter(|last| last.length < self.interval_bytes);
            if !half_done.is_some_and(|last| join(last, &entry)) {
                wider.push(entry);
            }
        }
        self.entries = wider;
    }
}

/// Lets `entry` take in the one that follows it; `false` if the sum would be too large.
fn join(entry: &mut IndexEntry, next: &IndexEntry) -> bool {
    let length = entry.length.checked_add(next.length);
    let record_count = entry.record_count.checked_add(next.record_count);
    let (Some(length), Some(record_count)) = (length, record_count) else {
        return false;
    };
    entry.length = length;
    entry.record_count = record_count;
    entry.min_timestamp = entry.min_timestamp.min(next.min_timestamp);
    entry.max_timestamp = entry.max_timestamp.max(next.max_timestamp);
    true
}

#[cfg(test)]
mod tests;
