//! What each update promises.

use bytes::Bytes;
use esker_proto::types::ManifestVersion;

use crate::{
    Error, ErrorKind, HEAD_SEGMENTS_MAX, Manifest, NewSegment, PAGES_PER_MERGE, Place, Rows,
    Update, sha256,
    testing::{
        add, at, cluster_id, epoch, epochs, filled, opened, segment, time, topic_partition, trim,
    },
};

fn decoded(page: &crate::NewPage) -> Rows {
    Rows::decode_page(page.bytes.clone(), &page.page_ref).expect("just made")
}

#[test]
fn a_deposed_leader_cannot_open() {
    let newer = opened()
        .apply(
            Update::Open {
                leader_epoch: epoch(7),
            },
            2,
        )
        .expect("opens")
        .manifest;

    let error = newer
        .apply(
            Update::Open {
                leader_epoch: epoch(6),
            },
            3,
        )
        .unwrap_err();

    assert_eq!(
        error,
        Error::Fenced {
            ours: epoch(6),
            theirs: epoch(7)
        }
    );
    assert_eq!(error.kind(), ErrorKind::Fenced);
}

#[test]
fn opening_changes_nothing_but_the_owner() {
    let before = filled(3, 2).manifest;

    let after = before
        .apply(
            Update::Open {
                leader_epoch: epoch(9),
            },
            42,
        )
        .expect("opens")
        .manifest;

    assert_eq!(after.header().leader_epoch, epoch(9));
    assert_eq!(after.header().nonce, 42);
    assert_eq!(after.header().version, before.header().version.next());
    assert_eq!(after.head(), before.head());
    assert_eq!(after.producers(), before.producers());
}

#[test]
fn a_segment_must_begin_at_the_tiered_offset() {
    let manifest = opened()
        .apply(add(0, &[(10, 50)]), 2)
        .expect("follows")
        .manifest;

    for base in [0, 9, 11] {
        let error = manifest.apply(add(base, &[(10, 60)]), 3).unwrap_err();
        let tiered_offset = at(10);
        assert_eq!(
            error,
            Error::SegmentOutOfPlace {
                base_offset: at(base),
                tiered_offset
            }
        );
    }
    assert_eq!(
        manifest
            .apply(add(10, &[(10, 60)]), 3)
            .expect("follows")
            .manifest
            .tiered_offset(),
        at(20)
    );
}

#[test]
fn a_segment_of_a_later_epoch_than_the_manifest_is_refused() {
    let (mut meta, entries) = segment(0, &[(10, 50)]);
    meta.leader_epoch = epoch(2);
    let update = NewSegment {
        meta,
        entries,
        epochs: epochs(&[]),
        producers: Bytes::new(),
    };

    let error = opened().apply(Update::AddSegment(update), 2).unwrap_err();

    assert_eq!(error, Error::Invariant { id: "I5", at: 0 });
}

#[test]
fn state_at_the_end_of_the_last_segment_is_kept() {
    let (meta, entries) = segment(0, &[(10, 50)]);
    // Epoch 2 begins at the segment's end; epoch 3 is still to come for the tiered log.
    let epochs_seen = epochs(&[(1, 0), (2, 10), (3, 15)]);
    let producers = Bytes::from_static(b"state");
    let update = NewSegment {
        meta,
        entries,
        epochs: epochs_seen,
        producers,
    };
    let opened = opened()
        .apply(
            Update::Open {
                leader_epoch: epoch(3),
            },
            2,
        )
        .expect("opens")
        .manifest;

    let manifest = opened
        .apply(Update::AddSegment(update), 3)
        .expect("follows")
        .manifest;

    assert_eq!(manifest.epochs(), &epochs(&[(1, 0), (2, 10)]));
    assert_eq!(manifest.producers(), &b"state"[..]);
}

#[test]
fn all_updates_of_a_commit_or_none() {
    let manifest = opened();

    let error = manifest.apply(Update::All(vec![add(0, &[(5, 10)]), add(6, &[(5, 10)])]), 2);
    assert!(error.is_err());

    let next = manifest.apply(Update::All(vec![add(0, &[(5, 10)]), add(5, &[(5, 10)])]), 2);
    let next = next.expect("follow").manifest;
    assert_eq!(
        (next.tiered_offset(), next.header().version),
        (at(10), ManifestVersion::new(2))
    );
}

#[test]
fn trim_goes_up_only_and_to_the_tiered_offset_at_most() {
    let manifest = filled(3, 1).manifest;

    let trimmed = manifest.apply(trim(15, None), 3).expect("trims").manifest;
    let unchanged = trimmed.apply(trim(3, None), 4).expect("harmless").manifest;
    let error = trimmed.apply(trim(31, None), 4).unwrap_err();
    let emptied = trimmed.apply(trim(30, None), 4).expect("trims").manifest;

    assert_eq!(
        (trimmed.log_start_offset(), trimmed.segment_count()),
        (at(15), 2)
    );
    assert_eq!(unchanged.log_start_offset(), at(15));
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(
        (emptied.log_start_offset(), emptied.segment_count()),
        (at(30), 0)
    );
    assert_eq!(emptied.tiered_offset(), at(30));
    let follows = emptied
        .apply(add(30, &[(1, 1)]), 5)
        .expect("follows")
        .manifest;
    assert_eq!(follows.find(at(30)), Place::Head);
}

#[test]
fn a_trim_into_a_page_keeps_its_counts_exact() {
    let next = filled(65, 64);
    let rows = decoded(&next.new_pages[0]);

    let trimmed = next
        .manifest
        .apply(trim(640 * 10 + 1, Some(rows)), 3)
        .expect("trims");

    assert_eq!(trimmed.manifest.segment_count(), 55);
    assert_eq!(trimmed.manifest.bucket_bytes(), 55 * 640_000);
    assert!(trimmed.dropped_pages.is_empty());
    let past_it = trimmed
        .manifest
        .apply(trim(640 * 64, None), 4)
        .expect("trims");
    assert_eq!(past_it.dropped_pages[0].id, next.new_pages[0].page_ref.id);
    assert_eq!(past_it.manifest.segment_count(), 1);
}

#[test]
fn a_time_lookup_does_not_go_to_a_page_whose_match_was_trimmed() {
    // The only record after 1000 is in the first segment of the page.
    let mut updates = vec![add(0, &[(10, 5000)])];
    updates.extend((1..=1024).map(|index| add(index * 10, &[(10, 100)])));
    updates.push(add(10_250, &[(10, 2000)]));
    let next = opened().apply(Update::All(updates), 2).expect("follow");
    let page = next.new_pages[0].page_ref;
    assert_eq!(
        next.manifest.find_timestamp(time(1000), at(0)),
        Place::Page(&page)
    );

    let rows = decoded(&next.new_pages[0]);
    let trimmed = next
        .manifest
        .apply(trim(10, Some(rows)), 3)
        .expect("trims")
        .manifest;

    assert_eq!(trimmed.find_timestamp(time(1000), at(0)), Place::Head);
    assert_eq!(trimmed.find_timestamp(time(2001), at(0)), Place::AtEnd);
}

#[test]
fn a_time_lookup_never_goes_below_the_log_start() {
    let manifest = opened()
        .apply(add(0, &[(10, 500), (10, 100)]), 2)
        .expect("follows")
        .manifest;
    let trimmed = manifest.apply(trim(10, None), 3).expect("trims").manifest;

    assert_eq!(manifest.find_timestamp(time(300), at(0)), Place::Head);
    assert_eq!(trimmed.find_timestamp(time(300), at(0)), Place::AtEnd);
}

#[test]
fn a_page_made_and_trimmed_in_one_commit_is_neither_stored_nor_deleted() {
    let segments = HEAD_SEGMENTS_MAX as u64 + 1;
    let mut updates: Vec<_> = (0..segments)
        .map(|index| add(index * 10, &[(10, 1)]))
        .collect();
    updates.push(trim(segments * 10, None));

    let next = opened().apply(Update::All(updates), 2).expect("follow");

    assert!(next.new_pages.is_empty() && next.dropped_pages.is_empty());
}

#[test]
fn merged_pages_hold_the_live_rows_of_the_old_ones() {
    let next = filled(64 * 8 + 1, 64);
    let manifest = next
        .manifest
        .apply(trim(640 * 10, None), 3)
        .expect("trims")
        .manifest;
    let due = manifest.merge_due().expect("eight pages of level 0");
    assert_eq!(due.len(), PAGES_PER_MERGE);
    let merged: Vec<_> = due
        .iter()
        .copied()
        .zip(next.new_pages.iter().map(decoded))
        .collect();

    let after = manifest
        .apply(
            Update::MergePages {
                merged: merged.clone(),
            },
            4,
        )
        .expect("merges");

    assert_eq!(after.dropped_pages, due);
    assert_eq!(after.manifest.pages(), [after.new_pages[0].page_ref]);
    let rows = decoded(&after.new_pages[0]);
    assert_eq!(
        (rows.segments().len(), rows.base_offset()),
        (64 * 8 - 10, Some(at(640 * 10)))
    );
    assert_eq!(after.manifest.bucket_bytes(), (64 * 8 + 1 - 10) * 640_000);
    assert_eq!(after.manifest.pages()[0].level, 1);
    assert!(after.manifest.merge_due().is_none());

    let again = after
        .manifest
        .apply(Update::MergePages { merged }, 5)
        .unwrap_err();
    assert_eq!(again, Error::PagesMoved { pages: 8 });
}

#[test]
fn pages_that_are_not_neighbours_or_not_whole_are_not_merged() {
    let next = filled(64 * 3 + 1, 64);
    let pages: Vec<_> = next
        .new_pages
        .iter()
        .map(|page| (page.page_ref, decoded(page)))
        .collect();
    let merge = |merged: Vec<_>| next.manifest.apply(Update::MergePages { merged }, 3);

    assert!(merge(vec![]).is_err());
    assert!(merge(vec![pages[0].clone(), pages[2].clone()]).is_err());
    assert!(merge(vec![pages[1].clone(), pages[0].clone()]).is_err());
    assert!(merge(vec![(pages[0].0, pages[1].1.clone())]).is_err());
    assert!(merge(vec![pages[1].clone(), pages[2].clone()]).is_ok());
}

#[test]
fn no_two_updates_name_a_page_alike() {
    let build = |nonce| {
        let segments = (0..=HEAD_SEGMENTS_MAX as u64 * 2).map(|index| add(index * 10, &[(10, 1)]));
        let next = opened()
            .apply(Update::All(segments.collect()), nonce)
            .expect("follow");
        next.new_pages
            .iter()
            .map(|page| page.page_ref.id)
            .collect::<Vec<_>>()
    };
    let (first, second) = (build(1), build(2));

    assert_eq!(first.len(), 2);
    assert_ne!(first[0], first[1]);
    assert!(!second.contains(&first[0]) && !second.contains(&first[1]));
}

#[test]
fn a_damaged_or_foreign_page_is_refused() {
    let next = filled(64 * 2 + 1, 64);
    let (page, other) = (&next.new_pages[0], &next.new_pages[1]);
    let mut flipped = page.bytes.to_vec();
    flipped[page.bytes.len() / 2] ^= 1;

    let decode = |bytes: Bytes| Rows::decode_page(bytes, &page.page_ref).map_err(|e| e.kind());
    assert_eq!(decode(flipped.into()), Err(ErrorKind::Corrupt));
    assert_eq!(decode(page.bytes.slice(1..)), Err(ErrorKind::Corrupt));
    assert_eq!(decode(other.bytes.clone()), Err(ErrorKind::Corrupt));
    // The right bytes under a reference that counts otherwise.
    let lying = crate::PageRef {
        row_count: 1,
        ..page.page_ref
    };
    let error = Rows::decode_page(page.bytes.clone(), &lying).unwrap_err();
    assert_eq!(error, Error::Invariant { id: "I6", at: 0 });
}

#[test]
fn a_version_comes_back_from_its_bytes() {
    let first = filled(70, 64).manifest;
    let object = first.encode([7; 32]);

    let decoded = Manifest::decode(object.clone()).expect("just encoded");

    assert_eq!(decoded.header().prev_sha256, [7; 32]);
    assert_eq!(Manifest::nonce_of(&object), Some(2));
    assert_eq!(Manifest::nonce_of(b"PAR1"), None);
    let second = decoded
        .apply(add(70 * 640, &[(1, 1)]), 3)
        .expect("follows")
        .manifest;
    let second = Manifest::decode(second.encode(sha256(&object))).expect("just encoded");
    assert_eq!(second.header().prev_sha256, sha256(&object));
    second.check_follows(&first).expect("the next version");
    assert_eq!(second.pages(), first.pages());
}

#[test]
fn another_partition_or_a_skipped_version_does_not_follow() {
    let first = filled(2, 2).manifest;
    let second = first
        .apply(add(40, &[(1, 1)]), 3)
        .expect("follows")
        .manifest;
    let third = second
        .apply(add(41, &[(1, 1)]), 4)
        .expect("follows")
        .manifest;
    let elsewhere = Manifest::create(cluster_id(), topic_partition());

    assert!(second.check_follows(&first).is_ok());
    assert!(third.check_follows(&first).is_err());
    assert!(first.check_follows(&second).is_err());
    assert!(elsewhere.check_follows(&first).is_err());
    let mut partition = topic_partition();
    partition.partition = esker_proto::types::PartitionId::new(99);
    let open = Update::Open {
        leader_epoch: epoch(1),
    };
    let other = Manifest::create(cluster_id(), partition)
        .apply(open, 1)
        .expect("opens")
        .manifest;
    assert!(other.check_follows(&elsewhere).is_err());
}
