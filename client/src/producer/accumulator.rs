//! Where records are put into batches: one open batch per partition, behind its own lock.
//!
//! This is the hot path. A record costs one uncontended lock, the encoding straight into the batch
//! and a counted pointer. The sender is woken per batch, never per record: when a record opens
//! one, so that its linger is timed, and when one is full.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use esker_proto::{
    batch::{BatchBuilder, Compression, HEADER_BYTES},
    types::{PartitionId, TimestampMs},
};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{
    RecordRef,
    budget::Budget,
    delivery::{Completion, Delivery, Promise},
    failures::Failures,
    partitioner::Choice,
};
use crate::{
    error::{Error, ErrorKind},
    retry::after,
};

/// Most bytes a record takes besides key, value and headers.
const RECORD_OVERHEAD_BYTES_MAX: usize = 36;
/// Most bytes a header takes besides its name and value.
const HEADER_OVERHEAD_BYTES_MAX: usize = 10;
/// A growing batch takes room in steps, each as large as the batch so far, between these.
const STEP_BYTES_MIN: usize = 1 << 10;
const STEP_BYTES_MAX: usize = 64 << 10;
/// Builders whose memory is kept for the next batches.
const SPARES_MAX: usize = 16;

/// Bounds on batches and time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The size wanted. The topic's limit is kept too.
    pub(crate) batch_bytes: usize,
    /// Largest batch the topic takes, to begin with.
    pub(crate) batch_bytes_max: usize,
    pub(crate) linger: Duration,
    pub(crate) delivery_timeout: Duration,
    pub(crate) compression: Compression,
}

/// A batch that takes no more records. Its sequence is not fixed yet.
#[derive(Debug)]
pub(crate) struct Filled {
    pub(crate) builder: BatchBuilder,
    pub(crate) completion: Promise,
    pub(crate) deadline: Instant,
    /// Room it holds of the budget.
    pub(crate) reserved: usize,
}

/// What became of an attempt to add a record.
#[derive(Debug)]
pub(crate) enum Push {
    Added(Delivery),
    /// So much room has to be taken first.
    NoRoom(usize),
    /// The record would open a batch where the last one went as well: take another partition. The
    /// credit stays the caller's.
    MoveOn,
    /// The partition takes no records any more. The credit stays the caller's.
    Ended(Error),
    Refused(Error),
}

/// What there is to send for a partition.
#[derive(Debug)]
pub(crate) enum Take {
    Filled(Filled),
    /// A batch waits for more records until then.
    Lingering(Instant),
    Empty,
}

/// The batches of all partitions that the sender has not taken yet.
#[derive(Debug)]
pub(crate) struct Accumulator {
    partitions: Box<[Slot]>,
    limits: Limits,
    /// Size at which a batch takes no more records.
    batch_bytes: AtomicUsize,
    /// Largest batch the topic takes.
    batch_bytes_max: AtomicUsize,
    pub(crate) budget: Budget,
    /// Partitions with something new for the sender; each at most once.
    listed: Mutex<Vec<usize>>,
    pub(crate) wake: Notify,
    spares: Mutex<Vec<BatchBuilder>>,
    pub(crate) failures: Failures,
    is_closed: AtomicBool,
}

/// A lock to itself in its cache lines: neighbours are used by other threads.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Slot(Mutex<Buffer>);

/// The batches of one partition.
#[derive(Debug, Default)]
struct Buffer {
    open: Option<Open>,
    /// Oldest first; all older than the open one.
    filled: VecDeque<Filled>,
    /// Batches that are not settled, taken or not, oldest first; settled ones may be among them.
    unsettled: VecDeque<Arc<Completion>>,
    is_listed: bool,
    /// The last batch was opened by a record that could have gone elsewhere.
    was_chosen: bool,
    /// Why no record is taken any more.
    refusal: Option<Error>,
}

#[derive(Debug)]
struct Open {
    builder: BatchBuilder,
    completion: Promise,
    opened_at: Instant,
    reserved: usize,
    /// Somebody flushes: it waits for no more records.
    is_urgent: bool,
}

impl Accumulator {
    pub(crate) fn new(partitions: usize, limits: Limits, buffer_bytes: usize) -> Self {
        Self {
            partitions: (0..partitions).map(|_| Slot::default()).collect(),
            limits,
            batch_bytes: AtomicUsize::new(limits.batch_bytes.min(limits.batch_bytes_max)),
            batch_bytes_max: AtomicUsize::new(limits.batch_bytes_max),
            budget: Budget::new(buffer_bytes),
            listed: Mutex::default(),
            wake: Notify::new(),
            spares: Mutex::default(),
            failures: Failures::default(),
            is_closed: AtomicBool::new(false),
        }
    }

    pub(crate) const fn partitions(&self) -> usize {
        self.partitions.len()
    }

    /// Builds no larger batches from here on: the topic's limit has changed.
    pub(crate) fn set_batch_bytes_max(&self, bytes: usize) {
        let wanted = self.limits.batch_bytes.min(bytes);
        self.batch_bytes.store(wanted, Ordering::Relaxed);
        self.batch_bytes_max.store(bytes, Ordering::Relaxed);
    }

    pub(crate) const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Adds a record to its partition's open batch. `credit` is room taken for it before.
    #[inline]
    pub(crate) fn push(
        &self,
        choice: Choice,
        record: &RecordRef<'_>,
        timestamp: TimestampMs,
        credit: usize,
    ) -> Push {
        let size = record_bytes_max(record);
        let mut buffer = self.partitions[slot(choice.partition)].0.lock();
        if buffer
            .open
            .as_ref()
            .is_some_and(|open| self.is_full_for(open, size))
        {
            self.fill(&mut buffer);
        }
        if buffer.open.is_none()
            && let Some(obstacle) = self.obstacle(&mut buffer, choice, size)
        {
            if let Push::Refused(_) = obstacle {
                self.budget.give_back(credit);
            }
            return obstacle;
        }
        let Some(room) = self.take_room(buffer.open.as_ref(), size, credit) else {
            self.budget.give_back(credit);
            return Push::NoRoom(HEADER_BYTES + size);
        };
        if buffer.open.is_none() {
            self.open(&mut buffer, choice);
        }
        let open = buffer.open.as_mut().expect("opened just above");
        open.reserved += room;
        match open
            .builder
            .push(timestamp, record.key, record.value, record.headers)
        {
            Ok(()) => Push::Added(open.delivery()),
            Err(error) => {
                let error = Error::invalid(error.to_string()).with_source(error);
                self.drop_if_empty(&mut buffer, &error);
                Push::Refused(error)
            }
        }
    }

    /// Takes back a batch whose first record could not be encoded.
    fn drop_if_empty(&self, buffer: &mut Buffer, error: &Error) {
        if let Some(open) = buffer.open.take_if(|open| open.builder.is_empty()) {
            self.budget.give_back(open.reserved);
            open.completion.complete(Err(error.clone()));
        }
    }

    fn is_full_for(&self, open: &Open, size: usize) -> bool {
        open.builder.size_bytes() + size > self.batch_bytes.load(Ordering::Relaxed)
            && !open.builder.is_empty()
    }

    /// What keeps a record from opening a batch.
    fn obstacle(&self, buffer: &mut Buffer, choice: Choice, size: usize) -> Option<Push> {
        if let Some(refusal) = &buffer.refusal {
            return Some(Push::Ended(refusal.clone()));
        }
        let bytes_max = self.batch_bytes_max.load(Ordering::Relaxed);
        let bytes_max = bytes_max.min(self.budget.bytes_max());
        if HEADER_BYTES + size > bytes_max {
            let message = format!("record is too large. bytes=`{size}` bytes_max=`{bytes_max}`");
            return Some(Push::Refused(Error::invalid(message)));
        }
        if choice.is_free && std::mem::take(&mut buffer.was_chosen) {
            return Some(Push::MoveOn);
        }
        None
    }

    /// Returns the room to add to the batch's, `credit` included, so that a record fits.
    #[inline]
    fn take_room(&self, open: Option<&Open>, size: usize, credit: usize) -> Option<usize> {
        let (used, reserved) = open.map_or((HEADER_BYTES, 0), |open| {
            (open.builder.size_bytes(), open.reserved)
        });
        let needed = (used + size).saturating_sub(reserved + credit);
        if needed == 0 {
            return Some(credit);
        }
        let step = needed.max(used.clamp(STEP_BYTES_MIN, STEP_BYTES_MAX));
        let taken = [step, needed]
            .into_iter()
            .find(|bytes| self.budget.try_take(*bytes))?;
        Some(credit + taken)
    }

    #[cold]
    fn open(&self, buffer: &mut Buffer, choice: Choice) {
        let completion = Arc::new(Completion::new(choice.partition));
        buffer.unsettled.retain(|batch| !batch.is_done());
        buffer.unsettled.push_back(Arc::clone(&completion));
        let completion = Promise(completion);
        let spare = self.spares.lock().pop();
        buffer.open = Some(Open {
            builder: spare.unwrap_or_else(|| BatchBuilder::new(self.limits.compression)),
            completion,
            opened_at: Instant::now(),
            reserved: 0,
            is_urgent: false,
        });
        buffer.was_chosen = choice.is_free;
        self.list(buffer, slot(choice.partition));
    }

    /// Moves the open batch, if any, to those that take no more records.
    #[cold]
    fn fill(&self, buffer: &mut Buffer) {
        let Some(open) = buffer.open.take() else {
            return;
        };
        let index = slot(open.completion.partition());
        let filled = self.seal(open);
        buffer.filled.push_back(filled);
        self.list(buffer, index);
    }

    fn seal(&self, open: Open) -> Filled {
        // What was taken ahead is free for others at once.
        let reserved = open.reserved.min(open.builder.size_bytes());
        self.budget.give_back(open.reserved - reserved);
        Filled {
            builder: open.builder,
            completion: open.completion,
            deadline: after(open.opened_at, self.limits.delivery_timeout),
            reserved,
        }
    }

    fn list(&self, buffer: &mut Buffer, index: usize) {
        if !std::mem::replace(&mut buffer.is_listed, true) {
            self.listed.lock().push(index);
            self.wake.notify_one();
        }
    }

    /// Returns the partitions where something happened since the last call.
    pub(crate) fn take_listed(&self) -> Vec<usize> {
        let listed = std::mem::take(&mut *self.listed.lock());
        for index in &listed {
            self.partitions[*index].0.lock().is_listed = false;
        }
        listed
    }

    /// Takes the oldest batch that is to be sent.
    pub(crate) fn take(&self, index: usize, now: Instant) -> Take {
        let mut buffer = self.partitions[index].0.lock();
        if let Some(filled) = buffer.filled.pop_front() {
            return Take::Filled(filled);
        }
        match buffer.open.take() {
            None => Take::Empty,
            Some(open) if self.is_due(&open, now) => Take::Filled(self.seal(open)),
            Some(open) => {
                let until = after(open.opened_at, self.limits.linger);
                buffer.open = Some(open);
                Take::Lingering(until)
            }
        }
    }

    fn is_due(&self, open: &Open, now: Instant) -> bool {
        open.is_urgent || after(open.opened_at, self.limits.linger) <= now || self.budget.is_short()
    }

    /// Takes the oldest batch if its time is up.
    pub(crate) fn take_expired(&self, index: usize, now: Instant) -> Option<Filled> {
        let mut buffer = self.partitions[index].0.lock();
        match buffer.filled.front() {
            Some(filled) if filled.deadline <= now => buffer.filled.pop_front(),
            Some(_) => None,
            None => {
                let timeout = self.limits.delivery_timeout;
                let open = buffer
                    .open
                    .take_if(|open| after(open.opened_at, timeout) <= now)?;
                Some(self.seal(open))
            }
        }
    }

    /// Returns when the time of the oldest batch is up.
    pub(crate) fn deadline(&self, index: usize) -> Option<Instant> {
        let buffer = self.partitions[index].0.lock();
        let filled = buffer.filled.front().map(|filled| filled.deadline);
        let timeout = self.limits.delivery_timeout;
        filled.or_else(|| {
            buffer
                .open
                .as_ref()
                .map(|open| after(open.opened_at, timeout))
        })
    }

    /// Keeps a builder, and the memory of the batch it built, for the next batches.
    pub(crate) fn recycle(&self, mut builder: BatchBuilder, batch: bytes::Bytes) {
        let mut spares = self.spares.lock();
        if spares.len() < SPARES_MAX {
            builder.recycle(batch);
            spares.push(builder);
        }
    }

    /// Asks the sender to send what there is, and returns every batch that is not settled.
    pub(crate) fn hurry(&self) -> Vec<Arc<Completion>> {
        let mut unsettled = Vec::new();
        for (index, slot) in self.partitions.iter().enumerate() {
            let mut buffer = slot.0.lock();
            unsettled.extend(
                buffer
                    .unsettled
                    .iter()
                    .filter(|batch| !batch.is_done())
                    .cloned(),
            );
            if let Some(open) = &mut buffer.open {
                open.is_urgent = true;
                self.list(&mut buffer, index);
            }
        }
        unsettled
    }

    /// Takes no more records for a partition.
    pub(crate) fn refuse(&self, index: usize, error: &Error) {
        let mut buffer = self.partitions[index].0.lock();
        // What was put in before is still sent.
        self.fill(&mut buffer);
        buffer.refusal.get_or_insert_with(|| error.clone());
    }

    /// Takes the oldest batch that takes no more records.
    pub(crate) fn take_filled(&self, index: usize) -> Option<Filled> {
        self.partitions[index].0.lock().filled.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        let mut buffers = self.partitions.iter().map(|slot| slot.0.lock());
        buffers.all(|buffer| buffer.open.is_none() && buffer.filled.is_empty())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub(crate) fn is_compressing(&self) -> bool {
        self.limits.compression != Compression::None
    }

    /// Takes no more records at all, and asks the sender to send what there is.
    pub(crate) fn close(&self) {
        let closed = Error::new(ErrorKind::Closed, "producer is closed");
        for index in 0..self.partitions() {
            self.refuse(index, &closed);
        }
        // Only now: who sees it closed may rely on nothing being added.
        self.is_closed.store(true, Ordering::Release);
        self.wake.notify_one();
    }
}

impl Open {
    #[inline]
    fn delivery(&self) -> Delivery {
        let index = u32::try_from(self.builder.len() - 1);
        Delivery::new(
            Arc::clone(&self.completion.0),
            index.expect("a batch of at most 64 MiB holds fewer records"),
        )
    }
}

const fn slot(partition: PartitionId) -> usize {
    partition.get() as usize
}

/// Most bytes the record takes when encoded.
#[inline]
fn record_bytes_max(record: &RecordRef<'_>) -> usize {
    let headers = record
        .headers
        .iter()
        .map(|(name, value)| HEADER_OVERHEAD_BYTES_MAX + name.len() + value.map_or(0, <[u8]>::len));
    RECORD_OVERHEAD_BYTES_MAX
        + record.key.map_or(0, <[u8]>::len)
        + record.value.map_or(0, <[u8]>::len)
        + headers.sum::<usize>()
}

#[cfg(test)]
mod tests;
