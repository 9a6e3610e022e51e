//! The 61 bytes before the records.

use bytes::{Buf, BufMut};

use super::{
    BatchError, Compression,
    checksum::{crc32c, crc32c_shifted},
};
use crate::types::{
    LeaderEpoch, Offset, OffsetRange, ProducerEpoch, ProducerId, Sequence, TimestampMs,
};

/// Bytes of a batch before its records.
pub const HEADER_BYTES: usize = 61;
/// Bytes up to and including the length field, which does not count them.
const LENGTH_END: u32 = 12;
/// The CRC covers everything from here.
pub(super) const CRC_START: usize = 21;
/// The only magic there is.
const MAGIC: u8 = 2;
/// Attribute bits of the compression.
const COMPRESSION_MASK: u16 = 0b0111;
/// Attribute bit: record timestamps are the time of append, which is the max timestamp.
const LOG_APPEND_TIME: u16 = 0b1000;

/// Attribute bits, only those that are supported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes(u16);

impl Attributes {
    /// Attributes of a batch with this compression and the timestamps its producer chose.
    pub const fn new(compression: Compression) -> Self {
        Self(compression.bits())
    }

    /// Checks raw bits.
    ///
    /// # Errors
    ///
    /// [`BatchError::Attributes`] for control, transactional, delete horizon and unknown bits, and
    /// for an unknown compression.
    pub const fn from_bits(bits: u16) -> Result<Self, BatchError> {
        let is_known = bits & !(COMPRESSION_MASK | LOG_APPEND_TIME) == 0;
        match Compression::from_bits(bits & COMPRESSION_MASK) {
            Some(_) if is_known => Ok(Self(bits)),
            _ => Err(BatchError::Attributes(bits)),
        }
    }

    /// Returns the raw bits.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Returns how the records are compressed.
    pub const fn compression(self) -> Compression {
        Compression::from_bits(self.0 & COMPRESSION_MASK).expect("the bits were checked")
    }

    /// Whether every record has the max timestamp, which an agent has set.
    pub const fn is_log_append_time(self) -> bool {
        self.0 & LOG_APPEND_TIME != 0
    }
}

/// The header of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Offset of the first record. Means nothing before a leader stamps it.
    pub base_offset: Offset,
    /// Bytes of the whole batch, header and length field included.
    pub size_bytes: u32,
    /// Epoch of the leader that appended the batch. Means nothing before a leader stamps it:
    /// Kafka's Java client sends -1, which reads as `u32::MAX` here.
    pub leader_epoch: LeaderEpoch,
    /// CRC-32C of everything from the attributes on.
    pub crc: u32,
    /// Compression and kind of timestamps.
    pub attributes: Attributes,
    /// Record count - 1.
    pub last_offset_delta: u32,
    /// Timestamp of the first record; others may be earlier.
    pub base_timestamp: TimestampMs,
    /// Latest timestamp of the records.
    pub max_timestamp: TimestampMs,
    /// The idempotent producer, or [`ProducerId::NONE`].
    pub producer_id: ProducerId,
    /// Its epoch.
    pub producer_epoch: ProducerEpoch,
    /// Sequence of the first record.
    pub base_sequence: Sequence,
    /// Number of records, at least 1.
    pub record_count: u32,
}

impl BatchHeader {
    /// Reads the header at the front of `bytes`; what follows it is not looked at.
    ///
    /// # Errors
    ///
    /// Whatever the header alone can tell: see [`super`].
    pub fn parse(bytes: &[u8]) -> Result<Self, BatchError> {
        let truncated = BatchError::Truncated {
            bytes: bytes.len(),
            expected_bytes: HEADER_BYTES,
        };
        let mut fields: &[u8] = bytes.first_chunk::<HEADER_BYTES>().ok_or(truncated)?;
        let fields = &mut fields;
        let base_offset = fields.get_i64();
        let length = fields.get_i32();
        let leader_epoch = LeaderEpoch::new(fields.get_u32());
        check_magic(fields.get_u8())?;
        let crc = fields.get_u32();
        let attributes = Attributes::from_bits(fields.get_u16())?;
        let last_offset_delta = fields.get_i32();
        let base_timestamp = TimestampMs::new(fields.get_i64());
        let max_timestamp = TimestampMs::new(fields.get_i64());
        let producer = (fields.get_i64(), fields.get_i16(), fields.get_i32());
        let (producer_id, producer_epoch, base_sequence) = check_producer(producer)?;
        let record_count = check_record_count(fields.get_i32(), last_offset_delta)?;
        Ok(Self {
            base_offset: check_base_offset(base_offset, record_count)?,
            size_bytes: check_length(length)?,
            leader_epoch,
            crc,
            attributes,
            last_offset_delta: record_count - 1,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        })
    }

    /// Returns the bytes this header was parsed from.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut fields = bytes.as_mut_slice();
        let length = self.size_bytes.saturating_sub(LENGTH_END);
        fields.put_u64(self.base_offset.get());
        fields.put_u32(length);
        fields.put_u32(self.leader_epoch.get());
        fields.put_u8(MAGIC);
        fields.put_u32(self.crc);
        fields.put_u16(self.attributes.bits());
        fields.put_u32(self.last_offset_delta);
        fields.put_i64(self.base_timestamp.get());
        fields.put_i64(self.max_timestamp.get());
        fields.put_i64(self.producer_id.get());
        fields.put_i16(self.producer_epoch.get());
        fields.put_i32(self.base_sequence.get());
        fields.put_u32(self.record_count);
        bytes
    }

    /// Returns the offset after the last record.
    pub fn next_offset(&self) -> Offset {
        self.base_offset.advance(self.record_count)
    }

    /// Returns the offsets of the records.
    pub fn offsets(&self) -> OffsetRange {
        self.base_offset..self.next_offset()
    }

    /// Returns how the records are compressed.
    pub const fn compression(&self) -> Compression {
        self.attributes.compression()
    }

    /// Returns the header of the same batch whose records have the time of their append, `now`.
    ///
    /// The new CRC follows from the old one and the length of what follows the header, which is not
    /// read again. The old one must hold.
    #[must_use]
    pub fn with_append_time(self, now: TimestampMs) -> Self {
        let attributes = Attributes(self.attributes.0 | LOG_APPEND_TIME);
        let changed = Self {
            attributes,
            base_timestamp: now,
            max_timestamp: now,
            ..self
        };
        let difference = self.crc_of_fields() ^ changed.crc_of_fields();
        let body_bytes = u64::from(self.size_bytes).saturating_sub(HEADER_BYTES as u64);
        let crc = self.crc ^ crc32c_shifted(difference, body_bytes);
        Self { crc, ..changed }
    }

    /// CRC-32C of the part of the header that the batch's CRC covers.
    fn crc_of_fields(&self) -> u32 {
        crc32c(&self.encode()[CRC_START..])
    }

    /// Returns the header as the leader of `leader_epoch` appends it at `base_offset`. The CRC
    /// covers neither, so it holds.
    #[must_use]
    pub const fn stamped(self, base_offset: Offset, leader_epoch: LeaderEpoch) -> Self {
        Self {
            base_offset,
            leader_epoch,
            ..self
        }
    }
}

const fn check_magic(magic: u8) -> Result<(), BatchError> {
    if magic == MAGIC {
        Ok(())
    } else {
        Err(BatchError::Magic(magic))
    }
}

/// Turns the length field into the size of the batch.
fn check_length(length: i32) -> Result<u32, BatchError> {
    let size = u32::try_from(length).ok().map(|length| length + LENGTH_END);
    let is_whole = |size: &u32| *size as usize >= HEADER_BYTES;
    size.filter(is_whole).ok_or(BatchError::Length(length))
}

fn check_record_count(record_count: i32, last_offset_delta: i32) -> Result<u32, BatchError> {
    let is_dense = record_count >= 1 && last_offset_delta == record_count - 1;
    let count = u32::try_from(record_count).ok().filter(|_| is_dense);
    count.ok_or(BatchError::RecordCount {
        record_count,
        last_offset_delta,
    })
}

/// Offsets stay within 63 bits, the next offset too.
fn check_base_offset(base_offset: i64, record_count: u32) -> Result<Offset, BatchError> {
    let offset = u64::try_from(base_offset).ok();
    let fits = |offset: &u64| offset + u64::from(record_count) <= Offset::MAX.get();
    offset
        .filter(fits)
        .map(Offset::new)
        .ok_or(BatchError::BaseOffset(base_offset))
}

/// An idempotent producer sends an epoch and a sequence; without one they mean nothing.
const fn check_producer(
    (producer_id, producer_epoch, base_sequence): (i64, i16, i32),
) -> Result<(ProducerId, ProducerEpoch, Sequence), BatchError> {
    if producer_id >= 0 && (producer_epoch < 0 || base_sequence < 0) {
        return Err(BatchError::Producer {
            producer_id,
            producer_epoch,
            base_sequence,
        });
    }
    Ok((
        ProducerId::new(producer_id),
        ProducerEpoch::new(producer_epoch),
        Sequence::new(base_sequence),
    ))
}
