//! Trims by age, by size and by hand.

use esker_index::retention::RetentionPolicy;
use esker_proto::types::{Offset, TimestampMs};

use super::fixture::{Fixture, never};
use crate::error::ErrorKind;

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
