//! Reading a partition: out of the bucket, and on into the tail.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use esker_index::Manifest;
use esker_proto::{
    batch::BatchHeaders,
    types::{Offset, TimestampMs},
};
use esker_tiering::reader::{Buffer, Charge, Cursor, Read, Reader};
use tokio::{sync::watch, time::Instant};

use super::{error::PartitionError, handle::PartitionHandle, message::Message, view::View};
use crate::log::{self, LogReader, ReadWithin};

/// So close to the high watermark a read is done in place: it comes from the page cache, and handing
/// it to another thread would cost more than the read.
const INLINE_RECORDS_MAX: u64 = 4096;
/// Bytes of such a read.
const INLINE_BYTES_MAX: usize = 256 << 10;

/// How often a search by time begins again because retention deleted what it was reading.
const SEARCHES_MAX: u32 = 6;
/// How long it waits for a newer manifest before the second; before each further one twice as long.
const MANIFEST_WAIT: Duration = Duration::from_millis(50);

/// Where bytes came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The local log.
    Tail,
    /// The bucket, or its cache.
    Bucket,
}

/// Whole batches, and what they keep in memory.
#[derive(Clone, Debug)]
pub(crate) struct Slice {
    pub(crate) bytes: Bytes,
    pub(crate) buffer: Buffer,
}

/// Whole batches, back to back.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) slices: Vec<Slice>,
    pub(crate) next_offset: Offset,
    pub(crate) source: Source,
}

impl Chunk {
    /// Returns the bytes in all.
    pub(crate) fn size_bytes(&self) -> u32 {
        let bytes: usize = self.slices.iter().map(|slice| slice.bytes.len()).sum();
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }
}

/// Where an offset is, by one view of the tail and one manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Tail,
    Bucket,
    /// Not written yet, or not committed: wait.
    Ahead,
    OutOfRange,
}

fn place(offset: Offset, view: &View, manifest: &Manifest) -> Place {
    // A log that was trimmed or started above the local log end is never shorter than the bucket's.
    let end = view.log_end_offset.max(manifest.tiered_offset());
    if offset < manifest.log_start_offset() || offset > end {
        Place::OutOfRange
    } else if offset >= view.high_watermark {
        Place::Ahead
    } else if offset >= view.local_log_start_offset {
        Place::Tail
    } else {
        Place::Bucket
    }
}

/// What one step of a read came to.
enum Step {
    Read(Chunk),
    /// What was there has moved meanwhile: look again.
    Moved,
    /// Nothing to read yet.
    Wait,
}

/// One reader of one partition, and how far it has come.
#[derive(Debug)]
pub(crate) struct Session {
    partition: PartitionHandle,
    reader: Reader,
    tail: LogReader,
    view: watch::Receiver<View>,
    offset: Offset,
    cursor: Option<Cursor>,
}

impl Session {
    /// Starts at `offset`; whether the log has it shows in the first read.
    pub(crate) fn new(partition: PartitionHandle, reader: Reader, offset: Offset) -> Self {
        let (view, tail) = (partition.view.clone(), partition.tail.clone());
        Self {
            partition,
            reader,
            tail,
            view,
            offset,
            cursor: None,
        }
    }

    /// Returns the next offset to be read.
    pub(crate) const fn offset(&self) -> Offset {
        self.offset
    }

    /// Goes back to an offset that was read.
    pub(crate) fn go_back(&mut self, offset: Offset) {
        self.offset = offset;
        if let Some(cursor) = &mut self.cursor {
            cursor.seek(offset);
        }
    }

    /// Reads on: about `max_bytes`, at least one whole batch. `None` if nothing came within `wait`.
    ///
    /// # Errors
    ///
    /// `OutOfRange` if the log has no such offset; otherwise the read failed and may be tried again
    /// from [`Session::offset`]. Nothing is skipped.
    pub(crate) async fn next(
        &mut self,
        max_bytes: u32,
        wait: Duration,
    ) -> Result<Option<Chunk>, PartitionError> {
        let deadline = Instant::now() + wait;
        loop {
            // The view first, the manifest second: see the module's contract.
            let view = self.view.borrow_and_update().clone();
            let manifest = self.partition.manifest();
            let place = place(self.offset, &view, &manifest);
            if let Some(error) = self.partition.unopened_at(self.offset, place, &manifest) {
                return Err(error);
            }
            let step = match place {
                Place::OutOfRange => return Err(self.out_of_range(&view, &manifest)),
                Place::Tail if !self.is_distrusted(&manifest) => {
                    self.read_tail(&view, &manifest, max_bytes).await?
                }
                Place::Tail | Place::Bucket => self.read_bucket(max_bytes).await?,
                Place::Ahead => Step::Wait,
            };
            match step {
                Step::Read(chunk) => {
                    self.offset = chunk.next_offset;
                    return Ok(Some(chunk));
                }
                Step::Moved => tokio::task::yield_now().await,
                Step::Wait => match tokio::time::timeout_at(deadline, self.view.changed()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return Err(PartitionError::ShuttingDown),
                    Err(_) => return Ok(None),
                },
            }
        }
    }

    /// Says what is wrong with batches of the tail that were read from `offset` on and cannot be
    /// decoded, and takes the partition offline if it is on the disk.
    pub(crate) async fn examine(&self, offset: Offset) -> Option<PartitionError> {
        let (tail, below) = (self.tail.clone(), self.offset);
        let check = move || tail.check(offset, below);
        let error = tokio::task::spawn_blocking(check).await.ok()?.err()?;
        Some(self.partition.failed_read(error).await)
    }

    fn out_of_range(&self, view: &View, manifest: &Manifest) -> PartitionError {
        PartitionError::OutOfRange {
            offset: self.offset,
            start: manifest.log_start_offset(),
            end: view.log_end_offset,
        }
    }

    /// Whether the local copy of what is read next is known to be damaged, and the bucket has it.
    fn is_distrusted(&self, manifest: &Manifest) -> bool {
        self.offset < manifest.tiered_offset() && self.tail.is_distrusted(self.offset)
    }

    /// Reads the local log. What is damaged there is read from the bucket, if that has it.
    async fn read_tail(
        &mut self,
        view: &View,
        manifest: &Manifest,
        max_bytes: u32,
    ) -> Result<Step, PartitionError> {
        // Where the tail is read, the bucket's prefetched chunks are of no more use.
        self.cursor = None;
        let (offset, below) = (self.offset, view.high_watermark);
        let is_near = below.since(offset) <= INLINE_RECORDS_MAX;
        let length = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        let length = length.min(if is_near { INLINE_BYTES_MAX } else { length });
        self.tail.check_below(manifest.tiered_offset());
        let batches = self.read_log(length, below, is_near).await?;
        match batches {
            Ok(batches) => Ok(match end_of(&batches) {
                Some(next_offset) => Step::Read(Chunk {
                    next_offset,
                    slices: vec![Slice {
                        buffer: Buffer::of(&batches),
                        bytes: batches,
                    }],
                    source: Source::Tail,
                }),
                None => Step::Wait,
            }),
            // It is in the bucket only since the view was taken.
            Err(error) if error.kind() == log::ErrorKind::OutOfRange => Ok(Step::Moved),
            Err(error) if self.partition.has_copy(&error, offset) => {
                self.read_bucket(max_bytes).await
            }
            Err(error) => Err(self.partition.failed_read(error).await),
        }
    }

    /// Reads whole batches of the local log into memory that was charged before.
    async fn read_log(
        &mut self,
        length: usize,
        below: Offset,
        is_near: bool,
    ) -> Result<Result<Bytes, log::Error>, PartitionError> {
        let mut room = length;
        loop {
            let charge = self.reader.memory().charge(room as u64).await;
            let charge = charge.map_err(|error| PartitionError::Store(Arc::new(error)))?;
            let wanted = (self.offset, (length, room), below);
            let read = match is_near && room <= INLINE_BYTES_MAX {
                true => read_charged(&mut self.tail, wanted, charge),
                false => self.read_off_thread(wanted, charge).await?,
            };
            match read {
                // The next turn asks for so much, with nothing in hand.
                Ok(Charged::Needs(bytes)) => room = bytes,
                Ok(Charged::Batches(batches)) => return Ok(Ok(batches)),
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    async fn read_off_thread(
        &mut self,
        wanted: Extent,
        charge: Charge,
    ) -> Result<Result<Charged, log::Error>, PartitionError> {
        let mut tail = self.tail.clone();
        // The charge goes along: a read that nobody waits for any more takes memory, too.
        let read = move || (read_charged(&mut tail, wanted, charge), tail);
        let (read, tail) = tokio::task::spawn_blocking(read)
            .await
            .map_err(|_| PartitionError::ShuttingDown)?;
        self.tail = tail;
        Ok(read)
    }

    async fn read_bucket(&mut self, max_bytes: u32) -> Result<Step, PartitionError> {
        self.partition.confirm().await?;
        let (reader, partition, offset) = (&self.reader, &self.partition, self.offset);
        let cursor = self
            .cursor
            .get_or_insert_with(|| reader.read(partition.manifest.clone(), partition.at, offset));
        match cursor
            .next(usize::try_from(max_bytes).unwrap_or(usize::MAX))
            .await
        {
            Ok(Read::Batches {
                bytes,
                buffer,
                next_offset,
            }) => Ok(Step::Read(Chunk {
                slices: bytes
                    .into_iter()
                    .map(|bytes| Slice { bytes, buffer })
                    .collect(),
                next_offset,
                source: Source::Bucket,
            })),
            // The bucket ends here; the tail, which begins at or below this, goes on.
            Ok(Read::AtEnd) => {
                self.cursor = None;
                Ok(Step::Moved)
            }
            Err(error) => {
                let damaged = cursor.damaged(&error);
                self.cursor = None;
                // The objects of a deleted topic go while it is read.
                if self.partition.cancel.is_cancelled() {
                    return Err(PartitionError::ShuttingDown);
                }
                let source = Arc::new(error);
                Err(match damaged {
                    None => PartitionError::Store(source),
                    Some(offsets) => PartitionError::Unreadable {
                        offset: offsets.start,
                        end_offset: offsets.end,
                        source,
                    },
                })
            }
        }
    }
}

/// What [`LogReader::read_within`] is asked for.
type Extent = (Offset, (usize, usize), Offset);

/// What a charged read of the local log came to.
enum Charged {
    Batches(Bytes),
    /// Nothing: the charge is given back, and a larger one is needed.
    Needs(usize),
}

fn read_charged(
    tail: &mut LogReader,
    (offset, sizes, below): Extent,
    charge: Charge,
) -> Result<Charged, log::Error> {
    Ok(match tail.read_within(offset, sizes, below)? {
        ReadWithin::Batches(bytes) => Charged::Batches(charge.tie(bytes)),
        ReadWithin::Needs(bytes) => Charged::Needs(bytes),
    })
}

/// Returns the offset after the last of some whole batches.
fn end_of(batches: &Bytes) -> Option<Offset> {
    let headers = BatchHeaders::new(batches);
    headers
        .filter_map(Result::ok)
        .last()
        .map(|header| header.next_offset())
}

impl PartitionHandle {
    /// Returns why an offset cannot be read, if only the local log could tell what is there, and that
    /// was not opened.
    fn unopened_at(
        &self,
        offset: Offset,
        place: Place,
        manifest: &Manifest,
    ) -> Option<PartitionError> {
        let is_elsewhere = place == Place::Bucket || offset < manifest.log_start_offset();
        self.unopened.clone().filter(|_| !is_elsewhere)
    }

    /// Waits a while for another manifest than `manifest`.
    async fn newer_than(&self, manifest: &Arc<Manifest>, at_most: Duration) {
        let mut manifests = self.manifest.clone();
        let is_newer = manifests.wait_for(|newest| !Arc::ptr_eq(newest, manifest));
        // Without one, the next search says what is wrong.
        let _ = tokio::time::timeout(at_most, is_newer).await;
    }

    /// Whether the bucket has what a read of the local log at `offset` did not get because of that
    /// file. Nobody reads it any more then.
    fn has_copy(&self, error: &log::Error, offset: Offset) -> bool {
        let tiered_offset = self.manifest.borrow().tiered_offset();
        if !error.is_of_copy() || offset >= tiered_offset {
            return false;
        }
        if self.tail.distrust(offset, tiered_offset) {
            tracing::warn!(
                partition = %self.at, %error,
                "local copy is damaged, reading the bucket"
            );
        }
        true
    }

    /// Returns what a failed read of the local log means. A log that is damaged goes offline, unless the
    /// bucket has what is damaged.
    async fn failed_read(&self, error: log::Error) -> PartitionError {
        if error.kind() != log::ErrorKind::Corrupt {
            return PartitionError::Log(Arc::new(error));
        }
        let tail = self.tail.clone();
        let located = tokio::task::spawn_blocking(move || tail.locate(error)).await;
        let Ok(error) = located.map(Arc::new) else {
            return PartitionError::ShuttingDown;
        };
        if let log::Error::Corrupt { offset, .. } = *error
            && self.has_copy(&error, offset)
        {
            return PartitionError::Throttled {
                reason: format!("{error}; the bucket has it"),
                retry_after_ms: 0,
            };
        }
        let damaged = Message::Damaged(Arc::clone(&error));
        // A partition that is gone takes nothing any more.
        let _ = self.inbox.send(damaged).await;
        PartitionError::Log(error)
    }

    /// Finds the first visible record whose timestamp is at or after `timestamp`, over both tiers
    /// as of one moment.
    pub(crate) async fn offset_for_timestamp(
        &self,
        reader: &Reader,
        timestamp: TimestampMs,
    ) -> Result<Option<(Offset, TimestampMs)>, PartitionError> {
        if self.manifest.borrow().bucket_bytes() > 0 {
            self.confirm().await?;
        }
        let mut searches = 0;
        loop {
            let view = self.view();
            let manifest = self.manifest();
            let in_bucket = match reader.offset_for_timestamp(&manifest, timestamp).await {
                Err(error) if error.is_not_found() && searches + 1 < SEARCHES_MAX => {
                    self.newer_than(&manifest, MANIFEST_WAIT * (1 << searches))
                        .await;
                    searches += 1;
                    continue;
                }
                outcome => outcome.map_err(|error| PartitionError::Store(Arc::new(error)))?,
            };
            if in_bucket.is_some() {
                return Ok(in_bucket);
            }
            // It may be in a tail that was not opened.
            if let Some(error) = &self.unopened {
                return Err(error.clone());
            }
            let tail = self.tail.clone();
            // Below that the bucket was asked, or the log is trimmed.
            let from = manifest.tiered_offset();
            let find = move || tail.offset_for_timestamp(timestamp, from, view.high_watermark);
            let in_tail = tokio::task::spawn_blocking(find)
                .await
                .map_err(|_| PartitionError::ShuttingDown)?;
            let in_tail = match in_tail {
                Ok(found) => found,
                Err(error) => return Err(self.failed_read(error).await),
            };
            // Unless what lay between the two searches was dropped meanwhile: it is in the bucket now.
            if self.tail.local_log_start_offset() <= manifest.tiered_offset() {
                return Ok(in_tail);
            }
        }
    }
}
