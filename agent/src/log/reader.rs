//! Concurrent reads of the local log. Blocking, but short: what is read was written lately.

use std::sync::Arc;

use bytes::Bytes;
use esker_proto::{
    batch::{BatchError, BatchHeader, Batches, HEADER_BYTES, RecordBatch},
    types::{Offset, Position, TimestampMs},
};

use super::{
    error::{Damage, Error, failed},
    segment::{List, RUN_BYTES, Run, Segment, Segments},
};

/// Reads a log while it is written. Cheap to clone; each clone remembers where it is, so that reading
/// on costs one `pread` of exactly the bytes returned.
#[derive(Clone, Debug)]
pub struct LogReader {
    segments: Arc<Segments>,
    place: Option<Place>,
}

/// Where a batch begins.
#[derive(Clone, Debug)]
struct Place {
    segment: Arc<Segment>,
    offset: Offset,
    position: u64,
}

/// Whole batches of one read, in `bytes[start..end]`.
struct Found {
    start: usize,
    end: usize,
    next_offset: Offset,
}

/// What a read is after.
#[derive(Clone, Copy)]
struct Wanted {
    offset: Offset,
    max_bytes: usize,
    below: Offset,
}

impl LogReader {
    pub(super) fn new(segments: Arc<Segments>) -> Self {
        Self {
            segments,
            place: None,
        }
    }

    /// Reads a log that has nothing and never will.
    pub fn of_nothing() -> Self {
        Self::new(Arc::default())
    }

    /// Returns the local log start offset.
    pub fn local_log_start_offset(&self) -> Offset {
        self.segments.list().start_offset
    }

    /// Returns the offset after the last flushed record.
    pub fn flushed_offset(&self) -> Offset {
        self.segments.flushed_offset()
    }

    /// Reads whole batches from the one that holds `offset` on, none of which reaches beyond
    /// `below`: at most `max_bytes` of them, but one in any case. Empty if `offset` is at or above
    /// `below` or the flushed end.
    ///
    /// Headers are parsed, checksums are left to whoever uses the records. Blocks for a `pread` of
    /// about `max_bytes`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] below the local log start offset and above the flushed end,
    /// [`Error::Corrupt`] naming file and position.
    pub fn read(
        &mut self,
        offset: Offset,
        max_bytes: usize,
        below: Offset,
    ) -> Result<Bytes, Error> {
        let list = self.segments.list();
        if offset < list.start_offset || offset > list.flushed_offset {
            return Err(out_of_range(&list, offset));
        }
        let below = below.min(list.flushed_offset);
        let Some(segment) = list.segment_of(offset).filter(|_| offset < below) else {
            return Ok(Bytes::new());
        };
        let position = self.position_of(segment, offset);
        let wanted = Wanted {
            offset,
            max_bytes,
            below,
        };
        let (bytes, next) = read_segment(segment, position, wanted)?;
        self.place = Some(next);
        Ok(bytes)
    }

    /// Returns the first record below `below` whose timestamp is `timestamp` or later, in the
    /// segments that do not lie wholly below `from`. Records are decoded only in the batches that
    /// may hold it.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] naming file and position.
    pub fn offset_for_timestamp(
        &self,
        timestamp: TimestampMs,
        from: Offset,
        below: Offset,
    ) -> Result<Option<(Offset, TimestampMs)>, Error> {
        let list = self.segments.list();
        let below = below.min(list.flushed_offset);
        let wanted = list.segments.iter().filter(|s| s.next_offset() > from);
        for segment in wanted {
            let Some(run) = segment.run_since(timestamp) else {
                continue;
            };
            if let Some(found) = scan_since(segment, run, timestamp, below)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn position_of(&self, segment: &Arc<Segment>, offset: Offset) -> u64 {
        let place = self.place.as_ref();
        let is_there =
            |place: &&Place| place.offset == offset && Arc::ptr_eq(&place.segment, segment);
        place
            .filter(is_there)
            .map_or_else(|| segment.run_of(offset).get(), |place| place.position)
    }
}

/// Reads whole batches of one segment; `position` is that of a batch at or before the one wanted.
fn read_segment(
    segment: &Arc<Segment>,
    mut position: u64,
    wanted: Wanted,
) -> Result<(Bytes, Place), Error> {
    let file = segment
        .file()
        .ok_or_else(|| damaged(segment, 0, truncated(0)))?;
    let mut length = wanted.max_bytes.max(HEADER_BYTES);
    loop {
        let readable = segment.readable_bytes().saturating_sub(position);
        let length_here = length.min(usize::try_from(readable).unwrap_or(usize::MAX));
        let mut bytes = Vec::new();
        file.read_at(&mut bytes, length_here, position)
            .map_err(failed("read", &segment.path))?;
        let readable = if bytes.len() < length_here {
            bytes.len() as u64
        } else {
            readable
        };
        match find(&bytes, wanted).map_err(|(at, fault)| damaged(segment, position + at, fault))? {
            Ok(found) => {
                let next = Place {
                    segment: segment.clone(),
                    offset: found.next_offset,
                    position: position + found.end as u64,
                };
                return Ok((slice(bytes, &found), next));
            }
            // The batch wanted is not, or not as a whole, in what was read.
            Err(missing) if missing.bytes as u64 > readable.saturating_sub(missing.skipped) => {
                let at = position + missing.skipped;
                return Err(damaged(segment, at, truncated(missing.bytes)));
            }
            Err(missing) => {
                position += missing.skipped;
                length = wanted.max_bytes.max(missing.bytes);
            }
        }
    }
}

/// How to go on when the batch wanted was not found: skip so many bytes and read at least so many.
struct Missing {
    skipped: u64,
    bytes: usize,
}

/// Steps over headers; `Err` is a bad header and its position.
fn find(bytes: &[u8], wanted: Wanted) -> Result<Result<Found, Missing>, (u64, BatchError)> {
    let mut found: Option<Found> = None;
    let mut at = 0;
    loop {
        let rest = &bytes[at..];
        let batch = match rest.len() {
            0..HEADER_BYTES => None,
            _ => Some(BatchHeader::parse(rest).map_err(|fault| (at as u64, fault))?),
        };
        let size_bytes = batch.map_or(HEADER_BYTES, |batch| batch.size_bytes as usize);
        let whole = batch.filter(|_| size_bytes <= rest.len());
        let Some(batch) = whole else {
            let missing = Missing {
                skipped: at as u64,
                bytes: size_bytes,
            };
            return Ok(found.ok_or(missing));
        };
        let next_offset = batch.next_offset();
        let end = at + size_bytes;
        if next_offset > wanted.offset {
            let start = found.as_ref().map_or(at, |found| found.start);
            let is_first = found.is_none();
            let is_beyond = next_offset > wanted.below || end - start > wanted.max_bytes;
            if is_beyond && !is_first {
                return Ok(found.ok_or(Missing {
                    skipped: 0,
                    bytes: 0,
                }));
            }
            if next_offset > wanted.below {
                // Nothing whole lies below the bound: the caller waits for the rest of the batch.
                return Ok(Ok(Found {
                    start: at,
                    end: at,
                    next_offset: wanted.offset,
                }));
            }
            found = Some(Found {
                start,
                end,
                next_offset,
            });
        }
        at = end;
    }
}

/// Returns the first record of `timestamp` or later from a run on to the end of its segment.
fn scan_since(
    segment: &Arc<Segment>,
    run: Run,
    timestamp: TimestampMs,
    below: Offset,
) -> Result<Option<(Offset, TimestampMs)>, Error> {
    let max_bytes = usize::try_from(RUN_BYTES).unwrap_or(usize::MAX);
    let (mut offset, mut position) = (run.base_offset, run.position);
    while offset < below.min(segment.next_offset()) {
        let (bytes, next) = read_segment(
            segment,
            position,
            Wanted {
                offset,
                max_bytes,
                below,
            },
        )?;
        if bytes.is_empty() {
            break;
        }
        let found = first_since(bytes, timestamp);
        if let Some(found) = found.map_err(|fault| damaged(segment, position, fault))? {
            return Ok(Some(found));
        }
        (offset, position) = (next.offset, next.position);
    }
    Ok(None)
}

/// Cuts out what was found. A small find in a large read is copied, lest it keep all of it.
fn slice(bytes: Vec<u8>, found: &Found) -> Bytes {
    let length = found.end - found.start;
    if length * 2 < bytes.capacity() {
        return Bytes::copy_from_slice(&bytes[found.start..found.end]);
    }
    Bytes::from(bytes).slice(found.start..found.end)
}

fn first_since(
    batches: Bytes,
    timestamp: TimestampMs,
) -> Result<Option<(Offset, TimestampMs)>, BatchError> {
    for batch in Batches::new(batches) {
        let batch = batch?;
        if let Some(found) = first_in_batch(&batch, timestamp)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn first_in_batch(
    batch: &RecordBatch,
    timestamp: TimestampMs,
) -> Result<Option<(Offset, TimestampMs)>, BatchError> {
    if batch.header().max_timestamp < timestamp {
        return Ok(None);
    }
    for record in &batch.records()? {
        let record = record?;
        if record.timestamp >= timestamp {
            return Ok(Some((record.offset, record.timestamp)));
        }
    }
    Ok(None)
}

fn out_of_range(list: &List, offset: Offset) -> Error {
    Error::OutOfRange {
        offset,
        start: list.start_offset,
        end: list.flushed_offset,
    }
}

fn truncated(expected_bytes: usize) -> BatchError {
    BatchError::Truncated {
        bytes: 0,
        expected_bytes,
    }
}

fn damaged(segment: &Segment, position: u64, fault: BatchError) -> Error {
    Error::Corrupt {
        path: segment.path.clone(),
        position: Position::new(position),
        damage: Damage::Batch(fault),
    }
}
