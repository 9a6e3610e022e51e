//! The producer table as bytes.
//!
//! ```text
//! version: u8 = 1 | count: varint | producer * count | crc32c of all before: u32 little endian
//! producer: id: varint | epoch: varint | last used: 0 or 1 + i64 little endian
//!         | base sequence: varint | batches: u8 | (base offset, record count: varint) * batches
//! ```
//!
//! Producers come in order of use, the least recent first, and a batch's base offset is written as
//! the distance from the one before it, so that a busy producer takes some 50 bytes. A reader refuses
//! versions it does not know; a field is added by raising the version.

use bytes::{BufMut, Bytes};
use esker_proto::{
    batch::crc32c,
    types::{Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs},
};

use super::{
    LastUsed, PRODUCERS_MAX, Producer, ProducerTable, WINDOW_BATCHES,
    window::{Seen, Window},
};

/// *Persisted.*
const VERSION: u8 = 1;
const CRC_BYTES: usize = 4;

/// Why bytes are no producer table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// Written by a newer release.
    #[error("producer snapshot has an unknown version. version=`{0}`")]
    UnknownVersion(u8),
    /// The bytes changed since they were written.
    #[error("producer snapshot fails its checksum")]
    ChecksumMismatch,
    /// The checksum holds and the content does not.
    #[error("producer snapshot is malformed. position=`{position}`")]
    Malformed {
        /// How far it could be read, in bytes.
        position: usize,
    },
}

pub(super) fn encode(table: &ProducerTable) -> Bytes {
    let mut out = vec![VERSION];
    put_varint(&mut out, table.producers.len() as u64);
    for id in table.by_use.values() {
        let producer = &table.producers[id];
        put_producer(&mut out, *id, producer);
    }
    let crc = crc32c(&out);
    out.put_u32_le(crc);
    out.into()
}

pub(super) fn decode(bytes: &[u8]) -> Result<ProducerTable, SnapshotError> {
    if bytes.is_empty() {
        return Ok(ProducerTable::new());
    }
    let body_bytes = bytes
        .len()
        .checked_sub(CRC_BYTES)
        .ok_or(SnapshotError::ChecksumMismatch)?;
    let (body, crc) = bytes.split_at(body_bytes);
    if crc32c(body).to_le_bytes() != *crc {
        return Err(SnapshotError::ChecksumMismatch);
    }
    let mut input = Input {
        bytes: body,
        position: 0,
    };
    match input.u8()? {
        VERSION => decode_v1(input),
        version => Err(SnapshotError::UnknownVersion(version)),
    }
}

fn decode_v1(mut input: Input<'_>) -> Result<ProducerTable, SnapshotError> {
    let count = input.varint_at_most(PRODUCERS_MAX as u64)?;
    let mut table = ProducerTable::new();
    for _ in 0..count {
        let (id, epoch, used, window) = read_producer(&mut input)?;
        table.restore(id, epoch, window, used);
    }
    if input.position != input.bytes.len() {
        return Err(input.malformed());
    }
    Ok(table)
}

fn put_producer(out: &mut Vec<u8>, id: ProducerId, producer: &Producer) {
    put_varint(out, id.get().unsigned_abs());
    put_varint(out, u64::from(producer.epoch.get().unsigned_abs()));
    match producer.last_used {
        LastUsed::SinceLastExpiry => out.put_u8(0),
        LastUsed::At(at) => {
            out.put_u8(1);
            out.put_i64_le(at.get());
        }
    }
    put_varint(
        out,
        u64::from(producer.window.base_sequence().get().unsigned_abs()),
    );
    let batches = producer.window.batches();
    out.put_u8(u8::try_from(batches.len()).expect("a window holds a few batches"));
    let mut previous = 0;
    for seen in batches {
        put_varint(out, seen.base_offset.get() - previous);
        put_varint(out, u64::from(seen.record_count));
        previous = seen.base_offset.get();
    }
}

type ProducerParts = (ProducerId, ProducerEpoch, LastUsed, Window);

fn read_producer(input: &mut Input<'_>) -> Result<ProducerParts, SnapshotError> {
    let id = input.varint_as::<i64>()?;
    let epoch = input.varint_as::<i16>()?;
    let used = match input.u8()? {
        0 => LastUsed::SinceLastExpiry,
        1 => LastUsed::At(TimestampMs::new(input.i64()?)),
        _ => return Err(input.malformed()),
    };
    let base_sequence = input.varint_as::<i32>()?;
    let window = Window::from_parts(Sequence::new(base_sequence), &read_batches(input)?);
    Ok((ProducerId::new(id), ProducerEpoch::new(epoch), used, window))
}

fn read_batches(input: &mut Input<'_>) -> Result<Vec<Seen>, SnapshotError> {
    let count = usize::from(input.u8()?);
    if count == 0 || count > WINDOW_BATCHES {
        return Err(input.malformed());
    }
    let mut batches = Vec::with_capacity(count);
    let mut base_offset = 0_u64;
    for _ in 0..count {
        base_offset = base_offset
            .checked_add(input.varint_at_most(Offset::MAX.get())?)
            .filter(|offset| *offset <= Offset::MAX.get())
            .ok_or_else(|| input.malformed())?;
        let record_count = input.varint_as::<u32>()?;
        if record_count == 0 {
            return Err(input.malformed());
        }
        batches.push(Seen {
            base_offset: Offset::new(base_offset),
            record_count,
        });
    }
    Ok(batches)
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.put_u8((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8((value & 0x7f) as u8);
}

struct Input<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl Input<'_> {
    fn malformed(&self) -> SnapshotError {
        SnapshotError::Malformed {
            position: self.position,
        }
    }

    fn u8(&mut self) -> Result<u8, SnapshotError> {
        let byte = *self
            .bytes
            .get(self.position)
            .ok_or_else(|| self.malformed())?;
        self.position += 1;
        Ok(byte)
    }

    fn i64(&mut self) -> Result<i64, SnapshotError> {
        let rest = self.bytes.get(self.position..).unwrap_or_default();
        let bytes = *rest.first_chunk::<8>().ok_or_else(|| self.malformed())?;
        self.position += bytes.len();
        Ok(i64::from_le_bytes(bytes))
    }

    fn varint(&mut self) -> Result<u64, SnapshotError> {
        let mut value = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(self.malformed());
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.malformed())
    }

    fn varint_at_most(&mut self, max: u64) -> Result<u64, SnapshotError> {
        let value = self.varint()?;
        if value > max {
            Err(self.malformed())
        } else {
            Ok(value)
        }
    }

    fn varint_as<T: TryFrom<u64>>(&mut self) -> Result<T, SnapshotError> {
        let value = self.varint()?;
        T::try_from(value).map_err(|_| self.malformed())
    }
}
