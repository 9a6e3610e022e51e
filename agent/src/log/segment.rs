//! Segments as readers see them: a file, how much of it may be read, and where batches begin.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use esker_index::{EpochHistory, IndexEntry};
use esker_proto::{
    batch::BatchHeader,
    types::{Offset, TimestampMs},
};
use parking_lot::RwLock;

use super::{disk::DiskFile, open_files::OpenFiles};

/// A reader steps over at most this many bytes of headers and bodies, and one batch, to find an
/// offset it was not at before.
pub(super) const RUN_BYTES: u64 = 64 << 10;

/// One segment of the local log, active or sealed.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) base_offset: Offset,
    pub(super) path: PathBuf,
    /// Open while the segment is appended to, from its first batch on, and while it is read.
    file: RwLock<Option<Arc<dyn DiskFile>>>,
    /// What opens the file again once the segment is sealed.
    opener: OnceLock<Arc<OpenFiles>>,
    /// Bytes that are written and flushed.
    readable_bytes: AtomicU64,
    /// The file is not as it was written, and the bucket has what it held.
    is_distrusted: AtomicBool,
    index: RwLock<ReadIndex>,
}

/// Where the runs of a segment begin. Runs are appended, not necessarily flushed.
#[derive(Debug)]
struct ReadIndex {
    runs: Vec<Run>,
    size_bytes: u64,
    next_offset: Offset,
}

/// Whole batches, about [`RUN_BYTES`] of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) base_offset: Offset,
    pub(super) position: u64,
    max_timestamp: TimestampMs,
}

impl Segment {
    pub(super) fn empty(path: PathBuf, base_offset: Offset) -> Self {
        let index = ReadIndex {
            runs: Vec::new(),
            size_bytes: 0,
            next_offset: base_offset,
        };
        Self {
            base_offset,
            path,
            file: RwLock::default(),
            opener: OnceLock::new(),
            readable_bytes: AtomicU64::new(0),
            is_distrusted: AtomicBool::new(false),
            index: RwLock::new(index),
        }
    }

    /// A sealed segment whose batches were not looked at: its entries are its runs.
    pub(super) fn sealed(path: PathBuf, base_offset: Offset, entries: &[IndexEntry]) -> Self {
        let segment = Self::empty(path, base_offset);
        let mut index = segment.index.write();
        for entry in entries {
            index.runs.push(Run {
                base_offset: entry.base_offset,
                position: entry.position.get(),
                max_timestamp: entry.max_timestamp,
            });
            index.next_offset = entry.next_offset();
            index.size_bytes = entry.next_position().get();
        }
        let size_bytes = index.size_bytes;
        drop(index);
        segment.set_readable(size_bytes);
        segment
    }

    /// A segment of which nothing but its offsets is known.
    pub(super) fn unknown(path: PathBuf, base_offset: Offset, next_offset: Offset) -> Self {
        let segment = Self::empty(path, base_offset);
        segment.index.write().next_offset = next_offset;
        segment
    }

    /// Returns the file, if it is open.
    pub(super) fn file(&self) -> Option<Arc<dyn DiskFile>> {
        self.file.read().clone()
    }

    /// Returns the file, opening it if it is not.
    pub(super) fn open_file(self: &Arc<Self>) -> io::Result<Arc<dyn DiskFile>> {
        match (self.file(), self.opener.get()) {
            (Some(file), _) => Ok(file),
            (None, Some(opener)) => opener.open(self),
            (None, None) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    pub(super) fn set_file(&self, file: Arc<dyn DiskFile>) {
        *self.file.write() = Some(file);
    }

    /// Closes the file, once no one uses it. Nothing that was written to it may be unflushed.
    pub(super) fn close_file(&self) {
        *self.file.write() = None;
    }

    pub(super) fn readable_bytes(&self) -> u64 {
        self.readable_bytes.load(Ordering::Acquire)
    }

    pub(super) fn set_readable(&self, bytes: u64) {
        self.readable_bytes.store(bytes, Ordering::Release);
    }

    pub(super) fn is_distrusted(&self) -> bool {
        self.is_distrusted.load(Ordering::Relaxed)
    }

    /// Has readers go to the bucket; whether that is news.
    pub(super) fn distrust(&self) -> bool {
        !self.is_distrusted.swap(true, Ordering::Relaxed)
    }

    pub(super) fn next_offset(&self) -> Offset {
        self.index.read().next_offset
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.index.read().size_bytes
    }

    /// Notes the batch that is appended next.
    pub(super) fn push(&self, batch: &BatchHeader) {
        self.index.write().push(batch);
    }

    /// Returns where to begin reading to find `offset`: a position, and the offset of its batch.
    pub(super) fn run_of(&self, offset: Offset) -> (u64, Offset) {
        let index = self.index.read();
        let after = index.runs.partition_point(|run| run.base_offset <= offset);
        let run = after.checked_sub(1).map(|run| index.runs[run]);
        run.map_or((0, self.base_offset), |run| (run.position, run.base_offset))
    }

    /// Returns the first run that may hold a record of `timestamp` or later.
    pub(super) fn run_since(&self, timestamp: TimestampMs) -> Option<Run> {
        let index = self.index.read();
        index
            .runs
            .iter()
            .find(|run| run.max_timestamp >= timestamp)
            .copied()
    }
}

impl ReadIndex {
    fn push(&mut self, batch: &BatchHeader) {
        debug_assert_eq!(batch.base_offset, self.next_offset);
        let max_timestamp = batch.max_timestamp.max(batch.base_timestamp);
        let position = self.size_bytes;
        match self.runs.last_mut() {
            Some(run) if position - run.position < RUN_BYTES => {
                run.max_timestamp = run.max_timestamp.max(max_timestamp);
            }
            _ => self.runs.push(Run {
                base_offset: batch.base_offset,
                position,
                max_timestamp,
            }),
        }
        self.size_bytes += u64::from(batch.size_bytes);
        self.next_offset = batch.next_offset();
    }
}

/// The segments of a log, oldest first, swapped as a whole: a reader works on the list as it was
/// when it began.
#[derive(Debug, Default)]
pub(super) struct Segments {
    list: RwLock<List>,
    /// What opens their files; none where there are no segments and never will be.
    opener: Option<Arc<OpenFiles>>,
    /// Offset after the last record that is on the disk, whatever the flush policy.
    durable_offset: AtomicU64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct List {
    pub(super) segments: Arc<Vec<Arc<Segment>>>,
    /// Where the local log begins, also when it has no segment.
    pub(super) start_offset: Offset,
    /// Offset after the last flushed record.
    pub(super) flushed_offset: Offset,
    /// The leader epochs of all its batches.
    pub(super) epochs: Arc<EpochHistory>,
}

impl Segments {
    pub(super) fn new(list: List, opener: Arc<OpenFiles>) -> Self {
        let segments = Self {
            list: RwLock::default(),
            opener: Some(opener),
            durable_offset: AtomicU64::default(),
        };
        segments.replace(list);
        segments
    }

    fn adopt(&self, segment: &Segment) {
        if let Some(opener) = &self.opener {
            // One that was in a list before has it.
            let _ = segment.opener.set(Arc::clone(opener));
        }
    }

    pub(super) fn list(&self) -> List {
        self.list.read().clone()
    }

    pub(super) fn replace(&self, list: List) {
        list.segments.iter().for_each(|segment| self.adopt(segment));
        self.set_durable(list.flushed_offset);
        *self.list.write() = list;
    }

    pub(super) fn push(&self, segment: Arc<Segment>) {
        self.adopt(&segment);
        Arc::make_mut(&mut self.list.write().segments).push(segment);
    }

    /// Forgets all segments that begin below `start_offset`, which a segment or the end is at.
    pub(super) fn drop_below(&self, start_offset: Offset) {
        let mut list = self.list.write();
        Arc::make_mut(&mut list.segments).retain(|segment| segment.base_offset >= start_offset);
        list.start_offset = start_offset;
    }

    pub(super) fn set_epochs(&self, epochs: EpochHistory) {
        self.list.write().epochs = Arc::new(epochs);
    }

    pub(super) fn durable_offset(&self) -> Offset {
        Offset::new(self.durable_offset.load(Ordering::Acquire))
    }

    pub(super) fn set_durable(&self, offset: Offset) {
        self.durable_offset.store(offset.get(), Ordering::Release);
    }

    pub(super) fn flushed_offset(&self) -> Offset {
        self.list.read().flushed_offset
    }

    pub(super) fn set_flushed(&self, flushed_offset: Offset) {
        self.list.write().flushed_offset = flushed_offset;
    }
}

impl List {
    /// Returns the segment that holds or will hold `offset`.
    pub(super) fn segment_of(&self, offset: Offset) -> Option<&Arc<Segment>> {
        let after = self
            .segments
            .partition_point(|segment| segment.base_offset <= offset);
        self.segments.get(after.checked_sub(1)?)
    }
}
