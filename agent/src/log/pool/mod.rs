//! The threads that write and flush all logs of an agent: group commit.
//!
//! A log queues its writes, in order, and stands in the pool's line of ready logs while it has any. A
//! thread takes its share of the line, writes everything these logs have queued (one `pwritev` per log
//! and some hundred batches), flushes each file once, and reports one event per log. What comes in
//! meanwhile is the next group. The slower the disk, the larger the groups.
//!
//! # Bounds
//!
//! Every write holds [`Room`] of its size until it is flushed. The agent's services take it before they
//! receive a batch, and hand it to the log's owner with the batch, so that a slow disk holds back
//! producers and never the owner's task.
//!
//! # Failure
//!
//! The first error of a write, an fsync or a checkpoint ends a log: what it has queued is dropped, its
//! events say so once, and nothing is tried again. Other logs continue. One error is no end: a file that
//! cannot be created because the system has run out of something. Nothing has changed then, so what is
//! queued waits and is tried again, and the log's owner takes no more until it succeeds.

mod queue;
mod worker;
mod writer;

use std::{num::NonZeroUsize, path::Path, sync::Arc, thread::JoinHandle, time::Duration};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(super) use queue::{LogQueue, Op, Progress, Write};
use worker::Line;
pub(super) use writer::LogWriter;

use super::{
    disk::{Disk, OsDisk},
    error::{Error, failed},
    open_files::OpenFiles,
};

/// When a batch counts as flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushPolicy {
    /// When its group is on the disk.
    Ack,
    /// When it is handed to the operating system; it is on the disk at most this much later. A power
    /// cut of all replicas within that time loses it.
    Interval(Duration),
}

/// Settings of a [`FlushPool`].
#[derive(Clone, Copy, Debug)]
pub struct PoolOptions {
    /// Threads that write. They mostly wait for the disk, so there may be more than cores: flushes of
    /// several files at once share the journal's commits.
    pub threads: NonZeroUsize,
    /// When a batch counts as flushed.
    pub policy: FlushPolicy,
    /// Bytes that may be queued and not flushed, of all logs.
    pub room_bytes: usize,
    /// With more files to flush at once than this, the whole file system is flushed instead, where it
    /// reports every failure. Below it that would not pay: it waits for everything that anybody has
    /// written there.
    pub files_max: usize,
    /// Files of sealed segments that are open at a time, of all logs.
    pub open_files_max: usize,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            threads: NonZeroUsize::new(4).expect("four is not zero"),
            policy: FlushPolicy::Ack,
            room_bytes: 64 << 20,
            files_max: 16,
            open_files_max: 256,
        }
    }
}

/// The threads and what they share with the logs. Cheap to clone; when the last clone goes, what is
/// queued is written and the threads end.
#[derive(Clone, Debug)]
pub struct FlushPool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    line: Arc<Line>,
    open_files: Arc<OpenFiles>,
    room: Arc<Semaphore>,
    options: PoolOptions,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Leave to queue a write of some size. Given back when the write is flushed, or by dropping it.
#[derive(Debug)]
pub struct Room(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

impl Room {
    /// Room that the caller took from a budget of its own.
    pub(crate) const fn held(permit: OwnedSemaphorePermit) -> Self {
        Self(permit)
    }
}

impl FlushPool {
    /// Starts the threads for logs below `root`, which is created if need be.
    pub fn start(root: &Path, options: PoolOptions) -> Result<Self, Error> {
        let disk = OsDisk::open(root).map_err(failed("open", root))?;
        Self::start_on(Arc::new(disk), options).map_err(failed("start threads", root))
    }

    /// Starts the threads on another disk.
    pub fn start_on(disk: Arc<dyn Disk>, options: PoolOptions) -> std::io::Result<Self> {
        let open_files = OpenFiles::new(Arc::clone(&disk), options.open_files_max);
        let line = Arc::new(Line::new(disk, options));
        let room_bytes = options.room_bytes.clamp(1, Semaphore::MAX_PERMITS);
        let inner = Inner {
            line: line.clone(),
            open_files: Arc::new(open_files),
            room: Arc::new(Semaphore::new(room_bytes)),
            options: PoolOptions {
                room_bytes,
                ..options
            },
            threads: Mutex::new(Vec::new()),
        };
        for number in 0..options.threads.get() {
            let line = line.clone();
            let syncer = line.disk.syncer()?;
            let thread = std::thread::Builder::new().name(format!("esker-flush-{number}"));
            let work = move || line.work(syncer.as_deref());
            inner.threads.lock().push(thread.spawn(work)?);
        }
        Ok(Self(Arc::new(inner)))
    }

    /// Waits for room for a write of `bytes`. First come, first served. A write larger than all room
    /// waits for all of it.
    pub async fn reserve(&self, bytes: usize) -> Room {
        let permits = self.permits(bytes);
        let room = self.0.room.clone().acquire_many_owned(permits).await;
        Room(room.expect("the semaphore is never closed"))
    }

    /// Takes room for a write of `bytes` if there is any now.
    pub fn try_reserve(&self, bytes: usize) -> Option<Room> {
        let permits = self.permits(bytes);
        self.0
            .room
            .clone()
            .try_acquire_many_owned(permits)
            .ok()
            .map(Room)
    }

    /// Waits until a thread of the pool comes round to look for work: never, while all of them hang
    /// on the disk.
    pub async fn pulse(&self) {
        // The threads live as long as the pool does.
        let _ = self.0.line.pulse().await;
    }

    /// Returns when a batch counts as flushed.
    pub fn policy(&self) -> FlushPolicy {
        self.0.options.policy
    }

    /// Returns the bytes that are queued or reserved.
    pub fn reserved_bytes(&self) -> usize {
        self.0.options.room_bytes - self.0.room.available_permits()
    }

    pub(super) fn open_files(&self) -> &Arc<OpenFiles> {
        &self.0.open_files
    }

    pub(super) fn disk(&self) -> &Arc<dyn Disk> {
        &self.0.line.disk
    }

    /// Queues an operation of a log.
    pub(super) fn push(&self, queue: &Arc<LogQueue>, op: Op) -> Result<(), Error> {
        if queue.push(op)? {
            self.0.line.push(queue.clone());
        }
        Ok(())
    }

    fn permits(&self, bytes: usize) -> u32 {
        let bytes = bytes.clamp(1, self.0.options.room_bytes);
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.line.stop();
        for thread in self.threads.get_mut().drain(..) {
            // A thread that panicked has failed its logs already.
            let _ = thread.join();
        }
    }
}
