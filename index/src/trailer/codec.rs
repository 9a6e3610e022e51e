//! The trailer's body, field by field; the layout is in the module above.

use bytes::{Buf, BufMut, Bytes};
use esker_proto::types::{
    ClusterId, LeaderEpoch, Offset, PartitionId, Position, SegmentId, TimestampMs, TopicId,
    TopicPartition,
};
use uuid::Uuid;

use super::SegmentTrailer;
use crate::{
    EpochHistory, EpochStart, Error, IndexEntry, SEGMENT_ENTRIES_MAX, SegmentMeta,
    rows::check_segment,
};

const ENTRY_BYTES: usize = 24;
const EPOCH_BYTES: usize = 12;

pub(super) fn encode_body(trailer: &SegmentTrailer) -> Result<Vec<u8>, Error> {
    let SegmentTrailer {
        cluster_id,
        topic_partition,
        meta,
        entries,
        epochs,
        producers,
    } = trailer;
    let mut body = Vec::with_capacity(128 + entries.len() * ENTRY_BYTES + producers.len());
    body.put_slice(cluster_id.get().as_bytes());
    body.put_slice(topic_partition.topic_id.get().as_bytes());
    body.put_u32_le(topic_partition.partition.get());
    body.put_slice(meta.segment_id.get().as_bytes());
    body.put_u32_le(meta.leader_epoch.get());
    body.put_u64_le(meta.base_offset.get());
    body.put_u64_le(meta.next_offset.get());
    body.put_u64_le(meta.size_bytes);
    body.put_u32_le(meta.crc32c);
    body.put_u32_le(count(entries.len())?);
    for entry in entries {
        body.put_u32_le(entry.length);
        body.put_u32_le(entry.record_count);
        body.put_i64_le(entry.min_timestamp.get());
        body.put_i64_le(entry.max_timestamp.get());
    }
    body.put_u32_le(count(epochs.starts().len())?);
    for start in epochs.starts() {
        body.put_u32_le(start.leader_epoch.get());
        body.put_u64_le(start.start_offset.get());
    }
    body.put_u32_le(count(producers.len())?);
    body.put_slice(producers);
    body.put_i64_le(meta.uploaded_at.get());
    Ok(body)
}

fn count(length: usize) -> Result<u32, Error> {
    u32::try_from(length).map_err(|_| Error::TooLarge {
        limit: "u32 count",
        actual: length as u64,
    })
}

pub(super) fn decode_body(body: &[u8]) -> Result<SegmentTrailer, Error> {
    let mut fields = Fields(body);
    let cluster_id = ClusterId::new(fields.uuid()?);
    let topic_id = TopicId::new(fields.uuid()?);
    let partition = PartitionId::new(fields.u32()?);
    let mut meta = fields.meta()?;
    let entries = fields.entries(meta.base_offset)?;
    let times = entries
        .iter()
        .map(|entry| (entry.min_timestamp, entry.max_timestamp));
    let (min, max) = times
        .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
        .unwrap_or_default();
    (meta.min_timestamp, meta.max_timestamp) = (min, max);
    check_segment(&meta, &entries)?;
    let epochs = fields.epochs()?;
    let producers = fields.producers()?;
    meta.uploaded_at = fields.uploaded_at()?;
    let topic_partition = TopicPartition {
        topic_id,
        partition,
    };
    Ok(SegmentTrailer {
        cluster_id,
        topic_partition,
        meta,
        entries,
        epochs,
        producers,
    })
}

/// Takes fields off the front of a body; every count is checked against the bytes left.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u32(&mut self) -> Result<u32, Error> {
        self.0.try_get_u32_le().map_err(truncated)
    }

    fn u64(&mut self) -> Result<u64, Error> {
        self.0.try_get_u64_le().map_err(truncated)
    }

    fn timestamp(&mut self) -> Result<TimestampMs, Error> {
        self.0
            .try_get_i64_le()
            .map(TimestampMs::new)
            .map_err(truncated)
    }

    fn uuid(&mut self) -> Result<Uuid, Error> {
        let mut raw = [0; 16];
        self.0.try_copy_to_slice(&mut raw).map_err(truncated)?;
        Ok(Uuid::from_bytes(raw))
    }

    /// A count of items of `item_bytes` each, all of which must be there.
    fn count(&mut self, item_bytes: usize) -> Result<usize, Error> {
        let count = self.u32()? as usize;
        if count > self.0.len() / item_bytes {
            return Err(Error::Malformed {
                what: "trailer count",
            });
        }
        Ok(count)
    }

    fn meta(&mut self) -> Result<SegmentMeta, Error> {
        Ok(SegmentMeta {
            segment_id: SegmentId::new(self.uuid()?),
            leader_epoch: LeaderEpoch::new(self.u32()?),
            base_offset: Offset::new(self.u64()?),
            next_offset: Offset::new(self.u64()?),
            size_bytes: self.u64()?,
            crc32c: self.u32()?,
            min_timestamp: TimestampMs::default(),
            max_timestamp: TimestampMs::default(),
            uploaded_at: TimestampMs::default(),
        })
    }

    fn entries(&mut self, base_offset: Offset) -> Result<Vec<IndexEntry>, Error> {
        let count = self.count(ENTRY_BYTES)?;
        if count > SEGMENT_ENTRIES_MAX {
            return Err(Error::TooLarge {
                limit: "SEGMENT_ENTRIES_MAX",
                actual: count as u64,
            });
        }
        // At most 4096 sums of 32-bit numbers: from a 63-bit start they cannot overflow.
        let mut offset = Some(base_offset)
            .filter(|&base| base <= Offset::MAX)
            .ok_or_else(|| Error::Invariant {
                id: "S6",
                at: base_offset.get(),
            })?;
        let mut position = Position::ZERO;
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            let entry = self.entry(offset, position)?;
            (offset, position) = (entry.next_offset(), entry.next_position());
            entries.push(entry);
        }
        Ok(entries)
    }

    fn entry(&mut self, base_offset: Offset, position: Position) -> Result<IndexEntry, Error> {
        Ok(IndexEntry {
            base_offset,
            position,
            length: self.u32()?,
            record_count: self.u32()?,
            min_timestamp: self.timestamp()?,
            max_timestamp: self.timestamp()?,
        })
    }

    fn epochs(&mut self) -> Result<EpochHistory, Error> {
        let count = self.count(EPOCH_BYTES)?;
        let mut starts = Vec::with_capacity(count);
        for _ in 0..count {
            let leader_epoch = LeaderEpoch::new(self.u32()?);
            starts.push(EpochStart {
                leader_epoch,
                start_offset: Offset::new(self.u64()?),
            });
        }
        EpochHistory::try_from(starts).map_err(|_| Error::Malformed {
            what: "trailer epochs",
        })
    }

    fn producers(&mut self) -> Result<Bytes, Error> {
        let length = self.count(1)?;
        let (producers, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(Bytes::copy_from_slice(producers))
    }

    /// The first trailers end before this field.
    fn uploaded_at(&mut self) -> Result<TimestampMs, Error> {
        if self.0.is_empty() {
            return Ok(TimestampMs::default());
        }
        self.timestamp()
    }
}

fn truncated(_: bytes::TryGetError) -> Error {
    Error::Malformed {
        what: "trailer field",
    }
}
