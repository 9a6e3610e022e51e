//! The recovery mark: a lower bound of what is durable, and whether the log was closed.
//!
//! Written in place and, while the log is open, without fsync: it reaches the disk when the system
//! writes it back. That is safe because it is written only *after* what it claims was flushed, so
//! that whichever version survives a power cut claims too little, never too much; one that was torn
//! fails its checksum and claims nothing. It tells a torn tail, which a crash explains, from lost or
//! changed data, which it does not.

use std::{io::IoSlice, path::Path, path::PathBuf, sync::Arc};

use bytes::{Buf, BufMut};
use esker_proto::types::Offset;

use super::{
    disk::{Disk, DiskFile},
    error::{Error, failed},
    files::{self, Kind, frame, mark_path},
};

/// The mark is moved each time this much more is flushed.
pub(super) const MARK_INTERVAL_BYTES: u64 = 1 << 20;

/// What is durable at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// Base offset of the segment that was written last.
    pub(super) segment: Offset,
    /// How much of it is durable, in bytes.
    pub(super) position: u64,
    /// Offset after the last durable record.
    pub(super) flushed_offset: Offset,
    /// Whether the log was closed in order, so that nothing follows.
    pub(super) is_clean: bool,
}

impl Mark {
    fn encode(self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u64_le(self.segment.get());
        out.put_u64_le(self.position);
        out.put_u64_le(self.flushed_offset.get());
        out.put_u8(u8::from(self.is_clean));
        frame(Kind::Mark, &out)
    }

    fn decode(mut payload: &[u8]) -> Option<Self> {
        Some(Self {
            segment: Offset::new(payload.try_get_u64_le().ok()?),
            position: payload.try_get_u64_le().ok()?,
            flushed_offset: Offset::new(payload.try_get_u64_le().ok()?),
            is_clean: payload.try_get_u8().ok()? != 0,
        })
    }

    /// Reads the mark of a log; the one that claims nothing if there is none that holds.
    pub(super) fn read(disk: &dyn Disk, dir: &Path) -> Result<Self, Error> {
        let payload = files::read(disk, Kind::Mark, &mark_path(dir))?;
        Ok(payload
            .and_then(|payload| Self::decode(&payload))
            .unwrap_or_default())
    }
}

/// The mark file of an open log. It is opened each time it is written, which is seldom.
#[derive(Debug)]
pub(super) struct MarkFile {
    path: PathBuf,
    written: Mark,
}

impl MarkFile {
    /// Replaces the mark of a log, durably.
    pub(super) fn replace(disk: &dyn Disk, dir: &Path, mark: Mark) -> Result<Self, Error> {
        let path = mark_path(dir);
        files::replace(disk, &path, &mark.encode())?;
        Ok(Self::of(dir, mark))
    }

    /// The mark of a log, which says `mark`.
    pub(super) fn of(dir: &Path, mark: Mark) -> Self {
        Self {
            path: mark_path(dir),
            written: mark,
        }
    }

    /// Notes that `mark` is durable, if it is far enough from what was noted. If no file can be opened
    /// now, the one before it stands: it claims less.
    pub(super) fn advance(&mut self, disk: &dyn Disk, mark: Mark) -> Result<(), Error> {
        // The first batch of a segment is noted, so that a segment that is gone is missed.
        let is_far = mark.segment != self.written.segment
            || self.written.position == 0
            || mark.position >= self.written.position + MARK_INTERVAL_BYTES;
        if !is_far {
            return Ok(());
        }
        match self.write(disk, mark) {
            Err(error) if error.is_shortage() => Ok(()),
            written => written.map(drop),
        }
    }

    /// Notes that the log was closed with all of `mark` durable.
    pub(super) fn close(&mut self, disk: &dyn Disk, mark: Mark) -> Result<(), Error> {
        let is_clean = true;
        let file = self.write(disk, Mark { is_clean, ..mark })?;
        file.sync_data().map_err(failed("fsync", &self.path))
    }

    fn write(&mut self, disk: &dyn Disk, mark: Mark) -> Result<Arc<dyn DiskFile>, Error> {
        let file = disk.open(&self.path).map_err(failed("open", &self.path))?;
        let bytes = mark.encode();
        file.write_at(&mut [IoSlice::new(&bytes)], 0)
            .map_err(failed("write", &self.path))?;
        self.written = mark;
        Ok(file)
    }
}
