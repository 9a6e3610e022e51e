//! What is built is read back, stamped, split and reused.

use bytes::{Bytes, BytesMut};
use esker_proto::{
    batch::{
        BatchBuilder, BatchError, BatchHeader, BatchHeaders, Batches, Compression,
        DECOMPRESSED_BYTES_MAX, HEADER_BYTES, RecordBatch,
    },
    convert::{push_wire_record, wire_records},
    types::{LeaderEpoch, Offset, Position, ProducerId, TimestampMs},
    v1,
};
use proptest::prelude::*;

use crate::samples::{
    PRODUCER, any_compression, any_samples, build, one_of_everything, plain, push_all, raw_batch,
    read,
};

proptest! {
    #[test]
    fn batch_reads_as_it_was_built(samples in any_samples(), compression in any_compression()) {
        prop_assert_eq!(read(build(&samples, compression, PRODUCER)).unwrap(), samples);
    }
}

#[test]
fn header_tells_what_was_built() {
    let samples = one_of_everything();
    let bytes = build(&samples, Compression::Zstd, PRODUCER);
    let header = BatchHeader::parse(&bytes).unwrap();
    let timestamps = samples.iter().map(|sample| sample.timestamp);
    assert_eq!(header.record_count as usize, samples.len());
    assert_eq!(header.last_offset_delta as usize, samples.len() - 1);
    assert_eq!(header.size_bytes as usize, bytes.len());
    assert_eq!(header.base_timestamp.get(), samples[0].timestamp);
    assert_eq!(header.max_timestamp.get(), timestamps.max().unwrap());
    assert_eq!(header.compression(), Compression::Zstd);
    assert_eq!(header.producer_id.get(), PRODUCER.0);
    assert_eq!(header.producer_epoch.get(), PRODUCER.1);
    assert_eq!(header.base_sequence.get(), PRODUCER.2);
    assert_eq!(header.encode(), bytes[..HEADER_BYTES]);
}

#[test]
fn timestamps_may_go_back() {
    let mut builder = BatchBuilder::new(Compression::None);
    for timestamp in [100, 40, 70] {
        builder
            .push(TimestampMs::new(timestamp), None, None, &[])
            .unwrap();
    }
    let bytes = builder.finish(None);
    let header = BatchHeader::parse(&bytes).unwrap();
    assert_eq!(
        (header.base_timestamp.get(), header.max_timestamp.get()),
        (100, 100)
    );
    let timestamps: Vec<_> = read(bytes)
        .unwrap()
        .iter()
        .map(|sample| sample.timestamp)
        .collect();
    assert_eq!(timestamps, [100, 40, 70]);
}

#[test]
fn timestamp_out_of_reach_is_refused_and_changes_nothing() {
    let mut builder = BatchBuilder::new(Compression::None);
    builder
        .push(TimestampMs::new(i64::MIN), None, Some(b"first"), &[])
        .unwrap();
    let size = builder.size_bytes();
    let refused = builder.push(TimestampMs::new(1), None, Some(b"second"), &[]);
    assert!(
        matches!(refused, Err(BatchError::Timestamp { .. })),
        "{refused:?}"
    );
    assert_eq!((builder.len(), builder.size_bytes()), (1, size));
    assert_eq!(read(builder.finish(None)).unwrap().len(), 1);
}

#[test]
fn record_beyond_the_limit_is_refused_and_changes_nothing() {
    let large = vec![0; DECOMPRESSED_BYTES_MAX - 100];
    let mut builder = BatchBuilder::new(Compression::None);
    let too_large = vec![0; DECOMPRESSED_BYTES_MAX];
    let refused = Err(BatchError::TooLarge {
        bytes_max: DECOMPRESSED_BYTES_MAX,
    });
    assert_eq!(
        builder.push(TimestampMs::new(1), None, Some(&too_large), &[]),
        refused
    );
    assert!(builder.is_empty());
    builder
        .push(TimestampMs::new(1), None, Some(&large), &[])
        .unwrap();
    assert_eq!(
        builder.push(TimestampMs::new(1), None, Some(&[0; 90]), &[]),
        refused
    );
    let batch = RecordBatch::validate(builder.finish(None)).unwrap();
    assert_eq!(batch.header().record_count, 1);
    batch.check_records().unwrap();
}

#[test]
fn empty_builder_makes_no_batch() {
    let mut builder = BatchBuilder::new(Compression::Lz4);
    assert!(builder.finish(None).is_empty());
    assert_eq!(
        (builder.len(), builder.size_bytes(), builder.is_empty()),
        (0, 0, true)
    );
}

#[test]
fn builder_is_reusable_while_earlier_batches_are_held() {
    for compression in Compression::ALL {
        let mut builder = BatchBuilder::with_capacity(compression, 1 << 10);
        let all = one_of_everything();
        let batches: Vec<Bytes> = all[..12]
            .chunks(3)
            .map(|samples| {
                push_all(&mut builder, samples);
                assert_eq!(builder.len(), samples.len());
                builder.finish(None)
            })
            .collect();
        for (bytes, samples) in batches.into_iter().zip(all.chunks(3)) {
            assert!(!BatchHeader::parse(&bytes).unwrap().producer_id.is_some());
            assert_eq!(read(bytes).unwrap(), samples, "{compression}");
        }
    }
}

#[test]
fn recycled_memory_serves_the_next_batch_and_shared_memory_does_not() {
    let samples = one_of_everything();
    let batch = build(&samples, Compression::None, PRODUCER);
    let (held, address) = (batch.clone(), batch.as_ptr());
    let mut builder = BatchBuilder::new(Compression::None);
    builder.recycle(batch);
    push_all(&mut builder, &samples[..1]);
    assert_eq!(read(builder.finish(None)).unwrap(), samples[..1]);
    assert_eq!(
        read(held.clone()).unwrap(),
        samples,
        "bytes that are held do not change"
    );

    builder.recycle(held);
    push_all(&mut builder, &samples[..2]);
    let again = builder.finish(None);
    assert_eq!(
        again.as_ptr(),
        address,
        "bytes that nobody holds are written over"
    );
    assert_eq!(read(again).unwrap(), samples[..2]);
}

#[test]
fn stamp_sets_offset_and_epoch_and_leaves_the_rest() {
    let bytes = build(&one_of_everything(), Compression::Lz4, PRODUCER);
    let batch = RecordBatch::validate(bytes.clone()).unwrap();
    let (header, body) = batch.stamped(Offset::new(1 << 40), LeaderEpoch::new(9));
    assert_eq!(
        body.as_ptr(),
        bytes[HEADER_BYTES..].as_ptr(),
        "the body is not copied"
    );

    let appended: Bytes = [&header[..], &body[..]].concat().into();
    let stamped = RecordBatch::validate(appended).unwrap();
    assert_eq!(stamped.header().base_offset, Offset::new(1 << 40));
    assert_eq!(stamped.header().leader_epoch, LeaderEpoch::new(9));
    assert_eq!(stamped.header().crc, batch.header().crc);
    let records = stamped.records().unwrap();
    for (index, record) in records.iter().enumerate() {
        assert_eq!(record.unwrap().offset.get(), (1 << 40) + index as u64);
    }
    assert_eq!(stamped.header().next_offset().get(), (1 << 40) + 9007);
}

#[test]
fn batches_are_found_back_to_back() {
    let samples = one_of_everything();
    let parts: Vec<Bytes> = samples[..6]
        .chunks(2)
        .map(|part| build(part, Compression::None, PRODUCER))
        .collect();
    let joined: Bytes = parts.concat().into();
    let found: Vec<_> = Batches::new(joined.clone())
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(
        found.iter().map(RecordBatch::bytes).collect::<Vec<_>>(),
        Vec::from_iter(&parts)
    );
    let headers: Vec<_> = BatchHeaders::new(&joined)
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(
        headers,
        found
            .iter()
            .map(|batch| *batch.header())
            .collect::<Vec<_>>()
    );
}

#[test]
fn torn_batch_ends_the_walk_where_it_begins() {
    let samples = one_of_everything();
    let whole = build(&samples[..2], Compression::None, PRODUCER);
    let torn = [&whole[..], &whole[..whole.len() - 1]].concat();
    let mut headers = BatchHeaders::new(&torn);
    assert!(headers.next().unwrap().is_ok());
    assert!(matches!(
        headers.next(),
        Some(Err(BatchError::Truncated { .. }))
    ));
    assert_eq!(headers.position(), Position::new(whole.len() as u64));
    assert!(headers.next().is_none());
    let mut batches = Batches::new(torn.into());
    assert!(batches.next().unwrap().is_ok());
    assert!(matches!(
        batches.next(),
        Some(Err(BatchError::Truncated { .. }))
    ));
    assert!(batches.next().is_none());
}

#[test]
fn append_time_is_the_timestamp_of_every_record() {
    let plain = build(&one_of_everything()[..3], Compression::None, PRODUCER);
    let batch = raw_batch(0b1000, 3, &plain[HEADER_BYTES..]).freeze();
    let timestamps: Vec<_> = read(batch)
        .unwrap()
        .iter()
        .map(|sample| sample.timestamp)
        .collect();
    assert_eq!(timestamps, [2000, 2000, 2000]);
}

#[test]
fn wire_records_come_back_from_their_offset_on() {
    let header = v1::Header {
        key: "trace".to_owned(),
        value: Some(Bytes::from_static(b"7")),
    };
    let record = |value: &'static str, timestamp_ms| v1::Record {
        key: Some(Bytes::from_static(b"key")),
        value: Some(Bytes::from_static(value.as_bytes())),
        headers: vec![header.clone()],
        timestamp_ms,
        offset: 0,
    };
    let mut builder = BatchBuilder::new(Compression::Gzip);
    for record in [record("a", 5), record("b", 0), record("c", 7)] {
        push_wire_record(&mut builder, &record, TimestampMs::new(99)).unwrap();
    }
    let batch = RecordBatch::validate(builder.finish(None)).unwrap();
    let records = batch.records().unwrap();
    let found: Vec<_> = wire_records(&records, Offset::new(1))
        .collect::<Result<_, _>>()
        .unwrap();
    let expected = [
        v1::Record {
            offset: 1,
            ..record("b", 99)
        },
        v1::Record {
            offset: 2,
            ..record("c", 7)
        },
    ];
    assert_eq!(found, expected);
}

#[test]
fn no_producer_is_minus_one() {
    let mut bytes = BytesMut::from(build(
        &one_of_everything()[..1],
        Compression::None,
        PRODUCER,
    ));
    assert!(BatchHeader::parse(&bytes).unwrap().producer_id.is_some());
    bytes[43..57].fill(0xff);
    assert_eq!(
        BatchHeader::parse(&bytes).unwrap().producer_id,
        ProducerId::NONE
    );
}

#[test]
fn append_time_is_stamped_without_a_look_at_the_records() {
    let samples: Vec<_> = (0..50)
        .map(|delta| plain(delta, Some(b"key"), Some(b"value")))
        .collect();
    for compression in Compression::ALL {
        let batch = RecordBatch::validate(build(&samples, compression, (7, 0, 3))).unwrap();
        let now = TimestampMs::new(1_700_000_000_000);

        let header = batch.header().with_append_time(now);
        let bytes = [&header.encode()[..], &batch.body()[..]].concat();

        let stamped = RecordBatch::validate(bytes.into()).expect("its checksum holds");
        let times = stamped.check_records().unwrap();
        assert_eq!((times.earliest, times.latest), (now, now));
        assert_eq!(stamped.header().producer_id, batch.header().producer_id);
        let again = stamped.header().with_append_time(TimestampMs::new(5));
        assert_eq!(again.max_timestamp, TimestampMs::new(5));
    }
}
