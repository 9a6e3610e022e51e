//! The line of ready logs and the threads that serve it.

use std::{
    collections::VecDeque,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Instant,
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::{
    FlushPolicy, LogWriter, PoolOptions,
    queue::{LogQueue, Op, Work},
};
use crate::log::{
    disk::Disk,
    error::{Error, failed},
};

/// Logs that have something to do, and the threads' way to them.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) disk: Arc<dyn Disk>,
    options: PoolOptions,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<Arc<LogQueue>>,
    /// Logs that are written and not flushed, with the time their flush is due; the earliest first.
    unflushed: VecDeque<(Instant, Arc<LogQueue>)>,
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
        }
    }

    /// Puts a log at the end of the line.
    pub(super) fn push(&self, queue: Arc<LogQueue>) {
        self.state.lock().ready.push_back(queue);
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
    pub(super) fn work(&self) {
        let mut group = Vec::new();
        let mut spare = Vec::new();
        while self.wait_for_group(&mut group) {
            let served = catch_unwind(AssertUnwindSafe(|| self.serve(&group, &mut spare)));
            if served.is_err() {
                fail_all(&group);
            }
            for queue in group.drain(..) {
                if queue.leave_line() {
                    self.push(queue);
                }
            }
        }
    }

    /// Fills `group` with this thread's share of the line; `false` if there will be none.
    fn wait_for_group(&self, group: &mut Vec<Arc<LogQueue>>) -> bool {
        let mut state = self.state.lock();
        loop {
            state.call_due_flushes(Instant::now());
            state.answer_pulses();
            let share = state.ready.len().div_ceil(state.idle_threads + 1);
            if share > 0 {
                group.extend(state.ready.drain(..share));
                return true;
            }
            if state.is_stopping && state.unflushed.is_empty() {
                return false;
            }
            state.idle_threads += 1;
            match state.unflushed.front().map(|(due, _)| *due) {
                Some(due) => drop(self.wake.wait_until(&mut state, due)),
                None => self.wake.wait(&mut state),
            }
            state.idle_threads -= 1;
        }
    }

    /// Writes, flushes and reports what the logs of the group have queued.
    fn serve(&self, group: &[Arc<LogQueue>], spare: &mut Vec<Op>) {
        let mut members = Vec::with_capacity(group.len());
        for queue in group {
            let mut work = queue.take(std::mem::take(spare));
            let mut writer = queue.writer();
            let done = write(&mut writer, &mut work);
            work.ops.clear();
            *spare = work.ops;
            match done {
                Ok(()) => members.push(Member {
                    queue,
                    writer,
                    is_flush_due: work.is_flush_due,
                }),
                Err(failure) => end(queue, &mut writer, failure),
            }
        }
        if let FlushPolicy::Interval(_) = self.options.policy {
            self.publish_unflushed(&mut members);
        }
        self.flush(members);
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

    fn flush(&self, members: Vec<Member<'_>>) {
        let dirty = members
            .iter()
            .filter(|member| member.writer.is_dirty())
            .count();
        let shared = (dirty > self.options.files_max).then(|| self.disk.sync_all());
        for mut member in members {
            match flush_member(&mut member, shared.as_ref()) {
                Ok(()) => {
                    let offset = member.writer.publish();
                    member.queue.publish(offset);
                    member.writer.release_barriers();
                }
                Err(failure) => end(member.queue, &mut member.writer, failure),
            }
        }
    }
}

impl State {
    fn answer_pulses(&mut self) {
        for alive in self.pulses.drain(..) {
            // Whoever asked may have lost patience.
            let _ = alive.send(());
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

fn write(writer: &mut LogWriter, work: &mut Work) -> Result<(), Error> {
    if work.is_flush_due {
        writer.clear_flush_scheduled();
    }
    writer.run(work)
}

/// Makes one log durable, by itself or by what was flushed for all.
fn flush_member(member: &mut Member<'_>, shared: Option<&io::Result<()>>) -> Result<(), Error> {
    match shared {
        Some(Ok(())) => member.writer.note_flushed(),
        Some(Err(error)) => {
            let copy = error.raw_os_error().map_or_else(
                || io::Error::new(error.kind(), error.to_string()),
                io::Error::from_raw_os_error,
            );
            Err(failed("syncfs", member.writer.dir())(copy))
        }
        None => member.writer.flush(),
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
