//! Objects that are deleted under a running owner: it finds out before anything local goes.

use esker_proto::types::{LeaderEpoch, ManifestVersion, Offset, OffsetRange};

use super::fixture::{CLUSTER, Fixture, PARTITION, never};
use crate::{
    archive::{Archive, see},
    error::ErrorKind,
    keys::{Key, Keys},
    store::Verb,
    testing::{Op, Trouble, When},
};

const fn offsets(start: u64, end: u64) -> OffsetRange {
    Offset::new(start)..Offset::new(end)
}

/// An owner that has committed three segments of ten records.
async fn owner(bucket: &Fixture) -> Archive {
    let mut archive = bucket.open(1).await.unwrap();
    archive
        .upload_many(&bucket.segments(0, 3, 1), &never())
        .await
        .unwrap();
    archive
}

async fn delete(bucket: &Fixture, is_deleted: impl Fn(&Key) -> bool) -> Vec<String> {
    let objects = bucket.bucket().await.into_iter().map(|object| object.key);
    let keys: Vec<_> = objects
        .filter(|key| Key::parse(key).is_some_and(|key| is_deleted(&key)))
        .collect();
    bucket.plain_store().delete(&keys).await.unwrap();
    keys
}

#[tokio::test]
async fn what_is_there_is_seen_with_few_requests() {
    let bucket = Fixture::new(1);
    let mut archive = owner(&bucket).await;
    for segment in bucket.segments(30, 20, 1) {
        archive.upload(&segment, &never()).await.unwrap();
    }
    for end in [10, 230] {
        let before = bucket.deps.store.requests();
        archive.see(&offsets(0, end)).await.unwrap();
        let asked = bucket.deps.store.requests().since(&before);
        assert!(asked.total() <= 3, "{end}: {asked:?}");
    }
}

#[tokio::test]
async fn a_commit_made_since_the_deletion_hides_nothing() {
    let bucket = Fixture::new(1);
    let mut archive = owner(&bucket).await;
    delete(&bucket, |_| true).await;
    // Just after the last look: this owner does not look again, and finds the slot free.
    let late = bucket.segment(30, 40, 1);
    archive.upload(&late, &never()).await.unwrap();

    // What holds the offsets is there.
    let error = archive.see(&offsets(30, 40)).await.unwrap_err();

    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("/manifest/"), "{error}");
}

#[tokio::test]
async fn each_look_ties_in_with_the_one_before() {
    let bucket = Fixture::new(1);
    let mut archive = owner(&bucket).await;
    for base in [30, 50] {
        archive.see(&offsets(0, base)).await.unwrap();
        for segment in bucket.segments(base, 2, 1) {
            archive.upload(&segment, &never()).await.unwrap();
        }
    }
    archive.see(&offsets(0, 70)).await.unwrap();
    let newest = archive.manifest().header().version;
    let late = bucket.segments(70, 2, 1);
    delete(&bucket, |key| *key == Key::Manifest(PARTITION, newest)).await;
    for segment in late {
        archive.upload(&segment, &never()).await.unwrap();
    }

    let error = archive.see(&offsets(0, 90)).await.unwrap_err();

    let key = Keys::new(PARTITION).manifest(newest);
    assert!(error.to_string().contains(&key), "{error}");
}

#[tokio::test]
async fn versions_that_the_owner_collected_are_not_missed() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    archive
        .upload(&bucket.segment(0, 500, 1), &never())
        .await
        .unwrap();
    archive.see(&offsets(0, 500)).await.unwrap();
    for offset in 1..=330 {
        archive.trim_below(Offset::new(offset)).await.unwrap();
    }
    archive.collect_garbage().await.unwrap();
    assert!(
        !bucket
            .bucket()
            .await
            .iter()
            .any(|object| object.key == Keys::new(PARTITION).manifest(ManifestVersion::new(2)))
    );

    archive.see(&offsets(330, 500)).await.unwrap();
}

#[tokio::test]
async fn a_segment_that_is_gone_or_cut_short_is_named() {
    for is_cut in [false, true] {
        for base in [0, 10, 20] {
            let bucket = Fixture::new(1);
            let mut archive = owner(&bucket).await;
            let keys = delete(
                &bucket,
                |key| matches!(key, Key::Segment(_, name) if name.base_offset.get() == base),
            )
            .await;
            if is_cut {
                let cut = bucket.plain_store().put_object(&keys[0], "x").await;
                cut.unwrap();
            }
            let error = archive.see(&offsets(0, 30)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains(&keys[0]), "{error}");
            let unopened = see(&bucket.plain_store(), &archive.manifest(), &offsets(0, 30)).await;
            assert!(unopened.unwrap_err().to_string().contains(&keys[0]));
            // Only what is asked for counts, and nothing that was trimmed.
            let others = offsets(base + 10, base + 20);
            let others = if base == 20 { offsets(0, 20) } else { others };
            archive.see(&others).await.unwrap();
            archive.trim_below(Offset::new(base + 10)).await.unwrap();
            archive.see(&offsets(0, 30)).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_listing_that_lags_behind_loses_nothing() {
    let bucket = Fixture::new(1);
    let mut archive = owner(&bucket).await;
    bucket
        .faults
        .inject(When::on(Op::List), Trouble::StaleList(2));
    archive.see(&offsets(0, 30)).await.unwrap();
    assert!(bucket.deps.store.requests().of(Verb::List) > 0);
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_no_loss_and_no_sight() {
    let bucket = Fixture::new(1);
    let mut archive = owner(&bucket).await;
    for op in [Op::Head, Op::Get] {
        bucket.faults.inject(When::on(op), Trouble::FailBefore);
        let error = archive.see(&offsets(0, 30)).await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        bucket.faults.heal();
    }
    archive.see(&offsets(0, 30)).await.unwrap();
}

#[tokio::test]
async fn an_owner_that_was_deposed_is_fenced_and_not_told_of_a_loss() {
    let bucket = Fixture::new(1);
    let mut archive = owner(&bucket).await;
    let tip = archive.manifest().header().version;
    let deps = bucket.deps.clone();
    let newer = Archive::open(deps, PARTITION, CLUSTER, LeaderEpoch::new(2)).await;
    drop(newer.unwrap());
    // As the newer owner may collect it.
    delete(&bucket, |key| *key == Key::Manifest(PARTITION, tip)).await;

    let error = archive.see(&offsets(0, 30)).await.unwrap_err();

    assert_eq!(error.kind(), ErrorKind::Fenced);
}
