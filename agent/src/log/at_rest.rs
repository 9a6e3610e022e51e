//! What lies on the disk of a log that nobody opened.

use std::path::Path;

use esker_proto::types::Offset;

use super::{
    error::{Error, failed},
    files::{Listing, segment_path},
    pool::FlushPool,
};

/// Bytes of the segments in a partition's directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtRest {
    /// Of all segments.
    pub local_bytes: u64,
    /// Of those that may hold records the bucket lacks.
    pub unuploaded_bytes: u64,
}

/// Looks at the segments in `dir`, by name and length only. A segment is in the bucket if the next
/// one begins at or below `tiered_offset`; of the last one nobody can tell. Blocks.
///
/// # Errors
///
/// If the directory cannot be looked at.
pub fn at_rest(pool: &FlushPool, dir: &Path, tiered_offset: Offset) -> Result<AtRest, Error> {
    let disk = &**pool.disk();
    let segments = Listing::read(disk, dir)?.segments;
    let mut found = AtRest::default();
    for (at, base) in segments.iter().enumerate() {
        let path = segment_path(dir, *base);
        let file = disk.open(&path).map_err(failed("open", &path))?;
        let bytes = file.size_bytes().map_err(failed("stat", &path))?;
        found.local_bytes += bytes;
        let is_tiered = segments
            .get(at + 1)
            .is_some_and(|next| *next <= tiered_offset);
        if !is_tiered {
            found.unuploaded_bytes += bytes;
        }
    }
    Ok(found)
}
