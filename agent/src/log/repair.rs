//! Repairs the log of a stopped agent: cuts it where it is damaged, and moves what was cut aside.
//!
//! # Order of a repair
//!
//! The note of the loss and a mark that claims nothing come first, then files go aside from the newest
//! to the oldest, then the damaged one is cut, and last the checkpoint is lowered to where the log ends,
//! which is the caller's. A repair that was interrupted leaves a log that is still damaged, or whole and
//! known to be cut; it can be done again. Nothing is deleted.
//!
//! The note keeps the acknowledged offset until a start opens the log and reports the loss, also across
//! further repairs. The checkpoint keeps the offset of the cut, so that a start notices a log that lost
//! more than that.

use std::{
    io::IoSlice,
    path::{Path, PathBuf},
};

use bytes::{Buf, BufMut};
use esker_proto::types::{Offset, Position};

use super::{
    disk::{Disk, DiskFile, OsDisk},
    error::{Error, failed},
    examine::Examined,
    files::{self, Kind, Listing, frame, segment_path, state_path},
    mark::{Mark, MarkFile},
};

/// Bytes copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// That a log was cut, for the next start to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// Where it ends since.
    pub cut_offset: Offset,
    /// Below this everything had been acknowledged, as far as was known.
    pub flushed_offset: Offset,
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

/// Moves the whole log in `dir` to `aside`, if it exists, and leaves a note of what was acknowledged.
/// Blocks.
///
/// # Errors
///
/// If it cannot be moved. It can be done again.
pub fn discard(dir: &Path, aside: &Path, examined: &Examined) -> Result<(), Error> {
    match std::fs::rename(dir, aside) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(failed("rename directory", dir)(error));
        }
        _ => {}
    }
    let disk = OsDisk::open(dir.parent().unwrap_or(dir)).map_err(failed("open", dir))?;
    let repaired = Repaired {
        cut_offset: examined.tiered_offset,
        flushed_offset: examined.flushed_offset,
    };
    repaired.write(&disk, dir)
}

pub(super) fn repair_on(
    disk: &dyn Disk,
    dir: &Path,
    aside: &Path,
    examined: &Examined,
) -> Result<(), Error> {
    let repaired = Repaired {
        cut_offset: examined.kept_offset(),
        flushed_offset: examined.flushed_offset,
    };
    repaired.write(disk, dir)?;
    MarkFile::replace(disk, dir, Mark::default())?;
    for (path, position) in &examined.trailing {
        cut_segment(disk, aside, path, *position)?;
    }
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
    fn write(self, disk: &dyn Disk, dir: &Path) -> Result<(), Error> {
        disk.create_dir(dir)
            .map_err(failed("create directory", dir))?;
        files::replace(disk, &repaired_path(dir), &self.encode())
    }

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
