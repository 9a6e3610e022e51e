//! Records to encode, and what is needed to make batches of them, good and bad.

use bytes::{BufMut, Bytes, BytesMut};
use esker_proto::{
    batch::{BatchBuilder, BatchError, Compression, HEADER_BYTES, Record, RecordBatch, crc32c},
    types::{ProducerEpoch, ProducerId, Sequence, TimestampMs},
};
use proptest::{collection::vec, option, prelude::*};

pub(crate) const PRODUCER: (i64, i16, i32) = (4711, 3, 20);

/// An owned record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) timestamp: i64,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Sample {
    pub(crate) fn of(record: Record<'_>) -> Result<Self, BatchError> {
        let headers = record.headers.map(|header| {
            let header = header?;
            Ok((header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
        });
        Ok(Self {
            timestamp: record.timestamp.get(),
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
            headers: headers.collect::<Result<_, BatchError>>()?,
        })
    }
}

/// A record of `delta` milliseconds after a time in 2023, without headers.
pub(crate) fn plain(delta: i64, key: Option<&[u8]>, value: Option<&[u8]>) -> Sample {
    Sample {
        timestamp: 1_700_000_000_000 + delta,
        key: key.map(<[u8]>::to_vec),
        value: value.map(<[u8]>::to_vec),
        headers: Vec::new(),
    }
}

/// One of everything: null and empty and long, no headers and several, an earlier timestamp.
pub(crate) fn one_of_everything() -> Vec<Sample> {
    let mut samples = vec![
        plain(0, Some(b"key"), Some(b"value")),
        plain(0, None, Some(b"no key")),
        plain(1, Some(b"no value"), None),
        plain(63, Some(b""), Some(b"")),
        plain(64, None, None),
        plain(86_400_000, Some(&[7; 63]), Some(&[8; 64])),
        plain(i64::from(u32::MAX), Some(&[9; 8191]), Some(&[10; 8192])),
    ];
    samples[3].headers = vec![
        ("empty".to_owned(), Some(Vec::new())),
        ("null".to_owned(), None),
    ];
    samples[4].headers = vec![("héader".to_owned(), Some(vec![0xff; 200]))];
    // Offset deltas of two and three bytes.
    samples.extend((0..9000).map(|delta| plain(delta, Some(b"k"), None)));
    samples
}

/// Encodes with our builder.
pub(crate) fn build(
    samples: &[Sample],
    compression: Compression,
    (producer_id, producer_epoch, sequence): (i64, i16, i32),
) -> Bytes {
    let mut builder = BatchBuilder::new(compression);
    push_all(&mut builder, samples);
    builder.finish(Some((
        ProducerId::new(producer_id),
        ProducerEpoch::new(producer_epoch),
        Sequence::new(sequence),
    )))
}

pub(crate) fn push_all(builder: &mut BatchBuilder, samples: &[Sample]) {
    for sample in samples {
        let headers: Vec<_> = sample
            .headers
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_deref()))
            .collect();
        let timestamp = TimestampMs::new(sample.timestamp);
        builder
            .push(
                timestamp,
                sample.key.as_deref(),
                sample.value.as_deref(),
                &headers,
            )
            .unwrap();
    }
}

/// Decodes with our reader.
pub(crate) fn read(bytes: Bytes) -> Result<Vec<Sample>, BatchError> {
    let records = RecordBatch::validate(bytes)?.records()?;
    records.iter().map(|record| Sample::of(record?)).collect()
}

/// A batch whose CRC and length hold, whatever else it claims.
pub(crate) fn raw_batch(attributes: u16, record_count: u32, body: &[u8]) -> BytesMut {
    let mut batch = BytesMut::new();
    batch.put_u64(0);
    batch.put_u32(u32::try_from(HEADER_BYTES - 12 + body.len()).unwrap());
    batch.put_u32(0);
    batch.put_u8(2);
    batch.put_u32(0);
    batch.put_u16(attributes);
    batch.put_u32(record_count.wrapping_sub(1));
    batch.put_i64(1000);
    batch.put_i64(2000);
    batch.put_i64(-1);
    batch.put_i16(-1);
    batch.put_i32(-1);
    batch.put_u32(record_count);
    batch.put_slice(body);
    seal(&mut batch);
    batch
}

/// Sets the CRC right.
pub(crate) fn seal(batch: &mut [u8]) {
    let crc = crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
}

pub(crate) fn any_compression() -> impl Strategy<Value = Compression> {
    proptest::sample::select(Compression::ALL.to_vec())
}

/// Records whose first has the earliest timestamp and whose header names differ, as the peer needs.
pub(crate) fn any_samples() -> impl Strategy<Value = Vec<Sample>> {
    let bytes = || option::of(vec(any::<u8>(), 0..300));
    let sample = (
        0_i64..100_000,
        bytes(),
        bytes(),
        vec(("[a-zé]{0,9}", bytes()), 0..4),
    );
    vec(sample, 1..40).prop_map(|samples| {
        let mut is_first = true;
        let sample = |(delta, key, value, mut headers): (i64, _, _, Vec<(String, _)>)| {
            headers.sort_by(|(a, _), (b, _)| a.cmp(b));
            headers.dedup_by(|(a, _), (b, _)| a == b);
            let timestamp = if std::mem::take(&mut is_first) {
                5
            } else {
                5 + delta
            };
            Sample {
                timestamp,
                key,
                value,
                headers,
            }
        };
        samples.into_iter().map(sample).collect()
    })
}
