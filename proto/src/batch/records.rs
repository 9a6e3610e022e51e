//! Records, borrowed from the bytes of their batch.

use std::iter::FusedIterator;

use bytes::Bytes;

use super::{BatchError, BatchHeader, RecordFault, RecordTimes, varint};
use crate::types::{Offset, TimestampMs};

/// The records of one batch, decompressed but not decoded. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Records {
    header: BatchHeader,
    bytes: Bytes,
}

impl Records {
    /// `bytes` are the decompressed records of the batch with this header.
    pub(super) const fn new(header: BatchHeader, bytes: Bytes) -> Self {
        Self { header, bytes }
    }

    /// Returns the header of the batch.
    pub const fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// Returns the bytes that keys, values and headers are borrowed from, so that
    /// [`Bytes::slice_ref`] can own one without a copy.
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Finds whether every record and its headers can be decoded, as [`Self::iter`] would, but
    /// without making records of them: each batch that is produced comes through here.
    pub(super) fn check(&self) -> Result<RecordTimes, BatchError> {
        let record_count = self.header.record_count;
        let (mut earliest, mut latest) = (i64::MAX, i64::MIN);
        let mut rest: &[u8] = &self.bytes;
        for index in 0..record_count {
            let (delta, after) =
                check_record(rest, index).map_err(|fault| BatchError::Record { index, fault })?;
            (earliest, latest) = (earliest.min(delta), latest.max(delta));
            rest = after;
        }
        if !rest.is_empty() {
            return Err(BatchError::Record {
                index: record_count,
                fault: RecordFault::TrailingBytes,
            });
        }
        self.times(earliest, latest)
    }

    /// Returns the times of records whose deltas lie between these two.
    fn times(&self, earliest: i64, latest: i64) -> Result<RecordTimes, BatchError> {
        if self.header.attributes.is_log_append_time() {
            let (earliest, latest) = (self.header.max_timestamp, self.header.max_timestamp);
            return Ok(RecordTimes { earliest, latest });
        }
        let base_timestamp = self.header.base_timestamp;
        let time = |delta: i64| match base_timestamp.get().checked_add(delta) {
            Some(time) => Ok(TimestampMs::new(time)),
            None => Err(BatchError::Timestamp {
                timestamp: TimestampMs::new(delta),
                base_timestamp,
            }),
        };
        Ok(RecordTimes {
            earliest: time(earliest)?,
            latest: time(latest)?,
        })
    }

    /// Iterates over the records. Ends after the first error, and yields one if the bytes hold
    /// more or fewer records than the header claims.
    pub fn iter(&self) -> RecordIter<'_> {
        let is_log_append_time = self.header.attributes.is_log_append_time();
        RecordIter {
            rest: &self.bytes,
            index: 0,
            record_count: self.header.record_count,
            base_offset: self.header.base_offset,
            base_timestamp: self.header.base_timestamp.get(),
            append_timestamp: is_log_append_time.then_some(self.header.max_timestamp),
        }
    }
}

impl<'a> IntoIterator for &'a Records {
    type Item = Result<Record<'a>, BatchError>;
    type IntoIter = RecordIter<'a>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// One record.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Its place in the partition's log.
    pub offset: Offset,
    /// When the producer made it, or when the agent appended it.
    pub timestamp: TimestampMs,
    /// What it is about.
    pub key: Option<&'a [u8]>,
    /// What it says.
    pub value: Option<&'a [u8]>,
    /// What it says beside.
    pub headers: Headers<'a>,
}

/// Checks the record at the front of `bytes`. Returns its timestamp delta, and what follows it.
#[inline]
fn check_record(bytes: &[u8], index: u32) -> Result<(i64, &[u8]), RecordFault> {
    match check_ordinary(bytes, index) {
        Some(found) => Ok(found),
        None => check_any(bytes, index),
    }
}

/// As [`check_record`], of a record below 8 KiB without headers; `None` for others, faulty ones among
/// them. Takes its varints from words rather than byte by byte: this is done for each record produced.
#[inline]
fn check_ordinary(bytes: &[u8], index: u32) -> Option<(i64, &[u8])> {
    let word = u64::from_le_bytes(*bytes.first_chunk()?);
    let (length, length_bytes) = varint::in_word(word)?;
    let (attributes_end, end) = (length_bytes + 1, length_bytes + varint::as_length(length)?);
    let (timestamp_delta, taken) = varint::in_word(word >> (8 * attributes_end))?;
    let at = attributes_end + taken;
    let fields = bytes.get(at..end)?;
    let word = u64::from_le_bytes(*fields.first_chunk()?);
    let (offset_delta, taken) = varint::in_word(word)?;
    if offset_delta != varint::zigzag(i64::from(index)) {
        return None;
    }
    let fields = skip_ordinary(fields.get(taken..)?)?;
    match skip_ordinary(fields)? {
        [0] => Some((varint::unzigzag(timestamp_delta), bytes.get(end..)?)),
        _ => None,
    }
}

/// Skips a length below 8 KiB and so many bytes.
#[inline]
fn skip_ordinary(fields: &[u8]) -> Option<&[u8]> {
    let (length, rest) = match *fields {
        [1, ref rest @ ..] => return Some(rest),
        [first, ref rest @ ..] if first < 0x80 => (u64::from(first), rest),
        [first, second, ref rest @ ..] if second < 0x80 => {
            (u64::from(first & 0x7f) | u64::from(second) << 7, rest)
        }
        _ => return None,
    };
    rest.get(varint::as_length(length)?..)
}

#[cold]
fn check_any(bytes: &[u8], index: u32) -> Result<(i64, &[u8]), RecordFault> {
    let (length, rest) = varint::read(bytes)?;
    let (fields, rest) = split(rest, length)?;
    let (_attributes, fields) = fields.split_first().ok_or(RecordFault::Truncated)?;
    let (timestamp_delta, fields) = varint::read(fields)?;
    let (offset_delta, fields) = varint::read(fields)?;
    if offset_delta != i64::from(index) {
        return Err(RecordFault::OffsetDelta);
    }
    let (_key, fields) = split_nullable(fields)?;
    let (_value, fields) = split_nullable(fields)?;
    if fields != [0] {
        Headers::new(index, fields)?.check()?;
    }
    Ok((timestamp_delta, rest))
}

/// Iterator over the records of a batch.
#[derive(Clone, Debug)]
pub struct RecordIter<'a> {
    rest: &'a [u8],
    index: u32,
    record_count: u32,
    base_offset: Offset,
    base_timestamp: i64,
    append_timestamp: Option<TimestampMs>,
}

impl<'a> RecordIter<'a> {
    /// Decodes the next record, and returns what follows it. Does not change the iterator: its
    /// fields stay in registers that way.
    #[inline]
    fn decode(&self) -> Result<(Record<'a>, &'a [u8]), RecordFault> {
        let (length, rest) = varint::read(self.rest)?;
        let (fields, rest) = split(rest, length)?;
        let (_attributes, fields) = fields.split_first().ok_or(RecordFault::Truncated)?;
        let (timestamp_delta, fields) = varint::read(fields)?;
        let (offset_delta, fields) = varint::read(fields)?;
        if offset_delta != i64::from(self.index) {
            return Err(RecordFault::OffsetDelta);
        }
        let (key, fields) = split_nullable(fields)?;
        let (value, fields) = split_nullable(fields)?;
        let headers = Headers::new(self.index, fields)?;
        let timestamp = self.timestamp(timestamp_delta)?;
        let offset = self.base_offset.advance(self.index);
        Ok((
            Record {
                offset,
                timestamp,
                key,
                value,
                headers,
            },
            rest,
        ))
    }

    #[inline]
    fn timestamp(&self, delta: i64) -> Result<TimestampMs, RecordFault> {
        match self.append_timestamp {
            Some(timestamp) => Ok(timestamp),
            None => {
                let timestamp = self.base_timestamp.checked_add(delta);
                timestamp
                    .map(TimestampMs::new)
                    .ok_or(RecordFault::Timestamp)
            }
        }
    }

    /// Ends the iteration with an error.
    #[inline]
    fn fail(&mut self, fault: RecordFault) -> BatchError {
        let index = self.index;
        self.rest = &[];
        self.index = self.record_count;
        BatchError::Record { index, fault }
    }
}

impl<'a> Iterator for RecordIter<'a> {
    type Item = Result<Record<'a>, BatchError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.index == self.record_count {
            let is_end = self.rest.is_empty();
            return if is_end {
                None
            } else {
                Some(Err(self.fail(RecordFault::TrailingBytes)))
            };
        }
        match self.decode() {
            Ok((record, rest)) => {
                self.rest = rest;
                self.index += 1;
                Some(Ok(record))
            }
            Err(fault) => Some(Err(self.fail(fault))),
        }
    }

    /// The lower bound is 0: a count that bytes claim reserves no memory.
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.record_count - self.index) as usize;
        (0, left.checked_add(1))
    }
}

impl FusedIterator for RecordIter<'_> {}

/// The headers of one record: an iterator that decodes them one by one. Ends after the first
/// error.
#[derive(Clone, Copy, Debug)]
pub struct Headers<'a> {
    rest: &'a [u8],
    left: usize,
    record_index: u32,
}

/// One header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// Its name; names may repeat.
    pub key: &'a str,
    /// Its value.
    pub value: Option<&'a [u8]>,
}

impl<'a> Headers<'a> {
    /// `fields` begins at the header count and ends with the record.
    #[inline]
    fn new(record_index: u32, fields: &'a [u8]) -> Result<Self, RecordFault> {
        let (count, fields) = varint::read(fields)?;
        let left = usize::try_from(count).map_err(|_| RecordFault::NegativeLength)?;
        if left == 0 && !fields.is_empty() {
            return Err(RecordFault::TrailingBytes);
        }
        Ok(Self {
            rest: fields,
            left,
            record_index,
        })
    }

    /// Whether there are no headers left.
    pub const fn is_empty(&self) -> bool {
        self.left == 0 && self.rest.is_empty()
    }

    /// Decodes all that are left.
    fn check(mut self) -> Result<(), RecordFault> {
        while !self.is_empty() {
            self.take_header()?;
        }
        Ok(())
    }

    fn take_header(&mut self) -> Result<Header<'a>, RecordFault> {
        if self.left == 0 {
            return Err(RecordFault::TrailingBytes);
        }
        let (length, rest) = varint::read(self.rest)?;
        let (key, rest) = split(rest, length)?;
        let key = str::from_utf8(key).map_err(|_| RecordFault::HeaderKey)?;
        let (value, rest) = split_nullable(rest)?;
        self.rest = rest;
        self.left -= 1;
        Ok(Header { key, value })
    }
}

impl<'a> Iterator for Headers<'a> {
    type Item = Result<Header<'a>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_empty() {
            return None;
        }
        let header = self.take_header();
        Some(header.map_err(|fault| {
            (self.rest, self.left) = (&[], 0);
            BatchError::Record {
                index: self.record_index,
                fault,
            }
        }))
    }
}

impl FusedIterator for Headers<'_> {}

/// Splits off the first `length` bytes.
#[inline]
fn split(bytes: &[u8], length: i64) -> Result<(&[u8], &[u8]), RecordFault> {
    let length = usize::try_from(length).map_err(|_| RecordFault::NegativeLength)?;
    bytes.split_at_checked(length).ok_or(RecordFault::Truncated)
}

/// Splits off a length and so many bytes; -1 is null.
#[inline]
fn split_nullable(bytes: &[u8]) -> Result<(Option<&[u8]>, &[u8]), RecordFault> {
    match varint::read(bytes)? {
        (-1, rest) => Ok((None, rest)),
        (length, rest) => split(rest, length).map(|(taken, rest)| (Some(taken), rest)),
    }
}
