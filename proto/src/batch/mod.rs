//! The record batch codec: Kafka's `RecordBatch` v2, the unit of append, replication, storage,
//! checksum and fetch.
//!
//! # Overview
//!
//! A producer fills a [`BatchBuilder`] and sends the bytes. The leader takes them with
//! [`RecordBatch::validate`] and [`RecordBatch::check_records`], and writes
//! [`RecordBatch::stamped`]. The same
//! bytes are flushed, replicated, uploaded and fetched. A consumer walks [`Batches`] and, per
//! batch, [`RecordBatch::records`], which borrows keys and values from the fetched bytes.
//!
//! # Layout
//!
//! All integers are big-endian. `position: size field`:
//!
//! ```text
//!  0: 8 base offset            stamped by the leader, outside the CRC
//!  8: 4 length                 bytes after this field
//! 12: 4 leader epoch           stamped by the leader, outside the CRC
//! 16: 1 magic                  2
//! 17: 4 CRC-32C                of everything after this field
//! 21: 2 attributes             bits 0-2 compression, bit 3 log append time, others refused
//! 23: 4 last offset delta      record count - 1
//! 27: 8 base timestamp         of the first record
//! 35: 8 max timestamp
//! 43: 8 producer id            -1: none
//! 51: 2 producer epoch
//! 53: 4 base sequence
//! 57: 4 record count
//! 61:   records, compressed as a whole
//! ```
//!
//! A record is `length, attributes (0), timestamp delta, offset delta, key length, key, value
//! length, value, header count, headers`; lengths, deltas and counts are zigzag varints, and a
//! length of -1 is null.
//!
//! # What is checked where
//!
//! [`BatchHeader::parse`] checks what one header can tell: magic, length, attributes, counts, and
//! that the producer's fields agree. [`RecordBatch::validate`] adds that the bytes are exactly one
//! batch, the CRC, and that so many records can fit at all. Records are checked while they are
//! iterated, or all at once by [`RecordBatch::check_records`], which also holds the header's times
//! against those of the records.
//!
//! # Limits
//!
//! Arbitrary bytes never panic and never allocate without bound: nothing is allocated by a count
//! or a length that the bytes claim, decompression streams and stops at
//! [`DECOMPRESSED_BYTES_MAX`], and the builder refuses to grow beyond it.
//!
//! # Not handled
//!
//! Older magics, control batches, transactions, delete horizons and batches thinned out by key
//! compaction (offset deltas must be dense).

mod builder;
mod checksum;
mod compression;
mod compressor;
mod decompress;
mod error;
mod header;
mod record_batch;
mod records;
mod snappy;
mod stream;
mod varint;

pub use builder::BatchBuilder;
pub use checksum::crc32c;
pub use compression::{Compression, UnknownCompression};
pub use error::{BatchError, RecordFault};
pub use header::{Attributes, BatchHeader, HEADER_BYTES};
pub use record_batch::{RecordBatch, RecordTimes};
pub use records::{Header, Headers, Record, RecordIter, Records};
pub use stream::{BatchHeaders, Batches};

/// Most bytes the records of one batch may have when decompressed.
pub const DECOMPRESSED_BYTES_MAX: usize = 64 << 20;

/// Bytes of the smallest record: no key, no value, no headers.
pub const RECORD_BYTES_MIN: usize = 7;
