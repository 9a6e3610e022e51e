//! The newest manifest of a partition in a local file, so that a restart need not ask the bucket.
//!
//! An archive removes the file before it sends a commit. Once the outcome of every commit is known,
//! its owner has the file written again. A file that exists therefore holds the newest manifest,
//! provided that nobody else has led the partition since it was written: that is for the owner to
//! know. Nothing is flushed to the device here, so after a power cut a file proves nothing.
//!
//! ```text
//! 0   magic "ESKM"     4   format version, 1     8   leader epoch     12  flags: 1, garbage
//! 16  the manifest, as in the bucket             the last 4 bytes: CRC-32C of those before
//! ```

use std::{
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::{BufMut, Bytes, BytesMut};
use esker_index::Manifest;
use esker_proto::{batch::crc32c, types::LeaderEpoch};

use crate::error::Error;

const MAGIC: [u8; 4] = *b"ESKM";
const FORMAT_VERSION: u32 = 1;
const HEAD_BYTES: usize = 16;
const CRC_BYTES: usize = 4;
const HAS_GARBAGE: u32 = 1;

/// Where the newest manifest of a partition is remembered.
#[derive(Clone, Debug)]
pub struct ManifestFile {
    path: PathBuf,
}

/// What a [`ManifestFile`] holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Remembered {
    /// The epoch of the leader that wrote the file, which may have committed nothing.
    pub leader_epoch: LeaderEpoch,
    /// The newest manifest.
    pub manifest: Arc<Manifest>,
    /// Whether there may be objects that no manifest names any more.
    pub has_garbage: bool,
}

impl ManifestFile {
    /// Names the file. Does not touch it.
    pub const fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Reads the file; `None` if it does not exist or is damaged. Blocks.
    pub fn read(&self) -> Option<Remembered> {
        let bytes = match fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(error) => return self.unreadable(&error.to_string()),
        };
        decode(bytes.into()).or_else(|| self.unreadable("damaged"))
    }

    fn unreadable(&self, reason: &str) -> Option<Remembered> {
        let path = self.path.display();
        tracing::warn!(%path, reason, "cannot read the local copy of a manifest, reading the bucket");
        None
    }

    /// Writes the file, in place of one that exists. Blocks.
    ///
    /// # Errors
    ///
    /// When the disk fails. The file is then as it was.
    pub fn write(&self, remembered: &Remembered) -> io::Result<()> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let temporary = self.path.with_extension("new");
        fs::write(&temporary, encode(remembered))?;
        fs::rename(&temporary, &self.path)
    }

    /// Removes the file: from here on the bucket may have a newer manifest.
    pub(super) fn forget(&self) -> Result<(), Error> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::LocalFile {
                path: self.path.display().to_string(),
                source: Arc::new(error),
            }),
            _ => Ok(()),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

fn encode(remembered: &Remembered) -> Bytes {
    let manifest = remembered.manifest.encode([0; 32]);
    let mut bytes = BytesMut::with_capacity(HEAD_BYTES + manifest.len() + CRC_BYTES);
    bytes.put_slice(&MAGIC);
    bytes.put_u32_le(FORMAT_VERSION);
    bytes.put_u32_le(remembered.leader_epoch.get());
    bytes.put_u32_le(if remembered.has_garbage {
        HAS_GARBAGE
    } else {
        0
    });
    bytes.put_slice(&manifest);
    bytes.put_u32_le(crc32c(&bytes));
    bytes.freeze()
}

fn decode(bytes: Bytes) -> Option<Remembered> {
    let crc_at = bytes.len().checked_sub(CRC_BYTES)?;
    let manifest = (crc_at >= HEAD_BYTES).then(|| bytes.slice(HEAD_BYTES..crc_at))?;
    let is_whole = crc32c(&bytes[..crc_at]) == word(&bytes, crc_at);
    let is_ours = bytes[..4] == MAGIC && word(&bytes, 4) == FORMAT_VERSION;
    if !is_whole || !is_ours {
        return None;
    }
    Some(Remembered {
        leader_epoch: LeaderEpoch::new(word(&bytes, 8)),
        manifest: Arc::new(Manifest::decode(manifest).ok()?),
        has_garbage: word(&bytes, 12) & HAS_GARBAGE != 0,
    })
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes[at..].first_chunk().copied();
    u32::from_le_bytes(word.expect("the length was checked"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::tests::fixture::{CLUSTER, Fixture, PARTITION, never};

    #[tokio::test]
    async fn what_is_remembered_is_read_again_unless_a_bit_of_it_flipped() {
        let bucket = Fixture::new(1);
        let file = ManifestFile::new(bucket.dir.path().join("deep").join("manifest"));
        assert_eq!(file.read(), None);
        let mut archive = bucket.open(3).await.unwrap();
        let segments = bucket.segments(0, 3, 3);
        archive.upload_many(&segments, &never()).await.unwrap();
        let empty = Arc::new(Manifest::create(CLUSTER, PARTITION));
        for manifest in [empty, archive.manifest()] {
            let remembered = Remembered {
                leader_epoch: LeaderEpoch::new(7),
                manifest,
                has_garbage: true,
            };
            file.write(&remembered).unwrap();
            assert_eq!(file.read(), Some(remembered));
        }

        let whole = fs::read(file.path()).unwrap();
        for at in [0, 5, 9, 12, 40, whole.len() - 1] {
            let mut damaged = whole.clone();
            damaged[at] ^= 4;
            fs::write(file.path(), damaged).unwrap();
            assert_eq!(file.read(), None);
        }
        fs::write(file.path(), &whole[..10]).unwrap();
        assert_eq!(file.read(), None);
        file.forget().unwrap();
        file.forget().unwrap();
    }
}
