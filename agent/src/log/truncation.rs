//! Cuts the end of a log off its files.

use std::{path::Path, sync::Arc};

use esker_index::EpochHistory;
use esker_proto::{
    batch::BatchHeaders,
    types::{Offset, Position},
};

use super::{
    disk::Disk,
    error::{Damage, Error, failed},
    files::{self, Listing, epochs_path, segment_path, state_path},
    mark::{Mark, MarkFile},
    segment::{List, Segment},
    state::epochs_frame,
};

/// Cuts from the batch that holds `offset` on. Nothing of the log may be queued or in use.
///
/// Order: the mark claims less, then files go from the newest to the oldest, each durably before the
/// next, then the epochs, so that a crash leaves a log that is whole and merely too long, and never a
/// batch of an epoch that the history does not know.
pub(super) fn cut(
    disk: &dyn Disk,
    dir: &Path,
    list: &List,
    epochs: &EpochHistory,
    offset: Offset,
) -> Result<(), Error> {
    if list
        .segments
        .last()
        .is_some_and(|last| last.next_offset() > offset)
    {
        cut_batches(disk, dir, list, offset)?;
    }
    files::replace(disk, &epochs_path(dir), &epochs_frame(epochs))
}

fn cut_batches(disk: &dyn Disk, dir: &Path, list: &List, offset: Offset) -> Result<(), Error> {
    let mark = Mark {
        flushed_offset: list.start_offset,
        ..Mark::default()
    };
    MarkFile::replace(disk, dir, mark)?;
    let listing = Listing::read(disk, dir)?;
    for state in listing.states.iter().rev().filter(|state| **state > offset) {
        remove(disk, dir, &state_path(dir, *state))?;
    }
    for base in listing
        .segments
        .iter()
        .rev()
        .filter(|base| **base >= offset)
    {
        remove(disk, dir, &segment_path(dir, *base))?;
    }
    match list
        .segment_of(offset)
        .filter(|segment| segment.base_offset < offset)
    {
        Some(segment) => cut_segment(segment, offset),
        None => Ok(()),
    }
}

fn remove(disk: &dyn Disk, dir: &Path, path: &Path) -> Result<(), Error> {
    disk.remove(path).map_err(failed("remove", path))?;
    disk.sync_dir(dir).map_err(failed("fsync directory", dir))
}

fn cut_segment(segment: &Arc<Segment>, offset: Offset) -> Result<(), Error> {
    let file = segment.open_file().map_err(failed("open", &segment.path))?;
    let (start, _) = segment.run_of(offset);
    let length = usize::try_from(segment.size_bytes() - start).unwrap_or(usize::MAX);
    let mut bytes = Vec::new();
    file.read_at(&mut bytes, length, start)
        .map_err(failed("read", &segment.path))?;
    let mut headers = BatchHeaders::new(&bytes);
    let mut position = start;
    while let Some(batch) = headers.next() {
        let batch = batch.map_err(|fault| Error::Corrupt {
            path: segment.path.clone(),
            offset,
            position: Position::new(position),
            damage: Damage::Batch(fault),
        })?;
        if batch.next_offset() > offset {
            break;
        }
        position = start + headers.position().get();
    }
    file.truncate(position)
        .map_err(failed("truncate", &segment.path))?;
    file.sync_data().map_err(failed("fsync", &segment.path))
}
