//! One valid batch and its bytes.

use bytes::Bytes;

use super::{
    BatchError, BatchHeader, Compression, DECOMPRESSED_BYTES_MAX, HEADER_BYTES, RECORD_BYTES_MIN,
    Records, crc32c, decompress::decompress, header::CRC_START,
};
use crate::types::{LeaderEpoch, Offset};

/// One batch whose header, length, CRC and counts hold. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RecordBatch {
    header: BatchHeader,
    bytes: Bytes,
}

impl RecordBatch {
    /// Takes bytes that are exactly one batch. Never decodes a record.
    ///
    /// # Errors
    ///
    /// Whatever does not hold: see [`super`].
    pub fn validate(bytes: Bytes) -> Result<Self, BatchError> {
        let header = BatchHeader::parse(&bytes)?;
        let batch_bytes = header.size_bytes as usize;
        if bytes.len() < batch_bytes {
            let (bytes, expected_bytes) = (bytes.len(), batch_bytes);
            return Err(BatchError::Truncated {
                bytes,
                expected_bytes,
            });
        }
        if bytes.len() > batch_bytes {
            return Err(BatchError::TrailingBytes {
                bytes: bytes.len(),
                batch_bytes,
            });
        }
        check_crc(&header, &bytes)?;
        check_room(&header)?;
        Ok(Self { header, bytes })
    }

    /// Returns the header.
    pub const fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// Returns the whole batch.
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the whole batch.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// Returns the records, decompressed if need be.
    ///
    /// # Errors
    ///
    /// [`BatchError::Decompress`], or [`BatchError::TooLarge`] beyond [`DECOMPRESSED_BYTES_MAX`].
    pub fn records(&self) -> Result<Records, BatchError> {
        let body = self.bytes.slice(HEADER_BYTES..);
        let records = match self.header.compression() {
            Compression::None => body,
            compression => decompress(compression, &body, DECOMPRESSED_BYTES_MAX)?,
        };
        Ok(Records::new(self.header, records))
    }

    /// Decodes every record and its headers, to see whether they hold.
    ///
    /// # Errors
    ///
    /// That of the first record that does not.
    pub fn check_records(&self) -> Result<(), BatchError> {
        for record in &self.records()? {
            record?.headers.check()?;
        }
        Ok(())
    }

    /// Returns what the leader of `leader_epoch` writes to append this batch at `base_offset`: the
    /// header, and the body as it came. No record is copied, and the CRC holds.
    pub fn stamped(
        &self,
        base_offset: Offset,
        leader_epoch: LeaderEpoch,
    ) -> ([u8; HEADER_BYTES], Bytes) {
        let header = self.header.stamped(base_offset, leader_epoch);
        (header.encode(), self.bytes.slice(HEADER_BYTES..))
    }
}

/// Compares the CRC; `batch` is exactly the batch.
fn check_crc(header: &BatchHeader, batch: &[u8]) -> Result<(), BatchError> {
    let crc = crc32c(&batch[CRC_START..]);
    if crc != header.crc {
        return Err(BatchError::Checksum {
            crc,
            expected_crc: header.crc,
        });
    }
    Ok(())
}

/// Refuses a count of records that cannot be there, lest it eat up offsets.
fn check_room(header: &BatchHeader) -> Result<(), BatchError> {
    let bytes = match header.compression() {
        Compression::None => header.size_bytes as usize - HEADER_BYTES,
        _ => DECOMPRESSED_BYTES_MAX,
    };
    let record_count = header.record_count;
    if record_count as usize > bytes / RECORD_BYTES_MIN {
        return Err(BatchError::TooManyRecords {
            record_count,
            bytes,
        });
    }
    Ok(())
}
