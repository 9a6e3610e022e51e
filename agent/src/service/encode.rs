//! Encodes responses: what comes before their payload, and plain records.

use bytes::{BufMut, Bytes};
use esker_proto::{
    batch::{BatchError, Batches, RecordBatch, Records},
    convert::wire_records,
    types::{Offset, OffsetRange},
    v1::Record,
};
use prost::{
    Message,
    encoding::{WireType, encode_key, encode_varint},
};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    task::JoinError,
};

/// Number of `FetchResponse.records`.
const RECORDS_FIELD: u32 = 2;
/// Batches of a process that are decompressed at a time: a well compressed one takes 64 MiB.
const DECODES_AT_A_TIME: usize = 2;

static DECODES: Semaphore = Semaphore::const_new(DECODES_AT_A_TIME);

/// Plain records, out of batches that may have had more of them.
#[derive(Debug, Default)]
pub(super) struct Encoded {
    bytes: Vec<u8>,
    /// Where to continue, if not all were wanted or fit.
    pub(super) cut_at: Option<Offset>,
}

/// A batch whose records cannot be decoded.
#[derive(Debug)]
pub(super) struct Undecodable {
    pub(super) error: BatchError,
    /// The first offset behind the batch; `None` if its header cannot be trusted.
    pub(super) end_offset: Option<Offset>,
}

impl Encoded {
    pub(super) fn into_bytes(mut self) -> Bytes {
        // Grown by doubling, and charged by what it holds.
        self.bytes.shrink_to_fit();
        self.bytes.into()
    }

    fn push(&mut self, record: &Record) {
        encode_key(RECORDS_FIELD, WireType::LengthDelimited, &mut self.bytes);
        encode_varint(record.encoded_len() as u64, &mut self.bytes);
        self.bytes.reserve(record.encoded_len());
        record.encode_raw(&mut self.bytes);
    }

    /// Adds the records in `wanted`, up to about `room` bytes in all: a few batches of well
    /// compressed records could otherwise fill the memory. Those before a bad batch or record come
    /// first, and it is met by the next read.
    pub(super) fn add(
        &mut self,
        slices: impl IntoIterator<Item = Bytes>,
        wanted: OffsetRange,
        room: usize,
    ) -> Result<(), Undecodable> {
        let mut next_offset = wanted.start;
        for batch in slices.into_iter().flat_map(Batches::new) {
            let (end, records) = match decoded(batch) {
                Ok(decoded) => decoded,
                Err(_) if next_offset > wanted.start => {
                    self.cut_at = Some(next_offset);
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            for record in wire_records(&records, wanted.start) {
                let record = match record {
                    Err(_) if !self.bytes.is_empty() => {
                        self.cut_at = Some(next_offset);
                        return Ok(());
                    }
                    record => record.map_err(|error| Undecodable {
                        error,
                        end_offset: Some(end),
                    })?,
                };
                let offset = Offset::new(record.offset);
                if offset >= wanted.end || self.bytes.len() >= room {
                    self.cut_at = Some(offset);
                    return Ok(());
                }
                self.push(&record);
                next_offset = offset.advance(1);
            }
            next_offset = end;
        }
        Ok(())
    }
}

/// Returns the records of a batch, and the offset behind it.
fn decoded(batch: Result<RecordBatch, BatchError>) -> Result<(Offset, Records), Undecodable> {
    let batch = batch.map_err(|error| Undecodable {
        error,
        end_offset: None,
    })?;
    // The checksum holds, and covers how many offsets the batch has.
    let end = batch.header().next_offset();
    let records = batch.records().map_err(|error| Undecodable {
        error,
        end_offset: Some(end),
    })?;
    Ok((end, records))
}

/// Plain records as they came of batches, and the turn in which they did: it is held until what was
/// made of it is charged.
pub(super) struct Decoded {
    pub(super) outcome: Result<Encoded, Undecodable>,
    pub(super) turn: SemaphorePermit<'static>,
}

/// Makes plain records of batches as [`Encoded::add`] does, once there is a turn. On a thread of its
/// own: a batch may decompress to 64 MiB, and no other stream's task shall wait for that.
///
/// # Errors
///
/// If the runtime is shutting down.
pub(super) async fn decode(
    batches: Vec<Bytes>,
    wanted: OffsetRange,
    room: usize,
) -> Result<Decoded, JoinError> {
    let turn = DECODES.acquire().await;
    let turn = turn.expect("the semaphore is never closed");
    // The turn goes along: a decode that nobody waits for any more takes memory, too.
    let decode = move || {
        let mut encoded = Encoded::default();
        let outcome = encoded.add(batches, wanted, room).map(|()| encoded);
        Decoded { outcome, turn }
    };
    tokio::task::spawn_blocking(decode).await
}

/// Encodes what comes before the payload of a response: gRPC's prefix and the other fields.
pub(super) fn head(envelope: &impl Message, payload_field: Option<u32>, payload: usize) -> Bytes {
    /// A flag for compression and a length come before each message.
    const PREFIX_BYTES: usize = 5;
    let mut fields = envelope.encode_to_vec();
    if let Some(field) = payload_field.filter(|_| payload > 0) {
        encode_key(field, WireType::LengthDelimited, &mut fields);
        encode_varint(payload as u64, &mut fields);
    }
    let length = u32::try_from(fields.len() + payload).unwrap_or(u32::MAX);
    let mut head = Vec::with_capacity(PREFIX_BYTES + fields.len());
    head.put_u8(0);
    head.put_u32(length);
    head.extend(fields);
    head.into()
}

#[cfg(test)]
mod tests {
    use esker_proto::{
        batch::{BatchBuilder, BatchHeader, Compression, HEADER_BYTES, crc32c},
        types::{LeaderEpoch, TimestampMs},
        v1::FetchResponse,
    };
    use futures::FutureExt;

    use super::*;

    fn envelope() -> FetchResponse {
        FetchResponse {
            next_offset: 7,
            high_watermark: 300,
            ..FetchResponse::default()
        }
    }

    fn decoded(head: &[u8], payload: &[u8]) -> FetchResponse {
        let message = [head, payload].concat();
        let (prefix, body) = message.split_first_chunk::<5>().expect("a prefix");
        let length = u32::try_from(body.len()).expect("small").to_be_bytes();
        assert_eq!(prefix[..], [&[0], &length[..]].concat());
        FetchResponse::decode(body).expect("a message")
    }

    #[test]
    fn a_payload_of_batches_is_decoded_as_one_field() {
        for payload in [&[] as &[u8], b"one", &[7; 200]] {
            let head = head(&envelope(), Some(1), payload.len());
            let expected = FetchResponse {
                batches: payload.to_vec().into(),
                ..envelope()
            };
            assert_eq!(decoded(&head, payload), expected);
        }
    }

    #[test]
    fn records_before_one_that_cannot_be_decoded_come_first() {
        let batch = |base: u64| {
            let mut builder = BatchBuilder::new(Compression::None);
            for _ in 0..10 {
                let value = Some(&b"12345"[..]);
                let pushed = builder.push(TimestampMs::new(1), None, value, &[]);
                pushed.expect("fits");
            }
            let batch = RecordBatch::validate(builder.finish(None)).expect("is whole");
            let (head, body) = batch.stamped(Offset::new(base), LeaderEpoch::new(1));
            [&head[..], &body[..]].concat()
        };
        let mut bad = batch(10);
        let record_bytes = (bad.len() - HEADER_BYTES) / 10;
        bad[HEADER_BYTES + 4 * record_bytes] = 0x7f;
        let mut header = BatchHeader::parse(&bad).expect("is whole");
        header.crc = crc32c(&bad[21..]);
        bad[..HEADER_BYTES].copy_from_slice(&header.encode());
        let slices = [batch(0), bad].map(Bytes::from);

        for (from, cut_at) in [(0, 14), (10, 14), (12, 14)] {
            let mut encoded = Encoded::default();
            let wanted = Offset::new(from)..Offset::MAX;
            let added = encoded.add(slices.clone(), wanted, 5000);
            added.expect("some can be read");
            assert_eq!(encoded.cut_at, Some(Offset::new(cut_at)), "from {from}");
        }
        let mut encoded = Encoded::default();
        let behind = Offset::new(14)..Offset::MAX;
        let bad = encoded.add(slices, behind, 5000).unwrap_err();
        assert_eq!(bad.end_offset, Some(Offset::new(20)), "that of its batch");
    }

    #[tokio::test]
    async fn no_task_of_the_runtime_waits_for_a_decode() {
        let mut builder = BatchBuilder::new(Compression::Zstd);
        let value = vec![7; 1 << 20];
        for _ in 0..32 {
            let pushed = builder.push(TimestampMs::new(1), None, Some(&value), &[]);
            pushed.expect("fits");
        }
        let batches = vec![builder.finish(None)];

        let mut decoding = Box::pin(decode(batches, Offset::ZERO..Offset::MAX, usize::MAX));
        assert!(
            decoding.as_mut().now_or_never().is_none(),
            "this thread, which runs all tasks, decoded 32 MiB"
        );
        let decoded = decoding.await.expect("the runtime is there");
        let encoded = decoded.outcome.expect("decodes");
        assert!(encoded.into_bytes().len() > 32 << 20);
    }

    #[test]
    fn records_are_encoded_up_to_what_fits_and_the_rest_is_named() {
        let mut builder = BatchBuilder::new(Compression::Zstd);
        for _ in 0..100 {
            let value = Some(&[7; 1000][..]);
            builder
                .push(TimestampMs::new(1), None, value, &[])
                .expect("fits");
        }
        let batch = builder.finish(None);

        let mut encoded = Encoded::default();
        let wanted = Offset::new(3)..Offset::MAX;
        encoded.add([batch], wanted, 5000).expect("decodes");

        assert_eq!(encoded.cut_at, Some(Offset::new(8)));
        let payload = encoded.into_bytes();
        let response = decoded(&head(&envelope(), None, payload.len()), &payload);
        let offsets: Vec<_> = response
            .records
            .iter()
            .map(|record| record.offset)
            .collect();
        assert_eq!(offsets, [3, 4, 5, 6, 7]);
    }
}
