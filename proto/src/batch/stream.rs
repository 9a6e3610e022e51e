//! Batches back to back, as in segments and fetches.

use std::iter::FusedIterator;

use bytes::Bytes;

use super::{BatchError, BatchHeader, RecordBatch};
use crate::types::Position;

/// Iterates over whole batches, back to back, and validates each. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Batches {
    rest: Bytes,
}

impl Batches {
    /// Starts at the front of `bytes`.
    pub const fn new(bytes: Bytes) -> Self {
        Self { rest: bytes }
    }

    fn take_batch(&mut self) -> Result<RecordBatch, BatchError> {
        let header = BatchHeader::parse(&self.rest)?;
        check_whole(&header, self.rest.len())?;
        RecordBatch::validate(self.rest.split_to(header.size_bytes as usize))
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let batch = self.take_batch();
        if batch.is_err() {
            self.rest.clear();
        }
        Some(batch)
    }
}

impl FusedIterator for Batches {}

/// Iterates over the headers of whole batches, back to back, without a look at their CRC. Ends
/// after the first error.
#[derive(Clone, Debug)]
pub struct BatchHeaders<'a> {
    rest: &'a [u8],
    position: Position,
    has_failed: bool,
}

impl<'a> BatchHeaders<'a> {
    /// Starts at the front of `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            position: Position::ZERO,
            has_failed: false,
        }
    }

    /// Returns where the next batch begins, from the front of the bytes; after an error, where the
    /// faulty one does.
    pub const fn position(&self) -> Position {
        self.position
    }

    fn take_header(&mut self) -> Result<BatchHeader, BatchError> {
        let header = BatchHeader::parse(self.rest)?;
        check_whole(&header, self.rest.len())?;
        self.rest = &self.rest[header.size_bytes as usize..];
        self.position = self.position.advance(header.size_bytes.into());
        Ok(header)
    }
}

impl Iterator for BatchHeaders<'_> {
    type Item = Result<BatchHeader, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() || self.has_failed {
            return None;
        }
        let header = self.take_header();
        self.has_failed = header.is_err();
        Some(header)
    }
}

impl FusedIterator for BatchHeaders<'_> {}

fn check_whole(header: &BatchHeader, bytes: usize) -> Result<(), BatchError> {
    let expected_bytes = header.size_bytes as usize;
    if bytes < expected_bytes {
        return Err(BatchError::Truncated {
            bytes,
            expected_bytes,
        });
    }
    Ok(())
}
