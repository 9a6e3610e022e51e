//! Walks the batches of one segment file, and judges where a walk ends early.

use std::path::Path;

use bytes::Bytes;
use esker_proto::{
    batch::{BatchError, BatchHeader, HEADER_BYTES, RecordBatch, crc32c},
    types::Offset,
};

use crate::log::{
    disk::DiskFile,
    error::{Damage, Error, failed},
};

/// Bytes read at a time.
const WINDOW_BYTES: usize = 4 << 20;
/// A batch's checksum covers everything from here.
const CRC_START: usize = 21;
/// Smallest unit a disk writes as a whole.
const SECTOR_BYTES: u64 = 512;
/// A batch that follows has an offset at most this far on.
const OFFSETS_AHEAD_MAX: u64 = 1 << 32;

/// Where a walk ended.
#[derive(Debug)]
pub(in crate::log) struct End {
    /// After the last batch that holds.
    pub(in crate::log) position: u64,
    /// Why the walk ended before the end of the file.
    pub(in crate::log) damage: Option<Damage>,
}

/// A segment file under examination.
#[derive(Clone, Copy, Debug)]
pub(in crate::log) struct Scan<'a> {
    pub(in crate::log) path: &'a Path,
    pub(in crate::log) file: &'a dyn DiskFile,
    pub(in crate::log) size_bytes: u64,
}

impl Scan<'_> {
    /// Calls `visit` for each batch whose bytes hold, until one does not or `visit` objects.
    pub(in crate::log) fn walk(
        &self,
        mut visit: impl FnMut(&BatchHeader) -> Result<(), Damage>,
    ) -> Result<End, Error> {
        let mut position = 0;
        let mut window_bytes = WINDOW_BYTES;
        while position < self.size_bytes {
            let mut window = Bytes::from(self.read(position, window_bytes)?);
            let is_last = position + window.len() as u64 == self.size_bytes;
            window_bytes = WINDOW_BYTES;
            loop {
                match take_batch(&mut window) {
                    Ok(batch) => {
                        if let Err(damage) = visit(&batch) {
                            return Ok(End {
                                position,
                                damage: Some(damage),
                            });
                        }
                        position += u64::from(batch.size_bytes);
                    }
                    Err(BatchError::Truncated { expected_bytes, .. }) if !is_last => {
                        window_bytes = WINDOW_BYTES.max(expected_bytes);
                        break;
                    }
                    Err(_) if window.is_empty() => break,
                    Err(fault) => {
                        return Ok(End {
                            position,
                            damage: Some(Damage::Batch(fault)),
                        });
                    }
                }
            }
        }
        Ok(End {
            position,
            damage: None,
        })
    }

    /// Whether a power cut explains that the batch at `position` does not hold: the file ends within
    /// it, or nothing valid follows it, or it lacks a sector that was never written, as when the pages
    /// of one group reached the disk out of order.
    pub(in crate::log) fn is_torn(&self, position: u64, expected: Offset) -> Result<bool, Error> {
        if let Some(header) = self.cut_off(position, expected)? {
            return Ok(!self.has_wrong_length(position, &header)?);
        }
        let follows = |_: u64, _: &BatchHeader| Ok(true);
        Ok(!self.has_batch_after(position, expected, follows)?
            || self.has_hole(position, expected)?)
    }

    /// Returns the header at `position`, if it is the one expected and its batch would reach beyond
    /// the end of the file. What looks like batches behind it may be values of its records.
    fn cut_off(&self, position: u64, expected: Offset) -> Result<Option<BatchHeader>, Error> {
        let header = BatchHeader::parse(&self.read(position, HEADER_BYTES)?).ok();
        let rest = self.size_bytes - position;
        Ok(header
            .filter(|header| header.base_offset == expected && u64::from(header.size_bytes) > rest))
    }

    /// Whether the batch of `header` is whole and only its length is wrong: its checksum, which does
    /// not cover the length, holds up to the batch that follows or to the end of the file.
    fn has_wrong_length(&self, position: u64, header: &BatchHeader) -> Result<bool, Error> {
        let is_end = |end: u64| {
            let length = usize::try_from(end - position).unwrap_or(usize::MAX);
            let bytes = self.read(position, length)?;
            let covered = bytes.get(CRC_START..);
            Ok(covered.is_some_and(|covered| crc32c(covered) == header.crc))
        };
        let next_offset = header.next_offset();
        let ends_before = |start: u64, next: &BatchHeader| match next.base_offset == next_offset {
            true => is_end(start),
            false => Ok(false),
        };
        Ok(is_end(self.size_bytes)?
            || self.has_batch_after(position, header.base_offset, ends_before)?)
    }

    /// Whether a valid batch that `follows` begins behind `position`.
    fn has_batch_after(
        &self,
        position: u64,
        expected: Offset,
        follows: impl Fn(u64, &BatchHeader) -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        let mut start = position + 1;
        while start + HEADER_BYTES as u64 <= self.size_bytes {
            let window = self.read(start, WINDOW_BYTES)?;
            let candidates = window.len().saturating_sub(HEADER_BYTES - 1);
            for at in 0..candidates {
                let Some(header) = plausible(&window[at..], expected) else {
                    continue;
                };
                let here = start + at as u64;
                let bytes = self.read(here, header.size_bytes as usize)?;
                if RecordBatch::validate(bytes.into()).is_ok() && follows(here, &header)? {
                    return Ok(true);
                }
            }
            start += candidates.max(1) as u64;
        }
        Ok(false)
    }

    /// Whether the batch at `position` overlaps a sector that holds only zeros from there on.
    fn has_hole(&self, position: u64, expected: Offset) -> Result<bool, Error> {
        let head = self.read(position, HEADER_BYTES)?;
        let claimed = BatchHeader::parse(&head)
            .map_or(HEADER_BYTES as u64, |batch| u64::from(batch.size_bytes));
        let end = (position + claimed)
            .next_multiple_of(SECTOR_BYTES)
            .min(self.size_bytes);
        let length = usize::try_from(end - position).unwrap_or(usize::MAX);
        let bytes = self.read(position, length)?;
        let to_sector = position.next_multiple_of(SECTOR_BYTES) - position;
        let (first, sectors) =
            bytes.split_at(bytes.len().min(usize::try_from(to_sector).unwrap_or(0)));
        let is_hole = |sector: &[u8]| sector.iter().all(|byte| *byte == 0);
        Ok(is_unwritten_head(first, expected)
            || sectors
                .chunks(usize::try_from(SECTOR_BYTES).unwrap_or(512))
                .any(is_hole))
    }

    fn read(&self, position: u64, length: usize) -> Result<Vec<u8>, Error> {
        let rest = self.size_bytes.saturating_sub(position);
        let length = length.min(usize::try_from(rest).unwrap_or(usize::MAX));
        let mut bytes = Vec::new();
        self.file
            .read_at(&mut bytes, length, position)
            .map_err(failed("read", self.path))?;
        Ok(bytes)
    }
}

/// Splits off the batch in front.
fn take_batch(window: &mut Bytes) -> Result<BatchHeader, BatchError> {
    let header = BatchHeader::parse(window)?;
    let size_bytes = header.size_bytes as usize;
    let bytes = window.get(..size_bytes).map(|_| window.slice(..size_bytes));
    let truncated = BatchError::Truncated {
        bytes: window.len(),
        expected_bytes: size_bytes,
    };
    RecordBatch::validate(bytes.ok_or(truncated)?)?;
    *window = window.slice(size_bytes..);
    Ok(header)
}

/// Returns the header that `bytes` may begin with, if its batch can follow `expected`.
fn plausible(bytes: &[u8], expected: Offset) -> Option<BatchHeader> {
    // Nearly every position fails here, at the price of one comparison.
    if bytes.get(16) != Some(&2) {
        return None;
    }
    let header = BatchHeader::parse(bytes).ok()?;
    let ahead = header.base_offset.get().checked_sub(expected.get())?;
    (1..OFFSETS_AHEAD_MAX).contains(&ahead).then_some(header)
}

/// Whether the front of a batch that reaches to the end of its sector was never written. Its first
/// bytes are those of its offset, which are zeros by right when the offset is small.
fn is_unwritten_head(front: &[u8], expected: Offset) -> bool {
    let is_zero = !front.is_empty() && front.iter().all(|byte| *byte == 0);
    let offset = expected.get().to_be_bytes();
    let by_right = front.len() < offset.len() + 4
        && offset[..front.len().min(offset.len())]
            .iter()
            .all(|byte| *byte == 0);
    is_zero && !by_right
}
