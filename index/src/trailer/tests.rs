//! Tests of the trailer: damage is refused, and golden bytes parse for ever.

use esker_proto::types::{Offset, TimestampMs};
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::testing::{cluster_id, epochs, segment, topic_partition};

const GOLDEN: &[u8] = include_bytes!("../../testdata/v1/segment-uploaded-at.trailer");
/// From before trailers said when their segment was uploaded.
const FIRST_GOLDEN: &[u8] = include_bytes!("../../testdata/v1/segment.trailer");

fn trailer() -> SegmentTrailer {
    let (mut meta, entries) = segment(1000, &[(10, 50), (20, 70), (5, 60)]);
    meta.uploaded_at = TimestampMs::new(1_700_000_000_000);
    SegmentTrailer {
        cluster_id: cluster_id(),
        topic_partition: topic_partition(),
        meta,
        entries,
        epochs: epochs(&[(1, 0), (3, 1010)]),
        producers: Bytes::from_static(b"producer snapshot"),
    }
}

fn reseal(trailer: &mut [u8]) {
    let crc_at = trailer.len() - 12;
    let crc = crc32c(&[&trailer[..crc_at]]);
    trailer[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn golden_trailer_of_version_1_parses() {
    assert_eq!(SegmentTrailer::decode_from_tail(GOLDEN), Ok(trailer()));
    assert_eq!(trailer().encode().expect("encodes"), GOLDEN);
}

#[test]
fn golden_trailer_without_the_time_of_its_upload_parses() {
    let mut expected = trailer();
    expected.meta.uploaded_at = TimestampMs::default();
    assert_eq!(SegmentTrailer::decode_from_tail(FIRST_GOLDEN), Ok(expected));
}

#[test]
fn trailer_is_found_at_the_end_of_an_object() {
    let mut object = vec![7; 1000];
    object.extend_from_slice(GOLDEN);

    assert_eq!(SegmentTrailer::decode_from_tail(&object), Ok(trailer()));
    assert_eq!(SegmentTrailer::length_from_tail(&object), Ok(GOLDEN.len()));
}

#[test]
fn a_short_tail_says_how_much_is_needed() {
    let needed = |tail: &[u8]| match SegmentTrailer::decode_from_tail(tail) {
        Err(Error::TailTooShort { needed_bytes }) => needed_bytes,
        other => panic!("{other:?}"),
    };

    assert_eq!(needed(&GOLDEN[GOLDEN.len() - 5..]), TRAILER_TAIL_BYTES);
    assert_eq!(needed(&GOLDEN[GOLDEN.len() - 20..]), GOLDEN.len());
    assert_eq!(needed(&GOLDEN[1..]), GOLDEN.len());
}

#[test]
fn any_flipped_bit_is_noticed() {
    for bit in 0..GOLDEN.len() * 8 {
        let mut damaged = GOLDEN.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(
            SegmentTrailer::decode_from_tail(&damaged).is_err(),
            "bit {bit}"
        );
    }
}

#[test]
fn an_unknown_version_is_named() {
    let mut newer = GOLDEN.to_vec();
    let version_at = newer.len() - 16;
    newer[version_at] = 2;
    reseal(&mut newer);

    let error = SegmentTrailer::decode_from_tail(&newer).unwrap_err();

    assert_eq!(
        error,
        Error::UnknownVersion {
            format: FORMAT,
            version: 2
        }
    );
}

#[test]
fn fields_added_at_the_end_are_ignored() {
    let body = GOLDEN.len() - TRAILER_TAIL_BYTES;
    let mut longer = [&GOLDEN[..body], b"more", &GOLDEN[body..]].concat();
    let length = u32::try_from(body + 4).expect("small").to_le_bytes();
    longer[body + 4..body + 8].copy_from_slice(&length);
    reseal(&mut longer);

    assert_eq!(SegmentTrailer::decode_from_tail(&longer), Ok(trailer()));
}

#[test]
fn a_trailer_that_contradicts_itself_is_not_written() {
    let mut wrong = trailer();
    wrong.meta.next_offset = Offset::new(1);
    assert!(wrong.encode().is_err());
}

proptest! {
    #[test]
    fn arbitrary_bytes_behind_a_good_checksum_never_panic(
        body in vec(any::<u8>(), 0..600),
        changes in vec((0_usize..200, any::<u8>()), 0..6),
    ) {
        let mut wild = [&body[..], &GOLDEN[GOLDEN.len() - TRAILER_TAIL_BYTES..]].concat();
        let length = u32::try_from(body.len()).expect("small").to_le_bytes();
        wild[body.len()..body.len() + 4].copy_from_slice(&length);
        reseal(&mut wild);
        let _ = SegmentTrailer::decode_from_tail(&wild);

        let mut changed = GOLDEN.to_vec();
        for (at, byte) in changes {
            changed[at.min(GOLDEN.len() - TRAILER_TAIL_BYTES - 1)] = byte;
        }
        reseal(&mut changed);
        let _ = SegmentTrailer::decode_from_tail(&changed);
        let _ = SegmentTrailer::decode_from_tail(&body);
    }
}

#[test]
#[ignore = "writes testdata/v1; only for a format version that was never released"]
fn write_golden_trailer() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/testdata/v1/segment-uploaded-at.trailer"
    );
    std::fs::write(path, trailer().encode().expect("encodes")).expect("writes");
}
