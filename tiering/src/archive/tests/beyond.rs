//! Manifests that are deleted by hand: what they named is never taken for garbage, and its offsets
//! are never used again.

use std::sync::Arc;

use esker_index::{EpochHistory, Manifest};
use esker_proto::types::{LeaderEpoch, ManifestVersion, Offset};
use futures::future::BoxFuture;
use tokio::sync::watch;

use super::fixture::{CLUSTER, Fixture, PARTITION, never};
use crate::{
    archive::{Archive, LeftAt, LocalExtent, LocalLog, OpenWith, see},
    env::TaskSet,
    error::{Error, ErrorKind},
    keys::Keys,
    scrub::{RebuildOptions, Scrubber},
    testing::{Op, Trouble, When},
};

/// A local log with records below an offset, all of epoch 1 unless told otherwise.
#[derive(Clone, Debug)]
struct Local(u64, EpochHistory);

impl Local {
    fn with(end: u64, epochs: &[(u32, u64)]) -> Self {
        let mut history = EpochHistory::new();
        for (epoch, start) in epochs {
            history
                .push(LeaderEpoch::new(*epoch), Offset::new(*start))
                .unwrap();
        }
        Self(end, history)
    }
}

impl LocalLog for Local {
    fn extent<'a>(&'a self, _newest: Option<&'a Manifest>) -> BoxFuture<'a, LocalExtent> {
        let extent = LocalExtent {
            log_end_offset: Offset::new(self.0),
            epochs: self.1.clone(),
        };
        Box::pin(async move { extent })
    }
}

async fn reopen(bucket: &Fixture, epoch: u32, local: &Local) -> Result<Archive, Error> {
    reopen_knowing(bucket, epoch, local, Manifest::create(CLUSTER, PARTITION)).await
}

async fn reopen_knowing(
    bucket: &Fixture,
    epoch: u32,
    local: &Local,
    known: Manifest,
) -> Result<Archive, Error> {
    reopen_with(bucket, epoch, local, known, None).await
}

async fn reopen_with(
    bucket: &Fixture,
    epoch: u32,
    local: &Local,
    known: Manifest,
    left: Option<LeftAt>,
) -> Result<Archive, Error> {
    let (published, deps) = (watch::Sender::new(Arc::new(known)), bucket.deps.clone());
    let with = OpenWith {
        has_garbage: true,
        left,
        ..OpenWith::default()
    };
    Archive::reopen(
        local,
        published,
        with,
        deps,
        PARTITION,
        LeaderEpoch::new(epoch),
    )
    .await
}

/// A partition with three commits of ten records each, after the opening.
async fn filled() -> Fixture {
    let bucket = Fixture::new(1);
    let mut archive = bucket.open(1).await.unwrap();
    for segment in bucket.segments(0, 3, 1) {
        archive.upload(&segment, &never()).await.unwrap();
    }
    bucket
}

async fn delete_versions(bucket: &Fixture, versions: std::ops::RangeInclusive<u64>) {
    let keys = versions.map(|version| Keys::new(PARTITION).manifest(ManifestVersion::new(version)));
    bucket.plain_store().delete(keys).await.unwrap();
}

#[tokio::test]
async fn an_owner_refuses_a_manifest_that_others_have_outlived_and_writes_nothing() {
    for deleted in [1..=4, 2..=4, 3..=4, 4..=4] {
        let bucket = filled().await;
        delete_versions(&bucket, deleted.clone()).await;
        let before = bucket.bucket().await;

        // Again and again, as restarts do it.
        for epoch in 2..5 {
            let error = reopen(&bucket, epoch, &Local::with(0, &[]))
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            let text = error.to_string();
            let base = (*deleted.start()).saturating_sub(2) * 10;
            let named = format!("segments/{base:020}-");
            assert!(text.contains(&named), "{deleted:?}: {text}");
        }

        let after = bucket.bucket().await;
        assert_eq!(before.len(), after.len(), "something was written");
    }
}

#[tokio::test]
async fn an_upload_that_was_never_committed_is_told_by_the_local_log() {
    let bucket = filled().await;
    let mut archive = bucket.open(2).await.unwrap();
    bucket.faults.inject(
        When::on(Op::Create).key("/manifest/").times(1),
        Trouble::Forbid,
    );
    let orphan = bucket.segment(30, 40, 2);
    archive.upload(&orphan, &never()).await.unwrap_err();
    bucket.faults.heal();
    drop(archive);
    let epochs = [(1, 0), (2, 30)];

    // One record less than it holds is a lost record.
    for end in [30, 39] {
        let error = reopen(&bucket, 3, &Local::with(end, &epochs)).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Corrupt);
    }
    let mut archive = reopen(&bucket, 3, &Local::with(40, &epochs)).await.unwrap();

    archive.upload(&orphan, &never()).await.unwrap();
    archive.collect_garbage().await.unwrap();
    bucket.assert_nothing_is_left_over().await;
}

#[tokio::test]
async fn what_a_deposed_leader_puts_late_does_not_keep_its_successor_from_starting() {
    let bucket = filled().await;
    let mut deposed = bucket.open(2).await.unwrap();
    drop(
        reopen(&bucket, 3, &Local::with(30, &[(1, 0)]))
            .await
            .unwrap(),
    );
    let late = bucket.segment(30, 40, 2);
    let error = deposed.upload(&late, &never()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced);

    let successor = Local::with(35, &[(1, 0), (3, 30)]);
    reopen(&bucket, 4, &successor).await.unwrap();
}

#[tokio::test]
async fn collection_deletes_nothing_above_the_manifest_it_holds() {
    for deleted in [2..=4, 3..=4, 4..=4] {
        let bucket = filled().await;
        delete_versions(&bucket, deleted).await;
        // An owner that did not ask, as earlier versions did not.
        let mut archive = bucket.open(2).await.unwrap();
        archive.request_scan();
        archive.collect_garbage().await.unwrap();
        assert_eq!(bucket.data_keys().await.len(), 3);
    }
}

#[tokio::test]
async fn an_owner_that_knows_a_longer_manifest_refuses_a_shorter_one() {
    let bucket = filled().await;
    let known = Manifest::clone(&*bucket.manifest().await);
    let all = bucket.bucket().await.into_iter().map(|object| object.key);
    bucket.plain_store().delete(all).await.unwrap();

    let error = reopen_knowing(&bucket, 2, &Local::with(30, &[]), known).await;

    assert_eq!(error.unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(bucket.bucket().await.is_empty(), "nothing is written");
}

#[tokio::test(start_paused = true)]
async fn an_owner_whose_newest_manifest_was_deleted_commits_nothing_more() {
    let bucket = filled().await;
    let mut archive = bucket.open(2).await.unwrap();
    tokio::time::advance(std::time::Duration::from_secs(600)).await;
    archive
        .upload(&bucket.segment(30, 40, 2), &never())
        .await
        .unwrap();
    let offsets = Offset::new(30)..Offset::new(40);
    see(&bucket.plain_store(), &archive.manifest(), &offsets)
        .await
        .unwrap();
    let all = bucket.bucket().await.into_iter().map(|object| object.key);
    bucket.plain_store().delete(all).await.unwrap();
    let error = see(&bucket.plain_store(), &archive.manifest(), &offsets).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Corrupt);
    tokio::time::advance(std::time::Duration::from_secs(600)).await;

    for _ in 0..2 {
        let error = archive
            .upload(&bucket.segment(40, 50, 2), &never())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
    assert_eq!(archive.manifest().tiered_offset(), Offset::new(40));
}

#[tokio::test(start_paused = true)]
async fn an_owner_whose_newest_manifest_was_replaced_is_fenced() {
    let bucket = filled().await;
    let mut archive = bucket.open(2).await.unwrap();
    let version = archive.manifest().header().version.get();
    delete_versions(&bucket, version..=version).await;
    let other = bucket.open(2).await.unwrap();
    assert_eq!(other.manifest().header().version.get(), version);
    tokio::time::advance(std::time::Duration::from_secs(600)).await;

    let late = bucket.segment(30, 40, 2);
    let error = archive.upload(&late, &never()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced);
    assert_eq!(bucket.manifest().await.tiered_offset(), Offset::new(30));
}

#[tokio::test]
async fn an_owner_checks_what_lies_above_a_manifest_it_did_not_expect() {
    let open_late = async |bucket: &Fixture, known: Manifest, end: u64| {
        let with = OpenWith {
            local: Some(LocalExtent {
                log_end_offset: Offset::new(end),
                epochs: EpochHistory::new(),
            }),
            ..OpenWith::default()
        };
        let (published, deps) = (watch::Sender::new(Arc::new(known)), bucket.deps.clone());
        Archive::open_into(published, with, deps, PARTITION, LeaderEpoch::new(2)).await
    };
    let bucket = filled().await;
    let newest = Manifest::clone(&*bucket.manifest().await);
    delete_versions(&bucket, 4..=4).await;
    let another = Manifest::create(CLUSTER, PARTITION);
    let before = bucket.bucket().await.len();

    let error = open_late(&bucket, another.clone(), 20).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let error = open_late(&bucket, newest, 30).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(bucket.bucket().await.len(), before, "nothing is written");
    open_late(&bucket, another, 30).await.unwrap();
}

/// Opens it on an empty disk, after an owner in epoch 1 left at this version.
async fn reopen_after(
    bucket: &Fixture,
    epoch: u32,
    version: u64,
    tiered_offset: u64,
) -> Result<Archive, Error> {
    let left = LeftAt {
        version: ManifestVersion::new(version),
        tiered_offset: Offset::new(tiered_offset),
        leader_epoch: LeaderEpoch::new(1),
    };
    let known = Manifest::create(CLUSTER, PARTITION);
    reopen_with(bucket, epoch, &Local::with(0, &[]), known, Some(left)).await
}

async fn rebuild(bucket: &Fixture) {
    let scrubber = Scrubber::new(bucket.plain_store(), TaskSet::new());
    let options = RebuildOptions {
        force: true,
        ..RebuildOptions::default()
    };
    let report = scrubber.rebuild_index(PARTITION, &*bucket.deps.ids, options);
    assert_eq!(report.await.unwrap().refusal, None);
}

#[tokio::test]
async fn a_manifest_older_than_what_its_last_owner_left_is_refused_until_it_is_repaired() {
    // The segments above went too; or only the log start had moved.
    for is_trim in [false, true] {
        let bucket = filled().await;
        if is_trim {
            let mut archive = bucket.open(1).await.unwrap();
            archive.trim_below(Offset::new(5)).await.unwrap();
            delete_versions(&bucket, 6..=6).await;
        } else {
            delete_versions(&bucket, 4..=4).await;
            let mut keys = bucket.data_keys().await;
            keys.retain(|key| key.contains("/00000000000000000020-"));
            assert_eq!(keys.len(), 1);
            bucket.plain_store().delete(keys).await.unwrap();
        }
        let version = if is_trim { 6 } else { 4 };
        let before = bucket.bucket().await.len();

        for epoch in 2..4 {
            let error = reopen_after(&bucket, epoch, version, 30).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            let key = Keys::new(PARTITION).manifest(ManifestVersion::new(version));
            let text = error.to_string();
            assert!(text.contains(&key) && text.contains("--force"), "{text}");
        }
        assert_eq!(bucket.bucket().await.len(), before, "nothing is written");

        // It ends where the segments do.
        rebuild(&bucket).await;
        let archive = reopen_after(&bucket, 4, version + 3, 30).await.unwrap();
        let end = if is_trim { 30 } else { 20 };
        assert_eq!(archive.manifest().tiered_offset(), Offset::new(end));
        // Whoever comes later follows what was accepted, also if that did not leave in order.
        reopen_after(&bucket, 5, version + 3, 30).await.unwrap();
    }
}

#[tokio::test]
async fn an_owner_goes_on_with_the_manifest_that_the_last_one_left() {
    let bucket = filled().await;
    reopen_after(&bucket, 2, 4, 30).await.unwrap();
    let bucket = Fixture::new(1);
    let error = reopen_after(&bucket, 2, 4, 30).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "all of it is gone");
}
