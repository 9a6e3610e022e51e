//! The note of an agent's newest start: a file of fixed size, overwritten in place.
//!
//! An agent has to start on a full disk, since its uploads are what frees it, so a note must not take
//! space. Two slots are written in turn, each with its checksum: a write that a crash tears leaves the
//! note before it.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::Path,
};

use esker_proto::{batch::crc32c, types::AgentEpoch};

/// Slots lie in sectors of their own.
const SLOT_BYTES: u64 = 512;
const NOTE_BYTES: usize = 12;
const FILE_BYTES: usize = 1024;

/// The open file.
#[derive(Debug)]
pub(crate) struct Starts {
    file: File,
    newest: AgentEpoch,
}

impl Starts {
    /// Opens the file, making it if need be.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or not be made.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path)?;
        if file.metadata()?.len() == 0 {
            file.write_all_at(&[0; FILE_BYTES], 0)?;
            file.sync_all()?;
        }
        let [even, odd] = [read(&file, 0)?, read(&file, 1)?];
        let newest = even.max(odd).unwrap_or_default();
        Ok(Self { file, newest })
    }

    /// Returns the newest start noted when the file was opened; 0 for none.
    pub(crate) const fn newest(&self) -> AgentEpoch {
        self.newest
    }

    /// Notes a start, durably.
    ///
    /// # Errors
    ///
    /// If the disk fails; the note before it stands.
    pub(crate) fn note(&self, agent_epoch: AgentEpoch) -> io::Result<()> {
        let mut note = [0; NOTE_BYTES];
        note[..8].copy_from_slice(&agent_epoch.get().to_le_bytes());
        let checksum = crc32c(&note[..8]);
        note[8..].copy_from_slice(&checksum.to_le_bytes());
        self.file
            .write_all_at(&note, (agent_epoch.get() % 2) * SLOT_BYTES)?;
        self.file.sync_data()
    }
}

fn read(file: &File, slot: u64) -> io::Result<Option<AgentEpoch>> {
    let mut note = [0; NOTE_BYTES];
    match file.read_exact_at(&mut note, slot * SLOT_BYTES) {
        // A file that was cut short lacks the note, as one that is damaged does.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let (epoch, checksum) = note.split_at(8);
    let is_whole = crc32c(epoch).to_le_bytes() == *checksum;
    let epoch = epoch.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    Ok(epoch.filter(|_| is_whole).map(AgentEpoch::new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_start_is_remembered_and_a_torn_note_leaves_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("starts");
        assert_eq!(Starts::open(&path).unwrap().newest(), AgentEpoch::new(0));
        for epoch in 1..=5 {
            Starts::open(&path)
                .unwrap()
                .note(AgentEpoch::new(epoch))
                .unwrap();
            assert_eq!(
                Starts::open(&path).unwrap().newest(),
                AgentEpoch::new(epoch)
            );
        }

        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[0xff; 3], SLOT_BYTES).unwrap();
        assert_eq!(Starts::open(&path).unwrap().newest(), AgentEpoch::new(4));
    }
}
