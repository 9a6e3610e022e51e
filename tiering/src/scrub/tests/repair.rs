//! A rebuild beside a live owner, and repair tools that meet the damage they are for.

use std::time::Duration;

use super::*;
use crate::store::Verb;

/// The put lands, its answer is lost, and so is that of the HEAD: the upload is given up, and the
/// next one puts a second copy.
async fn upload_twice(bucket: &Fixture, archive: &mut Archive) {
    let segment = bucket.segment(10, 20, 1);
    bucket.faults.inject(
        When::on(Op::Put).key("/segments/").times(1),
        Trouble::FailAfter,
    );
    bucket
        .faults
        .inject(When::on(Op::Head).times(1), Trouble::FailBefore);
    archive.upload(&segment, &never()).await.unwrap_err();
    bucket.faults.heal();
    archive.upload(&segment, &never()).await.unwrap();
}

#[tokio::test]
async fn a_rebuild_beside_a_live_owner_loses_neither_copy() {
    for seed in 0..20 {
        let bucket = Fixture::new(seed);
        let mut archive = bucket.open(1).await.unwrap();
        archive
            .upload(&bucket.segment(0, 10, 1), &never())
            .await
            .unwrap();
        upload_twice(&bucket, &mut archive).await;
        let newest = Keys::new(PARTITION).manifest(archive.manifest().header().version);
        overwrite(&bucket, &newest, |bytes| bytes.truncate(40)).await;

        let report = rebuild(&bucket, RebuildOptions::default()).await;

        assert_eq!(report.refusal, None);
        assert_eq!(bucket.manifest().await.tiered_offset(), Offset::new(20));
        let error = archive.collect_garbage().await.unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Fenced);
        assert!(verify(&bucket, Depth::Bytes).await.is_intact());
        let mut next = bucket.open(2).await.unwrap();
        next.collect_garbage().await.unwrap();
        assert!(verify(&bucket, Depth::Bytes).await.is_intact());
    }
}

/// The owner holds the other copy for dead: a rebuild that took it would lose it at any time.
#[tokio::test]
async fn a_rebuild_takes_the_copy_that_the_last_readable_manifest_names() {
    for seed in 0..20 {
        let bucket = Fixture::new(seed);
        let mut archive = bucket.open(1).await.unwrap();
        archive
            .upload(&bucket.segment(0, 10, 1), &never())
            .await
            .unwrap();
        upload_twice(&bucket, &mut archive).await;
        let named = bucket.named_keys().await;
        archive
            .upload(&bucket.segment(20, 30, 1), &never())
            .await
            .unwrap();
        let newest = Keys::new(PARTITION).manifest(archive.manifest().header().version);
        overwrite(&bucket, &newest, |bytes| bytes.truncate(40)).await;

        rebuild(&bucket, RebuildOptions::default()).await;

        let rebuilt = bucket.named_keys().await;
        assert!(named.iter().all(|key| rebuilt.contains(key)), "{rebuilt:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_segment_deleted_during_a_rebuild_is_replaced_by_its_double() {
    for seed in 0..8 {
        let bucket = Fixture::new(seed);
        let mut archive = bucket.open(1).await.unwrap();
        archive
            .upload(&bucket.segment(0, 10, 1), &never())
            .await
            .unwrap();
        upload_twice(&bucket, &mut archive).await;
        let newest = Keys::new(PARTITION).manifest(archive.manifest().header().version);
        overwrite(&bucket, &newest, |bytes| bytes.truncate(40)).await;
        let chosen = rebuild(
            &bucket,
            RebuildOptions {
                dry_run: true,
                ..RebuildOptions::default()
            },
        )
        .await
        .chosen;
        let doomed = Keys::new(PARTITION).segment(crate::keys::SegmentName {
            base_offset: chosen[1].base_offset,
            leader_epoch: chosen[1].leader_epoch,
            segment_id: chosen[1].segment_id,
        });
        bucket
            .faults
            .inject(When::on(Op::Head), Trouble::Delay(Duration::from_secs(1)));
        let scrubber = scrubber(&bucket);
        let ids = SeededIds::new(99);
        let mut rebuilding =
            Box::pin(scrubber.rebuild_index(PARTITION, &ids, RebuildOptions::default()));
        // The deletion of the old owner is under way until the manifest is written.
        let version = archive.manifest().header().version.get() + 1;
        let deletion = async {
            let key = Keys::new(PARTITION).manifest(ManifestVersion::new(version));
            let store = bucket.plain_store();
            while store.head(&key).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            store.delete([&doomed]).await.unwrap();
        };
        let (report, ()) = tokio::join!(&mut rebuilding, deletion);

        assert_eq!(report.unwrap().refusal, None);
        assert_eq!(bucket.manifest().await.tiered_offset(), Offset::new(20));
        assert!(verify(&bucket, Depth::Bytes).await.is_intact());
    }
}

#[tokio::test]
async fn an_empty_segment_is_damage_and_stops_neither_rebuild_nor_verification() {
    let (bucket, archive) = filled(3).await;
    let key = segment_keys(&archive.manifest())[2].clone();
    let newest = Keys::new(PARTITION).manifest(archive.manifest().header().version);
    overwrite(&bucket, &newest, |bytes| bytes.truncate(40)).await;
    overwrite(&bucket, &key, Vec::clear).await;

    let report = rebuild(&bucket, RebuildOptions::default()).await;

    assert_eq!(report.damaged.len(), 1);
    assert_eq!(report.damaged[0].key, key);
    assert_eq!(report.chosen.len(), 2);
    verify(&bucket, Depth::Bytes).await;
}

#[tokio::test]
async fn a_damaged_page_is_read_once_and_not_once_for_each_of_its_segments() {
    let (bucket, archive) = filled(1100).await;
    let page = Keys::new(PARTITION).page((&archive.manifest().pages()[0]).into());
    overwrite(&bucket, &page, |bytes| bytes[100] ^= 4).await;
    let before = bucket.deps.store.requests();

    let report = verify(&bucket, Depth::Sizes).await;

    let gets = bucket.deps.store.requests().since(&before).of(Verb::Get);
    assert!(gets < 20, "{gets}");
    assert_eq!(report.anomalies.len(), 1, "{report:?}");
    assert_eq!(report.anomalies[0].key, page);
}

#[tokio::test]
async fn the_next_start_leads_however_often_a_manifest_was_rebuilt() {
    let (bucket, archive) = filled(3).await;
    drop(archive);
    let forced = RebuildOptions {
        force: true,
        ..RebuildOptions::default()
    };
    for _ in 0..3 {
        rebuild(&bucket, forced).await;
    }
    let opened = bucket.open(2).await.unwrap();
    assert_eq!(opened.manifest().tiered_offset(), Offset::new(30));
}

#[tokio::test]
async fn a_named_segment_stays_named_although_its_trailer_is_damaged() {
    let (bucket, archive) = filled(4).await;
    let keys = segment_keys(&archive.manifest());
    let original = archive.manifest();
    for key in [&keys[1], &keys[3]] {
        overwrite(&bucket, key, |bytes| {
            let end = bytes.len() - 30;
            bytes[end] ^= 4;
        })
        .await;
    }
    let forced = RebuildOptions {
        force: true,
        ..RebuildOptions::default()
    };

    let report = rebuild(&bucket, forced).await;

    assert_eq!(report.damaged.len(), 2);
    let rebuilt = bucket.manifest().await;
    assert_eq!(rebuilt.head(), original.head());
    assert_eq!(rebuilt.producers(), original.producers());
}

#[tokio::test]
async fn a_damaged_partition_is_skipped_and_the_others_are_collected() {
    let (bucket, archive) = filled(3).await;
    let newest = Keys::new(PARTITION).manifest(archive.manifest().header().version);
    overwrite(&bucket, &newest, |bytes| bytes.truncate(40)).await;
    let mut neighbour = PARTITION;
    neighbour.partition = PartitionId::new(30);
    let mut archive = bucket.open_at(neighbour, 1).await.unwrap();
    for part in bucket.segments(0, 2, 1).chunks(2) {
        archive.upload_many(part, &never()).await.unwrap();
    }
    archive.trim_below(Offset::new(10)).await.unwrap();

    let plan = scrubber(&bucket).plan_garbage(None).await.unwrap();

    assert_eq!(plan.unjudged.len(), 1);
    assert_eq!(plan.unjudged[0].topic_partition, PARTITION);
    assert!(plan.unjudged[0].reason.contains(&newest), "{plan:?}");
    assert_eq!(plan.objects.len(), 1);
    scrubber(&bucket).delete_garbage(&plan).await.unwrap();
    assert!(
        bucket
            .plain_store()
            .head(&plan.objects[0].key)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn an_old_plan_deletes_nothing_that_a_repair_has_named_since() {
    let (bucket, archive) = filled(3).await;
    drop(archive);
    let keys = segment_keys(&*bucket.manifest().await);
    let plan = GarbagePlan {
        objects: vec![GarbageObject {
            key: keys[1].clone(),
            size_bytes: 1,
            reason: crate::archive::Reason::Orphan,
        }],
        unjudged: Vec::new(),
    };
    scrubber(&bucket).delete_garbage(&plan).await.unwrap();
    bucket.assert_nothing_dangles().await;
}

#[tokio::test]
async fn deleted_manifests_are_noticed_by_all_tools_and_repaired_without_a_loss() {
    for deleted in [4..=4u64, 3..=4, 1..=4] {
        let bucket = Fixture::new(7);
        let mut archive = bucket.open(1).await.unwrap();
        for segment in bucket.segments(0, 3, 1) {
            archive.upload(&segment, &never()).await.unwrap();
        }
        drop(archive);
        let keys = deleted
            .clone()
            .map(|version| Keys::new(PARTITION).manifest(ManifestVersion::new(version)));
        bucket.plain_store().delete(keys).await.unwrap();

        let report = verify(&bucket, Depth::Sizes).await;
        assert!(!report.is_intact(), "{deleted:?}: {report:?}");
        let plan = scrubber(&bucket).plan_garbage(None).await.unwrap();
        assert!(plan.objects.is_empty(), "{deleted:?}: {plan:?}");

        let report = rebuild(&bucket, RebuildOptions::default()).await;

        assert_eq!(report.refusal, None, "{deleted:?}");
        assert_eq!(bucket.manifest().await.tiered_offset(), Offset::new(30));
        assert!(verify(&bucket, Depth::Bytes).await.is_intact());
    }
}

#[tokio::test(start_paused = true)]
async fn a_verification_waits_for_an_owner_that_is_about_to_commit() {
    let (bucket, mut archive) = filled(3).await;
    bucket.faults.inject(
        When::on(Op::Create).key("/manifest/"),
        Trouble::Delay(Duration::from_secs(5)),
    );
    let segment = bucket.segment(30, 40, 1);
    let patient = scrubber(&bucket).with_patience(Duration::from_secs(20));
    let verifying = async {
        while bucket.data_keys().await.len() < 4 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let hasty = verify(&bucket, Depth::Sizes).await;
        (hasty, patient.verify(None, Depth::Sizes).await.unwrap())
    };
    let cancel = never();
    let (uploaded, (hasty, patient)) = tokio::join!(archive.upload(&segment, &cancel), verifying);
    uploaded.unwrap();
    assert!(!hasty.is_intact());
    assert!(patient.is_intact(), "{patient:?}");
}

#[tokio::test]
async fn a_damaged_boundary_is_repaired() {
    let bucket = Fixture::new(7);
    let mut archive = bucket.open(1).await.unwrap();
    archive
        .upload(&bucket.segment(0, 500, 1), &never())
        .await
        .unwrap();
    for offset in 1..=330 {
        archive.trim_below(Offset::new(offset)).await.unwrap();
    }
    archive.collect_garbage().await.unwrap();
    let key = Keys::new(PARTITION).boundary(1);
    overwrite(&bucket, &key, |bytes| bytes[9] ^= 1).await;
    assert!(!verify(&bucket, Depth::Sizes).await.is_intact());

    let report = rebuild(&bucket, RebuildOptions::default()).await;

    assert_eq!(report.refusal, None);
    assert!(verify(&bucket, Depth::Bytes).await.is_intact());
    let mut next = bucket.open(2).await.unwrap();
    assert_eq!(next.manifest().log_start_offset(), Offset::new(330));
    next.collect_garbage().await.unwrap();
}

#[tokio::test]
async fn a_forced_repair_leaves_nothing_that_keeps_an_agent_from_starting() {
    let bucket = Fixture::new(7);
    let mut archive = bucket.open(1).await.unwrap();
    for segment in bucket.segments(0, 3, 1) {
        archive.upload(&segment, &never()).await.unwrap();
    }
    drop(archive);
    // A leader of epoch 2 that began at 10: what epoch 1 has above was overtaken.
    let mut archive = bucket.open_at(PARTITION, 2).await.unwrap();
    archive
        .upload(&bucket.segment(30, 40, 2), &never())
        .await
        .unwrap();
    drop(archive);
    delete_manifests(&bucket).await;
    let keys = bucket.data_keys().await;
    bucket.plain_store().delete([&keys[3]]).await.unwrap();
    let forced = RebuildOptions {
        force: true,
        ..RebuildOptions::default()
    };
    assert_eq!(rebuild(&bucket, forced).await.refusal, None);
    assert!(verify(&bucket, Depth::Bytes).await.is_intact());
}

/// Flips bits of every object, one after the other. `step` bytes lie between two of them.
#[tokio::test]
async fn any_bit_flipped_in_any_object_is_found_by_a_deep_verification() {
    let bucket = Fixture::new(7);
    let mut archive = bucket.open(1).await.unwrap();
    for segment in bucket.segments(0, 3, 1) {
        archive.upload(&segment, &never()).await.unwrap();
    }
    drop(archive);
    let store = bucket.plain_store();
    let (mut flips, scrubber) = (0u32, scrubber(&bucket));
    for object in bucket.bucket().await {
        let whole = store.get(&object.key).await.unwrap();
        // Each byte of segments, every seventh of manifests: a bit in each, another one each time.
        let step = if object.key.contains("/segments/") {
            1
        } else {
            7
        };
        for at in (0..whole.len()).step_by(step) {
            let mut bytes = whole.to_vec();
            bytes[at] ^= 1 << (at % 8);
            store.delete([&object.key]).await.unwrap();
            store.put_object(&object.key, bytes).await.unwrap();

            let report = scrubber.verify(None, Depth::Bytes).await.unwrap();

            let is_found = report.anomalies.iter().any(|found| {
                found.key == object.key || found.damage.to_string().contains(&object.key)
            });
            assert!(is_found, "{}: byte {at}: {report:?}", object.key);
            flips += 1;
        }
        store.delete([&object.key]).await.unwrap();
        store.put_object(&object.key, whole).await.unwrap();
    }
    assert!(flips > 1000, "{flips}");
    assert!(verify(&bucket, Depth::Bytes).await.anomalies.is_empty());
}

/// Restores nothing, and gives nothing up unless told to.
async fn refused(bucket: &Fixture) -> Refusal {
    let before = bucket.manifest().await;
    let report = rebuild(bucket, RebuildOptions::default()).await;
    assert_eq!(report.manifest, None);
    assert_eq!(bucket.manifest().await, before);
    report.refusal.unwrap()
}

#[tokio::test]
async fn a_segment_that_is_gone_at_either_end_is_not_given_up_unless_forced() {
    for (gone, lost, left) in [
        (0, Offset::new(0)..Offset::new(10), 10..30),
        (2, Offset::new(20)..Offset::new(30), 0..20),
    ] {
        let (bucket, archive) = filled(3).await;
        let key = &segment_keys(&archive.manifest())[gone];
        bucket.plain_store().delete([key]).await.unwrap();

        assert_eq!(refused(&bucket).await, Refusal::Holes(vec![lost.clone()]));

        let forced = RebuildOptions {
            force: true,
            ..RebuildOptions::default()
        };
        let report = rebuild(&bucket, forced).await;
        assert_eq!((report.refusal, report.lost), (None, vec![lost]));
        let manifest = bucket.manifest().await;
        let range = manifest.log_start_offset().get()..manifest.tiered_offset().get();
        assert_eq!(range, left);
    }
}

#[tokio::test]
async fn a_last_segment_without_a_trailer_is_not_given_up_unless_forced() {
    let (bucket, archive) = filled(3).await;
    let keys = segment_keys(&archive.manifest());
    overwrite(&bucket, &keys[2], |bytes| bytes.truncate(bytes.len() - 5)).await;
    delete_manifests(&bucket).await;

    let report = rebuild(&bucket, RebuildOptions::default()).await;
    let unreadable = Refusal::Unreadable {
        key: keys[2].clone(),
        base_offset: Offset::new(20),
    };
    assert_eq!(report.refusal, Some(unreadable));

    let forced = RebuildOptions {
        force: true,
        ..RebuildOptions::default()
    };
    assert_eq!(rebuild(&bucket, forced).await.refusal, None);
    assert_eq!(bucket.manifest().await.tiered_offset(), Offset::new(20));
}

#[tokio::test(start_paused = true)]
async fn a_segment_that_goes_during_a_rebuild_is_not_given_up_unless_forced() {
    let (bucket, archive) = filled(3).await;
    let manifest = archive.manifest();
    let newest = Keys::new(PARTITION).manifest(manifest.header().version);
    overwrite(&bucket, &newest, |bytes| bytes.truncate(40)).await;
    let commit = When::on(Op::Create).key("/manifest/").times(1);
    bucket
        .faults
        .inject(commit, Trouble::Delay(Duration::from_secs(2)));

    let deletion = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let last = &segment_keys(&manifest)[2];
        bucket.plain_store().delete([last]).await.unwrap();
    };
    let (report, ()) = tokio::join!(rebuild(&bucket, RebuildOptions::default()), deletion);

    let gone = Offset::new(20)..Offset::new(30);
    assert_eq!(report.refusal, Some(Refusal::Holes(vec![gone])));
    assert_eq!(bucket.manifest().await.tiered_offset(), Offset::new(30));
}
