//! Segments for tests, and a model of what a manifest holds.

use bytes::Bytes;
use esker_proto::types::{
    ClusterId, LeaderEpoch, Offset, PartitionId, Position, SegmentId, TimestampMs, TopicId,
    TopicPartition,
};
use uuid::Uuid;

use crate::{
    EpochHistory, IndexEntry, Manifest, NewSegment, Next, Rows, RowsBuilder, SegmentMeta, Update,
};

pub(crate) fn cluster_id() -> ClusterId {
    ClusterId::new(Uuid::from_u128(0x11))
}

pub(crate) fn topic_partition() -> TopicPartition {
    let topic_id = TopicId::new(Uuid::from_u128(0x22));
    TopicPartition {
        topic_id,
        partition: PartitionId::new(3),
    }
}

pub(crate) fn epoch(leader_epoch: u32) -> LeaderEpoch {
    LeaderEpoch::new(leader_epoch)
}

pub(crate) fn at(offset: u64) -> Offset {
    Offset::new(offset)
}

pub(crate) fn time(timestamp_ms: i64) -> TimestampMs {
    TimestampMs::new(timestamp_ms)
}

pub(crate) fn epochs(starts: &[(u32, u64)]) -> EpochHistory {
    let mut history = EpochHistory::new();
    for &(leader_epoch, start) in starts {
        history
            .push(epoch(leader_epoch), at(start))
            .expect("ascending");
    }
    history
}

/// As [`add`], of a segment uploaded at this time.
pub(crate) fn add_uploaded(base: u64, entries: &[(u32, i64)], uploaded_at: i64) -> Update {
    let Update::AddSegment(mut segment) = add(base, entries) else {
        unreachable!("add adds a segment")
    };
    segment.meta.uploaded_at = time(uploaded_at);
    Update::AddSegment(segment)
}

/// A segment from `base` whose entries have these record counts and maximum timestamps; an entry is
/// 1000 bytes a record long and spans 5 ms.
pub(crate) fn segment(base: u64, entries: &[(u32, i64)]) -> (SegmentMeta, Vec<IndexEntry>) {
    let (mut offset, mut position) = (at(base), Position::ZERO);
    let mut built = Vec::new();
    for &(record_count, max_timestamp) in entries {
        let entry = IndexEntry {
            base_offset: offset,
            position,
            length: record_count * 1000,
            record_count,
            min_timestamp: time(max_timestamp - 5),
            max_timestamp: time(max_timestamp),
        };
        (offset, position) = (entry.next_offset(), entry.next_position());
        built.push(entry);
    }
    let id = SegmentId::new(Uuid::from_u64_pair(base, 0xabcd));
    let meta = SegmentMeta::of_entries(id, epoch(1), 0xdead_beef, &built).expect("has entries");
    (meta, built)
}

pub(crate) fn add(base: u64, entries: &[(u32, i64)]) -> Update {
    let (meta, entries) = segment(base, entries);
    let producers = Bytes::from(format!("producers at {}", meta.next_offset));
    Update::AddSegment(NewSegment {
        meta,
        entries,
        epochs: epochs(&[(1, 0)]),
        producers,
    })
}

pub(crate) fn trim(offset: u64, page: Option<Rows>) -> Update {
    Update::TrimBelow {
        log_start_offset: at(offset),
        page,
    }
}

/// A manifest of epoch 1 without segments.
pub(crate) fn opened() -> Manifest {
    let empty = Manifest::create(cluster_id(), topic_partition());
    let open = Update::Open {
        leader_epoch: epoch(1),
    };
    empty.apply(open, 1).expect("opens").manifest
}

/// A manifest of `segments` segments of `entries` entries of 10 records each, and all its pages.
pub(crate) fn filled(segments: u64, entries: u32) -> Next {
    let shape = |base: u64| -> Vec<_> {
        let base = i64::try_from(base).expect("small");
        (0..entries)
            .map(|index| (10, base + i64::from(index) * 10))
            .collect()
    };
    let bases = (0..segments).map(|index| index * u64::from(entries) * 10);
    let updates = bases.map(|base| add(base, &shape(base))).collect();
    opened()
        .apply(Update::All(updates), 2)
        .expect("segments follow each other")
}

pub(crate) fn rows(segments: &[(SegmentMeta, Vec<IndexEntry>)]) -> Rows {
    let mut builder = RowsBuilder::new();
    for (meta, entries) in segments {
        builder
            .push(*meta, entries)
            .expect("segments follow each other");
    }
    builder.finish()
}
