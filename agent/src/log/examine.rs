//! Examines the log of a stopped agent, and changes nothing.
//!
//! Damage is what the next start refuses, and also bad bytes in sealed segments, which a start does not
//! read. A bad copy of what the bucket has is not damage: the agent reads the bucket instead.

use std::path::{Path, PathBuf};

use esker_index::EpochHistory;
use esker_proto::{
    batch::BatchHeader,
    types::{Offset, Position},
};

use super::{
    checkpoint::Known,
    disk::{Disk, OsDisk},
    error::{Damage, Error, failed},
    files::{self, Kind, Listing, epochs_path, segment_path},
    mark::Mark,
    recovery::{Scan, read_states},
    repair::Repaired,
    state::{StateAt, decode_epochs},
};

/// What a log on the disk holds.
#[derive(Clone, Debug, Default)]
pub struct Examined {
    /// Segment files that are whole.
    pub segments: u64,
    /// Batches that hold, in a row.
    pub batches: u64,
    /// Their records.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// First offset.
    pub start_offset: Offset,
    /// Offset after the last record that holds.
    pub end_offset: Offset,
    /// Everything below is in the bucket, as far as is known.
    pub tiered_offset: Offset,
    /// Bytes of a tail that a crash tore: the next start cuts them.
    pub torn_bytes: u64,
    /// The first thing that is wrong.
    pub damage: Option<Error>,
    /// What is wrong with copies of what the bucket has.
    pub copies: Vec<Error>,
    /// Sealed segments with bytes behind their last record, and where those begin.
    pub trailing: Vec<(PathBuf, Position)>,
    /// Segment files from the damage on, and their bytes from there on.
    pub beyond: (u64, u64),
    /// Below this everything was acknowledged, as far as is known.
    pub flushed_offset: Offset,
}

impl Examined {
    /// Whether there is something to repair.
    pub fn is_damaged(&self) -> bool {
        self.damage.is_some() || !self.trailing.is_empty()
    }

    /// Where the log ends once it is repaired.
    pub fn kept_offset(&self) -> Offset {
        self.end_offset.max(self.tiered_offset)
    }
}

/// Reads every batch of the log in `dir`, and changes nothing. `known` is what the checkpoint says;
/// everything below `tiered_offset` is in the bucket, if that is known. Blocks.
///
/// # Errors
///
/// If files cannot be read; damage is an answer.
pub fn examine(
    dir: &Path,
    known: Option<Known>,
    tiered_offset: Option<Offset>,
) -> Result<Examined, Error> {
    let disk = OsDisk::open(dir.parent().unwrap_or(dir)).map_err(failed("open", dir))?;
    examine_on(&disk, dir, known, tiered_offset)
}

pub(super) fn examine_on(
    disk: &dyn Disk,
    dir: &Path,
    known: Option<Known>,
    tiered_offset: Option<Offset>,
) -> Result<Examined, Error> {
    let known_offset = known.map_or(Offset::ZERO, |known| known.flushed_offset);
    let mut found = Examined {
        flushed_offset: known_offset,
        tiered_offset: tiered_offset.unwrap_or_default(),
        ..Examined::default()
    };
    if disk.list(dir).unwrap_or_default().is_empty() {
        let is_missed = |known: &Known| {
            let is_in_bucket = tiered_offset.is_some_and(|tiered| known.flushed_offset <= tiered);
            !(known.is_final && is_in_bucket)
        };
        found.damage = known.filter(is_missed).map(|_| Error::Vanished {
            path: dir.to_owned(),
            flushed_offset: known_offset,
        });
        return Ok(found);
    }
    let listing = Listing::read(disk, dir)?;
    let mark = Mark::read(disk, dir)?;
    found.flushed_offset = known_offset.max(mark.flushed_offset);
    let mut examination = Examination {
        disk,
        dir,
        is_closed: mark.is_clean,
        knows_tiered: tiered_offset.is_some(),
        epochs: read_epochs(disk, dir)?,
        states: read_states(disk, dir, &listing)?,
        found,
    };
    for (at, base) in listing.segments.iter().enumerate() {
        examination.segment(*base, listing.segments.get(at + 1).copied())?;
    }
    let mut found = examination.finish();
    // An earlier repair noted this, and no start has reported it yet.
    let earlier = Repaired::read(disk, dir)?.map(|earlier| earlier.flushed_offset);
    found.flushed_offset = found.flushed_offset.max(earlier.unwrap_or_default());
    Ok(found)
}

fn read_epochs(disk: &dyn Disk, dir: &Path) -> Result<Option<EpochHistory>, Error> {
    let payload = files::read(disk, Kind::Epochs, &epochs_path(dir))?;
    Ok(payload.and_then(|payload| decode_epochs(&payload)))
}

/// An examination under way.
struct Examination<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    is_closed: bool,
    knows_tiered: bool,
    epochs: Option<EpochHistory>,
    states: Vec<StateAt>,
    found: Examined,
}

/// A sealed segment, as its state has it.
#[derive(Clone, Copy)]
struct Sealed {
    next_offset: Offset,
    size_bytes: u64,
}

/// What is wrong in a segment file.
struct Wrong {
    position: u64,
    rest: u64,
    damage: Damage,
}

impl Examination<'_> {
    fn segment(&mut self, base: Offset, next: Option<Offset>) -> Result<(), Error> {
        let path = segment_path(self.dir, base);
        if self.found.damage.is_some() {
            let file = self.disk.open(&path).map_err(failed("open", &path))?;
            self.found.beyond.0 += 1;
            self.found.beyond.1 += file.size_bytes().map_err(failed("stat", &path))?;
            return Ok(());
        }
        let (tiered_offset, expected) = (self.found.tiered_offset, self.found.end_offset);
        let is_leftover = base > expected && base <= tiered_offset;
        if self.found.segments == 0 || is_leftover {
            (self.found.start_offset, self.found.end_offset) = (base, base);
        }
        let sealed = self.sealed(base);
        let end = sealed.map(|sealed| sealed.next_offset).or(next);
        let is_copy = end.is_some_and(|end| end <= tiered_offset);
        let read = self.read(&path, base, sealed, next);
        self.found.segments += 1;
        match (read, end) {
            (Err(error), Some(end)) if is_copy && error.is_of_copy() => self.copy(error, end),
            (Ok(Some(wrong)), Some(end)) if is_copy => {
                let error = self.corrupt(&path, wrong.position, wrong.damage);
                self.copy(error, end);
            }
            (Ok(Some(wrong)), end) => self.wrong(&path, end, wrong),
            (read, _) => drop(read?),
        }
        Ok(())
    }

    /// Reads the batches of a segment, and says what is wrong.
    fn read(
        &mut self,
        path: &Path,
        base: Offset,
        sealed: Option<Sealed>,
        next: Option<Offset>,
    ) -> Result<Option<Wrong>, Error> {
        let file = self.disk.open(path).map_err(failed("open", path))?;
        let size_bytes = file.size_bytes().map_err(failed("stat", path))?;
        let expected = self.found.end_offset;
        if base != expected {
            return Ok(Some(Wrong {
                position: 0,
                rest: size_bytes,
                damage: Damage::Chain {
                    expected,
                    got: base,
                },
            }));
        }
        let scan = Scan {
            path,
            file: &*file,
            size_bytes,
        };
        let end = scan.walk(|batch| self.visit(batch))?;
        self.found.bytes += end.position;
        let length = sealed.filter(|sealed| sealed.size_bytes != size_bytes);
        let length = length.map(|sealed| Damage::Length {
            expected: sealed.size_bytes,
            got: size_bytes,
        });
        let Some(damage) = end.damage.or(length) else {
            return Ok(None);
        };
        let rest = size_bytes - end.position;
        let may_be_torn = next.is_none()
            && sealed.is_none()
            && !self.is_closed
            && self.found.end_offset >= self.found.flushed_offset
            && matches!(damage, Damage::Batch(_));
        if may_be_torn && scan.is_torn(end.position, self.found.end_offset)? {
            self.found.torn_bytes = rest;
            return Ok(None);
        }
        Ok(Some(Wrong {
            position: end.position,
            rest,
            damage,
        }))
    }

    fn visit(&mut self, batch: &BatchHeader) -> Result<(), Damage> {
        let expected = self.found.end_offset;
        let (got, epoch) = (batch.base_offset, batch.leader_epoch);
        if got != expected {
            return Err(Damage::Offset { expected, got });
        }
        let known = self.epochs.as_ref().and_then(|epochs| epochs.epoch_at(got));
        if known.is_some_and(|known| known != epoch) {
            return Err(Damage::Epoch { got: epoch });
        }
        self.found.batches += 1;
        self.found.records += u64::from(batch.record_count);
        self.found.end_offset = batch.next_offset();
        Ok(())
    }

    /// Returns the length that a sealed segment was sealed with, where that is known.
    fn sealed(&self, base: Offset) -> Option<Sealed> {
        self.states.iter().find_map(|state| {
            let index = state.segment.as_ref()?;
            (index.base_offset == base).then_some(Sealed {
                next_offset: state.offset,
                size_bytes: index.size_bytes,
            })
        })
    }

    /// Notes a bad copy of what the bucket has, and continues at the offset where it ends.
    fn copy(&mut self, error: Error, end: Offset) {
        self.found.copies.push(error);
        self.found.end_offset = end;
    }

    /// Notes what is wrong. Bytes behind the last record of a sealed segment can go alone.
    fn wrong(&mut self, path: &Path, end: Option<Offset>, wrong: Wrong) {
        let is_trailing = wrong.rest > 0 && end == Some(self.found.end_offset);
        if is_trailing && wrong.position > 0 {
            let position = Position::new(wrong.position);
            self.found.trailing.push((path.to_owned(), position));
            return;
        }
        self.found.beyond = (1, wrong.rest);
        self.found.damage = Some(self.corrupt(path, wrong.position, wrong.damage));
    }

    fn corrupt(&self, path: &Path, position: u64, damage: Damage) -> Error {
        Error::Corrupt {
            path: path.to_owned(),
            offset: self.found.end_offset,
            position: Position::new(position),
            damage,
        }
    }

    /// A log that holds must also reach as far as was acknowledged. Without a segment it ends where the
    /// bucket does.
    fn finish(self) -> Examined {
        let mut found = self.found;
        let knows_end = found.segments > 0 || self.knows_tiered;
        let log_end_offset = found.kept_offset();
        if found.damage.is_none() && knows_end && log_end_offset < found.flushed_offset {
            found.damage = Some(Error::Lost {
                path: self.dir.to_owned(),
                flushed_offset: found.flushed_offset,
                log_end_offset,
            });
        }
        found
    }
}
