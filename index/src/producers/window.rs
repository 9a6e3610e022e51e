//! The newest batches of one producer in one epoch: sequences without a gap, each with its offset.

use std::collections::VecDeque;

use esker_proto::{
    batch::BatchHeader,
    types::{Offset, Sequence},
};

use super::WINDOW_BATCHES;

/// One batch of the window. Its sequences follow from those of the batches around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) base_offset: Offset,
    pub(super) record_count: u32,
}

/// At least one batch, at most [`WINDOW_BATCHES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Window {
    base_sequence: Sequence,
    next_sequence: Sequence,
    batches: VecDeque<Seen>,
}

impl Window {
    pub(super) fn starting_with(batch: &BatchHeader) -> Self {
        let mut window = Self::empty(batch.base_sequence);
        window.push(batch);
        window
    }

    /// Rebuilds a window from its parts, oldest batch first.
    pub(super) fn from_parts(base_sequence: Sequence, batches: &[Seen]) -> Self {
        let mut window = Self::empty(base_sequence);
        for seen in batches {
            window.push_seen(*seen);
        }
        window
    }

    fn empty(base_sequence: Sequence) -> Self {
        Self {
            base_sequence,
            next_sequence: base_sequence,
            batches: VecDeque::new(),
        }
    }

    pub(super) fn base_sequence(&self) -> Sequence {
        self.base_sequence
    }

    pub(super) fn next_sequence(&self) -> Sequence {
        self.next_sequence
    }

    /// Offsets rise within a window, which the snapshot relies on.
    pub(super) fn last_base_offset(&self) -> Offset {
        self.batches
            .back()
            .map_or(Offset::ZERO, |seen| seen.base_offset)
    }

    pub(super) fn batches(&self) -> &VecDeque<Seen> {
        &self.batches
    }

    /// Adds the batch that begins at [`Self::next_sequence`].
    pub(super) fn push(&mut self, batch: &BatchHeader) {
        let seen = Seen {
            base_offset: batch.base_offset,
            record_count: batch.record_count,
        };
        self.push_seen(seen);
    }

    /// Returns the offset of the batch with exactly these sequences.
    pub(super) fn find(&self, batch: &BatchHeader) -> Option<Offset> {
        let mut sequence = self.base_sequence;
        for seen in &self.batches {
            if sequence == batch.base_sequence && seen.record_count == batch.record_count {
                return Some(seen.base_offset);
            }
            sequence = sequence.advance(seen.record_count);
        }
        None
    }

    fn push_seen(&mut self, seen: Seen) {
        if self.batches.len() == WINDOW_BATCHES
            && let Some(oldest) = self.batches.pop_front()
        {
            self.base_sequence = self.base_sequence.advance(oldest.record_count);
        }
        self.batches.push_back(seen);
        self.next_sequence = self.next_sequence.advance(seen.record_count);
    }
}
