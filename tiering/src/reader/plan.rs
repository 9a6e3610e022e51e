//! Which bytes to fetch for an offset: index rows grouped into chunks. Pure.
//!
//! A chunk is the run of index entries of one segment that begin in the same aligned stretch of
//! the object. So chunks are cut at batch borders, can be checked batch by batch when they arrive,
//! and two readers at the same place always ask for the same one.

use std::ops::Range;

use esker_index::{IndexEntry, Rows};
use esker_proto::types::{Offset, Position, SegmentId};

use crate::keys::SegmentName;

/// Names one chunk for the caches. Segments are never written twice, so this names its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ChunkId {
    pub(super) segment_id: SegmentId,
    pub(super) position: Position,
    pub(super) length: u32,
}

/// One chunk to fetch, and what the index says is in it.
#[derive(Clone, Debug)]
pub(super) struct ChunkPlan {
    pub(super) id: ChunkId,
    pub(super) segment: SegmentName,
    /// In order and without gaps; at least one.
    pub(super) entries: Vec<IndexEntry>,
    /// Its rows.
    pub(super) rows: Range<usize>,
}

impl ChunkPlan {
    /// Plans the chunk that holds row `index`.
    pub(super) fn around(rows: &Rows, index: usize, chunk_bytes: u64) -> Self {
        let row = rows.row(index);
        let segment_id = row.segment.segment_id;
        let stretch = row.entry.position.get() / chunk_bytes;
        let is_in = |other: &usize| {
            let other = rows.row(*other);
            other.segment.segment_id == segment_id
                && other.entry.position.get() / chunk_bytes == stretch
        };
        let first = (0..index).rev().take_while(is_in).last().unwrap_or(index);
        let end = (index + 1..rows.len())
            .take_while(is_in)
            .last()
            .unwrap_or(index)
            + 1;

        let entries: Vec<_> = (first..end).map(|at| rows.row(at).entry).collect();
        let length = entries
            .iter()
            .fold(0_u32, |sum, entry| sum.saturating_add(entry.length));
        let position = entries[0].position;
        Self {
            id: ChunkId {
                segment_id,
                position,
                length,
            },
            segment: SegmentName::from(&row.segment),
            entries,
            rows: first..end,
        }
    }

    /// Takes the part of the chunk from row `index` on, of at most `max_bytes`, but at least one
    /// entry.
    pub(super) fn part(mut self, index: usize, max_bytes: u64) -> Self {
        self.entries.drain(..index - self.rows.start);
        let mut length = 0_u32;
        let fits = |entry: &&IndexEntry| {
            length = length.saturating_add(entry.length);
            length == entry.length || u64::from(length) <= max_bytes
        };
        let count = self.entries.iter().take_while(fits).count();
        self.entries.truncate(count);
        self.rows = index..index + count;
        self.id.position = self.entries[0].position;
        self.id.length = (self.entries.iter()).fold(0, |sum: u32, e| sum.saturating_add(e.length));
        self
    }

    pub(super) fn next_offset(&self) -> Offset {
        self.entries[self.entries.len() - 1].next_offset()
    }

    /// Bytes of the object to fetch.
    pub(super) fn range(&self) -> Range<u64> {
        let start = self.id.position.get();
        start..start + u64::from(self.id.length)
    }

    /// Where an entry begins in the chunk.
    pub(super) fn entry_start(&self, index: usize) -> usize {
        let into = self.entries[index].position.get() - self.id.position.get();
        usize::try_from(into).expect("a chunk is shorter than 4 GiB")
    }

    /// Where an entry ends in the chunk.
    pub(super) fn entry_end(&self, index: usize) -> usize {
        self.entry_start(index) + self.entries[index].length as usize
    }

    /// The entry that holds `offset`, if the chunk does.
    pub(super) fn entry_of(&self, offset: Offset) -> Option<usize> {
        let after = self
            .entries
            .partition_point(|entry| entry.base_offset <= offset);
        let index = after.checked_sub(1)?;
        (offset < self.entries[index].next_offset()).then_some(index)
    }
}
