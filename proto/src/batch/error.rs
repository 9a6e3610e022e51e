//! Why bytes are no valid batch.

use super::Compression;
use crate::{types::TimestampMs, v1::ErrorKind};

/// Why bytes are no valid batch, or records make none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The bytes end before the batch does.
    #[error("batch is truncated. bytes=`{bytes}` expected_bytes=`{expected_bytes}`")]
    Truncated {
        /// Bytes there are.
        bytes: usize,
        /// Bytes the batch, or its header, needs.
        expected_bytes: usize,
    },
    /// More bytes than one batch.
    #[error("bytes follow the batch. bytes=`{bytes}` batch_bytes=`{batch_bytes}`")]
    TrailingBytes {
        /// Bytes there are.
        bytes: usize,
        /// Bytes of the batch.
        batch_bytes: usize,
    },
    /// Another format than record batch v2.
    #[error("batch magic is not 2. magic=`{0}`")]
    Magic(u8),
    /// A length no batch can have.
    #[error("batch length is out of range. length=`{0}`")]
    Length(i32),
    /// The bytes are not those the producer sent.
    #[error("batch checksum does not match. crc=`{crc:08x}` expected_crc=`{expected_crc:08x}`")]
    Checksum {
        /// CRC-32C of the bytes.
        crc: u32,
        /// CRC-32C the header claims.
        expected_crc: u32,
    },
    /// Control, transactional or unknown attribute bits, or an unknown compression.
    #[error("batch attributes are not supported. attributes=`{0:#06x}`")]
    Attributes(u16),
    /// A base offset that is negative, or so large that the next offset is.
    #[error("batch offset is out of range. base_offset=`{0}`")]
    BaseOffset(i64),
    /// No records, or a count at odds with the last offset delta.
    #[error(
        "record count does not hold. record_count=`{record_count}` \
         last_offset_delta=`{last_offset_delta}`"
    )]
    RecordCount {
        /// The count the header claims.
        record_count: i32,
        /// The last offset delta the header claims.
        last_offset_delta: i32,
    },
    /// More records than the bytes can hold.
    #[error("batch cannot hold its record count. record_count=`{record_count}` bytes=`{bytes}`")]
    TooManyRecords {
        /// The count the header claims.
        record_count: u32,
        /// Most bytes the records can have.
        bytes: usize,
    },
    /// A producer id without epoch or sequence.
    #[error(
        "producer fields do not agree. producer_id=`{producer_id}` \
         producer_epoch=`{producer_epoch}` base_sequence=`{base_sequence}`"
    )]
    Producer {
        /// The producer id.
        producer_id: i64,
        /// The producer epoch.
        producer_epoch: i16,
        /// The sequence of the first record.
        base_sequence: i32,
    },
    /// A record that cannot be decoded.
    #[error("record is corrupt: {fault}. record=`{index}`")]
    Record {
        /// Which record of the batch, from 0.
        index: u32,
        /// What is wrong with it.
        fault: RecordFault,
    },
    /// The records cannot be decompressed.
    #[error("records cannot be decompressed: {reason}. compression=`{compression}`")]
    Decompress {
        /// The compression the attributes name.
        compression: Compression,
        /// What the decompressor said.
        reason: String,
    },
    /// The header's maximum timestamp is not that of the latest record.
    #[error(
        "max timestamp is not that of the latest record. max_timestamp=`{max_timestamp}` \
         latest=`{latest}`"
    )]
    MaxTimestamp {
        /// What the header says.
        max_timestamp: TimestampMs,
        /// That of the latest record.
        latest: TimestampMs,
    },
    /// A timestamp more than 64 bits away from that of the batch's first record, or a first record
    /// that is later than the latest.
    #[error("timestamp is out of range. timestamp=`{timestamp}` base_timestamp=`{base_timestamp}`")]
    Timestamp {
        /// The timestamp.
        timestamp: TimestampMs,
        /// That of the first record.
        base_timestamp: TimestampMs,
    },
    /// The records are larger than [`super::DECOMPRESSED_BYTES_MAX`].
    #[error("records are too large. bytes_max=`{bytes_max}`")]
    TooLarge {
        /// The limit.
        bytes_max: usize,
    },
}

/// What is wrong with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordFault {
    /// The bytes end within it.
    #[error("bytes end within it")]
    Truncated,
    /// Bytes follow its last field, or the last record.
    #[error("bytes follow it")]
    TrailingBytes,
    /// A varint longer than ten bytes.
    #[error("varint is too long")]
    Varint,
    /// A length below -1, or a header key or count below 0.
    #[error("length is negative")]
    NegativeLength,
    /// An offset delta out of order.
    #[error("offset delta is out of order")]
    OffsetDelta,
    /// A timestamp beyond 64 bits.
    #[error("timestamp is out of range")]
    Timestamp,
    /// A header key that is not UTF-8.
    #[error("header key is not utf-8")]
    HeaderKey,
}

impl BatchError {
    /// What a caller who sent or read these bytes is told.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::TooLarge { .. } => ErrorKind::BatchTooLarge,
            Self::Magic(_) | Self::Attributes(_) | Self::Timestamp { .. } => {
                ErrorKind::InvalidArgument
            }
            Self::Truncated { .. }
            | Self::TrailingBytes { .. }
            | Self::Length(_)
            | Self::Checksum { .. }
            | Self::BaseOffset(_)
            | Self::RecordCount { .. }
            | Self::TooManyRecords { .. }
            | Self::MaxTimestamp { .. }
            | Self::Producer { .. }
            | Self::Record { .. }
            | Self::Decompress { .. } => ErrorKind::CorruptBatch,
        }
    }
}
