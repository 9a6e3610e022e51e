//! A sealed segment: immutable, and what the uploader needs to know of it.

use std::{path::PathBuf, sync::Arc};

use bytes::Bytes;
use esker_index::{EpochHistory, IndexEntry};
use esker_proto::types::Offset;

use super::state::{SealedIndex, StateAt};

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
