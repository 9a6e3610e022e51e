//! How many bytes the index writes, for the segments it is made for and for the worst ones.

use bytes::Bytes;
use esker_proto::types::{Position, SegmentId};
use uuid::Uuid;

use crate::{
    HEAD_ROWS_MAX, HEAD_SEGMENTS_MAX, IndexEntry, Manifest, NewSegment, PAGES_PER_MERGE, PageRef,
    Rows, SegmentMeta, SegmentTrailer, Update,
    testing::{add, at, cluster_id, epochs, opened, segment, time, topic_partition},
};

const SEGMENT_BYTES: u64 = 64 << 20;

/// A segment of 64 MiB in 64 entries, with lengths, counts and times that vary.
fn large_segment(base: u64, seed: &mut u64) -> (SegmentMeta, Vec<IndexEntry>) {
    let mut random = |below: u64| {
        *seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((*seed >> 33) % below).expect("small")
    };
    let shape: Vec<_> = (0..64).map(|_| (9000 + random(1500), 0)).collect();
    let (mut meta, mut entries) = segment(base, &shape);
    let mut now = i64::try_from(base).expect("small");
    let mut position = 0;
    for entry in &mut entries {
        entry.position = Position::new(position);
        entry.length = (1 << 20) - 8192 + random(16_384);
        entry.min_timestamp = time(now);
        now += i64::from(random(40));
        entry.max_timestamp = time(now);
        position += u64::from(entry.length);
    }
    let crc32c = random(1 << 31);
    let id = random_id(seed);
    meta = SegmentMeta::of_entries(id, meta.leader_epoch, crc32c, &entries).expect("has entries");
    (meta, entries)
}

/// Ids are random: they do not compress.
fn random_id(seed: &mut u64) -> SegmentId {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    SegmentId::new(Uuid::from_u64_pair(*seed, !*seed))
}

/// Fetches and merges what is due.
fn merge(stored: &[(PageRef, Bytes)], manifest: &Manifest) -> Option<Update> {
    let merged = manifest.merge_due()?.into_iter().map(|page| {
        let (_, bytes) = stored
            .iter()
            .find(|(stored, _)| stored.id == page.id)
            .expect("stored");
        (
            page,
            Rows::decode_page(bytes.clone(), &page).expect("stored as it was made"),
        )
    });
    Some(Update::MergePages {
        merged: merged.collect(),
    })
}

/// Promise: index and manifest bytes stay at or below half a percent of the data.
#[test]
fn the_index_costs_at_most_half_a_percent_of_large_segments() {
    let (mut manifest, mut stored) = (opened(), Vec::new());
    let (mut written, mut base, mut seed) = (0, 0, 1);
    let segments = 64 * PAGES_PER_MERGE as u64 + 100;
    for nonce in 0..segments {
        let (meta, entries) = large_segment(base, &mut seed);
        base = meta.next_offset.get();
        let producers = Bytes::from(vec![1; 12_000]);
        let new = NewSegment {
            meta,
            entries,
            epochs: epochs(&[(1, 0)]),
            producers,
        };
        written += trailer_bytes(&new);
        let mut updates = vec![Update::AddSegment(new)];
        updates.extend(merge(&stored, &manifest));
        let next = manifest
            .apply(Update::All(updates), nonce.into())
            .expect("fits");
        for page in next.new_pages {
            written += page.bytes.len() as u64;
            stored.push((page.page_ref, page.bytes));
        }
        manifest = next.manifest;
        written += manifest.encode([0; 32]).len() as u64;
    }
    assert!(
        manifest.pages().iter().any(|page| page.level == 1),
        "some pages were merged"
    );
    let budget = segments * SEGMENT_BYTES / 200;
    assert!(written <= budget, "written=`{written}`, budget=`{budget}`");
    // What was measured when this was written is a third of the budget: notice if it grows.
    assert!(
        written <= budget / 3,
        "written=`{written}`, budget=`{budget}`"
    );
}

fn trailer_bytes(new: &NewSegment) -> u64 {
    let trailer = SegmentTrailer {
        cluster_id: cluster_id(),
        topic_partition: topic_partition(),
        meta: new.meta,
        entries: new.entries.clone(),
        epochs: new.epochs.clone(),
        producers: new.producers.clone(),
    };
    trailer.encode().expect("within limits").len() as u64
}

/// Small segments have one row each, and all the bytes of a segment for that row.
#[test]
fn a_commit_of_the_smallest_segments_stays_small() {
    let mut updates = Vec::new();
    let mut seed = 5_u64;
    for index in 0..HEAD_SEGMENTS_MAX as u64 {
        let (mut meta, entries) = segment(index * 10, &[(10, 50)]);
        meta.segment_id = random_id(&mut seed);
        meta.crc32c = u32::try_from(seed >> 32).expect("32 bits");
        let new = NewSegment {
            meta,
            entries,
            epochs: epochs(&[]),
            producers: Bytes::new(),
        };
        updates.push(Update::AddSegment(new));
    }

    let next = opened().apply(Update::All(updates), 2).expect("fits");

    assert!(next.new_pages.is_empty(), "the head is just full");
    assert!(next.manifest.encode([0; 32]).len() < 80 << 10);
}

#[test]
fn the_head_never_outgrows_its_limits() {
    let entries = vec![(1, 10); 1000];
    let mut manifest = opened();
    for nonce in 0..12 {
        let next = manifest.apply(
            add(u64::try_from(nonce).expect("small") * 1000, &entries),
            nonce,
        );
        manifest = next.expect("fits").manifest;
        assert!(manifest.head().len() <= HEAD_ROWS_MAX);
    }
    assert_eq!(manifest.tiered_offset(), at(12_000));
    assert_eq!(manifest.pages().len(), 2);
}
