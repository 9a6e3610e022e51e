//! A chunk in memory, and the check its bytes pass before anybody sees them.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use bytes::Bytes;
use esker_index::IndexEntry;
use esker_proto::{
    batch::{BatchError, BatchHeader, RecordBatch},
    types::Position,
};
use prometheus::IntCounter;

use super::{budget::Charge, plan::ChunkPlan};

/// Checked bytes, charged to the budget until the last slice of them is gone.
#[derive(Debug)]
pub(super) struct Chunk {
    bytes: Bytes,
    was_read: AtomicBool,
    took: Duration,
    wasted_bytes: IntCounter,
}

/// The memory that slices share: it is free when the last of them is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    start: usize,
    /// Its size.
    pub size_bytes: usize,
}

impl Buffer {
    /// The buffer of which `bytes` are the whole.
    pub fn of(bytes: &[u8]) -> Self {
        Self {
            start: bytes.as_ptr().addr(),
            size_bytes: bytes.len(),
        }
    }
}

/// How a chunk came into memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    /// Whether nobody waited for it.
    pub(super) is_speculative: bool,
    /// How long it took.
    pub(super) took: Duration,
}

impl Chunk {
    pub(super) fn new(
        bytes: Bytes,
        charge: Charge,
        origin: Origin,
        wasted_bytes: IntCounter,
    ) -> Self {
        let bytes = Bytes::from_owner(Charged::new(bytes, charge));
        let was_read = AtomicBool::new(!origin.is_speculative);
        Self {
            bytes,
            was_read,
            took: origin.took,
            wasted_bytes,
        }
    }

    /// How long it took to bring it into memory.
    pub(super) const fn took(&self) -> Duration {
        self.took
    }

    /// Returns the bytes to read from.
    pub(super) fn read(&self) -> &Bytes {
        if !self.was_read.load(Ordering::Relaxed) {
            self.was_read.store(true, Ordering::Relaxed);
        }
        &self.bytes
    }

    /// Tells what a slice of this chunk keeps in memory.
    pub(super) fn buffer(&self) -> Buffer {
        Buffer::of(&self.bytes)
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes, for a cache: not a read.
    pub(super) fn peek(&self) -> &Bytes {
        &self.bytes
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if !*self.was_read.get_mut() {
            self.wasted_bytes.inc_by(self.bytes.len() as u64);
        }
    }
}

/// Bytes that are charged to the budget until they are dropped.
pub(super) struct Charged {
    bytes: Bytes,
    _charge: Charge,
}

impl Charged {
    pub(super) const fn new(bytes: Bytes, charge: Charge) -> Self {
        Self {
            bytes,
            _charge: charge,
        }
    }
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// What is wrong with fetched bytes, and where in the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flaw {
    pub(super) position: Position,
    pub(super) reason: FlawReason,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FlawReason {
    #[error(
        "object is truncated. expected_bytes=`{expected_bytes}`, actual_bytes=`{actual_bytes}`"
    )]
    Truncated {
        expected_bytes: u64,
        actual_bytes: u64,
    },
    #[error(transparent)]
    Batch(#[from] BatchError),
    #[error("batches disagree with the index")]
    Index,
}

/// Checks that `bytes` are what the index says: whole valid batches, CRC and all, with the offsets
/// of their entries.
pub(super) fn check(plan: &ChunkPlan, bytes: &Bytes) -> Result<(), Flaw> {
    if bytes.len() != plan.id.length as usize {
        let reason = FlawReason::Truncated {
            expected_bytes: u64::from(plan.id.length),
            actual_bytes: bytes.len() as u64,
        };
        return Err(Flaw {
            position: plan.id.position.advance(bytes.len() as u64),
            reason,
        });
    }
    for (index, entry) in plan.entries.iter().enumerate() {
        let range = plan.entry_start(index)..plan.entry_end(index);
        check_entry(entry, bytes.slice(range))?;
    }
    Ok(())
}

fn check_entry(entry: &IndexEntry, mut rest: Bytes) -> Result<(), Flaw> {
    let mut position = entry.position;
    let mut offset = entry.base_offset;
    while !rest.is_empty() {
        let flaw = |reason: FlawReason| Flaw { position, reason };
        let header = BatchHeader::parse(&rest).map_err(|error| flaw(error.into()))?;
        let size_bytes = header.size_bytes as usize;
        if header.base_offset != offset || size_bytes > rest.len() {
            return Err(flaw(FlawReason::Index));
        }
        RecordBatch::validate(rest.split_to(size_bytes)).map_err(|error| flaw(error.into()))?;
        position = position.advance(u64::from(header.size_bytes));
        offset = header.next_offset();
    }
    if offset != entry.next_offset() {
        return Err(Flaw {
            position: entry.position,
            reason: FlawReason::Index,
        });
    }
    Ok(())
}
