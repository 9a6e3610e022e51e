//! What one log has queued for the pool, and how far the pool has come with it.

use std::{collections::VecDeque, path::PathBuf, sync::Arc};

use bytes::Bytes;
use esker_proto::{batch::HEADER_BYTES, types::Offset};
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::{oneshot, watch};

use super::{LogWriter, Room};
use crate::log::{
    error::Error,
    segment::{Segment, Segments},
};

/// One thing to do for a log. Done in the order they were queued.
#[derive(Debug)]
pub(in crate::log) enum Op {
    /// Append a batch to the segment begun last.
    Write(Write),
    /// Begin a segment: create its file when the first batch comes.
    Begin(Arc<Segment>),
    /// Close the file of the segment begun last, which takes no more.
    Seal,
    /// Flush what is written, then replace a small file.
    Checkpoint { path: PathBuf, frame: Vec<u8> },
    /// Remove files, oldest first.
    Remove(Vec<PathBuf>),
    /// Flush what is written and note that nothing follows.
    Close,
    /// Tell when everything before is on the disk, whatever the policy.
    Barrier(oneshot::Sender<()>),
}

/// A batch to append.
#[derive(Debug)]
pub(in crate::log) struct Write {
    pub(in crate::log) header: [u8; HEADER_BYTES],
    pub(in crate::log) body: Bytes,
    pub(in crate::log) next_offset: Offset,
    /// Given back when the batch is flushed.
    pub(in crate::log) room: Room,
}

/// How far the pool has come with a log.
#[derive(Clone, Debug)]
pub(in crate::log) struct Progress {
    pub(in crate::log) flushed_offset: Offset,
    /// Why a file cannot be created at present.
    pub(in crate::log) shortage: Option<Error>,
    pub(in crate::log) failure: Option<Error>,
}

/// The pool's view of one log.
#[derive(Debug)]
pub(in crate::log) struct LogQueue {
    dir: PathBuf,
    segments: Arc<Segments>,
    pending: Mutex<Pending>,
    /// Told when [`Pending::is_in_line`] ends.
    left_line: Condvar,
    /// Taken by the one thread that works on the log, which [`Pending::is_in_line`] sees to.
    writer: Mutex<LogWriter>,
    progress: watch::Sender<Progress>,
}

#[derive(Debug, Default)]
struct Pending {
    ops: VecDeque<Op>,
    /// In the line of ready logs or in the hands of a thread.
    is_in_line: bool,
    /// The interval of the flush policy is over.
    is_flush_due: bool,
    /// A file could not be created; what is queued is tried again later.
    is_short: bool,
    failure: Option<Error>,
}

/// What becomes of a log after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It has nothing to do.
    Idle,
    /// It goes to the end of the line.
    Line,
    /// It waits a while.
    Wait,
}

/// What a thread is to do for a log now.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) ops: VecDeque<Op>,
    pub(super) is_flush_due: bool,
    /// It was tried before.
    pub(super) was_short: bool,
}

impl LogQueue {
    pub(in crate::log) fn new(dir: PathBuf, segments: Arc<Segments>, writer: LogWriter) -> Self {
        let flushed_offset = segments.flushed_offset();
        Self {
            dir,
            segments,
            pending: Mutex::default(),
            left_line: Condvar::new(),
            writer: Mutex::new(writer),
            progress: watch::Sender::new(Progress {
                flushed_offset,
                shortage: None,
                failure: None,
            }),
        }
    }

    pub(in crate::log) fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    pub(in crate::log) fn failure(&self) -> Option<Error> {
        self.pending.lock().failure.clone()
    }

    /// Adds an operation; whether the log must now be put in line.
    pub(super) fn push(&self, op: Op) -> Result<bool, Error> {
        let mut pending = self.pending.lock();
        if let Some(failure) = &pending.failure {
            return Err(failure.clone());
        }
        pending.ops.push_back(op);
        Ok(!std::mem::replace(&mut pending.is_in_line, true))
    }

    /// Asks for a flush; whether the log must now be put in line.
    pub(super) fn set_flush_due(&self) -> bool {
        let mut pending = self.pending.lock();
        pending.is_flush_due = true;
        pending.failure.is_none() && !std::mem::replace(&mut pending.is_in_line, true)
    }

    /// Takes what is queued. What `work` holds, which is empty, becomes the queue, so that its memory
    /// is used again.
    pub(super) fn take(&self, work: &mut Work) {
        let mut pending = self.pending.lock();
        std::mem::swap(&mut pending.ops, &mut work.ops);
        work.is_flush_due = std::mem::take(&mut pending.is_flush_due);
        work.was_short = std::mem::take(&mut pending.is_short);
    }

    /// Queues what could not be done again, before what came since.
    pub(super) fn give_back(&self, work: &mut Work) {
        let mut pending = self.pending.lock();
        if pending.failure.is_some() {
            work.ops.clear();
            return;
        }
        work.ops.append(&mut pending.ops);
        std::mem::swap(&mut pending.ops, &mut work.ops);
        pending.is_flush_due |= work.is_flush_due;
        pending.is_short = true;
    }

    /// Tells the log's owner that a file cannot be created, or can be again.
    pub(super) fn set_shortage(&self, shortage: Option<Error>) {
        self.progress
            .send_modify(|progress| progress.shortage = shortage);
    }

    /// Leaves the line, unless there is more to do.
    pub(super) fn leave_line(&self) -> Next {
        let mut pending = self.pending.lock();
        let is_idle = pending.ops.is_empty() && !pending.is_flush_due;
        pending.is_in_line = !is_idle && pending.failure.is_none();
        match (pending.is_in_line, pending.is_short) {
            (true, true) => Next::Wait,
            (true, false) => Next::Line,
            (false, _) => {
                self.left_line.notify_all();
                Next::Idle
            }
        }
    }

    /// Waits until nothing is queued and nobody works on the log, and keeps it so while the guard
    /// lives, as long as nothing is pushed. Blocks for what the disk takes.
    pub(in crate::log) fn quiesce(&self) -> Result<MutexGuard<'_, LogWriter>, Error> {
        let mut pending = self.pending.lock();
        while pending.is_in_line {
            self.left_line.wait(&mut pending);
        }
        match &pending.failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(self.writer.lock()),
        }
    }

    pub(super) fn writer(&self) -> MutexGuard<'_, LogWriter> {
        self.writer.lock()
    }

    /// Notes what is on the disk, whatever the policy.
    pub(super) fn note_durable(&self, offset: Offset) {
        self.segments.set_durable(offset);
    }

    /// Tells readers and the log's owner how far it is flushed.
    pub(in crate::log) fn publish(&self, flushed_offset: Offset) {
        self.segments.set_flushed(flushed_offset);
        self.progress
            .send_modify(|progress| progress.flushed_offset = flushed_offset);
    }

    /// Ends the log.
    pub(in crate::log) fn fail(&self, failure: Error) {
        let mut pending = self.pending.lock();
        if pending.failure.is_some() {
            return;
        }
        pending.failure = Some(failure.clone());
        let dropped = std::mem::take(&mut pending.ops);
        drop(pending);
        drop(dropped);
        self.progress
            .send_modify(|progress| progress.failure = Some(failure));
    }

    pub(super) fn dir(&self) -> &std::path::Path {
        &self.dir
    }
}
