//! Names of the files in a partition's directory, and how a small file is replaced.
//!
//! | name | holds | written |
//! | --- | --- | --- |
//! | `{base:020}.log` | batches from `base` on, back to back | appended by the flush pool |
//! | `{offset:020}.state` | [`super::state::StateAt`] `offset` | once, when a segment is sealed |
//! | `epochs` | the epoch history | replaced when an epoch begins |
//! | `mark` | [`super::mark::Mark`] | in place, as flushing goes on |
//! | `repaired` | that the log was cut by an operator | until the log is opened next |
//! | `*.tmp` | the next version of one of these | removed when the log is opened |
//!
//! Small files are frames: magic, kind, version, length, payload, CRC-32C. They are replaced by
//! temporary file, fsync, rename, fsync of the directory, so that a crash leaves the old or the new.

use std::{
    io::IoSlice,
    path::{Path, PathBuf},
};

use bytes::BufMut;
use esker_proto::{batch::crc32c, types::Offset};

use super::{
    disk::Disk,
    error::{Error, failed},
};

const MAGIC: &[u8; 4] = b"ESKL";
/// *Persisted.*
const VERSION: u8 = 1;
const HEAD_BYTES: usize = 10;
const CRC_BYTES: usize = 4;
/// Largest small file that is read: far above the largest that is written.
const FRAME_BYTES_MAX: u64 = 16 << 20;

/// What a small file holds. *Persisted.*
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    State = 1,
    Epochs = 2,
    Mark = 3,
    Offsets = 4,
    Repaired = 5,
}

pub(super) fn segment_path(dir: &Path, base_offset: Offset) -> PathBuf {
    dir.join(format!("{:020}.log", base_offset.get()))
}

pub(super) fn state_path(dir: &Path, offset: Offset) -> PathBuf {
    dir.join(format!("{:020}.state", offset.get()))
}

pub(super) fn epochs_path(dir: &Path) -> PathBuf {
    dir.join("epochs")
}

pub(super) fn mark_path(dir: &Path) -> PathBuf {
    dir.join("mark")
}

/// What is in a partition's directory, in order of offset.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) segments: Vec<Offset>,
    pub(super) states: Vec<Offset>,
    pub(super) temporary: Vec<PathBuf>,
}

impl Listing {
    pub(super) fn read(disk: &dyn Disk, dir: &Path) -> Result<Self, Error> {
        let mut listing = Self::default();
        for path in disk.list(dir).map_err(failed("list directory", dir))? {
            let extension = path.extension().and_then(|extension| extension.to_str());
            match extension {
                Some("log") => listing.segments.extend(offset_in_name(&path)),
                Some("state") => listing.states.extend(offset_in_name(&path)),
                Some("tmp") => listing.temporary.push(path),
                _ => {}
            }
        }
        listing.segments.sort_unstable();
        listing.states.sort_unstable();
        Ok(listing)
    }
}

fn offset_in_name(path: &Path) -> Option<Offset> {
    let digits = path.file_stem()?.to_str().filter(|stem| stem.len() == 20)?;
    let offset = digits
        .parse()
        .ok()
        .filter(|offset| *offset <= Offset::MAX.get())?;
    Some(Offset::new(offset))
}

/// Wraps `payload` for a file of this kind.
pub(super) fn frame(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD_BYTES + payload.len() + CRC_BYTES);
    out.put_slice(MAGIC);
    out.put_u8(kind as u8);
    out.put_u8(VERSION);
    out.put_u32_le(u32::try_from(payload.len()).expect("a small file is far below 4 GiB"));
    out.put_slice(payload);
    let crc = crc32c(&out);
    out.put_u32_le(crc);
    out
}

/// Returns the payload, or nothing if `bytes` are not exactly one whole frame of this kind.
pub(super) fn unframe(kind: Kind, bytes: &[u8]) -> Option<&[u8]> {
    let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let (payload, crc) = rest.split_last_chunk::<CRC_BYTES>()?;
    let length = u32::from_le_bytes([head[6], head[7], head[8], head[9]]);
    let is_ours = head[..4] == *MAGIC && head[4] == kind as u8 && head[5] == VERSION;
    let is_whole = payload.len() == length as usize
        && crc32c(&bytes[..bytes.len() - CRC_BYTES]) == u32::from_le_bytes(*crc);
    (is_ours && is_whole).then_some(payload)
}

/// Replaces a small file. When this returns, the new one is durable.
pub(super) fn replace(disk: &dyn Disk, path: &Path, frame: &[u8]) -> Result<(), Error> {
    put(disk, path, frame)?;
    sync_parent(disk, path)
}

/// Replaces a small file; durable only after [`sync_parent`]. After an error the old one stands, and
/// this can be done again from the beginning.
pub(super) fn put(disk: &dyn Disk, path: &Path, frame: &[u8]) -> Result<(), Error> {
    let temporary = path.with_added_extension("tmp");
    let file = disk
        .create(&temporary)
        .map_err(failed("create", &temporary))?;
    file.write_at(&mut [IoSlice::new(frame)], 0)
        .map_err(failed("write", &temporary))?;
    file.sync_data().map_err(failed("fsync", &temporary))?;
    disk.rename(&temporary, path)
        .map_err(failed("rename", &temporary))
}

pub(super) fn sync_parent(disk: &dyn Disk, path: &Path) -> Result<(), Error> {
    let dir = path.parent().unwrap_or(path);
    disk.sync_dir(dir).map_err(failed("fsync directory", dir))
}

/// Reads a small file's payload; nothing if there is none or it is damaged.
pub(super) fn read(disk: &dyn Disk, kind: Kind, path: &Path) -> Result<Option<Vec<u8>>, Error> {
    let file = match disk.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("open", path)(error)),
    };
    let size_bytes = file
        .size_bytes()
        .map_err(failed("stat", path))?
        .min(FRAME_BYTES_MAX);
    let mut bytes = Vec::new();
    let length = usize::try_from(size_bytes).unwrap_or(usize::MAX);
    file.read_at(&mut bytes, length, 0)
        .map_err(failed("read", path))?;
    Ok(unframe(kind, &bytes).map(<[u8]>::to_vec))
}
