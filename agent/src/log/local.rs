//! The log of one partition, owned by the partition's task.

use std::{
    collections::VecDeque,
    fs,
    future::Future,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use esker_index::{
    EpochHistory, IndexBuilder,
    producers::{Check, ProducerError, ProducerTable},
};
use esker_proto::{
    batch::{BatchHeader, HEADER_BYTES},
    types::{LeaderEpoch, Offset, TimestampMs},
};
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};

use super::{
    SealedSegment,
    error::{Error, failed},
    events::LogEvents,
    files::{self, Kind, epochs_path, segment_path, state_path},
    pool::{FlushPool, LogQueue, LogWriter, Op, Progress, Room, Write},
    reader::LogReader,
    recovery::{self, OpenedLog, RecoverAt, Recovered},
    repair,
    segment::{Segment, Segments},
    state::{decode_epochs, epochs_frame},
    truncation,
};

/// The log of one partition on this agent's disk.
///
/// No method blocks for the disk unless it says so. What is appended is visible to readers once it
/// is flushed, which [`LogEvents`] tells.
#[derive(Debug)]
pub struct LocalLog {
    dir: PathBuf,
    pool: FlushPool,
    queue: Arc<LogQueue>,
    progress: watch::Receiver<Progress>,
    segments: Arc<Segments>,
    sealed: VecDeque<SealedSegment>,
    active: Option<Active>,
    epochs: EpochHistory,
    producers: ProducerTable,
    local_log_start_offset: Offset,
    log_end_offset: Offset,
}

/// The segment that grows. It has at least one batch.
#[derive(Debug)]
struct Active {
    segment: Arc<Segment>,
    index: IndexBuilder,
    since: Instant,
    /// How old it was then.
    age_before: Duration,
}

impl LocalLog {
    /// Opens the log in `dir`, which is created if need be.
    ///
    /// Blocks: reads the last segment as a whole, and a few fsyncs.
    ///
    /// # Errors
    ///
    /// Those of kind [`super::ErrorKind::Corrupt`] leave all segments as they are.
    pub fn open(
        pool: &FlushPool,
        dir: &Path,
        at: &RecoverAt,
    ) -> Result<(Self, LogEvents, Recovered), Error> {
        let disk = pool.disk().clone();
        let opened = recovery::open(&*disk, dir, at)?;
        if opened.recovered.repaired.is_some() {
            repair::forget(&*disk, dir)?;
        }
        let active = opened.active.as_ref().map(|(segment, _)| segment.clone());
        let end = opened.recovered.log_end_offset;
        let segments = Arc::new(Segments::new(opened.list, pool.open_files().clone()));
        let writer = LogWriter::new(disk, dir.to_owned(), opened.mark, active, end);
        let queue = Arc::new(LogQueue::new(dir.to_owned(), segments.clone(), writer));
        let log = Self {
            dir: dir.to_owned(),
            pool: pool.clone(),
            progress: queue.progress(),
            queue,
            segments,
            sealed: opened.sealed.into(),
            active: Active::of(opened.active, opened.active_age),
            epochs: opened.epochs,
            producers: opened.producers,
            local_log_start_offset: opened.recovered.local_log_start_offset,
            log_end_offset: end,
        };
        let events = LogEvents::new(log.progress.clone());
        Ok((log, events, opened.recovered))
    }

    /// Returns the offset that is appended next.
    pub fn log_end_offset(&self) -> Offset {
        self.log_end_offset
    }

    /// Returns the offset after the last flushed record.
    pub fn flushed_offset(&self) -> Offset {
        self.progress.borrow().flushed_offset
    }

    /// Returns the first offset of the local log.
    pub fn local_log_start_offset(&self) -> Offset {
        self.local_log_start_offset
    }

    /// Returns the epoch history of the whole partition, the tiered part included.
    pub fn epochs(&self) -> &EpochHistory {
        &self.epochs
    }

    /// Returns the producers as of the log end offset.
    pub fn producers(&self) -> &ProducerTable {
        &self.producers
    }

    /// Returns why the log is offline, if it is.
    pub fn failure(&self) -> Option<Error> {
        self.queue.failure()
    }

    /// Decides whether a batch is next, or a duplicate. Its offset is not looked at.
    pub fn check_producer(&self, batch: &BatchHeader) -> Result<Check, ProducerError> {
        self.producers.check(batch)
    }

    /// Forgets producers that were idle for more than `after_ms`. To be called now and then.
    pub fn expire_producers(&mut self, now: TimestampMs, after_ms: u64) -> usize {
        self.producers.expire(now, after_ms)
    }

    /// Queues a batch: `header` is the encoded `batch`, stamped with [`Self::log_end_offset`] and its
    /// leader epoch, and `body` the bytes that follow it. Nothing is copied. `room` must have been
    /// reserved for its size.
    ///
    /// A newer leader epoch than the log's begins with this batch, durably before it.
    ///
    /// # Errors
    ///
    /// [`Error::OffsetGap`] and [`Error::StaleEpoch`] change nothing.
    pub fn append(
        &mut self,
        header: [u8; HEADER_BYTES],
        body: Bytes,
        batch: &BatchHeader,
        room: Room,
    ) -> Result<(), Error> {
        assert_eq!(
            HEADER_BYTES + body.len(),
            batch.size_bytes as usize,
            "a batch is whole"
        );
        debug_assert_eq!(header, batch.encode());
        if batch.base_offset != self.log_end_offset {
            let log_end_offset = self.log_end_offset;
            return Err(Error::OffsetGap {
                log_end_offset,
                got: batch.base_offset,
            });
        }
        self.begin_epoch(batch.leader_epoch)?;
        let next_offset = batch.next_offset();
        let active = self.active()?;
        active.push(batch);
        self.producers.apply(batch);
        self.log_end_offset = next_offset;
        self.pool.push(
            &self.queue,
            Op::Write(Write {
                header,
                body,
                next_offset,
                room,
            }),
        )
    }

    /// Begins a leader epoch at the log end offset. Batches appended after it are flushed after it;
    /// [`Self::sync`] tells when it is durable. Saying the newest epoch again does nothing.
    ///
    /// # Errors
    ///
    /// [`Error::StaleEpoch`] if the log has seen a newer one.
    pub fn begin_epoch(&mut self, leader_epoch: LeaderEpoch) -> Result<(), Error> {
        match self.epochs.last().map(|last| last.leader_epoch) {
            Some(current) if current == leader_epoch => return Ok(()),
            Some(current) if current > leader_epoch => {
                return Err(Error::StaleEpoch {
                    current,
                    got: leader_epoch,
                });
            }
            _ => {}
        }
        let stale = |_| Error::StaleEpoch {
            current: leader_epoch,
            got: leader_epoch,
        };
        self.epochs
            .push(leader_epoch, self.log_end_offset)
            .map_err(stale)?;
        self.segments.set_epochs(self.epochs.clone());
        let frame = epochs_frame(&self.epochs);
        let path = epochs_path(&self.dir);
        self.pool.push(&self.queue, Op::Checkpoint { path, frame })
    }

    /// Seals the active segment, if it has any batch. The next batch begins another.
    pub fn roll(&mut self) -> Result<Option<&SealedSegment>, Error> {
        let Some(active) = self.active.take() else {
            return Ok(None);
        };
        let sealed = SealedSegment {
            path: active.segment.path.clone(),
            base_offset: active.segment.base_offset,
            next_offset: self.log_end_offset,
            size_bytes: active.segment.size_bytes(),
            entries: active.index.finish().into(),
            epochs: self.epochs.clone(),
            producers: self.producers.encode(),
        };
        let path = state_path(&self.dir, self.log_end_offset);
        let frame = sealed.state().encode();
        self.sealed.push_back(sealed);
        self.pool
            .push(&self.queue, Op::Checkpoint { path, frame })?;
        self.pool.push(&self.queue, Op::Seal)?;
        Ok(self.sealed.back())
    }

    /// Returns the sealed segments, oldest first. Their files are complete once
    /// [`Self::flushed_offset`] has reached their next offset.
    pub fn sealed(&self) -> impl DoubleEndedIterator<Item = &SealedSegment> + ExactSizeIterator {
        self.sealed.iter()
    }

    /// Returns the bytes of the active segment.
    pub fn active_bytes(&self) -> u64 {
        self.active
            .as_ref()
            .map_or(0, |active| active.segment.size_bytes())
    }

    /// Returns how long ago the active segment got its first batch, also if that was before the log
    /// was opened; none without one.
    pub fn active_age(&self) -> Option<Duration> {
        self.active.as_ref().map(Active::age)
    }

    /// Returns the bytes of all segments.
    pub fn size_bytes(&self) -> u64 {
        self.bytes_from(Offset::ZERO)
    }

    /// Returns the bytes of the segments that hold `offset` or later ones: with the tiered offset,
    /// which a segment always begins at, the bytes that are not in the bucket.
    pub fn bytes_from(&self, offset: Offset) -> u64 {
        let newer = self
            .sealed
            .iter()
            .rev()
            .take_while(|sealed| sealed.next_offset > offset);
        newer.map(|sealed| sealed.size_bytes).sum::<u64>() + self.active_bytes()
    }

    /// Deletes the sealed segments that end at or below `offset`, which MUST be tiered by a definite
    /// commit, and returns the local log start offset. Readers that are in them read on.
    pub fn delete_below(&mut self, offset: Offset) -> Result<Offset, Error> {
        let mut paths = Vec::new();
        while let Some(sealed) = self
            .sealed
            .front()
            .filter(|sealed| sealed.next_offset <= offset)
        {
            paths.push(sealed.path.clone());
            paths.push(state_path(&self.dir, sealed.base_offset));
            self.local_log_start_offset = sealed.next_offset;
            self.sealed.pop_front();
        }
        if !paths.is_empty() {
            self.segments.drop_below(self.local_log_start_offset);
            self.pool.push(&self.queue, Op::Remove(paths))?;
        }
        Ok(self.local_log_start_offset)
    }

    /// Cuts the log from the batch that holds `offset` on, and returns its new end. Epochs that began
    /// at or above `offset` are forgotten even if no batch is cut.
    ///
    /// Blocks until what is queued is flushed, and for some fsyncs and the recovery of the segment that
    /// is cut. If it fails half-way the log is offline, and opening it again goes on from either state.
    ///
    /// # Errors
    ///
    /// [`Error::BelowFloor`] if `offset` is below `floor` or the local log start offset; nothing
    /// changed.
    pub fn truncate_from(&mut self, offset: Offset, floor: Offset) -> Result<Offset, Error> {
        let floor = floor.max(self.local_log_start_offset);
        if offset < floor {
            return Err(Error::BelowFloor { offset, floor });
        }
        let queue = self.queue.clone();
        let mut writer = queue.quiesce()?;
        self.epochs.truncate_from(offset);
        self.segments.set_epochs(self.epochs.clone());
        match self.cut_files(offset) {
            Ok(None) => {}
            Ok(Some(opened)) => self.install(opened, &mut writer),
            Err(failure) => {
                drop(writer);
                queue.fail(failure.clone());
                return Err(failure);
            }
        }
        Ok(self.log_end_offset)
    }

    /// Returns a reader of this log.
    pub fn reader(&self) -> LogReader {
        LogReader::new(self.segments.clone())
    }

    /// Waits until everything queued so far is on the disk, whatever the flush policy.
    pub fn sync(&self) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let (done, is_done) = oneshot::channel();
        let pushed = self.pool.push(&self.queue, Op::Barrier(done));
        let queue = self.queue.clone();
        let dir = self.dir.clone();
        async move {
            pushed?;
            // The sender is dropped when the log fails.
            let synced = is_done.await;
            synced.map_err(|_| queue.failure().unwrap_or(Error::Closed { path: dir }))
        }
    }

    /// As [`Self::sync`], but gives up what is queued once something has run out, which may last: the
    /// log fails then.
    pub async fn sync_unless_short(&self) -> Result<(), Error> {
        let mut progress = self.progress.clone();
        let shortage = async {
            let is_short = progress.wait_for(|progress| progress.shortage.is_some());
            is_short.await.ok().and_then(|now| now.shortage.clone())
        };
        let mut synced = std::pin::pin!(self.sync());
        tokio::select! {
            biased;
            synced = &mut synced => return synced,
            Some(error) = shortage => self.queue.fail(error),
        }
        // It may have been done in this moment, but the log has failed.
        synced.await?;
        self.failure().map_or(Ok(()), Err)
    }

    /// Flushes everything and notes that the log was closed in order.
    pub async fn close(self) -> Result<(), Error> {
        self.pool.push(&self.queue, Op::Close)?;
        self.sync().await
    }

    /// Removes the log and its directory. Blocks.
    pub fn remove(self) -> Result<(), Error> {
        drop(self.queue.quiesce());
        remove_dir(&self.dir)
    }

    /// Returns the active segment, beginning one if there is none.
    fn active(&mut self) -> Result<&mut Active, Error> {
        if self.active.is_none() {
            let path = segment_path(&self.dir, self.log_end_offset);
            let segment = Arc::new(Segment::empty(path, self.log_end_offset));
            self.pool.push(&self.queue, Op::Begin(segment.clone()))?;
            self.segments.push(segment.clone());
            self.active = Some(Active::new(segment, IndexBuilder::new(), Duration::ZERO));
        }
        Ok(self.active.as_mut().expect("it was begun just above"))
    }

    /// Makes a truncation durable. Nothing to install if no batch was cut.
    fn cut_files(&self, offset: Offset) -> Result<Option<OpenedLog>, Error> {
        let disk = &**self.pool.disk();
        let list = self.segments.list();
        truncation::cut(disk, &self.dir, &list, &self.epochs, offset)?;
        if offset >= self.log_end_offset {
            return Ok(None);
        }
        let at = RecoverAt {
            tiered_offset: self.local_log_start_offset,
            epochs: self.epochs.clone(),
            ..RecoverAt::default()
        };
        recovery::open(disk, &self.dir, &at).map(Some)
    }

    fn install(&mut self, opened: OpenedLog, writer: &mut LogWriter) {
        let active = opened.active.as_ref().map(|(segment, _)| segment.clone());
        let end = opened.recovered.log_end_offset;
        let disk = self.pool.disk().clone();
        *writer = LogWriter::new(disk, self.dir.clone(), opened.mark, active.clone(), end);
        self.sealed = opened.sealed.into();
        let is_same = |old: &&Active| {
            active
                .as_ref()
                .is_some_and(|new| new.base_offset == old.segment.base_offset)
        };
        let age = self.active.as_ref().filter(is_same).map(Active::age);
        self.active = Active::of(opened.active, age.unwrap_or_default());
        self.epochs = opened.epochs;
        self.producers = opened.producers;
        self.log_end_offset = end;
        self.segments.replace(opened.list);
        self.queue.publish(end);
    }
}

/// Returns the newest leader epoch that wrote to the log in `dir`, if that can be told. Blocks.
pub fn newest_epoch(pool: &FlushPool, dir: &Path) -> Result<Option<LeaderEpoch>, Error> {
    let payload = files::read(&**pool.disk(), Kind::Epochs, &epochs_path(dir))?;
    let epochs = payload.and_then(|payload| decode_epochs(&payload));
    Ok(epochs.and_then(|epochs| epochs.last().map(|last| last.leader_epoch)))
}

/// Removes the log in `dir`, if there is one, so that a crash leaves all of it or nothing. Blocks.
pub fn remove_dir(dir: &Path) -> Result<(), Error> {
    finish_removal(dir)?;
    match fs::rename(dir, removed(dir)) {
        Ok(()) => finish_removal(dir),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("rename directory", dir)(error)),
    }
}

/// Goes on with a removal that was cut off. Blocks.
pub fn finish_removal(dir: &Path) -> Result<(), Error> {
    let removed = removed(dir);
    match fs::remove_dir_all(&removed) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(failed("remove directory", &removed)(error))
        }
        _ => Ok(()),
    }
}

fn removed(dir: &Path) -> PathBuf {
    dir.with_extension("removed")
}

impl Active {
    fn new(segment: Arc<Segment>, index: IndexBuilder, age: Duration) -> Self {
        Self {
            segment,
            index,
            since: Instant::now(),
            age_before: age,
        }
    }

    /// The active segment of a log that was opened, if it has one.
    fn of(opened: Option<(Arc<Segment>, IndexBuilder)>, age: Duration) -> Option<Self> {
        opened.map(|(segment, index)| Self::new(segment, index, age))
    }

    fn age(&self) -> Duration {
        self.age_before.saturating_add(self.since.elapsed())
    }

    fn push(&mut self, batch: &BatchHeader) {
        self.segment.push(batch);
        self.index.push(batch);
    }
}
