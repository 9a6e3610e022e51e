//! Tests of `index_builder.rs`.

use esker_proto::{
    batch::{Attributes, Compression},
    types::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs},
};

use super::*;

fn header(base_offset: u64, size_bytes: u32, record_count: u32, max_timestamp: i64) -> BatchHeader {
    BatchHeader {
        base_offset: Offset::new(base_offset),
        size_bytes,
        leader_epoch: LeaderEpoch::new(1),
        crc: 0,
        attributes: Attributes::new(Compression::None),
        last_offset_delta: record_count - 1,
        base_timestamp: TimestampMs::new(max_timestamp - 10),
        max_timestamp: TimestampMs::new(max_timestamp),
        producer_id: ProducerId::NONE,
        producer_epoch: ProducerEpoch::NONE,
        base_sequence: Sequence::NONE,
        record_count,
    }
}

/// Entries must cover the batches without gap or overlap.
fn assert_covers(entries: &[IndexEntry], records: u64, bytes: u64) {
    let (mut offset, mut position) = (Offset::ZERO, Position::ZERO);
    for entry in entries {
        assert_eq!((entry.base_offset, entry.position), (offset, position));
        (offset, position) = (entry.next_offset(), entry.next_position());
    }
    assert_eq!((offset.get(), position.get()), (records, bytes));
}

#[test]
fn an_entry_is_closed_by_the_batch_that_fills_it() {
    let mut builder = IndexBuilder::new();
    for (index, max_timestamp) in [(0, 50), (1, 90), (2, 70), (3, 60)] {
        builder.push(&header(index * 5, 600 << 10, 5, max_timestamp));
    }

    let entries = builder.finish();

    assert_eq!(entries.len(), 2);
    assert_covers(&entries, 20, 4 * (600 << 10));
    let times = entries
        .iter()
        .map(|entry| (entry.min_timestamp.get(), entry.max_timestamp.get()));
    assert_eq!(times.collect::<Vec<_>>(), [(40, 90), (50, 70)]);
}

#[test]
fn an_entry_never_ends_within_a_batch() {
    let mut builder = IndexBuilder::new();
    builder.push(&header(0, 5 << 20, 1, 10));
    builder.push(&header(1, 100, 1, 10));

    assert_eq!(builder.entries().len(), 2);
    assert_covers(builder.entries(), 2, (5 << 20) + 100);
}

#[test]
fn a_maximum_below_the_base_timestamp_is_put_right() {
    let mut builder = IndexBuilder::new();
    let mut wrong = header(0, 100, 1, 10);
    wrong.base_timestamp = TimestampMs::new(99);
    builder.push(&wrong);

    let entry = builder.finish()[0];

    assert_eq!(
        (entry.min_timestamp.get(), entry.max_timestamp.get()),
        (10, 99)
    );
}

#[test]
fn a_huge_segment_gets_longer_entries_instead_of_more() {
    let mut builder = IndexBuilder::new();
    let batches = 3 * SEGMENT_ENTRIES_MAX as u64;
    for index in 0..batches {
        builder.push(&header(index * 2, INDEX_INTERVAL_BYTES, 2, 10));
        assert!(builder.entries().len() <= SEGMENT_ENTRIES_MAX);
    }

    assert_covers(builder.entries(), batches * 2, batches << 20);
    assert!(builder.entries().len() > SEGMENT_ENTRIES_MAX / 2);
}

#[test]
fn batches_too_large_to_join_stay_apart() {
    let mut builder = IndexBuilder {
        entries: Vec::new(),
        interval_bytes: u32::MAX,
    };
    builder.push(&header(0, u32::MAX - 1, 1, 10));
    builder.push(&header(1, 2, 1, 10));

    assert_covers(builder.entries(), 2, u64::from(u32::MAX) + 1);
}
