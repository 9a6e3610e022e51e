//! The two hashes of stored bytes: CRC-32C against accidents, SHA-256 for the chain of versions.

use crc_fast::{CrcAlgorithm, Digest};
use sha2::{Digest as _, Sha256};

/// A SHA-256 digest.
pub type Sha256Digest = [u8; 32];

/// Returns the SHA-256 of a manifest object's bytes, which its next version names.
pub fn sha256(bytes: &[u8]) -> Sha256Digest {
    Sha256::digest(bytes).into()
}

/// Returns the CRC-32C of the parts, as if they were one.
pub(crate) fn crc32c(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for part in parts {
        digest.update(part);
    }
    u32::try_from(digest.finalize()).expect("a 32-bit CRC fits u32")
}
