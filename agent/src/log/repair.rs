//! Examines the log of a stopped agent, and repairs it: cuts it where it is damaged, and moves what was
//! cut aside.
//!
//! # Order of a repair
//!
//! The note of the loss and a mark that claims nothing come first, then files go aside from the newest
//! to the oldest, then the damaged one is cut, then the checkpoint forgets what it knew. A repair that
//! was interrupted leaves a log that is still damaged, or whole and known to be cut; it can be done
//! again. Nothing is deleted.

use std::{
    io::IoSlice,
    path::{Path, PathBuf},
};

use bytes::{Buf, BufMut};
use esker_index::EpochHistory;
use esker_proto::{
    batch::BatchHeader,
    types::{Offset, Position},
};

use super::{
    checkpoint::Known,
    disk::{Disk, DiskFile, OsDisk},
    error::{Damage, Error, failed},
    files::{self, Kind, Listing, epochs_path, frame, segment_path, state_path},
    mark::{Mark, MarkFile},
    recovery::Scan,
    state::{StateAt, decode_epochs},
};

/// Bytes copied at a time.
const COPY_BYTES: usize = 1 << 20;

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
    /// Bytes of a tail that a crash tore: the next start cuts them.
    pub torn_bytes: u64,
    /// The first thing that is wrong.
    pub damage: Option<Error>,
    /// Segment files from the damage on, and their bytes from there on.
    pub beyond: (u64, u64),
    /// Below this everything was acknowledged, as far as is known.
    pub flushed_offset: Offset,
}

/// That a log was cut, for the next start to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// Where it ends since.
    pub cut_offset: Offset,
    /// Below this everything had been acknowledged, as far as was known.
    pub flushed_offset: Offset,
}

/// Reads every batch of the log in `dir`, and changes nothing. `known` is what the checkpoint says.
/// Blocks.
///
/// # Errors
///
/// If files cannot be read; damage is an answer.
pub fn examine(dir: &Path, known: Option<Known>) -> Result<Examined, Error> {
    let disk = OsDisk::open(dir.parent().unwrap_or(dir)).map_err(failed("open", dir))?;
    examine_on(&disk, dir, known)
}

/// Cuts the log in `dir` where `examined` found it damaged; what is cut goes to `aside`. Blocks.
///
/// # Errors
///
/// If files cannot be written. It can be done again.
pub fn repair(dir: &Path, aside: &Path, examined: &Examined) -> Result<(), Error> {
    let disk = OsDisk::open(aside).map_err(failed("open", aside))?;
    repair_on(&disk, dir, aside, examined)
}

/// Moves the whole log in `dir` aside, if it exists. Blocks.
///
/// # Errors
///
/// If it cannot be moved.
pub fn move_aside(dir: &Path, aside: &Path) -> Result<(), Error> {
    match std::fs::rename(dir, aside) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(failed("rename directory", dir)(error))
        }
        _ => Ok(()),
    }
}

pub(super) fn examine_on(
    disk: &dyn Disk,
    dir: &Path,
    known: Option<Known>,
) -> Result<Examined, Error> {
    let known_offset = known.map_or(Offset::ZERO, |known| known.flushed_offset);
    let mut found = Examined {
        flushed_offset: known_offset,
        ..Examined::default()
    };
    if disk.list(dir).unwrap_or_default().is_empty() {
        found.damage = known.map(|_| Error::Vanished {
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
        epochs: read_epochs(disk, dir)?,
        found,
    };
    for (at, base) in listing.segments.iter().enumerate() {
        examination.segment(*base, at + 1 == listing.segments.len())?;
    }
    Ok(examination.finish())
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
    epochs: Option<EpochHistory>,
    found: Examined,
}

impl Examination<'_> {
    fn segment(&mut self, base: Offset, is_last: bool) -> Result<(), Error> {
        let path = segment_path(self.dir, base);
        let file = self.disk.open(&path).map_err(failed("open", &path))?;
        let size_bytes = file.size_bytes().map_err(failed("stat", &path))?;
        if self.found.damage.is_some() {
            self.found.beyond.0 += 1;
            self.found.beyond.1 += size_bytes;
            return Ok(());
        }
        if self.found.segments == 0 {
            (self.found.start_offset, self.found.end_offset) = (base, base);
        } else if base != self.found.end_offset {
            let expected = self.found.end_offset;
            self.damaged(
                &path,
                0,
                size_bytes,
                Damage::Chain {
                    expected,
                    got: base,
                },
            );
            return Ok(());
        }
        let scan = Scan {
            path: &path,
            file: &*file,
            size_bytes,
        };
        let end = scan.walk(|batch| self.visit(batch))?;
        self.found.bytes += end.position;
        self.found.segments += 1;
        let length = match is_last {
            true => None,
            false => self.wrong_length(base, size_bytes)?,
        };
        let Some(damage) = end.damage.or(length) else {
            return Ok(());
        };
        let rest = size_bytes - end.position;
        let may_be_torn = is_last
            && !self.is_closed
            && self.found.end_offset >= self.found.flushed_offset
            && matches!(damage, Damage::Batch(_));
        if may_be_torn && scan.is_torn(end.position, self.found.end_offset)? {
            self.found.torn_bytes = rest;
        } else {
            self.damaged(&path, end.position, rest, damage);
        }
        Ok(())
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

    /// Compares a sealed segment with the length it was sealed with, where that is known.
    fn wrong_length(&self, base: Offset, got: u64) -> Result<Option<Damage>, Error> {
        for offset in Listing::read(self.disk, self.dir)?.states {
            let path = state_path(self.dir, offset);
            let payload = files::read(self.disk, Kind::State, &path)?;
            let state = payload.and_then(|payload| StateAt::decode(&payload));
            let Some(index) = state.and_then(|state| state.segment) else {
                continue;
            };
            if index.base_offset == base {
                let expected = index.size_bytes;
                return Ok((expected != got).then_some(Damage::Length { expected, got }));
            }
        }
        Ok(None)
    }

    fn damaged(&mut self, path: &Path, position: u64, rest: u64, damage: Damage) {
        self.found.beyond = (1, rest);
        self.found.damage = Some(Error::Corrupt {
            path: path.to_owned(),
            offset: self.found.end_offset,
            position: Position::new(position),
            damage,
        });
    }

    /// A log that holds must also reach as far as was acknowledged.
    fn finish(self) -> Examined {
        let mut found = self.found;
        if found.damage.is_none() && found.segments > 0 && found.end_offset < found.flushed_offset {
            found.damage = Some(Error::Lost {
                path: self.dir.to_owned(),
                flushed_offset: found.flushed_offset,
                log_end_offset: found.end_offset,
            });
        }
        found
    }
}

pub(super) fn repair_on(
    disk: &dyn Disk,
    dir: &Path,
    aside: &Path,
    examined: &Examined,
) -> Result<(), Error> {
    disk.create_dir(dir)
        .map_err(failed("create directory", dir))?;
    let repaired = Repaired {
        cut_offset: examined.end_offset,
        flushed_offset: examined.flushed_offset,
    };
    files::replace(disk, &repaired_path(dir), &repaired.encode())?;
    MarkFile::replace(disk, dir, Mark::default())?;
    let Some(Error::Corrupt { path, position, .. }) = &examined.damage else {
        return Ok(());
    };
    let listing = Listing::read(disk, dir)?;
    for offset in listing.states.iter().rev() {
        if *offset > examined.end_offset {
            move_to(disk, aside, &state_path(dir, *offset))?;
        }
    }
    for base in listing.segments.iter().rev() {
        let segment = segment_path(dir, *base);
        let is_later = segment > *path;
        if is_later || (segment == *path && *position == Position::ZERO) {
            move_to(disk, aside, &segment)?;
        }
    }
    if *position > Position::ZERO {
        cut_segment(disk, aside, path, *position)?;
    }
    Ok(())
}

/// Moves a file aside, durably.
fn move_to(disk: &dyn Disk, aside: &Path, path: &Path) -> Result<(), Error> {
    let to = aside.join(path.file_name().unwrap_or(path.as_os_str()));
    disk.rename(path, &to).map_err(failed("rename", path))?;
    files::sync_parent(disk, &to)?;
    files::sync_parent(disk, path)
}

/// Copies a segment from the damage on, then cuts it there.
fn cut_segment(disk: &dyn Disk, aside: &Path, path: &Path, from: Position) -> Result<(), Error> {
    let file = disk.open(path).map_err(failed("open", path))?;
    let name = path.file_name().unwrap_or(path.as_os_str());
    let to = aside
        .join(name)
        .with_added_extension(format!("from-{from}"));
    let copy = disk.create(&to).map_err(failed("create", &to))?;
    copy_from(&*file, &*copy, from.get()).map_err(failed("copy", &to))?;
    copy.sync_data().map_err(failed("fsync", &to))?;
    files::sync_parent(disk, &to)?;
    file.truncate(from.get())
        .map_err(failed("truncate", path))?;
    file.sync_data().map_err(failed("fsync", path))
}

fn copy_from(file: &dyn DiskFile, copy: &dyn DiskFile, from: u64) -> std::io::Result<()> {
    let mut copied = 0;
    loop {
        let mut bytes = Vec::new();
        file.read_at(&mut bytes, COPY_BYTES, from + copied)?;
        if bytes.is_empty() {
            return Ok(());
        }
        copy.write_at(&mut [IoSlice::new(&bytes)], copied)?;
        copied += bytes.len() as u64;
    }
}

/// Removes the note of a repair: the log was opened since.
pub(super) fn forget(disk: &dyn Disk, dir: &Path) -> Result<(), Error> {
    let path = repaired_path(dir);
    disk.remove(&path).map_err(failed("remove", &path))?;
    files::sync_parent(disk, &path)
}

fn repaired_path(dir: &Path) -> PathBuf {
    dir.join("repaired")
}

impl Repaired {
    fn encode(self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u64_le(self.cut_offset.get());
        out.put_u64_le(self.flushed_offset.get());
        frame(Kind::Repaired, &out)
    }

    /// Reads the note of a repair, if there was one since the log was opened last.
    pub(super) fn read(disk: &dyn Disk, dir: &Path) -> Result<Option<Self>, Error> {
        let payload = files::read(disk, Kind::Repaired, &repaired_path(dir))?;
        Ok(payload.and_then(|payload| Self::decode(&payload)))
    }

    fn decode(mut payload: &[u8]) -> Option<Self> {
        Some(Self {
            cut_offset: Offset::new(payload.try_get_u64_le().ok()?),
            flushed_offset: Offset::new(payload.try_get_u64_le().ok()?),
        })
    }
}
