//! Concurrent reads of the local log. Blocking, but short: what is read was written lately.

use std::sync::Arc;

use bytes::Bytes;
use esker_index::EpochHistory;
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
    /// Batches that begin below it are compared with their checksums.
    checked_below: Offset,
}

/// What a read within a bound came to.
#[derive(Debug, PartialEq, Eq)]
pub enum ReadWithin {
    /// As [`LogReader::read`] returns them.
    Batches(Bytes),
    /// Nothing, because so many bytes have to be read at a time to have the first batch.
    Needs(usize),
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
struct Wanted<'a> {
    offset: Offset,
    max_bytes: usize,
    /// Most that is held in memory on the way to them.
    room_bytes: usize,
    below: Offset,
    list: &'a List,
}

/// Where a batch must begin.
#[derive(Clone, Copy)]
struct At {
    position: u64,
    offset: Offset,
}

impl LogReader {
    pub(super) fn new(segments: Arc<Segments>) -> Self {
        Self {
            segments,
            place: None,
            checked_below: Offset::ZERO,
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

    /// Returns the epoch history of the whole partition, the tiered part included.
    pub fn epochs(&self) -> Arc<EpochHistory> {
        self.segments.list().epochs
    }

    /// Returns the offset after the last flushed record.
    pub fn flushed_offset(&self) -> Offset {
        self.segments.flushed_offset()
    }

    /// Returns the offset after the last record that is on the disk, whatever the flush policy.
    pub fn durable_offset(&self) -> Offset {
        self.segments.durable_offset()
    }

    /// Compares batches that begin below `offset` with their checksums from now on: who can have them
    /// from elsewhere need not take damaged ones.
    pub fn check_below(&mut self, offset: Offset) {
        self.checked_below = offset;
    }

    /// Whether the file that holds `offset` is not to be read, since it is damaged and the bucket has
    /// what it held.
    pub fn is_distrusted(&self, offset: Offset) -> bool {
        let list = self.segments.list();
        list.segment_of(offset).is_some_and(|s| s.is_distrusted())
    }

    /// Notes that the file that holds `offset` is not to be read any more, if all it held lies below
    /// `tiered_offset`; whether that is news.
    pub fn distrust(&self, offset: Offset, tiered_offset: Offset) -> bool {
        let list = self.segments.list();
        let segment = list.segment_of(offset);
        segment.is_some_and(|s| s.next_offset() <= tiered_offset && s.distrust())
    }

    /// Reads whole batches from the one that holds `offset` on, none of which reaches beyond
    /// `below`: at most `max_bytes` of them, but one in any case. Empty if `offset` is at or above
    /// `below` or the flushed end.
    ///
    /// Headers are parsed, and each batch must have the offset and the leader epoch of its place,
    /// which its checksum does not cover. Checksums are left to the user of the records, except below
    /// [`LogReader::check_below`]. Blocks for a `pread` of about `max_bytes`.
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
        let mut room_bytes = max_bytes;
        loop {
            match self.read_within(offset, (max_bytes, room_bytes), below)? {
                ReadWithin::Batches(bytes) => return Ok(bytes),
                ReadWithin::Needs(bytes) => room_bytes = bytes,
            }
        }
    }

    /// As [`LogReader::read`], but holds no more than `room_bytes` or `max_bytes` in memory, whichever
    /// is more: for a larger batch it says how much is needed, so that memory can be found first.
    ///
    /// # Errors
    ///
    /// Those of [`LogReader::read`].
    pub fn read_within(
        &mut self,
        offset: Offset,
        (max_bytes, room_bytes): (usize, usize),
        below: Offset,
    ) -> Result<ReadWithin, Error> {
        let sizes = (max_bytes, room_bytes);
        match self.read_listed(offset, sizes, below) {
            // It was removed since the list was read, which by now says so.
            Err(error) if error.is_missing_file() => self.read_listed(offset, sizes, below),
            read => read,
        }
    }

    fn read_listed(
        &mut self,
        offset: Offset,
        (max_bytes, room_bytes): (usize, usize),
        below: Offset,
    ) -> Result<ReadWithin, Error> {
        let list = self.segments.list();
        if offset < list.start_offset || offset > list.flushed_offset {
            return Err(out_of_range(&list, offset));
        }
        let below = below.min(list.flushed_offset);
        let Some(segment) = list.segment_of(offset).filter(|_| offset < below) else {
            return Ok(ReadWithin::Batches(Bytes::new()));
        };
        let at = self.begin_at(segment, offset);
        let wanted = Wanted {
            offset,
            max_bytes,
            room_bytes,
            below,
            list: &list,
        };
        match read_segment(segment, at, wanted)? {
            Ok((bytes, next)) => {
                if offset < self.checked_below {
                    compare(segment, &bytes, &next)?;
                }
                self.place = Some(next);
                Ok(ReadWithin::Batches(bytes))
            }
            Err(bytes) => Ok(ReadWithin::Needs(bytes)),
        }
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
        match self.seek_listed(timestamp, from, below) {
            // As in reading.
            Err(error) if error.is_missing_file() => self.seek_listed(timestamp, from, below),
            found => found,
        }
    }

    fn seek_listed(
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
            if let Some(found) = scan_since(&list, segment, run, (timestamp, below))? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Checks whole batches from the one that holds `offset` on, up to `below`, with their checksums:
    /// names what does not hold. Blocks for a `pread` of all of it.
    ///
    /// # Errors
    ///
    /// Those of [`LogReader::read`].
    pub fn check(&self, mut offset: Offset, below: Offset) -> Result<(), Error> {
        let mut reader = self.clone();
        loop {
            // One batch at a time: the place of a bad one is where it begins.
            let bytes = reader.read(offset, 0, below)?;
            let Some(place) = reader.place.as_ref().filter(|_| !bytes.is_empty()) else {
                return Ok(());
            };
            let at = At {
                position: place.position - bytes.len() as u64,
                offset,
            };
            let bad = |fault| damaged(&place.segment, at, Damage::Batch(fault));
            let batch = RecordBatch::validate(bytes).map_err(bad)?;
            offset = batch.header().next_offset();
        }
    }

    /// Returns where damage that a read met begins: a batch with a wrong length shows only by what
    /// seems to follow it. Blocks for a `pread` of a few batches.
    #[must_use]
    pub fn locate(&self, met: Error) -> Error {
        let Error::Corrupt { offset, .. } = met else {
            return met;
        };
        let before = Offset::new(offset.get().saturating_sub(1));
        let list = self.segments.list();
        let run = list
            .segment_of(before)
            .map(|segment| segment.run_of(before));
        match run.map(|(_, base_offset)| self.check(base_offset, offset)) {
            Some(Err(first @ Error::Corrupt { .. })) => first,
            _ => met,
        }
    }

    fn begin_at(&self, segment: &Arc<Segment>, offset: Offset) -> At {
        let place = self.place.as_ref();
        let is_there =
            |place: &&Place| place.offset == offset && Arc::ptr_eq(&place.segment, segment);
        let (position, offset) = place
            .filter(is_there)
            .map_or_else(|| segment.run_of(offset), |place| (place.position, offset));
        At { position, offset }
    }
}

/// Reads whole batches of one segment; `at` is that of a batch at or before the one wanted. `Err` is
/// how many bytes have to be read at a time, if there is no room for so many.
fn read_segment(
    segment: &Arc<Segment>,
    mut at: At,
    wanted: Wanted<'_>,
) -> Result<Result<(Bytes, Place), usize>, Error> {
    let file = segment.open_file().map_err(failed("open", &segment.path))?;
    let length = wanted.max_bytes.max(wanted.room_bytes).max(HEADER_BYTES);
    loop {
        let position = at.position;
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
        let found = find(&bytes, at, wanted);
        match found.map_err(|(at, damage)| damaged(segment, at, damage))? {
            Ok(found) => {
                let next = Place {
                    segment: segment.clone(),
                    offset: found.next_offset,
                    position: position + found.end as u64,
                };
                return Ok(Ok((slice(bytes, &found), next)));
            }
            // The batch wanted is not, or not as a whole, in what was read.
            Err(missing)
                if missing.bytes as u64
                    > readable.saturating_sub(missing.at.position - position) =>
            {
                return Err(damaged(segment, missing.at, truncated(missing.bytes)));
            }
            Err(missing) if missing.bytes > length => return Ok(Err(missing.bytes)),
            Err(missing) => at = missing.at,
        }
    }
}

/// Compares batches that a read found, and that end at `end`, with their checksums.
fn compare(segment: &Segment, bytes: &Bytes, end: &Place) -> Result<(), Error> {
    let mut rest = bytes.clone();
    let mut at = At {
        position: end.position - bytes.len() as u64,
        offset: end.offset,
    };
    while !rest.is_empty() {
        let bad = |fault| damaged(segment, at, Damage::Batch(fault));
        let header = BatchHeader::parse(&rest).map_err(bad)?;
        at.offset = header.base_offset;
        let bad = |fault| damaged(segment, at, Damage::Batch(fault));
        let size_bytes = header.size_bytes as usize;
        RecordBatch::validate(rest.split_to(size_bytes)).map_err(bad)?;
        at.position += size_bytes as u64;
    }
    Ok(())
}

/// Where to continue when the batch was not found: read at least so many bytes from there.
struct Missing {
    at: At,
    bytes: usize,
}

/// Reads a header, and checks it against its place.
fn parse_at(bytes: &[u8], expected: Offset, list: &List) -> Result<BatchHeader, Damage> {
    let batch = BatchHeader::parse(bytes).map_err(Damage::Batch)?;
    if batch.base_offset != expected {
        let got = batch.base_offset;
        return Err(Damage::Offset { expected, got });
    }
    match list.epochs.epoch_at(expected) {
        Some(known) if known != batch.leader_epoch => Err(Damage::Epoch {
            got: batch.leader_epoch,
        }),
        _ => Ok(batch),
    }
}

/// Steps over headers from `place` on; `Err` is what is bad and where. What follows the batches found
/// is left to the next read, whole or not.
fn find(
    bytes: &[u8],
    place: At,
    wanted: Wanted<'_>,
) -> Result<Result<Found, Missing>, (At, Damage)> {
    let mut found: Option<Found> = None;
    let (mut at, mut expected) = (0, place.offset);
    let here = |at: usize, offset| At {
        position: place.position + at as u64,
        offset,
    };
    // Above the bound nothing is parsed: it may carry an epoch that began since.
    while found.is_none() || expected < wanted.below {
        let rest = &bytes[at..];
        let batch = match (rest.len(), parse_at(rest, expected, wanted.list)) {
            (0..HEADER_BYTES, _) => None,
            (_, Ok(batch)) => Some(batch),
            (_, Err(_)) if found.is_some() => break,
            (_, Err(damage)) => return Err((here(at, expected), damage)),
        };
        let size_bytes = batch.map_or(HEADER_BYTES, |batch| batch.size_bytes as usize);
        let whole = batch.filter(|_| size_bytes <= rest.len());
        let Some(batch) = whole else {
            let missing = Missing {
                at: here(at, expected),
                bytes: size_bytes,
            };
            return Ok(found.ok_or(missing));
        };
        let (next_offset, end) = (batch.next_offset(), at + size_bytes);
        if next_offset > wanted.offset {
            let start = found.as_ref().map_or(at, |found| found.start);
            let is_beyond = next_offset > wanted.below || end - start > wanted.max_bytes;
            if is_beyond && found.is_some() {
                break;
            }
            if next_offset > wanted.below {
                let nothing = nothing_whole(at, next_offset, wanted);
                return nothing
                    .map_err(|damage| (here(at, expected), damage))
                    .map(Ok);
            }
            found = Some(Found {
                start,
                end,
                next_offset,
            });
        }
        (expected, at) = (next_offset, end);
    }
    Ok(found.ok_or_else(|| Missing {
        at: here(at, expected),
        bytes: HEADER_BYTES,
    }))
}

/// Nothing whole lies below the bound: the caller waits for the rest of the batch.
fn nothing_whole(at: usize, got: Offset, wanted: Wanted<'_>) -> Result<Found, Damage> {
    let log_end_offset = wanted.list.flushed_offset;
    if got > log_end_offset {
        // What is flushed is whole batches, so nobody wrote this one.
        return Err(Damage::Beyond {
            log_end_offset,
            got,
        });
    }
    Ok(Found {
        start: at,
        end: at,
        next_offset: wanted.offset,
    })
}

/// Returns the first record of `timestamp` or later from a run on to the end of its segment.
fn scan_since(
    list: &List,
    segment: &Arc<Segment>,
    run: Run,
    (timestamp, below): (TimestampMs, Offset),
) -> Result<Option<(Offset, TimestampMs)>, Error> {
    let mut at = At {
        position: run.position,
        offset: run.base_offset,
    };
    let max_bytes = usize::try_from(RUN_BYTES).unwrap_or(usize::MAX);
    let mut room_bytes = max_bytes;
    while at.offset < below.min(segment.next_offset()) {
        let wanted = Wanted {
            offset: at.offset,
            max_bytes,
            room_bytes,
            below,
            list,
        };
        let (bytes, next) = match read_segment(segment, at, wanted)? {
            Ok(read) => read,
            Err(bytes) => {
                room_bytes = bytes;
                continue;
            }
        };
        if bytes.is_empty() {
            break;
        }
        let found = first_since(bytes, timestamp);
        let bad = |fault| damaged(segment, at, Damage::Batch(fault));
        if let Some(found) = found.map_err(bad)? {
            return Ok(Some(found));
        }
        at = At {
            position: next.position,
            offset: next.offset,
        };
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

fn truncated(expected_bytes: usize) -> Damage {
    Damage::Batch(BatchError::Truncated {
        bytes: 0,
        expected_bytes,
    })
}

fn damaged(segment: &Segment, at: At, damage: Damage) -> Error {
    Error::Corrupt {
        path: segment.path.clone(),
        offset: at.offset,
        position: Position::new(at.position),
        damage,
    }
}
