//! The immutable picture of the tail that readers work from.

use std::sync::Arc;

use esker_index::Manifest;
use esker_proto::types::Offset;

use super::error::PartitionError;
use crate::log::{AtRest, LocalLog};

/// A partition's tail at one moment.
#[derive(Clone, Debug)]
pub struct View {
    /// Offsets below it are visible.
    pub high_watermark: Offset,
    /// The next offset to be assigned.
    pub log_end_offset: Offset,
    /// The first offset on local disk.
    pub local_log_start_offset: Offset,
    /// Bytes on local disk.
    pub local_bytes: u64,
    /// Bytes on local disk that are not in the bucket.
    pub unuploaded_bytes: u64,
    /// Why no batches are taken, if so.
    pub offline: Option<Arc<str>>,
}

impl View {
    /// The tail of a log that was opened just now: all of it is on disk, and committed.
    pub(super) fn of(log: &LocalLog) -> Self {
        Self {
            high_watermark: log.log_end_offset(),
            log_end_offset: log.log_end_offset(),
            local_log_start_offset: log.local_log_start_offset(),
            local_bytes: log.size_bytes(),
            unuploaded_bytes: log.size_bytes(),
            offline: None,
        }
    }

    /// The tail of a log that could not be opened: as if it ended with what is in the bucket.
    pub(super) fn unopened(manifest: &Manifest, local: AtRest, error: &PartitionError) -> Self {
        let tiered_offset = manifest.tiered_offset();
        Self {
            high_watermark: tiered_offset,
            log_end_offset: tiered_offset,
            local_log_start_offset: tiered_offset,
            local_bytes: local.local_bytes,
            unuploaded_bytes: local.unuploaded_bytes,
            offline: Some(error.to_string().into()),
        }
    }
}
