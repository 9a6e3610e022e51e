//! Deduplication state of idempotent producers: which sequences of which producer are in the log.
//!
//! # Overview
//!
//! A producer numbers its records per partition. The leader keeps, per producer, the newest
//! [`WINDOW_BATCHES`] batches with their final offsets. [`ProducerTable::check`] decides before an
//! append whether a batch is next, was seen, or must be refused; [`ProducerTable::apply`] notes what
//! the log holds. `apply` is called for every batch of the log in order, by the leader, by a follower
//! and by recovery alike, and never refuses: the log is the truth.
//!
//! # Rules
//!
//! - A batch whose first and last sequence are in the window is a duplicate and gets its offset back.
//! - Sequences go on without a gap; after `i32::MAX` comes 0.
//! - A lower producer epoch is fenced. A higher one starts over at sequence 0.
//! - A producer the table does not know may start at sequence 0 in any epoch. With any other sequence
//!   it is [`ProducerError::Unknown`]: either its state expired, or an earlier batch of it was refused
//!   and is still to come. Taking the batch, as old brokers did, would reorder records in the second
//!   case and could write a retried batch twice in the first. As KIP-360 has it, the producer whose
//!   *oldest* unanswered batch gets this answer bumps its epoch, starts over at sequence 0 and sends
//!   what is unanswered again, without an error to its user.
//!
//! # Expiry and bounds
//!
//! Producers are forgotten by time since their last batch, on the clock of the agent and never on
//! record timestamps: a backfill of old records must not expire while it runs, and one record from
//! the year 2100 must not expire all others. Entries that recovery read from the log count as used at
//! the first [`ProducerTable::expire`] after it. Segment deletion forgets nobody.
//!
//! A full table lets a new producer in only in place of one that has not written for
//! [`REMEMBERED_MS_MIN`]; otherwise the new one is refused for now ([`ProducerError::TooMany`]). The
//! retry of a first batch whose producer was forgotten would be appended once more, and that time is
//! longer than producers retry by default.

mod snapshot;
mod window;

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use esker_proto::{
    batch::BatchHeader,
    types::{Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs},
};

pub use snapshot::SnapshotError;
use window::Window;

/// Batches remembered per producer: at least the 5 that Kafka's clients keep in flight.
pub const WINDOW_BATCHES: usize = 8;
/// Producers remembered per partition. Their snapshot travels in every manifest commit, so that it
/// must stay well below the commit's own bound.
pub const PRODUCERS_MAX: usize = 4_096;
/// A producer is remembered at least this long after its last batch.
pub const REMEMBERED_MS_MIN: u64 = 5 * 60_000;

/// What to do with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Append it: it is next, or it was not sent by an idempotent producer.
    Append,
    /// It is in the log already. Answer with this offset and append nothing.
    Duplicate {
        /// Base offset it got when it was appended.
        base_offset: Offset,
    },
}

/// Why a batch is refused. Nothing was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProducerError {
    /// A batch before this one is missing, or this one was seen before the window begins.
    #[error("sequence out of order. expected=`{expected}`, got=`{got}`")]
    OutOfOrder {
        /// The next sequence of this producer.
        expected: Sequence,
        /// The batch's first sequence.
        got: Sequence,
    },
    /// A newer instance of this producer has written.
    #[error("producer fenced by a newer epoch. current=`{current}`, got=`{got}`")]
    Fenced {
        /// The newest epoch seen.
        current: ProducerEpoch,
        /// The batch's epoch.
        got: ProducerEpoch,
    },
    /// Nothing is known of this producer, and the batch is not its first.
    #[error(
        "producer is unknown and the sequence is not its first. producer_id=`{producer_id}`, got=`{got}`"
    )]
    Unknown {
        /// The producer.
        producer_id: ProducerId,
        /// The batch's first sequence.
        got: Sequence,
    },
    /// As many producers as are remembered have written lately. A new one may be let in later.
    #[error(
        "too many producers have written to the partition within the last minutes. max=`{max}`"
    )]
    TooMany {
        /// How many are remembered.
        max: usize,
    },
    /// The producer fields of the batch contradict each other.
    #[error(
        "producer fields are malformed. producer_id=`{producer_id}`, epoch=`{epoch}`, sequence=`{sequence}`"
    )]
    Malformed {
        /// The producer.
        producer_id: ProducerId,
        /// The batch's epoch.
        epoch: ProducerEpoch,
        /// The batch's first sequence.
        sequence: Sequence,
    },
}

/// All that is known of one producer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Producer {
    epoch: ProducerEpoch,
    window: Window,
    last_used: LastUsed,
    /// Key in [`ProducerTable::by_use`].
    use_number: u64,
}

/// When a producer last wrote, on the agent's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastUsed {
    /// Since the last expiry, which is when the table learns the time.
    SinceLastExpiry,
    At(TimestampMs),
}

/// The producers of one partition.
#[derive(Clone, Debug, Default)]
pub struct ProducerTable {
    producers: HashMap<ProducerId, Producer>,
    /// Least recently used first.
    by_use: BTreeMap<u64, ProducerId>,
    next_use_number: u64,
    /// When [`Self::expire`] was last called.
    expired_at: Option<TimestampMs>,
}

impl PartialEq for ProducerTable {
    /// Same producers with the same batches, in the same order of use.
    fn eq(&self, other: &Self) -> bool {
        self.in_order_of_use().eq(other.in_order_of_use())
    }
}

impl ProducerTable {
    /// Creates a table that knows nobody.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns how many producers are known.
    pub fn len(&self) -> usize {
        self.producers.len()
    }

    /// Whether nobody is known.
    pub fn is_empty(&self) -> bool {
        self.producers.is_empty()
    }

    /// Decides about a batch that is about to be appended. Its base offset is not looked at.
    pub fn check(&self, batch: &BatchHeader) -> Result<Check, ProducerError> {
        if !batch.producer_id.is_some() {
            return Ok(Check::Append);
        }
        check_fields(batch)?;
        match self.producers.get(&batch.producer_id) {
            None if batch.base_sequence == Sequence::ZERO => self.check_room(),
            None => Err(ProducerError::Unknown {
                producer_id: batch.producer_id,
                got: batch.base_sequence,
            }),
            Some(producer) => producer.check(batch),
        }
    }

    /// Whether a producer may be added: the table has room, or one that may be forgotten.
    fn check_room(&self) -> Result<Check, ProducerError> {
        let is_forgettable = |id: &ProducerId| {
            let oldest = self.producers.get(id).map(|producer| producer.last_used);
            match (oldest, self.expired_at) {
                (Some(LastUsed::At(last_used)), Some(now)) => {
                    now.millis_since(last_used) >= REMEMBERED_MS_MIN
                }
                _ => false,
            }
        };
        let has_room = self.producers.len() < PRODUCERS_MAX;
        if has_room || self.by_use.values().next().is_some_and(is_forgettable) {
            return Ok(Check::Append);
        }
        Err(ProducerError::TooMany { max: PRODUCERS_MAX })
    }

    /// Notes a batch of the log, with its final base offset.
    ///
    /// Must be called for every batch of the log, in its order. Batches of an older epoch than the
    /// one known are passed over: no leader appends any.
    pub fn apply(&mut self, batch: &BatchHeader) {
        if !batch.producer_id.is_some() || check_fields(batch).is_err() {
            return;
        }
        let use_number = self.next_use_number;
        if let Some(producer) = self.producers.get_mut(&batch.producer_id) {
            if batch.producer_epoch < producer.epoch {
                return;
            }
            self.by_use.remove(&producer.use_number);
            producer.apply(batch, use_number);
        } else {
            self.producers
                .insert(batch.producer_id, Producer::first(batch, use_number));
        }
        self.by_use.insert(use_number, batch.producer_id);
        self.next_use_number += 1;
        self.evict_over(PRODUCERS_MAX);
    }

    /// Forgets producers that were idle for more than `after_ms`, and returns how many.
    ///
    /// Call it now and then: it is also how the table learns the time, so that a producer lives at
    /// least `after_ms` and at most that plus the time between two calls.
    pub fn expire(&mut self, now: TimestampMs, after_ms: u64) -> usize {
        self.expired_at = Some(now);
        let before = self.producers.len();
        let by_use = &mut self.by_use;
        self.producers.retain(|_, producer| {
            let is_kept = producer.stamp(now) <= after_ms;
            if !is_kept {
                by_use.remove(&producer.use_number);
            }
            is_kept
        });
        before - self.producers.len()
    }

    /// Returns the table as bytes: versioned, with a checksum, the same for the same history.
    pub fn encode(&self) -> Bytes {
        snapshot::encode(self)
    }

    /// Reads what [`Self::encode`] wrote. Empty input is an empty table.
    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        snapshot::decode(bytes)
    }

    fn evict_over(&mut self, producers_max: usize) {
        while self.producers.len() > producers_max {
            let Some((_, oldest)) = self.by_use.pop_first() else {
                return;
            };
            self.producers.remove(&oldest);
        }
    }

    fn in_order_of_use(&self) -> impl Iterator<Item = (ProducerId, ProducerEpoch, &Window)> {
        self.by_use.values().filter_map(|id| {
            let producer = self.producers.get(id)?;
            Some((*id, producer.epoch, &producer.window))
        })
    }

    /// Adds a producer that a snapshot names, as the most recently used.
    fn restore(&mut self, id: ProducerId, epoch: ProducerEpoch, window: Window, used: LastUsed) {
        let use_number = self.next_use_number;
        self.next_use_number += 1;
        let producer = Producer {
            epoch,
            window,
            last_used: used,
            use_number,
        };
        if let Some(replaced) = self.producers.insert(id, producer) {
            self.by_use.remove(&replaced.use_number);
        }
        self.by_use.insert(use_number, id);
    }
}

impl Producer {
    fn first(batch: &BatchHeader, use_number: u64) -> Self {
        Self {
            epoch: batch.producer_epoch,
            window: Window::starting_with(batch),
            last_used: LastUsed::SinceLastExpiry,
            use_number,
        }
    }

    fn check(&self, batch: &BatchHeader) -> Result<Check, ProducerError> {
        if batch.producer_epoch < self.epoch {
            return Err(ProducerError::Fenced {
                current: self.epoch,
                got: batch.producer_epoch,
            });
        }
        let is_same_epoch = batch.producer_epoch == self.epoch;
        if is_same_epoch && let Some(base_offset) = self.window.find(batch) {
            return Ok(Check::Duplicate { base_offset });
        }
        let expected = if is_same_epoch {
            self.window.next_sequence()
        } else {
            Sequence::ZERO
        };
        if batch.base_sequence != expected {
            return Err(ProducerError::OutOfOrder {
                expected,
                got: batch.base_sequence,
            });
        }
        Ok(Check::Append)
    }

    fn apply(&mut self, batch: &BatchHeader, use_number: u64) {
        let goes_on = batch.producer_epoch == self.epoch
            && batch.base_sequence == self.window.next_sequence()
            && batch.base_offset > self.window.last_base_offset();
        if goes_on {
            self.window.push(batch);
        } else {
            self.window = Window::starting_with(batch);
        }
        self.epoch = batch.producer_epoch;
        self.last_used = LastUsed::SinceLastExpiry;
        self.use_number = use_number;
    }

    /// Fixes the time of the last use and returns how long ago that was, in milliseconds.
    fn stamp(&mut self, now: TimestampMs) -> u64 {
        match self.last_used {
            LastUsed::SinceLastExpiry => {
                self.last_used = LastUsed::At(now);
                0
            }
            LastUsed::At(last_used) => now.millis_since(last_used),
        }
    }
}

fn check_fields(batch: &BatchHeader) -> Result<(), ProducerError> {
    if batch.producer_epoch.get() < 0 || batch.base_sequence.get() < 0 || batch.record_count == 0 {
        return Err(ProducerError::Malformed {
            producer_id: batch.producer_id,
            epoch: batch.producer_epoch,
            sequence: batch.base_sequence,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
