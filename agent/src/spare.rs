//! A small part of the logs' volume that is kept back, so that an agent can start on a full disk.
//!
//! Its uploads are what frees a disk that its own tail has filled, and a start has to write a little
//! before them: the epoch history and the recovery mark of each partition. So some small files are
//! allocated while there is room, and removed by a start that finds none, space and inodes together. While
//! they are missing the agent takes no batches, which would use up what the next start needs.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use rustix::fs::{FallocateFlags, fallocate};

use crate::log::{DiskSpace, disk_space};

/// As many as partitions are opened at a time: each writes one file at a time.
const FILES: u64 = 16;
const FILE_BYTES: u64 = 16 << 10;
const ALL_BYTES: u64 = FILES * FILE_BYTES;

/// The files that are kept back.
#[derive(Debug)]
pub(crate) struct Spare {
    dir: PathBuf,
    logs: PathBuf,
}

impl Spare {
    /// Those of the volume that holds `logs`.
    pub(crate) fn of(logs: &Path) -> Self {
        Self {
            dir: logs.join("spare"),
            logs: logs.to_owned(),
        }
    }

    /// Gives the space back if the volume has no other.
    ///
    /// # Errors
    ///
    /// If the volume cannot be read, or the files not be removed.
    pub(crate) fn release_if_full(&self) -> io::Result<()> {
        if !self.dir.exists() || has_room(disk_space(&self.logs)?, 1) {
            return Ok(());
        }
        tracing::warn!(
            "the disk of the logs is full: using the space that was kept back for a start"
        );
        fs::remove_dir_all(&self.dir)
    }

    /// Allocates what is missing, if there is room beside it; `false` if there is not.
    pub(crate) fn keep(&self, space: DiskSpace) -> bool {
        let missing: Vec<PathBuf> = (0..FILES)
            .map(|number| self.dir.join(format!("{number:02}")))
            .filter(|path| !path.metadata().is_ok_and(|file| file.len() == FILE_BYTES))
            .collect();
        if missing.is_empty() {
            return true;
        }
        if !has_room(space, 2) {
            tracing::debug!(missing = missing.len(), "no room to keep back for a start");
            return false;
        }
        // What fails although there is room is no reason to refuse batches.
        if let Err(error) = self.allocate(&missing) {
            tracing::debug!(%error, "cannot keep back space for a start");
        }
        true
    }

    fn allocate(&self, missing: &[PathBuf]) -> io::Result<()> {
        // Not its parents: without the directory of the logs there is nothing to keep back for.
        match fs::create_dir(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        for path in missing {
            let mut file = File::create(path)?;
            // Not every file system can allocate without writing.
            if fallocate(&file, FallocateFlags::empty(), 0, FILE_BYTES).is_err() {
                io::copy(&mut io::repeat(0).take(FILE_BYTES), &mut file)?;
            }
        }
        Ok(())
    }
}

/// Whether there is room for so many times all of it.
fn has_room(space: DiskSpace, times: u64) -> bool {
    let has_files = space
        .available_files
        .is_none_or(|files| files >= times * FILES);
    space.available_bytes >= times * ALL_BYTES && has_files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_back_is_made_while_there_is_room_and_stays_when_there_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let spare = Spare::of(dir.path());
        let full = DiskSpace {
            total_bytes: 1 << 20,
            available_bytes: 0,
            available_files: None,
        };
        assert!(!spare.keep(full));
        let roomy = DiskSpace {
            available_bytes: 1 << 20,
            ..full
        };
        assert!(spare.keep(roomy));
        assert!(spare.keep(full), "it is there already");
        let no_inodes = DiskSpace {
            available_files: Some(3),
            ..roomy
        };
        fs::remove_file(dir.path().join("spare/07")).unwrap();
        assert!(!spare.keep(no_inodes));
        spare.release_if_full().unwrap();
        assert!(dir.path().join("spare").exists(), "this disk is not full");
    }
}
