//! One valid batch and its bytes.

use bytes::Bytes;

use super::{
    BatchError, BatchHeader, Compression, DECOMPRESSED_BYTES_MAX, HEADER_BYTES, RECORD_BYTES_MIN,
    Records, crc32c, decompress::decompress, header::CRC_START,
};
use crate::types::{LeaderEpoch, Offset, TimestampMs};

/// One batch whose header, length, CRC and counts hold. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RecordBatch {
    header: BatchHeader,
    bytes: Bytes,
}

/// When the earliest and the latest record of a batch were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordTimes {
    /// The least timestamp.
    pub earliest: TimestampMs,
    /// The greatest.
    pub latest: TimestampMs,
}

impl RecordTimes {
    /// What a header says of them: the least time is that of the first record, and others may be
    /// earlier.
    ///
    /// # Errors
    ///
    /// [`BatchError::Timestamp`] if the first record is later than the latest.
    pub fn of_header(header: &BatchHeader) -> Result<Self, BatchError> {
        let (earliest, latest) = (header.base_timestamp, header.max_timestamp);
        if earliest > latest {
            return Err(BatchError::Timestamp {
                timestamp: latest,
                base_timestamp: earliest,
            });
        }
        Ok(Self { earliest, latest })
    }
}

impl RecordBatch {
    /// Takes bytes that are exactly one batch. Decodes no record.
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
        self.records_within(DECOMPRESSED_BYTES_MAX)
    }

    fn records_within(&self, bytes_max: usize) -> Result<Records, BatchError> {
        let body = self.body();
        let records = match self.header.compression() {
            Compression::None => body,
            compression => decompress(compression, &body, bytes_max)?,
        };
        Ok(Records::new(self.header, records))
    }

    /// Returns what follows the header.
    pub fn body(&self) -> Bytes {
        self.bytes.slice(HEADER_BYTES..)
    }

    /// Decodes every record and its headers, to see whether they hold and whether the header says
    /// their times. Allocates nothing, unless they are compressed.
    ///
    /// # Errors
    ///
    /// That of the first record that does not hold, [`BatchError::MaxTimestamp`], and those of
    /// [`Self::records`].
    pub fn check_records(&self) -> Result<RecordTimes, BatchError> {
        self.check_records_within(DECOMPRESSED_BYTES_MAX)
    }

    /// As [`Self::check_records`], of records that have at most `bytes_max` when decompressed.
    ///
    /// # Errors
    ///
    /// Those of [`Self::check_records`]; [`BatchError::TooLarge`] beyond `bytes_max`.
    pub fn check_records_within(&self, bytes_max: usize) -> Result<RecordTimes, BatchError> {
        let times = self.records_within(bytes_max)?.check()?;
        if times.latest != self.header.max_timestamp {
            return Err(BatchError::MaxTimestamp {
                max_timestamp: self.header.max_timestamp,
                latest: times.latest,
            });
        }
        // The index takes the later of the two for the newest time.
        let base_timestamp = self.header.base_timestamp;
        if base_timestamp > times.latest {
            return Err(BatchError::Timestamp {
                timestamp: times.latest,
                base_timestamp,
            });
        }
        Ok(times)
    }

    /// Returns what the leader of `leader_epoch` writes to append this batch at `base_offset`: the
    /// header, and the body as it came. No record is copied, and the CRC holds.
    pub fn stamped(
        &self,
        base_offset: Offset,
        leader_epoch: LeaderEpoch,
    ) -> ([u8; HEADER_BYTES], Bytes) {
        let header = self.header.stamped(base_offset, leader_epoch);
        (header.encode(), self.body())
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
