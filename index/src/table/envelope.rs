//! The bytes between `PAR1` and the first column: format, version, length, checksum.

use crate::{Error, checksum::crc32c};

pub(super) const FORMAT: &str = "index table";
pub(super) const ENVELOPE_BYTES: usize = 24;

const PARQUET_MAGIC: &[u8; 4] = b"PAR1";
const MAGIC: &[u8; 8] = b"ESKRIDX1";
const FORMAT_VERSION: u32 = 1;
const CRC_AT: usize = 24;
const CRC_END: usize = CRC_AT + 4;

/// Fills in the envelope of a finished file.
pub(super) fn seal(file: &mut [u8]) {
    let length = file.len() as u64;
    file[4..12].copy_from_slice(MAGIC);
    file[12..16].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    file[16..CRC_AT].copy_from_slice(&length.to_le_bytes());
    let crc = checksum(file);
    file[CRC_AT..CRC_END].copy_from_slice(&crc.to_le_bytes());
}

/// Checks that every byte of the file is as [`seal`] saw it.
pub(super) fn check(file: &[u8]) -> Result<(), Error> {
    let envelope = file
        .get(..CRC_END)
        .ok_or(Error::NotThisFormat { format: FORMAT })?;
    if !envelope.starts_with(PARQUET_MAGIC) || &envelope[4..12] != MAGIC {
        return Err(Error::NotThisFormat { format: FORMAT });
    }
    let version = u32::from_le_bytes(number(&envelope[12..16]));
    if version != FORMAT_VERSION {
        return Err(Error::UnknownVersion {
            format: FORMAT,
            version,
        });
    }
    let (expected, actual) = (
        u64::from_le_bytes(number(&envelope[16..CRC_AT])),
        file.len() as u64,
    );
    if expected != actual {
        return Err(Error::WrongLength {
            format: FORMAT,
            expected,
            actual,
        });
    }
    if envelope[CRC_AT..] != checksum(file).to_le_bytes() {
        return Err(Error::ChecksumMismatch { format: FORMAT });
    }
    Ok(())
}

fn number<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("the range has the number's length")
}

fn checksum(file: &[u8]) -> u32 {
    crc32c(&[&file[..CRC_AT], &file[CRC_END..]])
}
