//! Opens a log: finds out what of it is whole, cuts what a crash tore, refuses what none explains.
//!
//! # Order
//!
//! 1. Sealed segments with their state file are taken as they are, if their length is right: they were
//!    flushed before the state was written. Others are made durable, dropped from the page cache (after
//!    a failed fsync it may hold what the disk does not) and walked batch by batch.
//! 2. The first batch of the last segment that does not hold is a torn tail, and cut, if the recovery
//!    mark does not say it was durable and [`scan`] finds that a crash explains it. Anything else that
//!    does not hold, in any segment, is an error: the files stay as they are.
//!    A sealed segment that does not hold, and ends at or below the tiered offset, is kept and not read.
//! 3. A log that ends below what it was known to be flushed to, by its mark or by the agent's
//!    checkpoint, is an error, and so is one that is gone with all its files.
//! 4. A log that ends below the tiered offset is dropped and begins anew there: everything in it is in
//!    the bucket. That is an error where it knows the epoch that wrote the end of the bucket's: what was
//!    uploaded had been flushed before, so the log is an older copy. A log that begins above it, or that holds another epoch at its last tiered offset, is
//!    an error.
//! 5. Producers come from the newest state and the batches after it; epochs from their checkpoint, or
//!    from the newest state, or from the manifest, and the batches.
//!
//! Everything can be done again after a crash at any step.

mod scan;
mod walk;

pub(super) use scan::Scan;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use esker_index::{EpochHistory, IndexBuilder, producers::ProducerTable};
use esker_proto::types::{Offset, Position, TimestampMs};

use super::{
    SealedSegment,
    checkpoint::Known,
    disk::Disk,
    error::{Damage, Error, failed},
    files::{self, Kind, Listing, epochs_path, segment_path, state_path},
    mark::{Mark, MarkFile},
    repair::Repaired,
    segment::{List, Segment},
    state::{StateAt, decode_epochs, epochs_frame},
};
use walk::Walk;

/// Where the local log may begin: the end of what is in the bucket, as the manifest has it.
#[derive(Clone, Debug, Default)]
pub struct RecoverAt {
    /// Everything below is in the bucket.
    pub tiered_offset: Offset,
    /// Epoch history of the tiered log.
    pub epochs: EpochHistory,
    /// Snapshot of the producers at `tiered_offset`.
    pub producers: Option<Bytes>,
    /// What the agent's checkpoint says of the log.
    pub known: Option<Known>,
    /// Whether a record is flushed before it is acknowledged, and so before it is uploaded.
    pub is_flushed_first: bool,
    /// The time, by the clock the files were written by: it tells how old the active segment is.
    pub now: TimestampMs,
}

impl RecoverAt {
    /// Below this everything is known to have been flushed.
    fn flushed_offset(&self, mark: &Mark) -> Offset {
        let known = self.known.map(|known| known.flushed_offset);
        mark.flushed_offset.max(known.unwrap_or_default())
    }
}

/// What opening a log found.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// First offset of the local log.
    pub local_log_start_offset: Offset,
    /// Where appending goes on; all below is on the disk.
    pub log_end_offset: Offset,
    /// Whether the log was closed in order.
    pub was_clean: bool,
    /// Whether all of it was in the bucket, so that it was dropped and begins anew.
    pub was_reset: bool,
    /// The torn tail that was cut off.
    pub cut: Option<Cut>,
    /// What is wrong with segments that are not read, since the bucket has what they held.
    pub distrusted: Vec<Error>,
    /// That an operator cut it since it was opened last.
    pub repaired: Option<Repaired>,
}

/// A torn tail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The segment file.
    pub path: PathBuf,
    /// Where it ends now.
    pub position: Position,
    /// How much was cut off, in bytes.
    pub bytes: u64,
    /// What did not hold; none where the file ends within a batch.
    pub damage: Damage,
}

/// A log as it lies on the disk, ready to go on.
#[derive(Debug)]
pub(super) struct OpenedLog {
    pub(super) recovered: Recovered,
    pub(super) list: List,
    pub(super) sealed: Vec<SealedSegment>,
    pub(super) active: Option<(Arc<Segment>, IndexBuilder)>,
    /// How long ago the active segment was begun. A clock that was set since makes it any age, and
    /// so the segment is sealed early or late, once.
    pub(super) active_age: Duration,
    pub(super) epochs: EpochHistory,
    pub(super) producers: ProducerTable,
    pub(super) mark: MarkFile,
}

/// Opens the log in `dir`, which is created if need be.
pub(super) fn open(disk: &dyn Disk, dir: &Path, at: &RecoverAt) -> Result<OpenedLog, Error> {
    disk.create_dir(dir)
        .map_err(failed("create directory", dir))?;
    check_exists(disk, dir, at)?;
    let listing = Listing::read(disk, dir)?;
    remove_all(disk, listing.temporary.iter().cloned())?;
    let mark = Mark::read(disk, dir)?;
    let checkpoint = files::read(disk, Kind::Epochs, &epochs_path(dir))?
        .and_then(|payload| decode_epochs(&payload));
    let states = read_states(disk, dir, &listing)?;
    let mut walk = Walk::new(disk, dir, at, mark, checkpoint.clone(), states)?;
    walk.segments(&listing.segments)?;
    walk.repaired = Repaired::read(disk, dir)?;
    check_kept(dir, at, &mark, &walk)?;
    let was_reset = walk.end_offset() < at.tiered_offset && !walk.is_empty();
    if walk.is_empty() || was_reset {
        walk.begin_at_tiered()?;
    }
    walk.finish_epochs()?;
    if checkpoint.as_ref() != Some(&walk.epochs) {
        files::replace(disk, &epochs_path(dir), &epochs_frame(&walk.epochs))?;
    }
    let mark_file = open_mark(disk, dir, mark, &walk)?;
    remove_rest(disk, dir, &listing, &walk)?;
    Ok(walk.into_opened(was_reset, mark_file))
}

/// Refuses a log whose files are all gone, unless nothing of them can be missed.
fn check_exists(disk: &dyn Disk, dir: &Path, at: &RecoverAt) -> Result<(), Error> {
    let Some(known) = at.known else { return Ok(()) };
    let is_missed = !known.is_final || known.flushed_offset > at.tiered_offset;
    let files = disk.list(dir).map_err(failed("list directory", dir))?;
    if is_missed && files.is_empty() {
        return Err(Error::Vanished {
            path: dir.to_owned(),
            flushed_offset: known.flushed_offset,
        });
    }
    Ok(())
}

/// Refuses a log that lost what was flushed, or does not fit the bucket.
fn check_kept(dir: &Path, at: &RecoverAt, mark: &Mark, walk: &Walk<'_>) -> Result<(), Error> {
    let tiered_offset = at.tiered_offset;
    let end = if walk.is_empty() {
        tiered_offset
    } else {
        walk.end_offset()
    };
    let flushed_offset = at.flushed_offset(mark);
    if flushed_offset > end.max(tiered_offset) {
        return Err(Error::Lost {
            path: dir.to_owned(),
            flushed_offset,
            log_end_offset: end.max(tiered_offset),
        });
    }
    check_not_rewound(dir, at, mark, walk)?;
    if walk.is_empty() || end < tiered_offset {
        return Ok(());
    }
    if walk.start_offset() > tiered_offset {
        let start = walk.start_offset();
        return Err(Error::Gap {
            start,
            tiered_offset,
            path: dir.to_owned(),
        });
    }
    let Some(last) = tiered_offset.get().checked_sub(1).map(Offset::new) else {
        return Ok(());
    };
    match (walk.epochs.epoch_at(last), at.epochs.epoch_at(last)) {
        (Some(local), Some(tiered)) if local != tiered => Err(Error::Diverged {
            offset: last,
            local,
            tiered,
            path: dir.to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Refuses a log that ends below what it uploaded itself.
fn check_not_rewound(
    dir: &Path,
    at: &RecoverAt,
    mark: &Mark,
    walk: &Walk<'_>,
) -> Result<(), Error> {
    let (tiered_offset, log_end_offset) = (at.tiered_offset, walk.end_offset());
    // A removal that was cut short leaves less than the log had.
    let has_reached = mark.flushed_offset >= tiered_offset || walk.knows_state_at(tiered_offset);
    let is_shorter = !walk.is_empty() && log_end_offset < tiered_offset && !has_reached;
    if !is_shorter || !at.is_flushed_first || walk.repaired.is_some() {
        return Ok(());
    }
    let last = Offset::new(tiered_offset.get() - 1);
    match at
        .epochs
        .epoch_at(last)
        .filter(|epoch| walk.has_led(*epoch))
    {
        None => Ok(()),
        Some(leader_epoch) => Err(Error::Rewound {
            path: dir.to_owned(),
            log_end_offset,
            tiered_offset,
            leader_epoch,
        }),
    }
}

/// Opens the mark so that it no longer says the log was closed.
fn open_mark(disk: &dyn Disk, dir: &Path, mark: Mark, walk: &Walk<'_>) -> Result<MarkFile, Error> {
    let now = walk.mark();
    if mark.segment == now.segment && !mark.is_clean && mark.flushed_offset > Offset::ZERO {
        return Ok(MarkFile::of(dir, mark));
    }
    MarkFile::replace(disk, dir, now)
}

/// Reads the states that sealed segments left, apart from damaged ones.
pub(super) fn read_states(
    disk: &dyn Disk,
    dir: &Path,
    listing: &Listing,
) -> Result<Vec<StateAt>, Error> {
    let mut states = Vec::new();
    for offset in &listing.states {
        let payload = files::read(disk, Kind::State, &state_path(dir, *offset))?;
        let state = payload.and_then(|payload| StateAt::decode(&payload));
        states.extend(state.filter(|state| state.offset == *offset));
    }
    Ok(states)
}

/// Removes segments and states that are no part of the log any more.
fn remove_rest(
    disk: &dyn Disk,
    dir: &Path,
    listing: &Listing,
    walk: &Walk<'_>,
) -> Result<(), Error> {
    let segments = listing
        .segments
        .iter()
        .filter(|base| !walk.has_segment(**base));
    let states = listing
        .states
        .iter()
        .filter(|offset| !walk.has_state(**offset));
    let paths: Vec<PathBuf> = segments
        .map(|base| segment_path(dir, *base))
        .chain(states.map(|offset| state_path(dir, *offset)))
        .collect();
    let is_any = !paths.is_empty();
    remove_all(disk, paths)?;
    if is_any {
        disk.sync_dir(dir).map_err(failed("fsync directory", dir))
    } else {
        Ok(())
    }
}

fn remove_all(disk: &dyn Disk, paths: impl IntoIterator<Item = PathBuf>) -> Result<(), Error> {
    for path in paths {
        disk.remove(&path).map_err(failed("remove", &path))?;
    }
    Ok(())
}
