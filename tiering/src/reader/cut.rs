//! What part of a chunk answers a read: whole index entries where they fit, else whole batches.
//! Pure.

use std::ops::Range;

use esker_proto::{
    batch::{BatchError, BatchHeader},
    types::Offset,
};

use super::plan::ChunkPlan;

/// A place in a chunk, always a batch border.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Entry of the plan that the place is in.
    pub(super) entry: usize,
    /// Byte of the chunk.
    pub(super) byte: usize,
    /// Offset of the batch there.
    pub(super) offset: Offset,
}

impl Place {
    /// Finds the batch that holds `offset`, walking batch headers only if it is inside an entry.
    ///
    /// # Panics
    ///
    /// If `offset` is not in the chunk.
    pub(super) fn find(plan: &ChunkPlan, bytes: &[u8], offset: Offset) -> Result<Self, BatchError> {
        let entry = plan
            .entry_of(offset)
            .expect("the plan was made for the offset");
        let base_offset = plan.entries[entry].base_offset;
        let mut place = Self {
            entry,
            byte: plan.entry_start(entry),
            offset: base_offset,
        };
        while place.offset < offset {
            let header = BatchHeader::parse(&bytes[place.byte..])?;
            if header.next_offset() > offset {
                break;
            }
            place.step(&header);
        }
        Ok(place)
    }

    /// Whether nothing of the chunk is left.
    fn is_at_end(&self, plan: &ChunkPlan) -> bool {
        self.entry == plan.entries.len()
    }

    /// Takes as many whole entries as fit into `max_bytes`; if not even the rest of one does, as many
    /// whole batches; but at least one batch. Returns the bytes, and moves behind them.
    pub(super) fn take(
        &mut self,
        plan: &ChunkPlan,
        bytes: &[u8],
        max_bytes: usize,
    ) -> Result<Range<usize>, BatchError> {
        let start = self.byte;
        let limit = start.saturating_add(max_bytes);
        while !self.is_at_end(plan) && plan.entry_end(self.entry) <= limit {
            self.byte = plan.entry_end(self.entry);
            self.offset = plan.entries[self.entry].next_offset();
            self.entry += 1;
        }
        if self.byte == start {
            self.take_batches(plan, bytes, limit)?;
        }
        Ok(start..self.byte)
    }

    fn take_batches(
        &mut self,
        plan: &ChunkPlan,
        bytes: &[u8],
        limit: usize,
    ) -> Result<(), BatchError> {
        let (start, end) = (self.byte, plan.entry_end(self.entry));
        while self.byte < end {
            let header = BatchHeader::parse(&bytes[self.byte..])?;
            // The first batch goes out whatever its size, or a small reader would never move on.
            if self.byte > start && self.byte + header.size_bytes as usize > limit {
                return Ok(());
            }
            self.step(&header);
        }
        self.entry += 1;
        Ok(())
    }

    fn step(&mut self, header: &BatchHeader) {
        self.byte += header.size_bytes as usize;
        self.offset = header.next_offset();
    }
}
