//! The line of ready logs and the threads that serve it.
//!
//! # Flushing the whole file system
//!
//! A group of many dirty files is flushed with one call for the whole file system. The kernel reports a
//! failed write of a page once to each open file description: of the file it belongs to, and of any
//! directory that was opened to flush the file system with. So a thread whose descriptor has reported
//! another log's failure would then be told that all is well, with its own pages gone. Two rules make
//! the call safe:
//!
//! - Each thread has a descriptor of its own, opened before the thread begins, and counts in
//!   [`Line::failures`] each failure it reports before it does anything else. A log remembers that count
//!   from before its first write that is not flushed. Say a page of it failed since. Then either the
//!   thread's call reports that, or a call of this thread has, after the write, and the count has
//!   changed. This holds also if the log was written by another thread, or long before it is flushed.
//! - A call that succeeds counts for the logs whose count has not changed. All others are flushed by
//!   their own file, whose descriptor was opened before the first write to it and so reports exactly
//!   what happened to that file. It is the first flush of these writes: none is ever tried again.
//!
//! Where the kernel or the file system does not report every failure, or a log's directory lies on
//! another file system, each file is flushed by itself.

use std::{
    collections::VecDeque,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::{
    FlushPolicy, LogWriter, PoolOptions,
    queue::{LogQueue, Next, Work},
    writer::Failure,
};
use crate::log::{
    disk::{Disk, Syncer},
    error::{Error, failed},
};

/// A log that could not create a file tries again after this long.
const SHORTAGE_WAIT: Duration = Duration::from_millis(250);

/// Logs that have something to do, and the threads' way to them.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) disk: Arc<dyn Disk>,
    options: PoolOptions,
    state: Mutex<State>,
    wake: Condvar,
    /// Failures that calls for the whole file system have reported.
    failures: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<Arc<LogQueue>>,
    /// Logs that are written and not flushed, with the time their flush is due; the earliest first.
    unflushed: VecDeque<(Instant, Arc<LogQueue>)>,
    /// Logs that could not create a file, with the time they try again; the earliest first.
    short: VecDeque<(Instant, Arc<LogQueue>)>,
    /// Those who want to know whether any thread still comes round.
    pulses: Vec<oneshot::Sender<()>>,
    idle_threads: usize,
    is_stopping: bool,
}

/// One log of a group.
struct Member<'a> {
    queue: &'a Arc<LogQueue>,
    writer: MutexGuard<'a, LogWriter>,
    is_flush_due: bool,
}

impl Line {
    pub(super) fn new(disk: Arc<dyn Disk>, options: PoolOptions) -> Self {
        Self {
            disk,
            options,
            state: Mutex::default(),
            wake: Condvar::new(),
            failures: AtomicU64::new(0),
        }
    }

    /// Puts a log at the end of the line.
    pub(super) fn push(&self, queue: Arc<LogQueue>) {
        self.state.lock().ready.push_back(queue);
        self.wake.notify_one();
    }

    fn push_later(&self, queue: Arc<LogQueue>) {
        let due = Instant::now() + SHORTAGE_WAIT;
        self.state.lock().short.push_back((due, queue));
        // A thread that waits without a due time must learn of this one.
        self.wake.notify_one();
    }

    /// Has the next thread that comes round say so.
    pub(super) fn pulse(&self) -> oneshot::Receiver<()> {
        let (alive, answer) = oneshot::channel();
        self.state.lock().pulses.push(alive);
        self.wake.notify_one();
        answer
    }

    /// Lets the threads end once the line is empty and everything is flushed.
    pub(super) fn stop(&self) {
        self.state.lock().is_stopping = true;
        self.wake.notify_all();
    }

    /// Serves the line until the pool stops.
    pub(super) fn work(&self, syncer: Option<&dyn Syncer>) {
        let mut group = Vec::new();
        // Outside of what may panic: what is left in it is dropped after its log has failed.
        let mut work = Work::default();
        while self.wait_for_group(&mut group) {
            let serve = AssertUnwindSafe(|| self.serve(&group, &mut work, syncer));
            if catch_unwind(serve).is_err() {
                fail_all(&group);
                work.ops.clear();
            }
            for queue in group.drain(..) {
                match queue.leave_line() {
                    Next::Line => self.push(queue),
                    Next::Wait => self.push_later(queue),
                    Next::Idle => {}
                }
            }
        }
    }

    /// Fills `group` with this thread's share of the line; `false` if there will be none.
    fn wait_for_group(&self, group: &mut Vec<Arc<LogQueue>>) -> bool {
        let mut state = self.state.lock();
        loop {
            state.call_due_flushes(Instant::now());
            state.call_short(Instant::now());
            state.answer_pulses();
            let share = state.ready.len().div_ceil(state.idle_threads + 1);
            if share > 0 {
                group.extend(state.ready.drain(..share));
                return true;
            }
            if state.is_stopping && state.unflushed.is_empty() && state.short.is_empty() {
                return false;
            }
            state.idle_threads += 1;
            match state.next_due() {
                Some(due) => drop(self.wake.wait_until(&mut state, due)),
                None => self.wake.wait(&mut state),
            }
            state.idle_threads -= 1;
        }
    }

    /// Writes, flushes and reports what the logs of the group have queued.
    fn serve(&self, group: &[Arc<LogQueue>], work: &mut Work, syncer: Option<&dyn Syncer>) {
        let mut members = Vec::with_capacity(group.len());
        let failures = self.failures.load(Ordering::Acquire);
        for queue in group {
            queue.take(work);
            let mut writer = queue.writer();
            let (was_short, is_flush_due) = (work.was_short, work.is_flush_due);
            match writer.run(work, failures) {
                Ok(()) if was_short => queue.set_shortage(None),
                Ok(()) => {}
                Err(Failure::Shortage(error)) if !self.is_stopping() => {
                    queue.set_shortage(Some(error));
                    queue.give_back(work);
                }
                Err(Failure::Shortage(failure) | Failure::Fatal(failure)) => {
                    end(queue, &mut writer, failure);
                    // After the failure is known: those who wait for what is left must find it.
                    work.ops.clear();
                    continue;
                }
            }
            members.push(Member {
                queue,
                writer,
                is_flush_due,
            });
        }
        if let FlushPolicy::Interval(_) = self.options.policy {
            self.publish_unflushed(&mut members);
        }
        self.flush(members, syncer);
    }

    /// Reports what is written, and keeps only the logs whose flush is due.
    fn publish_unflushed(&self, members: &mut Vec<Member<'_>>) {
        members.retain_mut(|member| {
            let offset = member.writer.publish();
            member.queue.publish(offset);
            let is_due = member.is_flush_due || member.writer.has_barriers();
            if !is_due && member.writer.is_dirty() && !member.writer.set_flush_scheduled() {
                self.schedule_flush(member.queue.clone());
            }
            is_due
        });
    }

    fn schedule_flush(&self, queue: Arc<LogQueue>) {
        let FlushPolicy::Interval(interval) = self.options.policy else {
            return;
        };
        let mut state = self.state.lock();
        state
            .unflushed
            .push_back((Instant::now() + interval, queue));
        drop(state);
        // A thread that waits without a due time must learn of this one.
        self.wake.notify_one();
    }

    fn is_stopping(&self) -> bool {
        self.state.lock().is_stopping
    }

    fn flush(&self, members: Vec<Member<'_>>, syncer: Option<&dyn Syncer>) {
        let is_dirty = |member: &&Member<'_>| member.writer.is_dirty();
        let is_worth_it = members.iter().filter(is_dirty).count() > self.options.files_max;
        let is_synced = is_worth_it && syncer.is_some_and(|syncer| self.sync_all(syncer));
        let failures = self.failures.load(Ordering::Acquire);
        for mut member in members {
            let flushed = match is_synced && member.writer.has_seen_no_failure_since(failures) {
                true => member.writer.note_flushed(),
                false => member.writer.flush(),
            };
            match flushed {
                Ok(()) => {
                    let offset = member.writer.publish();
                    member.queue.note_durable(offset);
                    member.queue.publish(offset);
                    member.writer.release_barriers();
                }
                Err(failure) => end(member.queue, &mut member.writer, failure),
            }
        }
    }

    /// Flushes the whole file system; whether nothing has failed.
    fn sync_all(&self, syncer: &dyn Syncer) -> bool {
        let Err(error) = syncer.sync_all() else {
            return true;
        };
        self.failures.fetch_add(1, Ordering::AcqRel);
        tracing::error!(%error, "cannot flush the file system of the logs, flushing file by file");
        false
    }
}

impl State {
    fn answer_pulses(&mut self) {
        for alive in self.pulses.drain(..) {
            // Whoever asked may have lost patience.
            let _ = alive.send(());
        }
    }

    /// When the next log is to be put in line, if none has anything to do.
    fn next_due(&self) -> Option<Instant> {
        let fronts = [self.unflushed.front(), self.short.front()];
        fronts.into_iter().flatten().map(|(due, _)| *due).min()
    }

    /// Puts the logs in line that wanted to try again by now; all of them when the pool stops.
    fn call_short(&mut self, now: Instant) {
        let is_stopping = self.is_stopping;
        while let Some((_, queue)) = self
            .short
            .pop_front_if(|(due, _)| *due <= now || is_stopping)
        {
            self.ready.push_back(queue);
        }
    }

    /// Puts the logs in line whose flush is due; all of them when the pool stops.
    fn call_due_flushes(&mut self, now: Instant) {
        while let Some((due, _)) = self.unflushed.front() {
            if *due > now && !self.is_stopping {
                return;
            }
            if let Some((_, queue)) = self.unflushed.pop_front()
                && queue.set_flush_due()
            {
                self.ready.push_back(queue);
            }
        }
    }
}

/// Ends a log. The failure is known before those who wait are let go, so that they find it.
fn end(queue: &LogQueue, writer: &mut LogWriter, failure: Error) {
    queue.fail(failure);
    writer.abandon();
}

/// A panic is a bug; the logs it hit must not wait for ever.
fn fail_all(group: &[Arc<LogQueue>]) {
    for queue in group {
        let failure = io::Error::other("a flush thread panicked");
        end(
            queue,
            &mut queue.writer(),
            failed("write", queue.dir())(failure),
        );
    }
}
