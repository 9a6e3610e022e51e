//! Planted damage is found, a lost manifest comes back, and nothing live is called garbage.

mod repair;
mod unfinished;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use esker_index::Manifest;
use esker_proto::types::{ManifestVersion, Offset, PartitionId, TopicPartition};
use futures::TryStreamExt;

use super::*;
use crate::{
    archive::{
        Archive,
        tests::fixture::{Fixture, PARTITION, never},
    },
    env::SeededIds,
    keys::Keys,
    testing::{Op, Trouble, When},
};

async fn filled(segments: u64) -> (Fixture, Archive) {
    let bucket = Fixture::new(7);
    let mut archive = bucket.open(1).await.unwrap();
    for part in bucket.segments(0, segments, 1).chunks(32) {
        archive.upload_many(part, &never()).await.unwrap();
    }
    (bucket, archive)
}

fn scrubber(bucket: &Fixture) -> Scrubber {
    Scrubber::new(bucket.deps.store.clone(), bucket.deps.tasks.clone())
}

fn segment_keys(manifest: &Manifest) -> Vec<String> {
    let keys = Keys::new(PARTITION);
    manifest
        .head()
        .segments()
        .iter()
        .map(|meta| keys.segment(meta.into()))
        .collect()
}

async fn overwrite(bucket: &Fixture, key: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let store = bucket.plain_store();
    let mut bytes = store.get(key).await.unwrap().to_vec();
    change(&mut bytes);
    store.delete([key]).await.unwrap();
    store.put_object(key, bytes).await.unwrap();
}

async fn verify(bucket: &Fixture, depth: Depth) -> VerifyReport {
    scrubber(bucket).verify(None, depth).await.unwrap()
}

#[tokio::test]
async fn an_intact_bucket_is_found_intact() {
    let (bucket, _archive) = filled(40).await;
    let seen = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&seen);
    let scrubber = scrubber(&bucket).with_progress(move |progress| {
        counter.store(progress.segments, Ordering::Relaxed);
    });

    let report = scrubber
        .verify(Some(PARTITION), Depth::Bytes)
        .await
        .unwrap();

    assert!(
        report.is_intact() && report.anomalies.is_empty(),
        "{report:?}"
    );
    assert_eq!(
        (report.partitions, report.segments, report.orphans),
        (1, 40, 0)
    );
    assert_eq!(seen.load(Ordering::Relaxed), 40);
}

#[tokio::test]
async fn each_planted_damage_is_found_and_named() {
    let (bucket, archive) = filled(6).await;
    let keys = segment_keys(&archive.manifest());
    bucket.plain_store().delete([&keys[0]]).await.unwrap();
    overwrite(&bucket, &keys[1], |bytes| bytes.truncate(70)).await;
    overwrite(&bucket, &keys[2], |bytes| bytes[150] ^= 4).await;
    overwrite(&bucket, &keys[3], |bytes| {
        let end = bytes.len() - 30;
        bytes[end] ^= 4;
    })
    .await;
    let stranger = format!("{}/notes.txt", Keys::new(PARTITION).folder());
    bucket
        .plain_store()
        .put_object(&stranger, "x")
        .await
        .unwrap();

    let shallow = verify(&bucket, Depth::Sizes).await;
    let deep = verify(&bucket, Depth::Bytes).await;

    let damaged = |report: &VerifyReport| {
        let mut keys: Vec<_> = report
            .anomalies
            .iter()
            .map(|found| found.key.clone())
            .collect();
        keys.sort();
        keys
    };
    let with_stranger = |keys: &[String]| {
        let mut keys = [keys, std::slice::from_ref(&stranger)].concat();
        keys.sort();
        keys
    };
    assert_eq!(damaged(&shallow), with_stranger(&keys[..2]));
    assert_eq!(damaged(&deep), with_stranger(&keys[..4]));
    let of = |key: &String| {
        deep.anomalies
            .iter()
            .find(|found| found.key == *key)
            .unwrap()
    };
    assert_eq!(of(&keys[0]).damage, Damage::Missing);
    assert_eq!(of(&keys[0]).offsets, Some(Offset::new(0)..Offset::new(10)));
    assert!(matches!(of(&keys[1]).damage, Damage::Truncated { .. }));
    assert!(matches!(of(&keys[2]).damage, Damage::Corrupt { .. }));
    assert!(!deep.is_intact());
}

#[tokio::test]
async fn a_stale_listing_is_no_damage() {
    let (bucket, _archive) = filled(6).await;
    bucket
        .faults
        .inject(When::on(Op::List), Trouble::StaleList(3));

    let report = verify(&bucket, Depth::Sizes).await;

    assert!(report.anomalies.is_empty(), "{report:?}");
    assert_eq!(report.segments, 6);
}

#[tokio::test]
async fn segments_without_a_manifest_are_damage_and_never_garbage() {
    let (bucket, archive) = filled(3).await;
    let newest = Keys::new(PARTITION).manifest(archive.manifest().header().version);
    overwrite(&bucket, &newest, |bytes| bytes.truncate(40)).await;
    let report = verify(&bucket, Depth::Sizes).await;
    assert!(
        matches!(report.anomalies[0].damage, Damage::NoManifest { .. }),
        "{report:?}"
    );
    let plan = scrubber(&bucket).plan_garbage(None).await.unwrap();
    assert!(plan.objects.is_empty());
    assert_eq!(plan.unjudged[0].topic_partition, PARTITION);

    delete_manifests(&bucket).await;
    let report = verify(&bucket, Depth::Sizes).await;
    assert!(
        matches!(report.anomalies[0].damage, Damage::NoManifest { .. }),
        "{report:?}"
    );
    let plan = scrubber(&bucket).plan_garbage(None).await.unwrap();
    assert!(plan.objects.is_empty());
    assert_eq!(plan.unjudged[0].topic_partition, PARTITION);
}

async fn delete_manifests(bucket: &Fixture) {
    let keys = Keys::new(PARTITION);
    let versions = (1..100).map(|version| keys.manifest(ManifestVersion::new(version)));
    bucket.plain_store().delete(versions).await.unwrap();
}

#[tokio::test]
async fn garbage_is_planned_first_and_deleted_then() {
    let (bucket, mut archive) = filled(4).await;
    archive.trim_below(Offset::new(20)).await.unwrap();
    drop(archive);
    drop(bucket.open(2).await.unwrap());
    let scrubber = scrubber(&bucket);

    let plan = scrubber.plan_garbage(None).await.unwrap();

    assert_eq!(plan.objects.len(), 2);
    assert_eq!(bucket.data_keys().await.len(), 4, "a plan deletes nothing");
    scrubber.delete_garbage(&plan).await.unwrap();
    bucket.assert_nothing_is_left_over().await;
    assert!(
        scrubber
            .plan_garbage(None)
            .await
            .unwrap()
            .objects
            .is_empty()
    );
}

async fn rebuild(bucket: &Fixture, options: RebuildOptions) -> RebuildReport {
    let ids = SeededIds::new(99);
    scrubber(bucket)
        .rebuild_index(PARTITION, &ids, options)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_lost_manifest_is_rebuilt_from_the_segments_alone() {
    let (bucket, archive) = filled(1100).await;
    let original = archive.manifest();
    assert_eq!(original.pages().len(), 1);
    let page = Keys::new(PARTITION).page((&original.pages()[0]).into());
    delete_manifests(&bucket).await;
    bucket.plain_store().delete([page]).await.unwrap();
    let dry = rebuild(
        &bucket,
        RebuildOptions {
            dry_run: true,
            ..RebuildOptions::default()
        },
    )
    .await;
    assert_eq!(dry.chosen.len(), 1100);
    assert!(
        crate::archive::view(&bucket.plain_store(), PARTITION)
            .await
            .unwrap()
            .is_none()
    );

    let report = rebuild(&bucket, RebuildOptions::default()).await;

    assert_eq!(report.refusal, None);
    let rebuilt = bucket.manifest().await;
    assert_eq!(rebuilt.head(), original.head());
    // An opening: the collection of versions must never delete it.
    assert_eq!(rebuilt.header().nonce % 2, 1);
    assert_eq!(rebuilt.tiered_offset(), original.tiered_offset());
    assert_eq!(rebuilt.segment_count(), original.segment_count());
    assert_eq!(rebuilt.bucket_bytes(), original.bucket_bytes());
    assert_eq!(rebuilt.epochs(), original.epochs());
    assert_eq!(rebuilt.producers(), original.producers());
    assert!(verify(&bucket, Depth::Bytes).await.is_intact());
    let next = bucket
        .open(report.manifest.unwrap().header().leader_epoch.next().get())
        .await;
    next.unwrap()
        .upload(&bucket.segment(11_000, 11_020, 2), &never())
        .await
        .unwrap();
    bucket.assert_nothing_is_left_over().await;
}

#[tokio::test]
async fn a_damaged_manifest_is_replaced_and_its_trim_is_kept() {
    let (bucket, mut archive) = filled(5).await;
    archive.trim_below(Offset::new(15)).await.unwrap();
    archive
        .upload(&bucket.segment(50, 60, 1), &never())
        .await
        .unwrap();
    let newest = Keys::new(PARTITION).manifest(archive.manifest().header().version);
    overwrite(&bucket, &newest, |bytes| bytes.truncate(40)).await;

    let report = rebuild(&bucket, RebuildOptions::default()).await;

    assert_eq!(report.refusal, None);
    let rebuilt = bucket.manifest().await;
    assert_eq!(rebuilt.log_start_offset(), Offset::new(15));
    assert_eq!(rebuilt.tiered_offset(), Offset::new(60));
    let error = archive.trim_below(Offset::new(20)).await.unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::Fenced);
    drop(bucket.open(3).await.unwrap());
}

#[tokio::test]
async fn an_intact_manifest_is_left_alone_and_holes_are_refused() {
    let (bucket, archive) = filled(4).await;
    let before = bucket.bucket().await;
    assert_eq!(
        rebuild(&bucket, RebuildOptions::default()).await.refusal,
        Some(Refusal::Intact)
    );

    bucket
        .plain_store()
        .delete([&segment_keys(&archive.manifest())[1]])
        .await
        .unwrap();
    let report = rebuild(&bucket, RebuildOptions::default()).await;
    let hole = Offset::new(0)..Offset::new(20);
    assert_eq!(report.refusal, Some(Refusal::Holes(vec![hole])));
    assert_eq!(
        bucket.bucket().await.len(),
        before.len() - 1,
        "a refusal writes nothing"
    );

    let forced = RebuildOptions {
        force: true,
        ..RebuildOptions::default()
    };
    assert_eq!(rebuild(&bucket, forced).await.refusal, None);
    assert_eq!(bucket.manifest().await.log_start_offset(), Offset::new(20));
}

#[tokio::test]
async fn a_bucket_without_segments_is_not_rebuilt() {
    let bucket = Fixture::new(1);
    assert_eq!(
        rebuild(&bucket, RebuildOptions::default()).await.refusal,
        Some(Refusal::NoSegments)
    );
}

#[tokio::test]
async fn a_folder_restored_into_another_partitions_place_is_damage() {
    let (bucket, _archive) = filled(3).await;
    let other = TopicPartition {
        partition: PartitionId::new(PARTITION.partition.get() + 1),
        ..PARTITION
    };
    let (from, to) = (Keys::new(PARTITION).folder(), Keys::new(other).folder());
    let store = bucket.plain_store();
    let listed: Vec<_> = store.list(&from, None).try_collect().await.unwrap();
    for object in &listed {
        let body = store.get(&object.key).await.unwrap();
        let key = object.key.replacen(&from, &to, 1);
        store.put_object(&key, body).await.unwrap();
    }

    let report = verify(&bucket, Depth::Sizes).await;

    let damaged: Vec<_> = report
        .anomalies
        .iter()
        .map(|found| found.topic_partition)
        .collect();
    assert_eq!(damaged, [other], "{report:?}");
    let error = crate::archive::view(&store, other).await.unwrap_err();
    assert!(
        error.to_string().contains("belongs to partition"),
        "{error}"
    );
    let plan = scrubber(&bucket).plan_garbage(None).await.unwrap();
    assert!(plan.objects.is_empty(), "{plan:?}");
    // Its segments are another's too.
    let ids = SeededIds::new(99);
    let rebuilt = scrubber(&bucket)
        .rebuild_index(other, &ids, RebuildOptions::default())
        .await;
    assert_eq!(rebuilt.unwrap().refusal, Some(Refusal::NoSegments));
}
