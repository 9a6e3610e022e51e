//! Trims by age, by size and by hand.

use std::{sync::Arc, time::Duration};

use esker_index::retention::RetentionPolicy;
use esker_proto::types::{LeaderEpoch, Offset, SegmentId, TimestampMs};
use uuid::Uuid;

use super::{
    fixture::{Fixture, PARTITION, never},
    garbage::add_imaginary,
};
use crate::{
    env::ManualClock,
    error::ErrorKind,
    keys::{Keys, SegmentName},
    store::Verb,
    testing::{Op, Trouble, When},
};

#[tokio::test]
async fn retention_by_age_lets_go_of_segments_that_are_old_as_a_whole() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    archive
        .upload_many(&bucket.segments(0, 4, 1), &never())
        .await
        .unwrap();
    let policy = RetentionPolicy {
        age_ms: Some(1000),
        size_bytes: None,
    };
    // The newest record of the second segment is of second 19.
    let second = |millis| TimestampMs::new(millis);

    assert_eq!(
        archive
            .apply_retention(second(20_000), policy)
            .await
            .unwrap(),
        Some(Offset::new(10))
    );
    assert_eq!(
        archive
            .apply_retention(second(20_001), policy)
            .await
            .unwrap(),
        Some(Offset::new(20))
    );
    assert_eq!(
        archive
            .apply_retention(second(20_001), policy)
            .await
            .unwrap(),
        None
    );
    archive.collect_garbage().await.unwrap();

    assert_eq!(bucket.data_keys().await.len(), 2);
    bucket.assert_nothing_is_left_over().await;
}

#[tokio::test]
async fn age_counts_from_the_upload_of_records_that_are_older_than_it() {
    let mut bucket = Fixture::new(1);
    let clock = Arc::new(ManualClock::new(TimestampMs::new(1_000_000)));
    bucket.deps.clock = Arc::clone(&clock) as _;
    let mut archive = bucket.open(1).await.unwrap();
    archive
        .upload_many(&bucket.segments(0, 2, 1), &never())
        .await
        .unwrap();
    clock.advance(1000);
    archive
        .upload_many(&bucket.segments(20, 2, 1), &never())
        .await
        .unwrap();
    let policy = RetentionPolicy {
        age_ms: Some(1000),
        size_bytes: None,
    };

    for (now, trimmed) in [
        (1_001_000, None),
        (1_001_001, Some(20)),
        (1_002_001, Some(40)),
    ] {
        let start = archive.apply_retention(TimestampMs::new(now), policy).await;
        assert_eq!(start.unwrap(), trimmed.map(Offset::new), "{now}");
    }
}

#[tokio::test]
async fn retention_by_size_keeps_at_least_that_much() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    archive
        .upload_many(&bucket.segments(0, 4, 1), &never())
        .await
        .unwrap();
    let one = archive.manifest().bucket_bytes() / 4;
    let keep = |bytes| RetentionPolicy {
        age_ms: None,
        size_bytes: Some(bytes),
    };
    let now = TimestampMs::new(0);

    assert_eq!(
        archive.apply_retention(now, keep(one * 4)).await.unwrap(),
        None
    );
    assert_eq!(
        archive
            .apply_retention(now, keep(one * 3 - 1))
            .await
            .unwrap(),
        Some(Offset::new(10))
    );
    assert_eq!(
        archive
            .apply_retention(now, RetentionPolicy::default())
            .await
            .unwrap(),
        None
    );
    archive.collect_garbage().await.unwrap();

    assert!(archive.manifest().bucket_bytes() >= one * 3 - 1);
    bucket.assert_nothing_is_left_over().await;
}

#[tokio::test]
async fn a_trim_never_passes_what_is_tiered_and_never_goes_back() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    archive
        .upload_many(&bucket.segments(0, 2, 1), &never())
        .await
        .unwrap();

    let error = archive.trim_below(Offset::new(21)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(
        archive.trim_below(Offset::new(15)).await.unwrap(),
        Offset::new(15)
    );
    assert_eq!(
        archive.trim_below(Offset::new(3)).await.unwrap(),
        Offset::new(15)
    );
    archive.collect_garbage().await.unwrap();

    assert_eq!(
        bucket.data_keys().await.len(),
        1,
        "the segment that holds the log start stays"
    );
    assert_eq!(
        archive.trim_below(Offset::new(20)).await.unwrap(),
        Offset::new(20)
    );
    archive.collect_garbage().await.unwrap();
    assert!(bucket.data_keys().await.is_empty());
    archive
        .upload_many(&bucket.segments(20, 1, 1), &never())
        .await
        .unwrap();
    bucket.assert_nothing_is_left_over().await;
}

#[tokio::test]
async fn retention_within_a_page_reads_it_only_when_something_may_go() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    add_imaginary(&mut archive, 1024 * 2).await;
    let total = archive.manifest().bucket_bytes();
    let age = |age_ms| RetentionPolicy {
        age_ms: Some(age_ms),
        size_bytes: None,
    };
    let size = |bytes| RetentionPolicy {
        age_ms: None,
        size_bytes: Some(bytes),
    };
    let now = TimestampMs::new(500);
    let gets = || bucket.deps.store.requests().of(Verb::Get);

    // Segment n is n ms old, of 1000 bytes and 10 offsets; the first page holds 1024 of them.
    assert_eq!(
        archive.apply_retention(now, age(400)).await.unwrap(),
        Some(Offset::new(1000))
    );
    let before = gets();
    assert_eq!(archive.apply_retention(now, age(400)).await.unwrap(), None);
    assert_eq!(gets(), before + 1, "looks at the new oldest once");
    for _ in 0..3 {
        assert_eq!(archive.apply_retention(now, age(400)).await.unwrap(), None);
        let kept = archive.manifest().bucket_bytes();
        assert_eq!(
            archive.apply_retention(now, size(kept)).await.unwrap(),
            None
        );
        assert_eq!(
            archive
                .apply_retention(now, size(kept - 999))
                .await
                .unwrap(),
            None
        );
    }
    assert_eq!(gets(), before + 1);

    let now = TimestampMs::new(501);
    assert_eq!(
        archive.apply_retention(now, age(400)).await.unwrap(),
        Some(Offset::new(1010))
    );
    let keep = size(total - 102_000);
    assert_eq!(
        archive.apply_retention(now, keep).await.unwrap(),
        Some(Offset::new(1020))
    );
    assert_eq!(archive.manifest().bucket_bytes(), total - 102_000);
}

/// Retention looks each minute, and whoever looks for orphans asks for each segment.
#[tokio::test(start_paused = true)]
async fn a_damaged_page_is_fetched_once_in_a_long_while_and_stops_no_collection() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    add_imaginary(&mut archive, 1024 * 3).await;
    let page = archive.manifest().pages()[0];
    let key = Keys::new(PARTITION).page((&page).into());
    let whole = bucket.plain_store().get(&key).await.unwrap();
    let cut = whole.slice(..whole.len() / 2);
    bucket.plain_store().put_object(&key, cut).await.unwrap();
    for number in 0..40 {
        let orphan = SegmentName {
            base_offset: Offset::new(number * 10),
            leader_epoch: LeaderEpoch::new(0),
            segment_id: SegmentId::new(Uuid::from_u128(7)),
        };
        let orphan = Keys::new(PARTITION).segment(orphan);
        bucket.plain_store().put_object(&orphan, "x").await.unwrap();
    }
    let age = RetentionPolicy {
        age_ms: Some(0),
        size_bytes: None,
    };
    bucket
        .faults
        .inject(When::on(Op::Get).key(&key), Trouble::Delay(Duration::ZERO));
    let fetches = || bucket.faults.hits(Op::Get);

    for _ in 0..30 {
        // The oldest segments may go, but which they are only that page tells.
        let kept = archive.apply_retention(TimestampMs::new(500), age).await;
        assert_eq!(kept.unwrap(), None);
        archive.request_scan();
        archive.collect_garbage().await.unwrap();
        tokio::time::advance(Duration::from_secs(60)).await;
    }
    // The same wrong bytes twice are the object's own.
    assert_eq!(fetches(), 2);

    tokio::time::advance(Duration::from_secs(3600)).await;
    bucket.plain_store().put_object(&key, whole).await.unwrap();
    let trimmed = archive.apply_retention(TimestampMs::new(500), age).await;
    assert_eq!(trimmed.unwrap(), Some(Offset::new(5000)), "it was restored");
}

/// A page that cannot be read goes as a whole, once all of it may.
#[tokio::test]
async fn a_damaged_oldest_page_does_not_keep_what_is_old_for_ever() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    add_imaginary(&mut archive, 1024 * 3).await;
    let key = Keys::new(PARTITION).page((&archive.manifest().pages()[0]).into());
    bucket.plain_store().delete([&key]).await.unwrap();
    let age = RetentionPolicy {
        age_ms: Some(0),
        size_bytes: None,
    };
    let none = archive.apply_retention(TimestampMs::new(1000), age).await;
    assert_eq!(none.unwrap(), None);

    let start = archive.apply_retention(TimestampMs::new(1024), age).await;

    assert_eq!(start.unwrap(), Some(Offset::new(10_240)));
    archive.collect_garbage().await.unwrap();
    let start = archive.apply_retention(TimestampMs::new(1500), age).await;
    assert_eq!(
        start.unwrap(),
        Some(Offset::new(15_000)),
        "and on into the next page"
    );
}
