//! How far a log reaches: callers decide by it before they open the log.

use std::path::Path;

use esker_index::EpochHistory;
use esker_proto::types::Offset;

use super::{error::Error, pool::FlushPool, recovery, recovery::RecoverAt};

/// Recovers a log as opening it would, and returns where it ends and its leader epochs.
///
/// # Errors
///
/// Those of [`super::LocalLog::open`].
pub fn extent(
    pool: &FlushPool,
    dir: &Path,
    at: &RecoverAt,
) -> Result<(Offset, EpochHistory), Error> {
    let opened = recovery::open(&**pool.disk(), dir, at)?;
    Ok((opened.recovered.log_end_offset, opened.epochs))
}
