//! Bytes of format version 1, which every later version must read.

use bytes::Bytes;

use crate::{
    Manifest, NewPage, Rows, Update,
    testing::{add, add_uploaded, epoch, filled, opened, trim},
};

/// These two are from before the index said when segments were uploaded.
const MANIFEST: &[u8] = include_bytes!("../../../testdata/v1/manifest.parquet");
const UPLOADED_AT: &[u8] = include_bytes!("../../../testdata/v1/manifest-uploaded-at.parquet");
const PAGE: &[u8] = include_bytes!("../../../testdata/v1/page.parquet");

/// Two pages, the older one partly trimmed, and two segments in the head.
fn manifest() -> (Manifest, NewPage) {
    let next = filled(64 * 2 + 1, 64);
    let rows = Rows::decode_page(next.new_pages[0].bytes.clone(), &next.new_pages[0].page_ref);
    let updates = Update::All(vec![
        Update::Open {
            leader_epoch: epoch(4),
        },
        add(640 * 129, &[(5, 77), (6, 88)]),
        trim(1000, Some(rows.expect("just made"))),
    ]);
    let nonce = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff;
    let manifest = next.manifest.apply(updates, nonce).expect("fits").manifest;
    (manifest, next.new_pages[0].clone())
}

/// A page and a segment in the head, all with the time of their upload.
fn manifest_with_uploads() -> Manifest {
    let adds = (0..65).map(|index| {
        let shape = [(10, 100); 64];
        add_uploaded(index * 640, &shape, 1_700_000_000_000 + index.cast_signed())
    });
    let nonce = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff;
    let next = opened().apply(Update::All(adds.collect()), nonce);
    next.expect("fits").manifest
}

#[test]
fn golden_manifest_of_version_1_parses() {
    assert_parses(MANIFEST, manifest().0);
}

#[test]
fn golden_manifest_with_the_times_of_uploads_parses() {
    assert_parses(UPLOADED_AT, manifest_with_uploads());
}

fn assert_parses(golden: &'static [u8], expected: Manifest) {
    let decoded = Manifest::decode(Bytes::from_static(golden)).expect("parses");

    assert_eq!(decoded.header().prev_sha256, [0xab; 32]);
    let mut parts = decoded.0;
    parts.header.prev_sha256 = [0; 32];
    let mut expected = expected.0;
    // Other versions of the Parquet library may lay pages out otherwise.
    expected.pages = expected
        .pages
        .iter()
        .zip(&*parts.pages)
        .map(|(expected, golden)| {
            let (size_bytes, crc32c) = (golden.size_bytes, golden.crc32c);
            crate::PageRef {
                size_bytes,
                crc32c,
                ..*expected
            }
        })
        .collect();
    assert_eq!(parts, expected);
}

#[test]
fn golden_page_of_version_1_parses() {
    let manifest = Manifest::decode(Bytes::from_static(MANIFEST)).expect("parses");

    let rows = Rows::decode_page(Bytes::from_static(PAGE), &manifest.pages()[0]).expect("parses");

    let (_, page) = self::manifest();
    let expected = Rows::decode_page(page.bytes, &page.page_ref);
    assert_eq!(rows, expected.expect("just made"));
}

#[test]
#[ignore = "writes testdata/v1; only for a format version that was never released"]
fn write_golden_tables() {
    let manifest = manifest_with_uploads();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/v1");
    let write = |name: &str, bytes: &[u8]| std::fs::write(format!("{folder}/{name}"), bytes);
    write("manifest-uploaded-at.parquet", &manifest.encode([0xab; 32])).expect("writes");
}
