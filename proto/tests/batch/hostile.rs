//! Bytes that hold no batch, or lie about it: a typed error, never a panic, never much memory.

use std::io::Write;

use bytes::{Bytes, BytesMut};
use esker_proto::{
    batch::{
        BatchBuilder, BatchError, BatchHeader, BatchHeaders, Batches, Compression,
        DECOMPRESSED_BYTES_MAX, HEADER_BYTES, RecordBatch, RecordFault, RecordTimes,
    },
    types::TimestampMs,
    v1::ErrorKind,
};
use proptest::{collection::vec, prelude::*};

use crate::samples::{
    PRODUCER, any_compression, any_samples, build, one_of_everything, plain, raw_batch, read, seal,
};

/// A batch of three plain records.
fn valid() -> BytesMut {
    BytesMut::from(build(
        &one_of_everything()[..3],
        Compression::None,
        PRODUCER,
    ))
}

fn refusal(bytes: &[u8]) -> BatchError {
    RecordBatch::validate(Bytes::copy_from_slice(bytes)).unwrap_err()
}

/// The valid batch with some header bytes replaced and the CRC set right.
fn refusal_with(position: usize, bytes: &[u8]) -> BatchError {
    let mut batch = valid();
    batch[position..position + bytes.len()].copy_from_slice(bytes);
    seal(&mut batch);
    refusal(&batch)
}

fn record_fault(body: &[u8]) -> RecordFault {
    match read(raw_batch(0, 1, body).freeze()) {
        Err(BatchError::Record { fault, .. }) => fault,
        other => panic!("expected a corrupt record, found {other:?}"),
    }
}

#[test]
fn header_that_does_not_hold_is_refused() {
    let count = |record_count, last_offset_delta| BatchError::RecordCount {
        record_count,
        last_offset_delta,
    };
    assert_eq!(refusal_with(16, &[1]), BatchError::Magic(1));
    assert_eq!(
        refusal_with(8, &48_i32.to_be_bytes()),
        BatchError::Length(48)
    );
    assert_eq!(
        refusal_with(8, &(-1_i32).to_be_bytes()),
        BatchError::Length(-1)
    );
    assert_eq!(
        refusal_with(0, &(-1_i64).to_be_bytes()),
        BatchError::BaseOffset(-1)
    );
    let last = i64::MAX - 2;
    assert_eq!(
        refusal_with(0, &last.to_be_bytes()),
        BatchError::BaseOffset(last)
    );
    assert_eq!(refusal_with(57, &0_i32.to_be_bytes()), count(0, 2));
    assert_eq!(refusal_with(57, &(-3_i32).to_be_bytes()), count(-3, 2));
    assert_eq!(
        refusal_with(57, &i32::MIN.to_be_bytes()),
        count(i32::MIN, 2)
    );
    assert_eq!(refusal_with(23, &3_i32.to_be_bytes()), count(3, 3));
    assert_eq!(refusal(&raw_batch(0, 0, &[])), count(0, -1));
    for attributes in [0x10_u16, 0x20, 0x40, 0x80, 0x8000, 5, 6, 7] {
        let expected = BatchError::Attributes(attributes);
        assert_eq!(refusal_with(21, &attributes.to_be_bytes()), expected);
    }
    for (position, bytes) in [(51, &[0xff; 2][..]), (53, &[0xff; 4])] {
        assert!(matches!(
            refusal_with(position, bytes),
            BatchError::Producer { .. }
        ));
    }
}

#[test]
fn corruption_is_told_from_what_is_not_supported() {
    assert_eq!(refusal_with(16, &[1]).kind(), ErrorKind::InvalidArgument);
    assert_eq!(refusal_with(8, &[0xff]).kind(), ErrorKind::CorruptBatch);
    let too_large = BatchError::TooLarge { bytes_max: 1 };
    assert_eq!(too_large.kind(), ErrorKind::BatchTooLarge);
}

#[test]
fn batch_cut_or_lengthened_anywhere_is_refused() {
    let whole = valid();
    for end in 0..whole.len() {
        assert!(
            matches!(refusal(&whole[..end]), BatchError::Truncated { .. }),
            "{end}"
        );
    }
    let longer = [&whole[..], &[0]].concat();
    assert!(matches!(refusal(&longer), BatchError::TrailingBytes { .. }));
}

#[test]
fn any_flipped_bit_is_noticed_unless_the_leader_stamps_it() {
    let whole = valid();
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let is_stamped = matches!(bit / 8, 1..8 | 12..16) || bit < 7;
        let validated = RecordBatch::validate(flipped.freeze());
        assert_eq!(validated.is_ok(), is_stamped, "bit {bit}: {validated:?}");
    }
}

#[test]
fn two_billion_records_in_a_few_bytes_are_refused() {
    for compression in Compression::ALL {
        let batch = raw_batch(compression.bits(), i32::MAX.cast_unsigned(), &[0; 21]);
        let refused = RecordBatch::validate(batch.freeze());
        assert!(
            matches!(refused, Err(BatchError::TooManyRecords { .. })),
            "{refused:?}"
        );
    }
    let fits = raw_batch(0, 3, &[0; 21]).freeze();
    assert!(
        RecordBatch::validate(fits).is_ok(),
        "seven bytes make the smallest record"
    );
    let one_more = raw_batch(0, 4, &[0; 21]).freeze();
    assert!(RecordBatch::validate(one_more).is_err());
}

#[test]
fn count_that_the_records_do_not_bear_out_is_an_error() {
    let samples = one_of_everything();
    let body = build(&samples[..3], Compression::None, PRODUCER).slice(61..);
    let counted = |count| read(raw_batch(0, count, &body).freeze()).map(|found| found.len());
    let fault = |index, fault| Err(BatchError::Record { index, fault });
    assert_eq!(counted(3), Ok(3));
    assert_eq!(counted(2), fault(2, RecordFault::TrailingBytes));
    assert_eq!(counted(4), fault(3, RecordFault::Truncated));
}

#[test]
fn record_that_does_not_hold_is_an_error() {
    // length, attributes, timestamp delta, offset delta, key, value, header count
    let cases: [(&[u8], RecordFault); 13] = [
        (&[12, 0, 0, 0, 1, 1, 0, 0], RecordFault::TrailingBytes),
        (&[14, 0, 0, 0, 1, 1, 0, 0], RecordFault::TrailingBytes),
        (&[10, 0, 0, 0, 1, 1, 0], RecordFault::Truncated),
        (&[0, 0, 0, 0, 1, 1, 0], RecordFault::Truncated),
        (&[200, 1, 0, 0, 1, 1, 0], RecordFault::Truncated),
        (&[1, 0, 0, 0, 1, 1, 0], RecordFault::NegativeLength),
        (&[12, 0, 0, 2, 1, 1, 0], RecordFault::OffsetDelta),
        (&[12, 0, 0, 0, 3, 1, 0], RecordFault::NegativeLength),
        (&[12, 0, 0, 0, 2, 1, 0], RecordFault::Truncated),
        (&[12, 0, 0, 0, 1, 3, 0], RecordFault::NegativeLength),
        (&[12, 0, 0, 0, 1, 1, 1], RecordFault::NegativeLength),
        (&[0xff; 12], RecordFault::Varint),
        (
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            RecordFault::Truncated,
        ),
    ];
    for (body, expected) in cases {
        assert_eq!(record_fault(body), expected, "{body:?}");
    }
    assert!(read(raw_batch(0, 1, &[12, 0, 0, 0, 1, 1, 0]).freeze()).is_ok());
}

#[test]
fn bytes_after_a_record_without_headers_are_an_error_before_anybody_looks_at_headers() {
    let batch = raw_batch(0, 1, &[14, 0, 0, 0, 1, 1, 0, 0]).freeze();
    let records = RecordBatch::validate(batch).unwrap().records().unwrap();
    let expected = BatchError::Record {
        index: 0,
        fault: RecordFault::TrailingBytes,
    };
    assert_eq!(records.iter().next().unwrap().unwrap_err(), expected);
}

#[test]
fn timestamp_beyond_64_bits_is_an_error() {
    // The base timestamp is 1000; the delta is i64::MAX.
    let delta = [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    let body = [&[30, 0][..], &delta, &[0, 1, 1, 0]].concat();
    assert_eq!(record_fault(&body), RecordFault::Timestamp);
}

#[test]
fn header_that_does_not_hold_is_an_error() {
    let cases: [(&[u8], RecordFault); 5] = [
        (&[2, 0, 1, 9], RecordFault::TrailingBytes),
        (&[4, 0, 1], RecordFault::Truncated),
        (&[2, 1, 1], RecordFault::NegativeLength),
        (&[2, 2, 0xff, 1], RecordFault::HeaderKey),
        (&[2, 0, 8, 1], RecordFault::Truncated),
    ];
    for (headers, expected) in cases {
        let length = u8::try_from(2 * (5 + headers.len())).unwrap();
        let body = [&[length, 0, 0, 0, 1, 1][..], headers].concat();
        assert_eq!(record_fault(&body), expected, "{headers:?}");
        let batch = RecordBatch::validate(raw_batch(0, 1, &body).freeze()).unwrap();
        assert!(batch.check_records().is_err(), "{headers:?}");
    }
}

#[test]
fn iteration_ends_with_the_first_error() {
    let body = [20, 0, 0, 0, 1, 1, 4, 0xff, 1, 2, 2];
    let batch = RecordBatch::validate(raw_batch(0, 1, &body).freeze()).unwrap();
    let records = batch.records().unwrap();
    let mut headers = records.iter().next().unwrap().unwrap().headers;
    assert!(headers.next().unwrap().is_err());
    assert!(headers.next().is_none());

    let batch = RecordBatch::validate(raw_batch(0, 2, &[0; 14]).freeze()).unwrap();
    let records = batch.records().unwrap();
    let mut records = records.iter();
    assert!(records.next().unwrap().is_err());
    assert!(records.next().is_none());
}

#[test]
fn two_billion_headers_reserve_nothing() {
    let count = [0xfe, 0xff, 0xff, 0xff, 0x0f];
    let body = [&[20, 0, 0, 0, 1, 1][..], &count].concat();
    assert_eq!(record_fault(&body), RecordFault::Truncated);
}

/// Zeros, one more than the limit, compressed.
fn bomb(compression: Compression) -> Vec<u8> {
    let zeros = vec![0; DECOMPRESSED_BYTES_MAX + 1];
    match compression {
        Compression::None => zeros,
        Compression::Gzip => {
            let level = flate2::Compression::fast();
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
            encoder.write_all(&zeros).unwrap();
            encoder.finish().unwrap()
        }
        Compression::Snappy => snap::raw::Encoder::new().compress_vec(&zeros).unwrap(),
        Compression::Lz4 => {
            let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
            encoder.write_all(&zeros).unwrap();
            encoder.finish().unwrap()
        }
        Compression::Zstd => zstd::encode_all(zeros.as_slice(), 1).unwrap(),
    }
}

#[test]
fn bomb_is_defused() {
    let too_large = BatchError::TooLarge {
        bytes_max: DECOMPRESSED_BYTES_MAX,
    };
    for compression in Compression::ALL
        .into_iter()
        .filter(|c| *c != Compression::None)
    {
        let body = bomb(compression);
        assert!(body.len() < 4 << 20, "{compression} {}", body.len());
        let batch = raw_batch(compression.bits(), 1, &body).freeze();
        let batch = RecordBatch::validate(batch).unwrap();
        assert_eq!(batch.records().unwrap_err(), too_large, "{compression}");
    }
}

#[test]
fn garbage_that_claims_compression_is_an_error() {
    for compression in Compression::ALL
        .into_iter()
        .filter(|c| *c != Compression::None)
    {
        let batch = raw_batch(compression.bits(), 1, &[0xa5; 100]).freeze();
        let records = RecordBatch::validate(batch).unwrap().records();
        assert!(
            matches!(records, Err(BatchError::Decompress { .. })),
            "{compression}"
        );
    }
}

#[test]
fn snappy_block_that_claims_gigabytes_reserves_nothing() {
    // A varint length of u32::MAX before one literal byte, raw and within xerial's framing.
    let block = [0xff, 0xff, 0xff, 0xff, 0x0f, 0, 7];
    let framed = [
        b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01",
        &[0, 0, 0, 7][..],
        &block,
    ]
    .concat();
    for body in [&block[..], &framed] {
        let batch = raw_batch(Compression::Snappy.bits(), 1, body).freeze();
        let records = RecordBatch::validate(batch).unwrap().records();
        assert!(
            matches!(records, Err(BatchError::Decompress { .. })),
            "{records:?}"
        );
    }
}

fn walk(bytes: &[u8]) {
    let _ = BatchHeader::parse(bytes);
    let _ = BatchHeaders::new(bytes).count();
    for batch in Batches::new(Bytes::copy_from_slice(bytes)).flatten() {
        let _ = batch.check_records();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..300)) {
        walk(&bytes);
    }

    #[test]
    fn the_check_of_records_agrees_with_decoding_them(
        samples in any_samples(),
        patches in vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        let mut bytes = BytesMut::from(&build(&samples, Compression::None, PRODUCER)[..]);
        for (at, byte) in patches {
            let records = bytes.len() - HEADER_BYTES;
            bytes[HEADER_BYTES + at.index(records)] = byte;
        }
        seal(&mut bytes);
        let batch = RecordBatch::validate(bytes.freeze()).unwrap();

        let decoded = read(batch.bytes().clone());
        match batch.check_records() {
            Ok(times) => {
                let decoded = decoded.unwrap();
                let timestamps = decoded.iter().map(|sample| sample.timestamp);
                prop_assert_eq!(Some(times.earliest.get()), timestamps.clone().min());
                prop_assert_eq!(Some(times.latest.get()), timestamps.max());
            }
            // The header's times are checked as well, and those of all records before any.
            Err(BatchError::MaxTimestamp { .. } | BatchError::Timestamp { .. }) => {}
            Err(error) => prop_assert_eq!(decoded.unwrap_err(), error),
        }
    }

    #[test]
    fn arbitrary_records_never_panic(
        body in vec(any::<u8>(), 0..300),
        attributes in 0_u16..16,
        record_count in 1_u32..40,
    ) {
        walk(&raw_batch(attributes, record_count, &body));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn batch_with_a_wrong_byte_never_panics(
        samples in any_samples(),
        compression in any_compression(),
        at in any::<proptest::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut batch = BytesMut::from(build(&samples, compression, PRODUCER));
        let at = at.index(batch.len());
        batch[at] = byte;
        walk(&batch);
        seal(&mut batch);
        walk(&batch);
    }
}

/// A batch of records at these times whose header claims these.
fn batch_of_times(times: &[i64], base: i64, max: i64, compression: Compression) -> RecordBatch {
    let mut builder = BatchBuilder::new(compression);
    for time in times {
        let timestamp = TimestampMs::new(*time);
        builder.push(timestamp, None, Some(b"value"), &[]).unwrap();
    }
    let mut bytes = BytesMut::from(&builder.finish(None)[..]);
    let deltas_from = i64::from_be_bytes(bytes[27..35].try_into().unwrap());
    assert_eq!(deltas_from, times[0]);
    bytes[27..35].copy_from_slice(&base.to_be_bytes());
    bytes[35..43].copy_from_slice(&max.to_be_bytes());
    seal(&mut bytes);
    RecordBatch::validate(bytes.freeze()).unwrap()
}

#[test]
fn a_header_that_misstates_the_times_of_its_records_is_an_error() {
    for compression in Compression::ALL {
        let check =
            |base, max| batch_of_times(&[100, 50, 200], base, max, compression).check_records();
        let times = RecordTimes {
            earliest: TimestampMs::new(50),
            latest: TimestampMs::new(200),
        };
        assert_eq!(check(100, 200), Ok(times));
        for max in [10, 199, 201, i64::MAX] {
            let error = check(100, max).unwrap_err();
            assert!(matches!(error, BatchError::MaxTimestamp { .. }), "{error}");
            assert_eq!(error.kind(), ErrorKind::CorruptBatch);
        }
        // Times count from the base.
        let error = check(1100, 200).unwrap_err();
        assert!(matches!(error, BatchError::MaxTimestamp { .. }), "{error}");
    }
    let batch = batch_of_times(&[1000, 10], 1000, 1000, Compression::None);
    assert_eq!(
        batch.check_records().unwrap().earliest,
        TimestampMs::new(10)
    );
}

#[test]
fn a_base_timestamp_later_than_every_record_is_an_error() {
    // One record at 10, said as a difference of -90 to a base of 100.
    let body = [7 << 1, 0, 179, 1, 0, 1, 1, 0];
    let mut bytes = raw_batch(0, 1, &body);
    bytes[27..35].copy_from_slice(&100_i64.to_be_bytes());
    bytes[35..43].copy_from_slice(&10_i64.to_be_bytes());
    seal(&mut bytes);
    let batch = RecordBatch::validate(bytes.freeze()).unwrap();

    assert_eq!(
        batch
            .records()
            .unwrap()
            .iter()
            .next()
            .unwrap()
            .unwrap()
            .timestamp
            .get(),
        10
    );
    let error = BatchError::Timestamp {
        timestamp: TimestampMs::new(10),
        base_timestamp: TimestampMs::new(100),
    };
    assert_eq!(batch.check_records(), Err(error.clone()));
    assert_eq!(RecordTimes::of_header(batch.header()), Err(error));
}

#[test]
fn a_batch_larger_than_its_reader_allows_is_not_decompressed() {
    let bytes = build(
        &[plain(0, None, Some(&[0; 5000]))],
        Compression::Zstd,
        (-1, -1, -1),
    );
    let batch = RecordBatch::validate(bytes).unwrap();
    let bytes_max = 4000;
    let error = BatchError::TooLarge { bytes_max };
    assert_eq!(batch.check_records_within(bytes_max), Err(error));
    assert!(batch.check_records_within(6000).is_ok());
}
