//! Uploads and commits.

use esker_proto::types::Offset;

use super::fixture::{BATCH, Fixture, PARTITION, never};
use crate::{
    archive::{PartSizes, SEGMENTS_PER_COMMIT_MAX, view},
    error::ErrorKind,
    keys::Keys,
    store::Verb,
    testing::{Op, Trouble, When},
};

const MANIFEST: &str = "/manifest/";

#[tokio::test]
async fn an_uploaded_segment_costs_two_requests() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    let before = bucket.deps.store.requests();

    archive
        .upload(&bucket.segment(0, 20, 1), &never())
        .await
        .unwrap();

    let asked = bucket.deps.store.requests().since(&before);
    assert_eq!(
        (asked.of(Verb::Put), asked.of(Verb::Create), asked.total()),
        (1, 1, 2)
    );
    assert_eq!(archive.manifest().tiered_offset(), Offset::new(20));
    bucket.assert_nothing_is_left_over().await;
}

#[tokio::test]
async fn an_idle_archive_asks_nothing() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    archive
        .upload(&bucket.segment(0, 20, 1), &never())
        .await
        .unwrap();
    archive.request_scan();
    archive.collect_garbage().await.unwrap();
    let before = bucket.deps.store.requests();

    archive.collect_garbage().await.unwrap();
    archive
        .upload(&bucket.segment(0, 20, 1), &never())
        .await
        .unwrap();
    archive.trim_below(Offset::ZERO).await.unwrap();
    archive.settle().await.unwrap();

    assert_eq!(bucket.deps.store.requests().since(&before).total(), 0);
}

#[tokio::test]
async fn segments_uploaded_together_share_one_commit() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    let segments = bucket.segments(0, 40, 1);
    let before = bucket.deps.store.requests();

    archive.upload_many(&segments, &never()).await.unwrap();

    let asked = bucket.deps.store.requests().since(&before);
    assert_eq!(asked.of(Verb::Put), SEGMENTS_PER_COMMIT_MAX as u64);
    assert_eq!(asked.of(Verb::Create), 1);
    archive.upload_many(&segments, &never()).await.unwrap();
    assert_eq!(archive.manifest().tiered_offset(), segments[39].next_offset);
    assert_eq!(archive.manifest().segment_count(), 40);
    bucket.assert_nothing_is_left_over().await;
}

#[tokio::test]
async fn a_spoiled_local_file_is_never_uploaded() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    let segment = bucket.segment(0, 20, 1);
    let whole = std::fs::read(&segment.path).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() - 3] ^= 1;
    let truncated = &whole[..whole.len() - 1];
    let swapped = [&whole[whole.len() / 2..], &whole[..whole.len() / 2]].concat();

    for spoiled in [&flipped, truncated, &swapped] {
        std::fs::write(&segment.path, spoiled).unwrap();
        let error = archive.upload(&segment, &never()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }

    assert_eq!(bucket.deps.store.requests().of(Verb::Put), 0);
    assert_eq!(archive.manifest().tiered_offset(), Offset::ZERO);
    std::fs::write(&segment.path, whole).unwrap();
    archive.upload(&segment, &never()).await.unwrap();
}

#[tokio::test]
async fn a_segment_that_leaves_a_gap_is_refused_before_it_is_uploaded() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();

    let error = archive
        .upload(&bucket.segment(5, 20, 1), &never())
        .await
        .unwrap_err();

    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(bucket.data_keys().await.is_empty());
}

#[tokio::test]
async fn only_what_is_not_tiered_of_a_segment_is_uploaded() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    archive
        .upload(&bucket.segment(0, 10, 1), &never())
        .await
        .unwrap();

    archive
        .upload(&bucket.segment(0, 25, 1), &never())
        .await
        .unwrap();

    let manifest = archive.manifest();
    let second = manifest.head().segments()[1];
    assert_eq!(
        (second.base_offset, second.next_offset),
        (Offset::new(10), Offset::new(25))
    );
    let object = bucket
        .plain_store()
        .get(&Keys::new(PARTITION).segment((&second).into()))
        .await;
    let expected: Vec<u8> = [10, 15, 20]
        .iter()
        .flat_map(|base| super::fixture::batch(*base, 1))
        .collect();
    assert!(object.unwrap().starts_with(&expected));

    // No batch begins at 25 - BATCH + 1, so nothing can be cut there.
    let odd = bucket.segment(25 - BATCH + 1, 40 + 1, 1);
    assert_eq!(
        archive.upload(&odd, &never()).await.unwrap_err().kind(),
        ErrorKind::Corrupt
    );
}

#[tokio::test]
async fn a_put_whose_reply_was_lost_is_settled_by_its_size() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    bucket
        .faults
        .inject(When::on(Op::Put).times(1), Trouble::FailAfter);

    archive
        .upload(&bucket.segment(0, 20, 1), &never())
        .await
        .unwrap();

    assert_eq!(bucket.deps.store.requests().of(Verb::Head), 1);
    bucket.assert_nothing_is_left_over().await;
}

#[tokio::test]
async fn a_failed_upload_changes_nothing_and_is_tidied_up_later() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    archive
        .upload(&bucket.segment(0, 20, 1), &never())
        .await
        .unwrap();
    let bytes = archive.manifest().bucket_bytes();
    bucket
        .faults
        .inject(When::on(Op::Put).times(5), Trouble::FailBefore);
    bucket
        .faults
        .inject(When::on(Op::Head), Trouble::FailBefore);
    bucket
        .faults
        .inject(When::on(Op::Put).times(5), Trouble::FailAfter);

    for _ in 0..10 {
        let error = archive
            .upload(&bucket.segment(20, 40, 1), &never())
            .await
            .unwrap_err();
        assert!(error.is_retryable(), "{error}");
    }

    assert_eq!(archive.manifest().bucket_bytes(), bytes);
    bucket.faults.heal();
    assert_eq!(bucket.data_keys().await.len(), 1 + 5);
    archive
        .upload(&bucket.segment(20, 40, 1), &never())
        .await
        .unwrap();
    archive.collect_garbage().await.unwrap();
    bucket.assert_nothing_is_left_over().await;
}

#[tokio::test]
async fn what_lies_behind_a_failed_upload_waits_for_it() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    let segments = bucket.segments(0, 5, 1);
    // By name: reads of two files may overtake each other.
    let third = When::on(Op::Put).key(format!("/segments/{:020}-", 20));
    bucket.faults.inject(third.times(1), Trouble::FailBefore);

    archive.upload_many(&segments, &never()).await.unwrap_err();

    assert_eq!(archive.manifest().tiered_offset(), segments[1].next_offset);
    bucket.assert_nothing_dangles().await;
    archive.upload_many(&segments, &never()).await.unwrap();
    archive.collect_garbage().await.unwrap();
    assert_eq!(archive.manifest().tiered_offset(), segments[4].next_offset);
    bucket.assert_nothing_is_left_over().await;
}

#[tokio::test]
async fn a_cancelled_upload_ends_and_a_vanished_file_is_no_crash() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    let segment = bucket.segment(0, 20, 1);
    bucket
        .faults
        .inject(When::on(Op::Put).times(1), Trouble::Hang);
    let cancel = never();
    let (outcome, ()) = tokio::join!(archive.upload(&segment, &cancel), async { cancel.cancel() });
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);

    std::fs::remove_file(&segment.path).unwrap();
    let error = archive.upload(&segment, &never()).await.unwrap_err();

    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(archive.manifest().tiered_offset(), Offset::ZERO);
}

#[tokio::test]
async fn a_commit_whose_reply_was_lost_has_won() {
    let mut bucket = Fixture::new(1);
    bucket.deps.policy = crate::chain::RetryPolicy::default();
    let mut archive = bucket.open(1).await.unwrap();
    bucket.faults.inject(
        When::on(Op::Create).key(MANIFEST).times(1),
        Trouble::FailAfter,
    );

    archive
        .upload(&bucket.segment(0, 20, 1), &never())
        .await
        .unwrap();

    assert_eq!(archive.manifest().tiered_offset(), Offset::new(20));
    assert_eq!(
        bucket.manifest().await.header().nonce,
        archive.manifest().header().nonce
    );
}

#[tokio::test]
async fn nothing_goes_on_until_an_unknown_commit_is_settled() {
    for lands in [false, true] {
        let bucket = Fixture::new(1);
        let mut archive = bucket.open(1).await.unwrap();
        archive
            .upload(&bucket.segment(0, 20, 1), &never())
            .await
            .unwrap();
        let watch = archive.watch();
        bucket
            .faults
            .inject(When::on(Op::Create).times(1), Trouble::FailThenLand);
        bucket
            .faults
            .inject(When::on(Op::Create).times(2), Trouble::FailBefore);
        let error = archive.trim_below(Offset::new(10)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown);

        let before = bucket.deps.store.requests();
        for _ in 0..2 {
            let error = archive
                .upload(&bucket.segment(20, 40, 1), &never())
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unknown);
        }
        assert_eq!(bucket.deps.store.requests().since(&before).of(Verb::Put), 0);
        assert_eq!(watch.borrow().log_start_offset(), Offset::ZERO);

        if lands {
            assert_eq!(bucket.faults.land().await, 1);
        }
        archive
            .upload(&bucket.segment(20, 40, 1), &never())
            .await
            .unwrap();
        assert_eq!(watch.borrow().log_start_offset(), Offset::new(10));
        assert_eq!(bucket.manifest().await.tiered_offset(), Offset::new(40));
        bucket.faults.land().await;
        assert_eq!(
            bucket.manifest().await.header().nonce,
            archive.manifest().header().nonce
        );
    }
}

#[tokio::test]
async fn a_dropped_commit_is_settled_by_the_next_call() {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    bucket
        .faults
        .inject(When::on(Op::Create).times(1), Trouble::HangAfter);
    let (segment, cancel) = (bucket.segment(0, 20, 1), never());
    tokio::select! {
        _ = archive.upload(&segment, &cancel) => panic!("the reply never comes"),
        () = bucket.manifest_reaches(2) => {}
    }

    archive.upload(&segment, &cancel).await.unwrap();

    assert_eq!(archive.manifest().tiered_offset(), Offset::new(20));
    bucket.assert_nothing_is_left_over().await;
}

#[tokio::test]
async fn a_deposed_leader_cannot_commit_or_delete() {
    let bucket = Fixture::new(1);
    let mut old = bucket.open(1).await.unwrap();
    old.upload_many(&bucket.segments(0, 3, 1), &never())
        .await
        .unwrap();
    let mut new = bucket.open(2).await.unwrap();
    new.upload_many(&bucket.segments(30, 1, 2), &never())
        .await
        .unwrap();
    new.collect_garbage().await.unwrap();

    let error = old
        .upload(&bucket.segment(30, 45, 1), &never())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced);

    old.request_scan();
    for outcome in [
        old.trim_below(Offset::new(30)).await.map(drop),
        old.collect_garbage().await.map(drop),
        old.settle().await,
    ] {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Fenced);
    }
    assert_eq!(
        bucket.manifest().await.header().nonce,
        new.manifest().header().nonce
    );
    new.request_scan();
    new.collect_garbage().await.unwrap();
    bucket.assert_nothing_is_left_over().await;
    assert_eq!(bucket.open(1).await.unwrap_err().kind(), ErrorKind::Fenced);
}

#[tokio::test]
async fn a_new_leader_extends_what_is_there() {
    let bucket = Fixture::new(1);
    assert!(
        view(&bucket.plain_store(), PARTITION)
            .await
            .unwrap()
            .is_none()
    );
    let mut old = bucket.open(1).await.unwrap();
    old.upload_many(&bucket.segments(0, 3, 1), &never())
        .await
        .unwrap();
    old.trim_below(Offset::new(10)).await.unwrap();
    drop(old);

    let new = bucket.open(2).await.unwrap();

    assert_eq!(new.manifest().tiered_offset(), Offset::new(30));
    assert_eq!(new.manifest().log_start_offset(), Offset::new(10));
    assert_eq!(&new.manifest().producers()[..], b"producers");
    assert_eq!(
        new.manifest().epochs().last().unwrap().leader_epoch.get(),
        1
    );
    assert_eq!(
        bucket.manifest().await.header().nonce,
        new.manifest().header().nonce
    );
}

#[tokio::test]
async fn after_a_crash_between_put_and_commit_the_segment_is_uploaded_anew() {
    let bucket = Fixture::new(1);
    let mut old = bucket.open(1).await.unwrap();
    bucket
        .faults
        .inject(When::on(Op::Create), Trouble::FailBefore);
    old.upload(&bucket.segment(0, 20, 1), &never())
        .await
        .unwrap_err();
    drop(old);
    bucket.faults.heal();
    let orphan = bucket.data_keys().await;
    assert_eq!(orphan.len(), 1);

    let mut new = bucket.open(2).await.unwrap();
    new.upload(&bucket.segment(0, 20, 1), &never())
        .await
        .unwrap();

    assert!(
        !bucket.named_keys().await.contains(&orphan[0]),
        "a name is never used twice"
    );
    new.collect_garbage().await.unwrap();
    bucket.assert_nothing_is_left_over().await;
}

/// The owner of a partition and the tools run these in tasks. Compiling is the test.
#[expect(dead_code, reason = "only its types are of interest")]
fn futures_can_be_spawned(
    mut archive: crate::archive::Archive,
    scrubber: crate::scrub::Scrubber,
) -> impl Send {
    async move {
        let policy = esker_index::retention::RetentionPolicy::default();
        let ids = crate::env::RandomIds;
        archive.upload_many(&[], &never()).await?;
        archive
            .apply_retention(esker_proto::types::TimestampMs::new(0), policy)
            .await?;
        archive.collect_garbage().await?;
        archive.delete_everything(&never()).await?;
        scrubber.verify(None, crate::scrub::Depth::Bytes).await?;
        scrubber
            .rebuild_index(PARTITION, &ids, crate::scrub::RebuildOptions::default())
            .await?;
        scrubber.plan_garbage(None).await
    }
}

#[tokio::test]
async fn a_large_segment_is_put_in_parts_and_is_the_same_object() {
    let mut objects = Vec::new();
    for above_bytes in [u64::MAX, 100] {
        let mut bucket = Fixture::new(1);
        bucket.deps.parts = PartSizes {
            above_bytes,
            part_bytes: 1000,
        };
        let mut archive = bucket.open(1).await.unwrap();
        let segment = bucket.segment(0, 500, 1);
        archive.upload(&segment, &never()).await.unwrap();

        bucket.assert_nothing_is_left_over().await;
        let key = bucket.data_keys().await.remove(0);
        objects.push(bucket.plain_store().get(&key).await.unwrap());
    }
    assert!(objects[0] == objects[1]);
}
