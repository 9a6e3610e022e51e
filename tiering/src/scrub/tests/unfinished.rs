//! What a killed process left in a directory.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures::TryStreamExt;
use prometheus::Registry;

use super::*;
use crate::{
    archive::Reason,
    env::{Clock, SystemClock},
    keys::Key,
    store::{Store, StoreOptions},
};

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(SystemClock.now().get().unsigned_abs())
}

const HOUR: Duration = Duration::from_secs(3600);

/// A store in a directory, with one whole object.
async fn directory(dir: &Path) -> Store {
    let url = format!("file://{}/bucket", dir.display()).parse().unwrap();
    let store = Store::open(&url, StoreOptions::default(), &Registry::new()).await;
    let store = store.unwrap();
    store
        .put_object(&Key::Cluster.to_string(), "{}")
        .await
        .unwrap();
    store
}

/// Writes the file of a put that did not end, last changed so long ago.
fn leave(dir: &Path, key: &str, age: Duration) -> PathBuf {
    let path = dir.join("bucket").join(key);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "0123456789").unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(now() - age).unwrap();
    path
}

#[tokio::test]
async fn puts_that_never_ended_are_counted_and_deleted_after_a_day() {
    let dir = tempfile::tempdir().unwrap();
    let store = directory(dir.path()).await;
    let segment = |number: u64| {
        let name = crate::keys::SegmentName {
            base_offset: Offset::new(number),
            leader_epoch: esker_proto::types::LeaderEpoch::new(1),
            segment_id: esker_proto::types::SegmentId::new(uuid::Uuid::from_u128(7)),
        };
        Keys::new(PARTITION).segment(name)
    };
    let manifest = Keys::new(PARTITION).manifest(ManifestVersion::new(1));
    let old = [
        leave(dir.path(), &format!("{}#1", segment(0)), 25 * HOUR),
        leave(dir.path(), &format!("{manifest}#12"), 25 * HOUR),
        leave(dir.path(), "cluster.json#1", 48 * HOUR),
    ];
    let kept = [
        // It may be under way.
        leave(dir.path(), &format!("{}#1", segment(10)), 23 * HOUR),
        leave(dir.path(), "notes.txt#1", 48 * HOUR),
        leave(dir.path(), &format!("{}#1x", segment(0)), 48 * HOUR),
        dir.path().join("bucket/cluster.json"),
    ];
    let scrubber = Scrubber::new(store.clone(), TaskSet::new());
    // As a store hides it.
    let listed: Vec<_> = store.list(Keys::TOPICS, None).try_collect().await.unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");

    let report = scrubber.verify(None, Depth::Sizes).await.unwrap();
    assert_eq!((report.unfinished, report.unfinished_bytes), (4, 40));
    let report = scrubber
        .verify(Some(PARTITION), Depth::Sizes)
        .await
        .unwrap();
    assert_eq!(report.unfinished, 3);

    let plan = scrubber.plan_garbage(None).await.unwrap();
    assert_eq!(plan.totals()[&Reason::Unfinished], (3, 30));
    assert!(
        old.iter().all(|path| path.exists()),
        "a plan deletes nothing"
    );
    // One of them goes on after all.
    let revived = fs::File::options().write(true).open(&old[2]).unwrap();
    revived.set_modified(now()).unwrap();
    scrubber.delete_garbage(&plan).await.unwrap();

    assert!(!old[0].exists() && !old[1].exists() && old[2].exists());
    assert!(kept.iter().all(|path| path.exists()), "{kept:?}");
    let plan = scrubber.plan_garbage(None).await.unwrap();
    assert!(plan.objects.is_empty(), "{plan:?}");
}
