//! Encodes records into a batch.

use bytes::{BufMut, Bytes, BytesMut};

use super::{
    Attributes, BatchError, BatchHeader, Compression, DECOMPRESSED_BYTES_MAX, HEADER_BYTES,
    compressor::Compressor,
    crc32c,
    header::CRC_START,
    varint::{self, VARINT_BYTES_MAX, zigzag, zigzag_length},
};
use crate::types::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs};

/// Room for what precedes a record's key: length, attributes, timestamp and offset delta, key
/// length.
const PREFIX_BYTES: usize = 64;
/// A null key or value.
const NULL: u64 = zigzag(-1);

/// Encodes records into one batch after another.
///
/// Records are written straight into the batch; nothing is allocated per record. The buffer is
/// used again for the next batch once all [`Bytes`] of earlier ones are dropped.
#[derive(Debug)]
pub struct BatchBuilder {
    /// Room for the header, then the records, uncompressed. Empty: no batch is begun.
    buffer: BytesMut,
    /// What the next batch will probably take.
    capacity: usize,
    compressor: Compressor,
    record_count: u32,
    base_timestamp: TimestampMs,
    max_timestamp: TimestampMs,
}

impl BatchBuilder {
    /// Builds batches with this compression. Allocates nothing before the first record.
    pub fn new(compression: Compression) -> Self {
        Self::with_capacity(compression, 0)
    }

    /// Builds batches with this compression, the first of about `size_bytes`.
    pub fn with_capacity(compression: Compression, size_bytes: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            capacity: size_bytes.min(DECOMPRESSED_BYTES_MAX),
            compressor: Compressor::new(compression),
            record_count: 0,
            base_timestamp: TimestampMs::default(),
            max_timestamp: TimestampMs::default(),
        }
    }

    /// Returns the number of records.
    pub const fn len(&self) -> usize {
        self.record_count as usize
    }

    /// Whether there is no record.
    pub const fn is_empty(&self) -> bool {
        self.record_count == 0
    }

    /// Returns the size of the batch so far, uncompressed; 0 if there is no record.
    pub fn size_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Returns how the batches are compressed.
    pub const fn compression(&self) -> Compression {
        self.compressor.compression()
    }

    /// Appends a record.
    ///
    /// # Errors
    ///
    /// [`BatchError::TooLarge`] if the records would take more than [`DECOMPRESSED_BYTES_MAX`],
    /// [`BatchError::Timestamp`] if this one is 2^63 ms from the first. The batch is as before,
    /// then.
    #[inline]
    pub fn push(
        &mut self,
        timestamp: TimestampMs,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&str, Option<&[u8]>)],
    ) -> Result<(), BatchError> {
        if self.record_count == 0 {
            self.base_timestamp = timestamp;
            self.max_timestamp = timestamp;
        }
        let timestamp_delta = zigzag(self.timestamp_delta(timestamp)?);
        let offset_delta = u64::from(self.record_count) << 1;
        let key_length = key.map_or(NULL, |key| zigzag_length(key.len()));
        let value_length = value.map_or(NULL, |value| zigzag_length(value.len()));
        let length = 1
            + varint::size(timestamp_delta)
            + varint::size(offset_delta)
            + varint::size(key_length)
            + key.map_or(0, <[u8]>::len)
            + varint::size(value_length)
            + value.map_or(0, <[u8]>::len)
            + headers_size(headers);
        self.make_room(length)?;

        let mut prefix = [0; PREFIX_BYTES];
        let mut end = varint::write(&mut prefix, 0, zigzag_length(length));
        // The attributes of a record are 0, as the prefix is.
        end = varint::write(&mut prefix, end + 1, timestamp_delta);
        end = varint::write(&mut prefix, end, offset_delta);
        end = varint::write(&mut prefix, end, key_length);
        self.buffer.put_slice(&prefix[..end]);
        self.buffer.put_slice(key.unwrap_or_default());
        self.put_varint(value_length);
        self.buffer.put_slice(value.unwrap_or_default());
        self.put_headers(headers);

        self.max_timestamp = self.max_timestamp.max(timestamp);
        self.record_count += 1;
        Ok(())
    }

    /// Returns the batch and begins the next. No record makes no batch: the bytes are empty then.
    ///
    /// Base offset and leader epoch are 0 until a leader stamps them.
    pub fn finish(&mut self, producer: Option<(ProducerId, ProducerEpoch, Sequence)>) -> Bytes {
        if self.is_empty() {
            return Bytes::new();
        }
        self.capacity = self.buffer.len() + self.buffer.len() / 8;
        let mut batch = match self.compressor.compression() {
            Compression::None => self.buffer.split(),
            _ => self.compressed(),
        };
        self.seal(&mut batch, producer);
        self.buffer.clear();
        self.record_count = 0;
        batch.freeze()
    }

    /// Gives back the bytes of a batch that is done with, so that their memory serves the next one.
    /// Does nothing if anybody else still holds them, or a batch is begun.
    pub fn recycle(&mut self, batch: Bytes) {
        if !self.is_empty() {
            return;
        }
        if let Ok(mut buffer) = batch.try_into_mut() {
            buffer.clear();
            if buffer.capacity() > self.buffer.capacity() {
                self.buffer = buffer;
            }
        }
    }

    #[inline]
    fn timestamp_delta(&self, timestamp: TimestampMs) -> Result<i64, BatchError> {
        let base_timestamp = self.base_timestamp;
        let delta = timestamp.get().checked_sub(base_timestamp.get());
        delta.ok_or(BatchError::Timestamp {
            timestamp,
            base_timestamp,
        })
    }

    /// Makes room for a record of `length` bytes and its length field.
    #[inline]
    fn make_room(&mut self, length: usize) -> Result<(), BatchError> {
        let size = length.saturating_add(VARINT_BYTES_MAX);
        let end = self.buffer.len().saturating_add(size);
        if end > DECOMPRESSED_BYTES_MAX {
            return Err(BatchError::TooLarge {
                bytes_max: DECOMPRESSED_BYTES_MAX,
            });
        }
        if self.buffer.capacity() < end || self.buffer.is_empty() {
            self.grow(size);
        }
        Ok(())
    }

    #[cold]
    fn grow(&mut self, size: usize) {
        if self.buffer.is_empty() {
            self.buffer.reserve(self.capacity.max(HEADER_BYTES + size));
            self.buffer.put_bytes(0, HEADER_BYTES);
        }
        self.buffer.reserve(size);
    }

    #[inline]
    fn put_varint(&mut self, value: u64) {
        let mut bytes = [0; VARINT_BYTES_MAX];
        let end = varint::write(&mut bytes, 0, value);
        self.buffer.put_slice(&bytes[..end]);
    }

    #[inline]
    fn put_headers(&mut self, headers: &[(&str, Option<&[u8]>)]) {
        self.put_varint(zigzag_length(headers.len()));
        for (key, value) in headers {
            self.put_varint(zigzag_length(key.len()));
            self.buffer.put_slice(key.as_bytes());
            self.put_varint(value.map_or(NULL, |value| zigzag_length(value.len())));
            self.buffer.put_slice(value.unwrap_or_default());
        }
    }

    /// Returns room for the header and the records compressed, in a buffer of just that size.
    fn compressed(&mut self) -> BytesMut {
        let records = self.compressor.compress(&self.buffer[HEADER_BYTES..]);
        let mut batch = BytesMut::with_capacity(HEADER_BYTES + records.len());
        batch.put_bytes(0, HEADER_BYTES);
        batch.put_slice(records);
        batch
    }

    /// Writes the header, the CRC last.
    fn seal(&self, batch: &mut [u8], producer: Option<(ProducerId, ProducerEpoch, Sequence)>) {
        let none = (ProducerId::NONE, ProducerEpoch::NONE, Sequence::NONE);
        let (producer_id, producer_epoch, base_sequence) = producer.unwrap_or(none);
        let mut header = BatchHeader {
            base_offset: Offset::ZERO,
            size_bytes: u32::try_from(batch.len()).expect("a batch is bounded far below 4 GiB"),
            leader_epoch: LeaderEpoch::default(),
            crc: 0,
            attributes: Attributes::new(self.compressor.compression()),
            last_offset_delta: self.record_count - 1,
            base_timestamp: self.base_timestamp,
            max_timestamp: self.max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count: self.record_count,
        };
        batch[..HEADER_BYTES].copy_from_slice(&header.encode());
        header.crc = crc32c(&batch[CRC_START..]);
        batch[..HEADER_BYTES].copy_from_slice(&header.encode());
    }
}

/// Bytes of the header count and the headers.
#[inline]
fn headers_size(headers: &[(&str, Option<&[u8]>)]) -> usize {
    let count = varint::size(zigzag_length(headers.len()));
    headers
        .iter()
        .map(|(key, value)| header_size(key, *value))
        .fold(count, usize::saturating_add)
}

fn header_size(key: &str, value: Option<&[u8]>) -> usize {
    let value_length = value.map_or(NULL, |value| zigzag_length(value.len()));
    varint::size(zigzag_length(key.len()))
        + key.len()
        + varint::size(value_length)
        + value.map_or(0, <[u8]>::len)
}
