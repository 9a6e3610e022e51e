//! Reading a sealed segment back to front is covered by the archive's tests; these are the cuts.

use super::*;
use crate::{
    archive::tests::fixture::{Fixture, never},
    error::ErrorKind,
};

#[test]
fn the_body_is_the_file_and_its_index_and_checksum_are_of_the_bytes() {
    let fixture = Fixture::new(1);
    let segment = fixture.segment(0, 40, 1);

    let body = read(&segment, Offset::ZERO, Pieces::Keep, &never()).unwrap();

    let bytes = body.pieces.concat();
    assert_eq!(bytes, std::fs::read(&segment.path).unwrap());
    assert_eq!(body.entries, segment.entries);
    assert_eq!(body.crc32c, esker_proto::batch::crc32c(&bytes));
}

#[test]
fn a_cut_begins_at_position_zero_again() {
    let fixture = Fixture::new(1);
    let segment = fixture.segment(0, 40, 1);

    let body = read(&segment, Offset::new(30), Pieces::Keep, &never()).unwrap();

    let (whole, bytes) = (std::fs::read(&segment.path).unwrap(), body.pieces.concat());
    assert!(whole.ends_with(&bytes) && bytes.len() == whole.len() / 4);
    assert_eq!(body.entries[0].base_offset, Offset::new(30));
    assert_eq!(body.entries[0].position.get(), 0);
    assert_eq!(body.crc32c, esker_proto::batch::crc32c(&bytes));
}

#[test]
fn an_index_at_odds_with_the_file_is_refused() {
    let fixture = Fixture::new(1);
    let good = fixture.segment(0, 40, 1);
    let mut cases = vec![good.clone(); 4];
    cases[0].entries[0].position = esker_proto::types::Position::new(1);
    cases[1].size_bytes += 1;
    cases[2].next_offset = Offset::new(41);
    cases[3].base_offset = Offset::new(1);
    for case in &cases {
        assert!(read(case, Offset::ZERO, Pieces::Keep, &never()).is_err());
    }
    assert!(read(&good, Offset::ZERO, Pieces::Keep, &never()).is_ok());
}

#[test]
fn parts_are_what_was_checked_and_a_file_that_changed_since_is_refused() {
    let bucket = Fixture::new(1);
    let segment = bucket.segment(0, 100, 1);
    let trailer = Bytes::from_static(b"trailer");
    for from in [0, 30] {
        let body = read(&segment, Offset::new(from), Pieces::Drop, &never()).unwrap();
        assert!(body.pieces.is_empty());
        let kept = read(&segment, Offset::new(from), Pieces::Keep, &never()).unwrap();
        let expected = [&kept.pieces.concat()[..], &trailer].concat();
        let mut parts = Parts::new(segment.clone(), &body, trailer.clone(), 100);
        assert_eq!(parts.size_bytes(), expected.len() as u64);
        let mut bytes = Vec::new();
        while let Some(part) = parts.next().unwrap() {
            assert!(part.content_length() <= 100 + trailer.len());
            part.iter().for_each(|piece| bytes.extend_from_slice(piece));
        }
        assert_eq!(bytes, expected);
    }

    let body = read(&segment, Offset::ZERO, Pieces::Drop, &never()).unwrap();
    let mut parts = Parts::new(segment.clone(), &body, trailer, 100);
    let mut damaged = std::fs::read(&segment.path).unwrap();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(&segment.path, damaged).unwrap();
    let end = std::iter::repeat_with(|| parts.next()).find_map(|part| part.err());
    assert_eq!(end.unwrap().kind(), ErrorKind::Corrupt);
}
