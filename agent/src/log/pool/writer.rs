//! Writes one log's files: the part of a log that is only touched by the thread that works on it.

use std::{collections::VecDeque, io::IoSlice, path::PathBuf, sync::Arc};

use esker_proto::types::Offset;
use tokio::sync::oneshot;

use super::{Op, Room, queue::Work};
use crate::log::{
    disk::{Dir, Disk, DiskFile},
    error::{Error, failed},
    files,
    mark::{Mark, MarkFile},
    segment::Segment,
};

/// Batches per `pwritev`: two slices each, and Linux takes 1,024.
const BATCHES_PER_WRITE: usize = 512;

/// Why a log cannot be written.
#[derive(Debug)]
pub(super) enum Failure {
    /// A file could not be created, since something has run out. Nothing has changed: what is queued
    /// can be done later.
    Shortage(Error),
    /// Nothing can be tried again.
    Fatal(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Fatal(error)
    }
}

/// Classes the error of a step that has changed nothing.
fn unchanged(error: Error) -> Failure {
    match error.is_shortage() {
        true => Failure::Shortage(error),
        false => Failure::Fatal(error),
    }
}

/// Where a log is being written.
#[derive(Debug)]
pub(in crate::log) struct LogWriter {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    mark: MarkFile,
    /// The segment that grows; none right after a roll.
    segment: Option<Arc<Segment>>,
    position: u64,
    written_offset: Offset,
    /// Written and not flushed.
    is_dirty: bool,
    /// The directory, if a file was created or removed since it was flushed. It is opened before the
    /// change, so that the flush cannot fail because no descriptor is left.
    dirty_dir: Option<Box<dyn Dir>>,
    /// Flushing the file system of the logs flushes this one too.
    is_synced_as_a_whole: bool,
    /// Failures of flushing the file system, as of before the first write that is not flushed.
    failures: u64,
    /// The pool will flush the log when its interval is over.
    is_flush_scheduled: bool,
    /// Who waits for the flush.
    barriers: Vec<oneshot::Sender<()>>,
    /// Room of what is written and not yet published.
    rooms: Vec<Room>,
}

impl LogWriter {
    /// Goes on at the end of `segment`, whose file it has if it is not empty.
    pub(in crate::log) fn new(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        mark: MarkFile,
        segment: Option<Arc<Segment>>,
        written_offset: Offset,
    ) -> Self {
        Self {
            is_synced_as_a_whole: disk.is_synced_as_a_whole(&dir),
            failures: 0,
            disk,
            dir,
            mark,
            position: segment.as_ref().map_or(0, |segment| segment.size_bytes()),
            segment,
            written_offset,
            is_dirty: false,
            dirty_dir: None,
            is_flush_scheduled: false,
            barriers: Vec::new(),
            rooms: Vec::new(),
        }
    }

    /// Does what is queued, short of the flush that ends the group. `failures` are those that flushing
    /// the file system had met when the group began. What is not done stays in `work`.
    pub(super) fn run(&mut self, work: &mut Work, failures: u64) -> Result<(), Failure> {
        if work.is_flush_due {
            self.is_flush_scheduled = false;
        }
        if !self.is_dirty() {
            self.failures = failures;
        }
        let done = self.run_all(&mut work.ops);
        if let Err(Failure::Shortage(_)) = done {
            self.remove_ahead(&mut work.ops);
        }
        done
    }

    fn run_all(&mut self, ops: &mut VecDeque<Op>) -> Result<(), Failure> {
        while let Some(op) = ops.front() {
            if matches!(op, Op::Write(_)) {
                self.write(ops)?;
                continue;
            }
            self.run_rare(op)?;
            if let Some(Op::Barrier(done)) = ops.pop_front() {
                self.barriers.push(done);
            }
        }
        Ok(())
    }

    /// Removes what is to be removed, ahead of what waits for a file: it may wait for just that. What is
    /// removed is in the bucket, and nothing that is queued needs it.
    fn remove_ahead(&mut self, ops: &mut VecDeque<Op>) {
        let mut paths = Vec::new();
        ops.retain_mut(|op| {
            if let Op::Remove(more) = op {
                paths.append(more);
            }
            !matches!(op, Op::Remove(_))
        });
        self.remove(&paths);
    }

    fn run_rare(&mut self, op: &Op) -> Result<(), Failure> {
        match op {
            Op::Begin(segment) => {
                // What was written before must not need this file's flush to be durable.
                self.flush()?;
                if let Some(sealed) = self.segment.replace(segment.clone()) {
                    sealed.set_readable(self.position);
                }
                self.position = 0;
            }
            Op::Seal => {
                self.flush()?;
                if let Some(segment) = &self.segment {
                    segment.close_file();
                }
            }
            Op::Checkpoint { path, frame } => {
                self.flush()?;
                self.open_dir().map_err(unchanged)?;
                files::put(&*self.disk, path, frame).map_err(unchanged)?;
                self.flush()?;
            }
            Op::Remove(paths) => self.remove(paths),
            Op::Close => self.close()?,
            Op::Write(_) | Op::Barrier(_) => {}
        }
        Ok(())
    }

    /// Writes the batches that come next.
    fn write(&mut self, ops: &mut VecDeque<Op>) -> Result<(), Failure> {
        let segment = self
            .segment
            .clone()
            .expect("a segment begins before its first batch");
        let file = self.file_of(&segment).map_err(unchanged)?;
        let mut batches = Vec::new();
        while batches.len() < BATCHES_PER_WRITE
            && let Some(Op::Write(write)) = ops.pop_front_if(|op| matches!(op, Op::Write(_)))
        {
            batches.push(write);
        }
        let mut slices = Vec::with_capacity(2 * batches.len());
        for batch in &batches {
            slices.push(IoSlice::new(&batch.header));
            slices.push(IoSlice::new(&batch.body));
        }
        let bytes: u64 = slices.iter().map(|slice| slice.len() as u64).sum();
        self.is_dirty = true;
        file.write_at(&mut slices, self.position)
            .map_err(failed("write", &segment.path))?;
        self.position += bytes;
        for batch in batches {
            self.written_offset = batch.next_offset;
            self.rooms.push(batch.room);
        }
        Ok(())
    }

    fn file_of(&mut self, segment: &Segment) -> Result<Arc<dyn DiskFile>, Error> {
        if let Some(file) = segment.file() {
            return Ok(file);
        }
        debug_assert_eq!(self.position, 0, "a segment with batches has its file");
        self.open_dir()?;
        let file = self
            .disk
            .create(&segment.path)
            .map_err(failed("create", &segment.path))?;
        segment.set_file(file.clone());
        Ok(file)
    }

    fn open_dir(&mut self) -> Result<(), Error> {
        if self.dirty_dir.is_none() {
            let dir = self.disk.open_dir(&self.dir);
            self.dirty_dir = Some(dir.map_err(failed("open", &self.dir))?);
        }
        Ok(())
    }

    /// Removes files that the bucket has, oldest first. A file that cannot be removed, or that a power cut
    /// restores, lies below the tiered offset, and the next start removes it. So the log continues.
    fn remove(&mut self, paths: &[PathBuf]) {
        if let Err(error) = self.open_dir() {
            tracing::debug!(%error, "cannot flush the removal of local copies");
        }
        for path in paths {
            match self.disk.remove(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    let path = path.display();
                    tracing::warn!(
                        %path, %error,
                        "cannot remove an uploaded local copy; the next start will retry"
                    );
                }
                _ => {}
            }
        }
    }

    fn close(&mut self) -> Result<(), Error> {
        self.flush()?;
        let mark = self.mark_now();
        self.mark.close(&*self.disk, mark)
    }

    /// Whether the log must be flushed for what was done to be durable.
    pub(super) fn is_dirty(&self) -> bool {
        self.is_dirty || self.dirty_dir.is_some()
    }

    /// Notes that the log's flush is in the pool's calendar; whether it was before.
    pub(super) fn set_flush_scheduled(&mut self) -> bool {
        std::mem::replace(&mut self.is_flush_scheduled, true)
    }

    /// Whether flushing the file system makes this log durable too, and has met no failure since the
    /// log was last flushed.
    pub(super) fn has_seen_no_failure_since(&self, failures: u64) -> bool {
        self.is_synced_as_a_whole && self.failures == failures
    }

    /// Whether somebody waits for the flush, whatever the policy.
    pub(super) fn has_barriers(&self) -> bool {
        !self.barriers.is_empty()
    }

    /// Makes durable what was written.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        if let Some(segment) = self.segment.as_ref().filter(|_| self.is_dirty)
            && let Some(file) = segment.file()
        {
            file.sync_data().map_err(failed("fsync", &segment.path))?;
        }
        if let Some(dir) = &self.dirty_dir {
            dir.sync().map_err(failed("fsync directory", &self.dir))?;
        }
        self.note_flushed()
    }

    /// Notes that all that was written is durable, by whichever call.
    pub(super) fn note_flushed(&mut self) -> Result<(), Error> {
        let was_dirty = std::mem::take(&mut self.is_dirty);
        self.dirty_dir = None;
        if !was_dirty {
            return Ok(());
        }
        let mark = self.mark_now();
        self.mark.advance(&*self.disk, mark)
    }

    /// Lets readers see what is written, gives back its room, and returns where it ends.
    pub(super) fn publish(&mut self) -> Offset {
        if let Some(segment) = &self.segment {
            segment.set_readable(self.position);
        }
        self.rooms.clear();
        self.written_offset
    }

    /// Tells those who waited that all before is durable.
    pub(super) fn release_barriers(&mut self) {
        for barrier in self.barriers.drain(..) {
            // Whoever waited may have gone.
            let _ = barrier.send(());
        }
    }

    /// Lets go of all who wait, and of the room of what was written and not flushed.
    pub(super) fn abandon(&mut self) {
        self.barriers.clear();
        self.rooms.clear();
    }

    fn mark_now(&self) -> Mark {
        Mark {
            segment: self
                .segment
                .as_ref()
                .map_or(self.written_offset, |s| s.base_offset),
            position: self.position,
            flushed_offset: self.written_offset,
            is_clean: false,
        }
    }
}
