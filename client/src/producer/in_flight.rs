//! What is under way to one partition, and what may be sent next. Pure: no I/O, no clock.
//!
//! # Overview
//!
//! Batches leave in the order they were filled. Each carries the next sequence, and the agent
//! appends them in sequence only, so that a batch sent again is recognised ([`Answer::Written`] with
//! the original offset) and one that overtook an earlier one is refused (`OUT_OF_ORDER_SEQUENCE`).
//!
//! # Order under retry
//!
//! The queue is a run of batches on their way followed by a run of batches due: only a due batch
//! with none but due ones behind it may be sent. So after a refusal everything behind it is awaited
//! first (the agent refuses those as out of order), then all are sent again, the same bytes in the
//! same order. After a broken connection all are due at once.
//!
//! # A batch given up
//!
//! When a batch fails for good its sequences leave a gap that the agent will not step over. The
//! batches behind it are awaited or sent again until it is certain of each that it is not in the
//! log; one that is certain waits. Only then does this partition's epoch rise and the remaining batches get new sequences
//! from 0. A batch whose fate is not certain is never given another sequence: that could double
//! it. The new epoch also fences the one given up: if it is still on its way somewhere, it cannot
//! come to lie behind later ones.
//!
//! # Unknown outcomes
//!
//! A batch is [`Fate::Unknown`] once a try of it ended without an answer, or with one that does not
//! exclude its effect. From then on a copy may be under way in a connection long given up. If the
//! batch is given up its error says so, and the gap is soft: a late copy could fill it and let in
//! late copies of those behind. Those that may have any, and are refused as out of order, are
//! therefore given up too. Behind a firm gap, left by a batch that surely has no copy, a refusal as
//! out of order is final.
//!
//! # Not idempotent
//!
//! No sequences, one batch at a time. A batch of unknown fate is sent again and may be doubled.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use esker_proto::{
    batch::BatchBuilder,
    types::{Offset, ProducerEpoch, ProducerId, Sequence},
    v1,
};
use tokio::time::Instant;

use super::{accumulator::Filled, restamp::restamp};
use crate::{
    error::{Error, ErrorKind, Result},
    retry::{Backoff, RetryPolicy, after},
};

/// How fast refused batches are sent again; the delivery timeout says how often.
const RETRY: RetryPolicy = RetryPolicy {
    attempts_max: u32::MAX,
    delay_first: Duration::from_millis(20),
    delay_max: Duration::from_secs(1),
};

/// Producer id, epoch and first sequence of a batch.
pub(crate) type Stamp = (ProducerId, ProducerEpoch, Sequence);

/// One try of one batch. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempt(pub(crate) u64);

/// What the agent answered to a try.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// In the log, by this try or an earlier one.
    Written(Offset),
    Refused(Error),
}

/// A batch that is done with, and what became of it.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) batch: Batch,
    pub(crate) outcome: Result<Offset>,
}

/// An encoded batch.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The bytes as they were or will be sent.
    pub(crate) bytes: Bytes,
    pub(crate) record_count: u32,
    pub(crate) filled: Filled,
}

impl Batch {
    /// Encodes a batch; its builder, empty now, stays with it.
    pub(crate) fn encode(mut filled: Filled, stamp: Option<Stamp>) -> Self {
        let record_count = record_count(&filled.builder);
        let bytes = filled.builder.finish(stamp);
        Self {
            bytes,
            record_count,
            filled,
        }
    }
}

/// The batches of one partition that have a sequence and are not settled.
#[derive(Debug)]
pub(crate) struct InFlight {
    queue: VecDeque<Entry>,
    window: usize,
    identity: Option<Identity>,
    /// The foremost gap of this epoch.
    gap: Option<Gap>,
    /// Before then nothing is sent again.
    resend_at: Option<Instant>,
    backoff: Backoff,
    last_error: Option<Error>,
}

/// Who this partition's batches come from.
#[derive(Clone, Copy, Debug)]
struct Identity {
    producer_id: ProducerId,
    epoch: ProducerEpoch,
    next_sequence: Sequence,
    /// The agent has appended a batch of this epoch. Before that it may take any sequence for the
    /// first, so that a second batch must not be under way.
    is_known: bool,
}

/// Where a batch failed for good: the agent refuses what comes behind.
#[derive(Clone, Copy, Debug)]
struct Gap {
    /// Number of batches in the queue that come before it.
    ahead: usize,
    /// No copy of the batch can fill it.
    is_firm: bool,
}

#[derive(Debug)]
struct Entry {
    batch: Batch,
    state: State,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// To be sent, perhaps again.
    Due,
    OnItsWay(Attempt),
}

/// What is known of the tries before the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is not in the log.
    Absent,
    /// It may be in the log, or come to be.
    Unknown,
}

impl InFlight {
    /// `identity` is absent for a producer that is not idempotent; `window` must be 1 then.
    pub(crate) fn new(window: usize, identity: Option<(ProducerId, ProducerEpoch)>) -> Self {
        let identity = identity.map(|(producer_id, epoch)| Identity {
            producer_id,
            epoch,
            next_sequence: Sequence::ZERO,
            is_known: false,
        });
        Self {
            queue: VecDeque::new(),
            window,
            identity,
            gap: None,
            resend_at: None,
            backoff: Backoff::new(RETRY),
            last_error: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Number of batches that an answer is awaited for.
    pub(crate) fn awaited(&self) -> usize {
        self.queue
            .iter()
            .filter(|entry| entry.state != State::Due)
            .count()
    }

    /// Whether another batch may join the queue.
    pub(crate) fn has_room(&self) -> bool {
        let is_known = self.identity.is_none_or(|identity| identity.is_known);
        let window = if is_known { self.window } else { 1 };
        let all_sent = self.queue.iter().all(|entry| entry.state != State::Due);
        all_sent && self.gap.is_none() && self.queue.len() < window
    }

    /// Adds a batch, due, at the end. Only while there is room.
    pub(crate) fn push(&mut self, filled: Filled) {
        debug_assert!(self.has_room());
        let stamp = self.next_stamp(record_count(&filled.builder));
        let batch = Batch::encode(filled, stamp);
        self.queue.push_back(Entry {
            batch,
            state: State::Due,
            fate: Fate::Absent,
        });
    }

    /// Adds a batch that was encoded elsewhere, without a sequence.
    pub(crate) fn push_encoded(&mut self, mut batch: Batch) {
        if let Some(stamp) = self.next_stamp(batch.record_count) {
            batch.bytes = restamp(batch.bytes, stamp);
        }
        self.queue.push_back(Entry {
            batch,
            state: State::Due,
            fate: Fate::Absent,
        });
    }

    fn next_stamp(&mut self, record_count: u32) -> Option<Stamp> {
        let identity = self.identity.as_mut()?;
        let sequence = identity.next_sequence;
        identity.next_sequence = sequence.advance(record_count);
        Some((identity.producer_id, identity.epoch, sequence))
    }

    /// Returns when something is due again, if it is only a matter of time.
    pub(crate) fn resend_at(&self) -> Option<Instant> {
        self.resend_at.filter(|_| self.next_due().is_some())
    }

    /// Returns the time by which the oldest batch must be settled.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.queue.front().map(|entry| entry.batch.filled.deadline)
    }

    /// Returns the bytes to send next, if any; they count as on their way under `attempt`.
    pub(crate) fn send(&mut self, attempt: Attempt, now: Instant) -> Option<Bytes> {
        self.close_gap();
        if self.resend_at.is_some_and(|resend_at| now < resend_at) {
            return None;
        }
        let index = self.next_due()?;
        let entry = &mut self.queue[index];
        entry.state = State::OnItsWay(attempt);
        Some(entry.batch.bytes.clone())
    }

    /// The first batch worth sending, if none behind it is on its way.
    fn next_due(&self) -> Option<usize> {
        let mut queue = self.queue.iter().enumerate();
        let (index, _) = queue.find(|(index, entry)| {
            entry.state == State::Due && !self.waits_for_gap(*index, entry)
        })?;
        let mut behind = self.queue.iter().skip(index);
        behind
            .all(|entry| entry.state == State::Due)
            .then_some(index)
    }

    /// Whether a batch is certain to be refused again until the gap before it is closed: sent at
    /// once, it would be refused as fast as the agent can answer for as long as one before the gap
    /// is awaited.
    fn waits_for_gap(&self, index: usize, entry: &Entry) -> bool {
        entry.fate == Fate::Absent && self.gap.is_some_and(|gap| index >= gap.ahead)
    }

    /// Starts a new epoch for the batches behind a gap, once it is certain that the log has none of
    /// them.
    fn close_gap(&mut self) {
        let is_certain = |entry: &Entry| entry.state == State::Due && entry.fate == Fate::Absent;
        if self.gap.is_none() || !self.queue.iter().all(is_certain) {
            return;
        }
        let Some(identity) = &mut self.identity else {
            return;
        };
        // Fences what was given up. The last epoch is never left: see `is_exhausted`.
        identity.epoch = ProducerEpoch::new(identity.epoch.get().saturating_add(1));
        identity.next_sequence = Sequence::ZERO;
        identity.is_known = false;
        self.gap = None;
        for index in 0..self.queue.len() {
            let stamp = self.next_stamp(self.queue[index].batch.record_count);
            let batch = &mut self.queue[index].batch;
            if let Some(stamp) = stamp {
                batch.bytes = restamp(std::mem::take(&mut batch.bytes), stamp);
            }
        }
    }

    /// Takes in an answer. An answer to a try that is not awaited any more says nothing new.
    pub(crate) fn on_answer(
        &mut self,
        attempt: Attempt,
        answer: Answer,
        now: Instant,
    ) -> Option<Settled> {
        let awaited = State::OnItsWay(attempt);
        let index = self.queue.iter().position(|entry| entry.state == awaited)?;
        match answer {
            Answer::Written(base_offset) => Some(self.on_written(index, base_offset)),
            Answer::Refused(error) => self.on_refused(index, error, now),
        }
    }

    fn on_written(&mut self, index: usize, base_offset: Offset) -> Settled {
        if let Some(identity) = &mut self.identity {
            identity.is_known = true;
        }
        self.backoff.reset();
        self.resend_at = None;
        self.last_error = None;
        Settled {
            batch: self.remove(index),
            outcome: Ok(base_offset),
        }
    }

    fn on_refused(&mut self, index: usize, error: Error, now: Instant) -> Option<Settled> {
        let is_unordered = error.wire_kind() == v1::ErrorKind::OutOfOrderSequence;
        if is_unordered && self.identity.is_some() {
            return self.on_unordered(index, error, now);
        }
        if !error.is_retryable() {
            return Some(self.give_up(index, error));
        }
        self.set_due(index, error.has_no_side_effects());
        self.delay(error, now);
        None
    }

    /// The agent misses an earlier batch.
    fn on_unordered(&mut self, index: usize, error: Error, now: Instant) -> Option<Settled> {
        let is_unknown = self.queue[index].fate == Fate::Unknown;
        match self.gap.filter(|gap| index >= gap.ahead) {
            Some(gap) if is_unknown && !gap.is_firm => return Some(self.give_up(index, error)),
            Some(_) => {
                self.queue[index].fate = Fate::Absent;
                self.set_due(index, true);
                return None;
            }
            None if index > 0 => {
                self.set_due(index, true);
                return None;
            }
            // Everything before was acknowledged: the agent has forgotten this producer, or lost
            // records. Whether it also forgot an earlier try of this batch, nobody knows.
            None if is_unknown => return Some(self.give_up(index, error)),
            None => {}
        }
        tracing::warn!(%error, "agent does not know the batches before, starting a new epoch");
        self.gap = Some(Gap {
            ahead: index,
            is_firm: true,
        });
        self.set_due(index, true);
        self.delay(error, now);
        None
    }

    fn delay(&mut self, error: Error, now: Instant) {
        self.resend_at = Some(after(now, self.backoff.delay(error.retry_after())));
        self.last_error = Some(error);
    }

    fn set_due(&mut self, index: usize, has_no_side_effects: bool) {
        let entry = &mut self.queue[index];
        entry.state = State::Due;
        if !has_no_side_effects {
            entry.fate = Fate::Unknown;
        }
    }

    /// The connection broke: what was on its way may or may not have arrived.
    pub(crate) fn on_broken(&mut self, error: &Error) {
        for index in 0..self.queue.len() {
            if self.queue[index].state != State::Due {
                self.set_due(index, false);
                self.last_error = Some(error.clone());
            }
        }
    }

    /// Gives up the oldest batch if its time is up.
    pub(crate) fn expire(&mut self, timeout: Duration, now: Instant) -> Option<Settled> {
        self.deadline().filter(|deadline| *deadline <= now)?;
        if self.queue[0].state != State::Due {
            self.set_due(0, false);
        }
        let error = delivery_timed_out(timeout, self.last_error.as_ref());
        Some(self.give_up(0, error))
    }

    /// Gives up everything: this producer has been fenced, or ends.
    pub(crate) fn fail_all(&mut self, error: &Error) -> Vec<Settled> {
        self.on_broken(error);
        let count = self.queue.len();
        (0..count).map(|_| self.give_up(0, error.clone())).collect()
    }

    fn give_up(&mut self, index: usize, error: Error) -> Settled {
        let is_unknown = self.queue[index].fate == Fate::Unknown;
        let is_absent = !is_unknown && error.has_no_side_effects();
        // Behind the foremost gap nothing changes: what is there waits for that one anyway.
        let is_foremost = self.gap.is_none_or(|gap| index < gap.ahead);
        let batch = self.remove(index);
        if self.identity.is_some() && is_foremost {
            self.gap = Some(Gap {
                ahead: index,
                is_firm: is_absent,
            });
        }
        Settled {
            batch,
            outcome: Err(error.with_side_effects(is_absent)),
        }
    }

    fn remove(&mut self, index: usize) -> Batch {
        if let Some(gap) = &mut self.gap
            && index < gap.ahead
        {
            gap.ahead -= 1;
        }
        let entry = self.queue.remove(index);
        entry.expect("the index was just found").batch
    }

    /// Whether there is no epoch left to raise to.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.gap.is_some()
            && self
                .identity
                .is_some_and(|identity| identity.epoch.get() == i16::MAX)
    }
}

/// What a record's delivery says when its time was up.
pub(crate) fn delivery_timed_out(timeout: Duration, last_error: Option<&Error>) -> Error {
    let mut message = format!("record was not delivered in time. delivery_timeout=`{timeout:?}`");
    if let Some(error) = last_error {
        message = format!("{message} last_error=`{error}`");
    }
    let error = Error::new(ErrorKind::TimedOut, message);
    match last_error {
        Some(last_error) => error.with_source(last_error.clone()),
        None => error,
    }
}

fn record_count(builder: &BatchBuilder) -> u32 {
    u32::try_from(builder.len()).expect("a batch of at most 64 MiB holds fewer records")
}

#[cfg(test)]
mod tests;
