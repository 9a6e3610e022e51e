//! Orphans, dead objects, old versions, merged pages.

use std::{sync::Arc, time::Duration};

use esker_index::{
    EpochHistory, IndexEntry, Manifest, NewSegment, PAGES_PER_MERGE, SegmentMeta, Update,
};
use esker_proto::types::{LeaderEpoch, Offset, Position, SegmentId, TimestampMs};
use prometheus::Registry;
use tokio::sync::watch;
use uuid::Uuid;

use super::fixture::{CLUSTER, Fixture, PARTITION, never};
use crate::{
    archive::{Archive, OpenWith, Reason, commit::Fallout, delete_everything},
    env::TaskSet,
    error::ErrorKind,
    keys::{Key, Keys, PageName, SegmentName},
    reader::{Reader, ReaderOptions},
    store::Verb,
    testing::{Op, Trouble, When},
};

fn segment_key(base: u64, epoch: u32, id: u128) -> String {
    Keys::new(PARTITION).segment(SegmentName {
        base_offset: Offset::new(base),
        leader_epoch: LeaderEpoch::new(epoch),
        segment_id: SegmentId::new(Uuid::from_u128(id)),
    })
}

fn page_key(epoch: u32, id: u128) -> String {
    Keys::new(PARTITION).page(PageName {
        base_offset: Offset::ZERO,
        leader_epoch: LeaderEpoch::new(epoch),
        id: Uuid::from_u128(id),
    })
}

async fn collect_all(archive: &mut Archive) {
    archive.request_scan();
    while archive.collect_garbage().await.unwrap().has_more {}
}

#[tokio::test]
async fn an_upload_that_may_yet_be_committed_survives_and_all_others_go() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(5).await.unwrap();
    archive
        .upload_many(&bucket.segments(0, 3, 5), &never())
        .await
        .unwrap();
    let survivors = [
        segment_key(30, 5, 1), // ours, may be in flight
        segment_key(50, 5, 2),
        segment_key(30, 6, 3), // a newer leader's
        segment_key(0, 6, 4),
        page_key(5, 5), // ours, may be in flight
        page_key(6, 6),
        segment_key(30, 4, 11), // a deposed leader's, or a lost manifest named it
        format!("{}/notes.txt", Keys::new(PARTITION).segments()), // nobody knows whose
    ];
    let orphans = [
        segment_key(10, 5, 12), // the place was taken by another
        segment_key(10, 2, 13),
        page_key(4, 14),
    ];
    for key in survivors.iter().chain(&orphans) {
        bucket.plain_store().put_object(key, "x").await.unwrap();
    }
    let mut expected: Vec<String> = bucket.named_keys().await;
    expected.extend(
        survivors
            .iter()
            .filter(|key| Key::parse(key).is_some())
            .cloned(),
    );

    collect_all(&mut archive).await;

    let mut there = bucket.data_keys().await;
    there.sort();
    expected.sort();
    assert_eq!(there, expected);
    assert!(bucket.plain_store().get(&survivors[7]).await.is_ok());
}

#[tokio::test]
async fn a_stale_listing_deletes_nothing_that_is_named() {
    for missing in 0..12 {
        let bucket = Fixture::new(1);
        let mut archive = bucket.open(1).await.unwrap();
        archive
            .upload_many(&bucket.segments(0, 3, 1), &never())
            .await
            .unwrap();
        drop(archive);
        bucket
            .faults
            .inject(When::on(Op::List), Trouble::StaleList(missing));
        let mut archive = bucket.open(2).await.unwrap();
        archive
            .upload_many(&bucket.segments(30, 3, 2), &never())
            .await
            .unwrap();
        collect_all(&mut archive).await;
        assert_eq!(archive.manifest().tiered_offset(), Offset::new(60));
        bucket.assert_nothing_dangles().await;
    }
}

#[tokio::test]
async fn trimmed_segments_are_deleted_without_a_listing_and_again_after_a_failure() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    archive
        .upload_many(&bucket.segments(0, 4, 1), &never())
        .await
        .unwrap();
    let before = bucket.deps.store.requests();
    bucket
        .faults
        .inject(When::on(Op::Delete).skip(1).times(1), Trouble::FailBefore);

    archive.trim_below(Offset::new(25)).await.unwrap();
    assert_eq!(
        bucket.data_keys().await.len(),
        4,
        "the log start moves first"
    );
    archive.collect_garbage().await.unwrap_err();
    bucket.assert_nothing_dangles().await;
    let collected = archive.collect_garbage().await.unwrap();

    assert_eq!(collected.deleted.get(&Reason::Trimmed), Some(&2));
    assert_eq!(
        bucket.deps.store.requests().since(&before).of(Verb::List),
        0
    );
    bucket.assert_nothing_is_left_over().await;
}

#[tokio::test]
async fn deletion_goes_on_after_a_crash() {
    let bucket = Fixture::new(1);
    let mut old = bucket.open(1).await.unwrap();
    old.upload_many(&bucket.segments(0, 4, 1), &never())
        .await
        .unwrap();
    old.trim_below(Offset::new(30)).await.unwrap();
    drop(old);

    let mut new = bucket.open(2).await.unwrap();
    new.collect_garbage().await.unwrap();

    bucket.assert_nothing_is_left_over().await;
    assert_eq!(new.manifest().log_start_offset(), Offset::new(30));
}

#[tokio::test]
async fn whoever_looks_for_orphans_first_asks_whether_it_still_leads() {
    let bucket = Fixture::new(1);
    let mut old = bucket.open(1).await.unwrap();
    old.upload(&bucket.segment(0, 10, 1), &never())
        .await
        .unwrap();
    drop(bucket.open(2).await.unwrap());
    bucket
        .plain_store()
        .put_object(&segment_key(0, 0, 1), "x")
        .await
        .unwrap();
    old.request_scan();

    for _ in 0..2 {
        assert_eq!(
            old.collect_garbage().await.unwrap_err().kind(),
            ErrorKind::Fenced
        );
    }

    assert_eq!(bucket.data_keys().await.len(), 2);
}

#[tokio::test]
async fn old_versions_go_and_those_that_opened_an_epoch_stay() {
    let bucket = Fixture::new(1);
    drop(bucket.open(1).await.unwrap());
    let mut archive = bucket.open(2).await.unwrap();
    archive
        .upload(&bucket.segment(0, 500, 2), &never())
        .await
        .unwrap();
    for offset in 1..=320 {
        archive.trim_below(Offset::new(offset)).await.unwrap();
    }

    let collected = archive.collect_garbage().await.unwrap();

    assert!(collected.deleted[&Reason::OldVersion] >= 250);
    let versions: Vec<u64> = bucket
        .bucket()
        .await
        .iter()
        .filter_map(|object| match Key::parse(&object.key) {
            Some(Key::Manifest(_, version)) => Some(version.get()),
            _ => None,
        })
        .collect();
    assert_eq!(&versions[..2], [1, 2]);
    assert!(versions.len() < 70, "{versions:?}");
    drop(archive);
    let archive = bucket.open(3).await.unwrap();
    assert_eq!(archive.manifest().log_start_offset(), Offset::new(320));
}

#[tokio::test]
async fn a_deleted_topic_leaves_nothing_and_its_neighbour_everything() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    archive
        .upload_many(&bucket.segments(0, 3, 1), &never())
        .await
        .unwrap();
    let mut neighbour = PARTITION;
    neighbour.partition = esker_proto::types::PartitionId::new(30);
    let key = Keys::new(neighbour).boundary(1);
    bucket.plain_store().put_object(&key, "x").await.unwrap();
    bucket
        .faults
        .inject(When::on(Op::Delete).times(1), Trouble::FailBefore);

    delete_everything(&bucket.deps.store, PARTITION, &never())
        .await
        .unwrap_err();
    let cancelled = never();
    cancelled.cancel();
    let error = delete_everything(&bucket.deps.store, PARTITION, &cancelled)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    archive.delete_everything(&never()).await.unwrap();

    let left: Vec<String> = bucket
        .bucket()
        .await
        .into_iter()
        .map(|object| object.key)
        .collect();
    assert_eq!(left, [key]);
}

/// A segment that is only in the index.
fn imaginary(number: u64) -> Update {
    let entry = IndexEntry {
        base_offset: Offset::new(number * 10),
        position: Position::ZERO,
        length: 1000,
        record_count: 10,
        min_timestamp: TimestampMs::new(0),
        max_timestamp: TimestampMs::new(i64::try_from(number).unwrap()),
    };
    let (id, epoch) = (
        SegmentId::new(Uuid::from_u128(number.into())),
        LeaderEpoch::new(1),
    );
    Update::AddSegment(NewSegment {
        meta: SegmentMeta::of_entries(id, epoch, 0, &[entry]).unwrap(),
        entries: vec![entry],
        epochs: EpochHistory::new(),
        producers: bytes::Bytes::new(),
    })
}

pub(super) async fn add_imaginary(archive: &mut Archive, count: u64) {
    let first = archive.manifest().tiered_offset().get() / 10;
    for from in (first..first + count).step_by(512) {
        let updates = (from..(first + count).min(from + 512))
            .map(imaginary)
            .collect();
        archive
            .commit(Update::All(updates), Fallout::default())
            .await
            .unwrap();
    }
}

/// A reader that holds the manifest before a merge misses the merged pages as soon as they go, and
/// then needs the manifest after it.
#[tokio::test(start_paused = true)]
async fn a_manifest_is_shown_to_readers_before_the_pages_it_replaced_go() {
    let bucket = Fixture::new(1);
    let empty = Manifest::create(CLUSTER, PARTITION);
    let (published, shown) = watch::channel(Arc::new(empty));
    let deps = bucket.deps.clone();
    let opening = Archive::open_into(
        published,
        OpenWith::default(),
        deps,
        PARTITION,
        LeaderEpoch::new(1),
    );
    let mut archive = opening.await.unwrap();
    add_imaginary(&mut archive, 1).await;
    // Eight pages of the second level: their merge is due as soon as the last one is merged.
    for _ in 0..8 {
        add_imaginary(&mut archive, 1024 * PAGES_PER_MERGE as u64).await;
        assert!(archive.merge_pages().await.unwrap());
    }
    archive.request_scan();
    let slow_list = Trouble::Delay(Duration::from_secs(5));
    bucket.faults.inject(When::on(Op::List), slow_list);
    let (options, metrics) = (ReaderOptions::default(), Registry::new());
    let opening = Reader::open(bucket.plain_store(), options, &metrics, TaskSet::new());
    let reader = opening.await.unwrap();

    let reading = async {
        // The pages are gone, and the listing is under way.
        tokio::time::sleep(Duration::from_secs(1)).await;
        reader
            .read(shown, PARTITION, Offset::new(5))
            .next(1000)
            .await
    };
    let (read, collected) = tokio::join!(reading, archive.collect_garbage());

    assert!(collected.unwrap().deleted[&Reason::Merged] > 0);
    // There is no such segment; but its page was found.
    let error = read.unwrap_err().to_string();
    assert!(error.contains("/segments/"), "{error}");
}

async fn pages_in(bucket: &Fixture) -> usize {
    let is_page = |key: &&String| matches!(Key::parse(key), Some(Key::Page(..)));
    bucket.data_keys().await.iter().filter(is_page).count()
}

#[tokio::test]
async fn merged_pages_replace_the_ones_they_were_made_of() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    add_imaginary(&mut archive, 1024 * (PAGES_PER_MERGE as u64 + 1)).await;
    assert_eq!(pages_in(&bucket).await, PAGES_PER_MERGE);
    let segments = archive.manifest().segment_count();

    let collected = archive.collect_garbage().await.unwrap();

    assert_eq!(collected.deleted[&Reason::Merged], PAGES_PER_MERGE as u64);
    assert_eq!(
        (pages_in(&bucket).await, archive.manifest().pages().len()),
        (1, 1)
    );
    assert_eq!(archive.manifest().segment_count(), segments);
}

#[tokio::test]
async fn a_page_is_in_place_before_the_manifest_that_names_it() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    add_imaginary(&mut archive, 1024).await;
    for trouble in [Trouble::FailBefore, Trouble::FailAfter] {
        bucket
            .faults
            .inject(When::on(Op::Put).key("/pages/").times(1), trouble);
        bucket
            .faults
            .inject(When::on(Op::Head).times(1), Trouble::FailBefore);
        let spill = archive.commit(Update::All(vec![imaginary(1024)]), Fallout::default());
        assert!(spill.await.unwrap_err().is_retryable());
        assert!(bucket.manifest().await.pages().is_empty());
        bucket.faults.heal();
    }
    assert_eq!(pages_in(&bucket).await, 1);

    add_imaginary(&mut archive, 1).await;
    assert_eq!(
        archive.collect_garbage().await.unwrap().deleted[&Reason::Orphan],
        2
    );
    assert_eq!(pages_in(&bucket).await, 1);
    assert_eq!(bucket.manifest().await.pages().len(), 1);
}

#[tokio::test]
async fn trimming_across_pages_deletes_their_segments_and_then_the_pages() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    add_imaginary(&mut archive, 1024 * 3).await;
    for key in (0..1600).map(|number| segment_key(number * 10, 1, number.into())) {
        bucket.plain_store().put_object(&key, "x").await.unwrap();
    }
    // Ends within the second page, and within a segment.
    archive.trim_below(Offset::new(15_005)).await.unwrap();

    let collected = archive.collect_garbage().await.unwrap();

    assert_eq!(collected.deleted[&Reason::Trimmed], 1500 + 1);
    assert_eq!(bucket.data_keys().await.len(), 100 + 1);
    assert_eq!(archive.manifest().segment_count(), 1024 * 3 - 1500);

    // The same again by listing, and then the rest of the second page.
    archive.request_scan();
    assert_eq!(archive.collect_garbage().await.unwrap().total(), 0);
    archive.trim_below(Offset::new(1024 * 20)).await.unwrap();
    archive.collect_garbage().await.unwrap();
    assert!(bucket.data_keys().await.is_empty());
}

#[tokio::test]
async fn dead_segments_of_a_page_that_stays_are_found_after_a_crash() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    add_imaginary(&mut archive, 1024 * 2).await;
    for key in (0..1024).map(|number| segment_key(number * 10, 1, number.into())) {
        bucket.plain_store().put_object(&key, "x").await.unwrap();
    }
    archive.trim_below(Offset::new(5005)).await.unwrap();
    drop(archive);

    let collected = bucket
        .open(2)
        .await
        .unwrap()
        .collect_garbage()
        .await
        .unwrap();

    assert_eq!(collected.deleted[&Reason::Trimmed], 500);
    assert_eq!(bucket.data_keys().await.len(), 524 + 1);
}

#[tokio::test]
async fn an_unreadable_page_stops_neither_a_trim_nor_other_deletions() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    add_imaginary(&mut archive, 1024 * 2).await;
    let page = Keys::new(PARTITION).page((&archive.manifest().pages()[0]).into());
    bucket.plain_store().delete([&page]).await.unwrap();
    let key = segment_key(0, 1, 0);
    bucket.plain_store().put_object(&key, "x").await.unwrap();

    archive.trim_below(Offset::new(500)).await.unwrap();
    archive.trim_below(Offset::new(1024 * 10)).await.unwrap();
    archive.collect_garbage().await.unwrap();

    assert!(bucket.data_keys().await.is_empty());
}

#[tokio::test]
async fn a_scan_after_a_crash_reads_few_pages_and_finds_what_was_trimmed() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    let segments = 1024 * 4;
    add_imaginary(&mut archive, segments).await;
    archive.trim_below(Offset::new(20)).await.unwrap();
    for number in 0..segments {
        let key = segment_key(number * 10, 1, number.into());
        bucket.plain_store().put_object(&key, "x").await.unwrap();
    }
    let orphan = segment_key(segments * 10, 1, 7);
    bucket.plain_store().put_object(&orphan, "x").await.unwrap();
    drop(archive);
    let mut archive = bucket.open(2).await.unwrap();
    let before = bucket.deps.store.requests();

    let mut deleted = 0;
    loop {
        let collected = archive.collect_garbage().await.unwrap();
        deleted += collected.total();
        if !collected.has_more {
            break;
        }
    }

    let requests = bucket.deps.store.requests().since(&before);
    assert_eq!(deleted, 2);
    // No commit has passed it yet.
    assert!(bucket.data_keys().await.contains(&orphan));
    // Below the log start: whether the first page names them. And whether it still leads.
    assert!(requests.of(Verb::Get) <= 3, "{requests:?}");
}
