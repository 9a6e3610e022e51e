//! What is known at one offset of the log: written when the segment that ends there is sealed, or
//! when a log begins there because everything below is in the bucket.

use bytes::{Buf, BufMut, Bytes};
use esker_index::{EpochHistory, EpochStart, IndexEntry};
use esker_proto::types::{LeaderEpoch, Offset, Position, TimestampMs};

use super::files::{Kind, frame};

const ENTRY_BYTES: usize = 40;

/// The state of the log at `offset`: of all batches below it and none above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StateAt {
    pub(super) offset: Offset,
    pub(super) epochs: EpochHistory,
    /// An encoded [`esker_index::producers::ProducerTable`].
    pub(super) producers: Bytes,
    /// The segment that ends at `offset`; none where a log begins.
    pub(super) segment: Option<SealedIndex>,
}

/// The index of a sealed segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SealedIndex {
    pub(super) base_offset: Offset,
    pub(super) size_bytes: u64,
    pub(super) entries: Vec<IndexEntry>,
}

impl StateAt {
    /// Returns the file's bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u64_le(self.offset.get());
        put_bytes(&mut out, &encode_epochs(&self.epochs));
        put_bytes(&mut out, &self.producers);
        out.put_u8(u8::from(self.segment.is_some()));
        if let Some(segment) = &self.segment {
            segment.encode(&mut out);
        }
        frame(Kind::State, &out)
    }

    /// Reads a file's payload; nothing if it does not hold.
    pub(super) fn decode(mut payload: &[u8]) -> Option<Self> {
        let input = &mut payload;
        let offset = Offset::new(input.try_get_u64_le().ok()?);
        let epochs = decode_epochs(&take_bytes(input)?)?;
        let producers = Bytes::from(take_bytes(input)?);
        let segment = match input.try_get_u8().ok()? {
            0 => None,
            1 => Some(SealedIndex::decode(input, offset)?),
            _ => return None,
        };
        input.is_empty().then_some(Self {
            offset,
            epochs,
            producers,
            segment,
        })
    }
}

impl SealedIndex {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64_le(self.base_offset.get());
        out.put_u64_le(self.size_bytes);
        out.put_u32_le(u32::try_from(self.entries.len()).expect("entries are bounded"));
        for entry in &self.entries {
            out.put_u64_le(entry.base_offset.get());
            out.put_u64_le(entry.position.get());
            out.put_u32_le(entry.length);
            out.put_u32_le(entry.record_count);
            out.put_i64_le(entry.min_timestamp.get());
            out.put_i64_le(entry.max_timestamp.get());
        }
    }

    fn decode(input: &mut &[u8], next_offset: Offset) -> Option<Self> {
        let base_offset = Offset::new(input.try_get_u64_le().ok()?);
        let size_bytes = input.try_get_u64_le().ok()?;
        let count = input.try_get_u32_le().ok()? as usize;
        if input.len() != count.checked_mul(ENTRY_BYTES)? {
            return None;
        }
        let entries: Vec<IndexEntry> = (0..count).map(|_| read_entry(input)).collect();
        let is_whole = entries.first()?.base_offset == base_offset
            && entries.last()?.next_offset() == next_offset
            && entries.last()?.next_position().get() == size_bytes;
        is_whole.then_some(Self {
            base_offset,
            size_bytes,
            entries,
        })
    }
}

/// Reads [`ENTRY_BYTES`], which the caller has counted.
fn read_entry(input: &mut &[u8]) -> IndexEntry {
    IndexEntry {
        base_offset: Offset::new(input.get_u64_le()),
        position: Position::new(input.get_u64_le()),
        length: input.get_u32_le(),
        record_count: input.get_u32_le(),
        min_timestamp: TimestampMs::new(input.get_i64_le()),
        max_timestamp: TimestampMs::new(input.get_i64_le()),
    }
}

/// Returns the payload of the `epochs` file.
pub(super) fn encode_epochs(epochs: &EpochHistory) -> Vec<u8> {
    let mut out = Vec::new();
    for start in epochs.starts() {
        out.put_u32_le(start.leader_epoch.get());
        out.put_u64_le(start.start_offset.get());
    }
    out
}

/// Reads the payload of the `epochs` file; nothing if it does not hold.
pub(super) fn decode_epochs(payload: &[u8]) -> Option<EpochHistory> {
    let mut starts = Vec::new();
    for mut chunk in payload.chunks(12) {
        let leader_epoch = LeaderEpoch::new(chunk.try_get_u32_le().ok()?);
        let start_offset = Offset::new(chunk.try_get_u64_le().ok()?);
        starts.push(EpochStart {
            leader_epoch,
            start_offset,
        });
    }
    EpochHistory::try_from(starts).ok()
}

/// Returns the `epochs` file's bytes.
pub(super) fn epochs_frame(epochs: &EpochHistory) -> Vec<u8> {
    frame(Kind::Epochs, &encode_epochs(epochs))
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u32_le(u32::try_from(bytes.len()).expect("a part of the state is far below 4 GiB"));
    out.put_slice(bytes);
}

fn take_bytes(input: &mut &[u8]) -> Option<Vec<u8>> {
    let length = input.try_get_u32_le().ok()? as usize;
    let (bytes, rest) = input.split_at_checked(length)?;
    *input = rest;
    Some(bytes.to_vec())
}
