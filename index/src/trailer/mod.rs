//! The trailer at the end of a segment object: what the manifest says of the segment, and the state
//! of the log at its end, so that the index can be rebuilt from segment objects alone.
//!
//! # Layout
//!
//! ```text
//! object  = batches (size_bytes)  trailer
//! trailer = body  tail
//! tail    = body length u32 | format version u16 | 0 u16 | CRC-32C of body and the 8 bytes before u32 | "ESKRSEG1"
//! body    = cluster id 16 | topic id 16 | partition u32 | segment id 16 | leader epoch u32
//!         | base offset u64 | next offset u64 | size of the batches u64 | CRC-32C of the batches u32
//!         | entry count u32     | { length u32, record count u32, min timestamp i64, max timestamp i64 }
//!         | epoch count u32     | { leader epoch u32, start offset u64 }
//!         | producers length u32 | producer snapshot
//!         | uploaded at i64
//! ```
//!
//! Numbers are little-endian, ids are in network order. An entry's offset and position are the sums
//! of the ones before it. Fields may be added at the end of the body within a format version: a
//! reader ignores what follows the fields it knows.

mod codec;

use bytes::Bytes;
use esker_proto::types::{ClusterId, TopicPartition};

use crate::{EpochHistory, Error, IndexEntry, SegmentMeta, checksum::crc32c};

/// Bytes at the very end of an object that say how long the trailer is.
pub const TRAILER_TAIL_BYTES: usize = 20;

const FORMAT: &str = "segment trailer";
const FORMAT_VERSION: u16 = 1;
const MAGIC: &[u8; 8] = b"ESKRSEG1";
/// Longest body: entries, epochs and producers within their limits take less.
const BODY_BYTES_MAX: usize = 64 << 20;

/// The trailer of one segment object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentTrailer {
    /// The cluster that wrote the segment.
    pub cluster_id: ClusterId,
    /// The partition it belongs to.
    pub topic_partition: TopicPartition,
    /// The segment.
    pub meta: SegmentMeta,
    /// Its index.
    pub entries: Vec<IndexEntry>,
    /// Leader epochs of the log up to the segment's end.
    pub epochs: EpochHistory,
    /// Producer snapshot at the segment's end.
    pub producers: Bytes,
}

impl SegmentTrailer {
    /// Encodes the trailer, to be put behind the batches.
    pub fn encode(&self) -> Result<Bytes, Error> {
        crate::rows::check_segment(&self.meta, &self.entries)?;
        let mut trailer = codec::encode_body(self)?;
        let too_large = Error::TooLarge {
            limit: "BODY_BYTES_MAX",
            actual: trailer.len() as u64,
        };
        let length = u32::try_from(trailer.len())
            .ok()
            .filter(|_| trailer.len() <= BODY_BYTES_MAX);
        trailer.extend_from_slice(&length.ok_or(too_large)?.to_le_bytes());
        trailer.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        trailer.extend_from_slice(&[0; 2]);
        trailer.extend_from_slice(&crc32c(&[&trailer]).to_le_bytes());
        trailer.extend_from_slice(MAGIC);
        Ok(trailer.into())
    }

    /// Returns the length of the trailer of an object that ends with `tail`.
    pub fn length_from_tail(tail: &[u8]) -> Result<usize, Error> {
        let tail = tail.last_chunk().ok_or(Error::TailTooShort {
            needed_bytes: TRAILER_TAIL_BYTES,
        })?;
        parse_tail(tail).map(|parsed| parsed.body_bytes + TRAILER_TAIL_BYTES)
    }

    /// Decodes the trailer from the last bytes of an object.
    ///
    /// Fails with [`Error::TailTooShort`], which says how many bytes are needed, if `tail` does not
    /// reach back to the trailer's beginning.
    pub fn decode_from_tail(tail: &[u8]) -> Result<Self, Error> {
        let needed_bytes = Self::length_from_tail(tail)?;
        let start = tail.len().checked_sub(needed_bytes);
        let trailer = &tail[start.ok_or(Error::TailTooShort { needed_bytes })?..];
        let (checked, rest) = trailer.split_at(needed_bytes - 12);
        if rest[..4] != crc32c(&[checked]).to_le_bytes() {
            return Err(Error::ChecksumMismatch { format: FORMAT });
        }
        codec::decode_body(&trailer[..needed_bytes - TRAILER_TAIL_BYTES])
    }
}

struct Tail {
    body_bytes: usize,
}

fn parse_tail(tail: &[u8; TRAILER_TAIL_BYTES]) -> Result<Tail, Error> {
    if !tail.ends_with(MAGIC) {
        return Err(Error::NotThisFormat { format: FORMAT });
    }
    let version = u16::from_le_bytes([tail[4], tail[5]]);
    if version != FORMAT_VERSION {
        return Err(Error::UnknownVersion {
            format: FORMAT,
            version: version.into(),
        });
    }
    let body_bytes = u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]) as usize;
    if body_bytes > BODY_BYTES_MAX {
        return Err(Error::TooLarge {
            limit: "BODY_BYTES_MAX",
            actual: body_bytes as u64,
        });
    }
    Ok(Tail { body_bytes })
}

#[cfg(test)]
mod tests;
