//! Each invariant refuses the state that breaks it, made by hand or decoded.

use esker_proto::types::{ManifestVersion, Offset};

use crate::{
    Error, HEAD_SEGMENTS_MAX, ManifestParts, PAGE_ROWS_MAX,
    manifest::Manifest,
    testing::{at, epoch, epochs, filled, rows, segment},
};

/// Two pages and one segment in the head.
fn parts() -> ManifestParts {
    filled(64 * 2 + 1, 64).manifest.0
}

/// Which invariant refuses the manifest after `spoil`.
fn broken(spoil: impl FnOnce(&mut ManifestParts)) -> Option<&'static str> {
    let mut parts = parts();
    spoil(&mut parts);
    // Whoever writes a broken manifest, nobody reads it.
    let decoded = Manifest::decode(Manifest(parts.clone()).encode([0; 32])).map(|_| ());
    let made = Manifest::from_parts(parts).map(|_| ());
    assert_eq!(decoded.is_err(), made.is_err());
    match made {
        Err(Error::Invariant { id, .. }) => Some(id),
        other => other.err().map(|_| "another error"),
    }
}

fn page(parts: &mut ManifestParts, index: usize, spoil: impl FnOnce(&mut crate::PageRef)) {
    let mut pages = parts.pages.to_vec();
    spoil(&mut pages[index]);
    parts.pages = pages.into();
}

#[test]
fn a_broken_manifest_is_refused() {
    let end = 640 * 64;
    assert_eq!(broken(|_| {}), None);
    assert_eq!(
        broken(|parts| page(parts, 1, |page| page.base_offset = at(end + 1))),
        Some("I1")
    );
    assert_eq!(
        broken(|parts| page(parts, 0, |page| page.next_offset = at(0))),
        Some("I1")
    );
    assert_eq!(
        broken(|parts| page(parts, 0, |page| page.row_count = 0)),
        Some("I1")
    );
    assert_eq!(
        broken(|parts| page(parts, 0, |page| page.segment_count = 0)),
        Some("I1")
    );
    assert_eq!(
        broken(|parts| page(parts, 1, |page| page.next_offset = at(2 * end - 1))),
        Some("I2")
    );
    assert_eq!(
        broken(|parts| parts.pages = parts.pages[..1].into()),
        Some("I2")
    );
    assert_eq!(
        broken(|parts| parts.tiered_offset = at(2 * end + 641)),
        Some("I3")
    );
    assert_eq!(
        broken(|parts| parts.head = crate::Rows::default()),
        Some("I3")
    );
    assert_eq!(broken(|parts| parts.log_start_offset = at(end)), Some("I4"));
    assert_eq!(
        broken(|parts| parts.pages = parts.pages[1..].into()),
        Some("I4")
    );
    assert_eq!(
        broken(|parts| parts.header.leader_epoch = epoch(0)),
        Some("I5")
    );
    assert_eq!(
        broken(|parts| page(parts, 0, |page| page.leader_epoch = epoch(2))),
        Some("I5")
    );
    assert_eq!(
        broken(|parts| parts.epochs = epochs(&[(1, 2 * end + 641)])),
        Some("I7")
    );
    assert_eq!(broken(|parts| parts.epochs = epochs(&[(2, 0)])), Some("I7"));
    let too_many = u32::try_from(PAGE_ROWS_MAX + 1).expect("small");
    assert_eq!(
        broken(|parts| page(parts, 0, |page| page.row_count = too_many)),
        Some("I8")
    );
}

#[test]
fn an_empty_manifest_ends_where_it_starts() {
    let spoil = |parts: &mut ManifestParts| {
        (parts.pages, parts.head) = ([].into(), crate::Rows::default());
        parts.log_start_offset = at(5);
        parts.epochs = epochs(&[]);
    };
    assert_eq!(broken(spoil), Some("I3"));
    assert_eq!(
        broken(|parts| {
            spoil(parts);
            parts.tiered_offset = at(5);
        }),
        None
    );
    let beyond = Offset::new(Offset::MAX.get() + 1);
    assert_eq!(
        broken(|parts| {
            spoil(parts);
            (parts.log_start_offset, parts.tiered_offset) = (beyond, beyond);
        }),
        Some("I8")
    );
}

#[test]
fn a_head_beyond_its_limit_is_refused() {
    let many = HEAD_SEGMENTS_MAX as u64 + 1;
    let segments: Vec<_> = (0..many).map(|index| segment(index, &[(1, 10)])).collect();
    let spoil = |parts: &mut ManifestParts| {
        (parts.pages, parts.head) = ([].into(), rows(&segments));
        parts.tiered_offset = at(many);
    };
    assert_eq!(broken(spoil), Some("I8"));
}

#[test]
fn neither_log_start_nor_tiered_offset_falls() {
    let old = parts();
    let next = |spoil: fn(&mut ManifestParts)| {
        let mut parts = old.clone();
        parts.header.version = ManifestVersion::new(old.header.version.get() + 1);
        spoil(&mut parts);
        Manifest::from_parts(parts)
            .expect("valid by itself")
            .check_follows(&Manifest(old.clone()))
    };
    let falls = |offset| {
        Err(Error::Invariant {
            id: "N2",
            at: offset,
        })
    };
    let version = old.header.version.get() + 1;

    assert_eq!(next(|_| {}), Ok(()));
    assert_eq!(next(|parts| parts.log_start_offset = at(1)), Ok(()));
    let shrunk = next(|parts| {
        parts.tiered_offset = parts.head.base_offset().expect("has rows");
        parts.head = crate::Rows::default();
        parts.epochs = epochs(&[(1, 0)]);
    });
    assert_eq!(shrunk, falls(version));
    let mut risen = old.clone();
    risen.log_start_offset = at(2);
    let mut fallen = old;
    fallen.header.version = ManifestVersion::new(version);
    assert_eq!(
        Manifest(fallen).check_follows(&Manifest(risen)),
        falls(version)
    );
}
