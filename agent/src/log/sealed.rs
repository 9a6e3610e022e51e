//! A sealed segment: immutable, and what the uploader needs to know of it.

use std::{fs::File, path::PathBuf, sync::Arc};

use bytes::Bytes;
use esker_index::{EpochHistory, IndexEntry};
use esker_proto::{
    batch::BatchHeader,
    types::{Offset, Position},
};

use super::{
    disk::DiskFile,
    error::{Damage, Error, failed},
    recovery::Scan,
    state::{SealedIndex, StateAt},
};

/// A segment that takes no more batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedSegment {
    /// The file: batches back to back, nothing else.
    pub path: PathBuf,
    /// Offset of its first record.
    pub base_offset: Offset,
    /// Offset after its last record.
    pub next_offset: Offset,
    /// Length of the file.
    pub size_bytes: u64,
    /// Its index.
    pub entries: Arc<[IndexEntry]>,
    /// The epoch history at its end.
    pub epochs: EpochHistory,
    /// Snapshot of the producers at its end.
    pub producers: Bytes,
}

impl SealedSegment {
    /// Reads the file and names what of it is not as it was written. Blocks.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] with offset and position, [`Error::Io`] if the file cannot be read.
    pub fn check(&self) -> Result<(), Error> {
        let path = self.path.as_path();
        let file = File::open(path).map_err(failed("open", path))?;
        let size_bytes = file.size_bytes().map_err(failed("stat", path))?;
        let scan = Scan {
            path,
            file: &file,
            size_bytes,
        };
        let mut offset = self.base_offset;
        let end = scan.walk(|batch| {
            self.check_place(batch, offset)?;
            offset = batch.next_offset();
            Ok(())
        })?;
        let (expected, got) = (self.size_bytes, size_bytes);
        let length = (expected != got).then_some(Damage::Length { expected, got });
        match end.damage.or(length) {
            None => Ok(()),
            Some(damage) => Err(Error::Corrupt {
                path: path.to_owned(),
                offset,
                position: Position::new(end.position),
                damage,
            }),
        }
    }

    fn check_place(&self, batch: &BatchHeader, expected: Offset) -> Result<(), Damage> {
        let (got, epoch) = (batch.base_offset, batch.leader_epoch);
        if got != expected {
            return Err(Damage::Offset { expected, got });
        }
        match self.epochs.epoch_at(expected) {
            Some(known) if known != epoch => Err(Damage::Epoch { got: epoch }),
            _ => Ok(()),
        }
    }

    /// What is written to the disk of it.
    pub(super) fn state(&self) -> StateAt {
        StateAt {
            offset: self.next_offset,
            epochs: self.epochs.clone(),
            producers: self.producers.clone(),
            segment: Some(SealedIndex {
                base_offset: self.base_offset,
                size_bytes: self.size_bytes,
                entries: self.entries.to_vec(),
            }),
        }
    }
}
