//! Tests of rows: each invariant, and searches against a plain scan.

use esker_proto::types::{Offset, TimestampMs};
use proptest::{collection::vec, prelude::*};

use super::{Row, RowsBuilder};
use crate::{
    Error, IndexEntry, SegmentMeta,
    testing::{at, epoch, rows, segment, time},
};

/// Which invariant refuses a segment after `spoil`.
fn broken(spoil: impl FnOnce(&mut SegmentMeta, &mut Vec<IndexEntry>)) -> Option<&'static str> {
    let (mut meta, mut entries) = segment(100, &[(10, 50), (20, 70), (5, 60)]);
    spoil(&mut meta, &mut entries);
    match RowsBuilder::new().push(meta, &entries) {
        Err(Error::Invariant { id, .. }) => Some(id),
        other => other.err().map(|_| "another error"),
    }
}

#[test]
fn segments_that_contradict_their_entries_are_refused() {
    assert_eq!(broken(|_, _| {}), None);
    assert_eq!(broken(|_, entries| entries.clear()), Some("S1"));
    assert_eq!(broken(|meta, _| meta.base_offset = at(99)), Some("S1"));
    assert_eq!(broken(|_, entries| _ = entries.remove(0)), Some("S1"));
    assert_eq!(broken(|_, entries| _ = entries.remove(1)), Some("S2"));
    assert_eq!(
        broken(|_, entries| entries[1].record_count = 21),
        Some("S2")
    );
    assert_eq!(broken(|_, entries| entries[1].length += 1), Some("S2"));
    assert_eq!(broken(|_, entries| _ = entries.pop()), Some("S3"));
    assert_eq!(broken(|meta, _| meta.next_offset = at(136)), Some("S3"));
    assert_eq!(broken(|meta, _| meta.size_bytes += 1), Some("S3"));
    assert_eq!(broken(|_, entries| entries[2].record_count = 0), Some("S4"));
    assert_eq!(broken(|_, entries| entries[2].length = 0), Some("S4"));
    assert_eq!(
        broken(|_, entries| entries[1].min_timestamp = time(71)),
        Some("S5")
    );
    assert_eq!(broken(|meta, _| meta.max_timestamp = time(71)), Some("S5"));
    assert_eq!(broken(|meta, _| meta.min_timestamp = time(0)), Some("S5"));
}

#[test]
fn offsets_beyond_63_bits_are_refused() {
    let (mut meta, mut entries) = segment(0, &[(10, 50)]);
    let near_end = Offset::new(Offset::MAX.get() - 9);
    (meta.base_offset, entries[0].base_offset) = (near_end, near_end);
    meta.next_offset = entries[0].next_offset();

    let error = RowsBuilder::new().push(meta, &entries).unwrap_err();

    assert_eq!(
        error,
        Error::Invariant {
            id: "S6",
            at: near_end.get()
        }
    );
}

#[test]
fn segments_must_follow_each_other() {
    let mut builder = RowsBuilder::new();
    let (meta, entries) = segment(0, &[(10, 50)]);
    builder
        .push(
            SegmentMeta {
                leader_epoch: epoch(2),
                ..meta
            },
            &entries,
        )
        .expect("the first");

    let (meta, entries) = segment(11, &[(10, 50)]);
    let gap = builder.push(meta, &entries).unwrap_err();
    let (meta, entries) = segment(10, &[(10, 50)]);
    let stale = builder.push(meta, &entries).unwrap_err();

    assert_eq!(gap, Error::Invariant { id: "S7", at: 11 });
    assert_eq!(stale, Error::Invariant { id: "S8", at: 10 });
    assert_eq!(builder.len(), 1);
}

#[test]
fn rows_give_back_their_segments() {
    let segments = [
        segment(100, &[(10, 50), (20, 70), (5, 60)]),
        segment(135, &[(1, 80), (2, 70)]),
    ];
    let rows = rows(&segments);

    let expected: Vec<Row> = segments
        .iter()
        .flat_map(|(meta, entries)| {
            entries.iter().map(|&entry| Row {
                segment: *meta,
                entry,
            })
        })
        .collect();
    assert_eq!(rows.iter().collect::<Vec<_>>(), expected);
    assert_eq!(
        (0..rows.len()).map(|row| rows.row(row)).collect::<Vec<_>>(),
        expected
    );
    assert_eq!(rows.entries(1), segments[1].1);
    assert_eq!(
        (rows.base_offset(), rows.next_offset()),
        (Some(at(100)), Some(at(138)))
    );
    assert_eq!(rows.segment_bytes(), 38_000);
}

fn any_segments() -> impl Strategy<Value = Vec<Vec<(u32, i64)>>> {
    // Enough rows, now and then, for several blocks of the search by time.
    let short = vec(vec((1_u32..20, 0_i64..100), 1..8), 1..20);
    let long = vec(vec((1_u32..3, 0_i64..1_000_000), 400..600), 1..5);
    prop_oneof![4 => short, 1 => long]
}

fn build(base: u64, shapes: &[Vec<(u32, i64)>]) -> super::Rows {
    let mut next = base;
    let segments = shapes.iter().map(|shape| {
        let built = segment(next, shape);
        next = built.0.next_offset.get();
        built
    });
    rows(&segments.collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn search_by_offset_agrees_with_a_scan(shapes in any_segments(), offset in 0_u64..3000) {
        let rows = build(50, &shapes);
        let holds = |row: &Row| {
            row.entry.base_offset <= at(offset) && at(offset) < row.entry.next_offset()
        };
        prop_assert_eq!(rows.seek(at(offset)), rows.iter().position(|row| holds(&row)));
    }

    #[test]
    fn search_by_time_agrees_with_a_scan(
        shapes in any_segments(),
        timestamp in 0_i64..1_000_000,
        near in 0_i64..110,
        from in 0_u64..3000,
    ) {
        let rows = build(50, &shapes);
        for timestamp in [timestamp, near].map(TimestampMs::new) {
            let found = rows.seek_timestamp(timestamp, at(from));
            let expected = rows.iter().position(|row| {
                row.entry.next_offset() > at(from) && row.entry.max_timestamp >= timestamp
            });
            prop_assert_eq!(found, expected);
        }
    }
}
