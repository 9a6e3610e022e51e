use std::path::Path;

use bytes::Bytes;
use esker_index::{EpochHistory, IndexBuilder, retention::RetentionPolicy};
use esker_proto::{
    batch::{BatchBuilder, Compression, RecordBatch},
    types::{PartitionId, TimestampMs, TopicId},
};
use esker_tiering::{
    archive::{ArchiveMetrics, PartSizes, UploadBudget, delete_everything},
    chain::RetryPolicy,
    env::{SeededIds, SystemClock, TaskSet},
    store::Store,
};
use prometheus::Registry as Metrics;
use tempfile::TempDir;
use uuid::Uuid;

use super::*;
use crate::config::{Sources, load};

const AT: TopicPartition = TopicPartition {
    topic_id: TopicId::new(Uuid::from_u128(7)),
    partition: PartitionId::new(0),
};
const EPOCH: LeaderEpoch = LeaderEpoch::new(1);

/// One partition's archiver on a bucket in memory, and the ends that others hold.
struct Bench {
    sealed: watch::Sender<Sealed>,
    superfluous: watch::Sender<Superfluous>,
    manifest: watch::Receiver<Arc<Manifest>>,
    asks: mpsc::Sender<Ask>,
    tasks: TaskSet,
    deps: ArchiveDeps,
    dir: TempDir,
    actor: mpsc::Receiver<Message>,
}

impl Bench {
    fn start() -> Self {
        let (tasks, registry, cluster_id) = (
            TaskSet::new(),
            Metrics::new(),
            ClusterId::new(Uuid::from_u128(1)),
        );
        let store = Store::in_memory();
        let clocks = Clocks::new(Arc::new(SystemClock), store.clone());
        let deps = ArchiveDeps {
            store,
            clock: Arc::new(SystemClock),
            ids: Arc::new(SeededIds::new(1)),
            tasks: tasks.clone(),
            budget: UploadBudget::default(),
            metrics: ArchiveMetrics::register(&registry).unwrap(),
            parts: PartSizes::default(),
            policy: RetryPolicy::default(),
        };
        let context = ArchiverContext {
            cluster_id,
            deps: deps.clone(),
            retention_clock: Arc::new(RetentionClock::register(clocks.clone(), &registry).unwrap()),
            clocks,
            registry: Arc::new(Registry::default()),
            retention_interval: Duration::from_secs(3600),
            stores_again: watch::Sender::new(0),
        };
        let mut settings =
            PartitionSettings::resolve(&load(&Sources::default()).unwrap(), &Default::default());
        // The records are old: they would go at once.
        settings.retention = RetentionPolicy::default();
        let (sealed, sealed_out) = watch::channel(Sealed::default());
        let superfluous = watch::Sender::new(Superfluous::default());
        let (manifest_in, manifest) = watch::channel(Arc::new(Manifest::create(cluster_id, AT)));
        let (asks, asks_out) = mpsc::channel(8);
        let (to_actor, actor) = mpsc::channel(1);
        let archiver = Archiver {
            context: Arc::new(context),
            at: AT,
            leader_epoch: EPOCH,
            archive: None,
            with: OpenWith::default(),
            is_confirmed: Arc::default(),
            sealed: sealed_out,
            superfluous: superfluous.subscribe(),
            manifest: manifest_in,
            settings: watch::Sender::new(settings).subscribe(),
            asks: asks_out,
            actor: to_actor,
            cancel: tasks.token().clone(),
            scan_at: None,
        };
        tasks.spawn("archiver", archiver.run());
        let dir = tempfile::tempdir().unwrap();
        Self {
            sealed,
            superfluous,
            manifest,
            asks,
            tasks,
            deps,
            dir,
            actor,
        }
    }

    /// Seals `count` segments of one record each, from offset 0 on.
    fn seal(&self, count: u64) {
        let segments = (0..count).map(|base| segment(self.dir.path(), base));
        self.sealed.send_replace(Sealed {
            segments: segments.collect(),
            next_offset: Offset::new(count),
            is_awaited: false,
        });
    }

    async fn trim(&self, offset: u64) {
        let (done, answer) = oneshot::channel();
        let offset = Offset::new(offset);
        self.asks
            .send(Ask::Trim(Trim { offset, done }))
            .await
            .unwrap();
        assert_eq!(answer.await.unwrap().unwrap(), offset);
    }

    fn tiered_offset(&self) -> u64 {
        self.manifest.borrow().tiered_offset().get()
    }

    async fn tiered(&mut self, offset: u64) {
        let reached = |manifest: &Arc<Manifest>| manifest.tiered_offset().get() >= offset;
        self.manifest.wait_for(reached).await.unwrap();
    }
}

fn segment(dir: &Path, base: u64) -> SealedSegment {
    let mut builder = BatchBuilder::new(Compression::None);
    builder
        .push(TimestampMs::new(0), None, Some(b"value"), &[])
        .unwrap();
    let batch = RecordBatch::validate(builder.finish(None)).unwrap();
    let (header, body) = batch.stamped(Offset::new(base), EPOCH);
    let bytes: Bytes = [&header[..], &body[..]].concat().into();
    let path = dir.join(format!("{base:020}.log"));
    std::fs::write(&path, &bytes).unwrap();
    let mut index = IndexBuilder::new();
    index.push(RecordBatch::validate(bytes.clone()).unwrap().header());
    let mut epochs = EpochHistory::new();
    epochs.push(EPOCH, Offset::ZERO).unwrap();
    SealedSegment {
        path,
        base_offset: Offset::new(base),
        next_offset: Offset::new(base + 1),
        size_bytes: bytes.len() as u64,
        entries: index.finish().into(),
        epochs,
        producers: Bytes::new(),
    }
}

#[tokio::test]
async fn a_trim_is_served_between_the_commits_of_a_backlog() {
    let mut bench = Bench::start();
    let backlog = 12 * SEGMENTS_PER_COMMIT_MAX as u64;
    bench.seal(backlog);
    bench.tiered(1).await;

    bench.trim(1).await;

    assert!(bench.tiered_offset() < backlog, "the backlog went first");
    bench.tiered(backlog).await;
    bench.tasks.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn uploads_continue_under_trims_without_end() {
    let mut bench = Bench::start();
    bench.seal(2 * SEGMENTS_PER_COMMIT_MAX as u64);
    bench.tiered(1).await;
    let asks = bench.asks.clone();
    let flood = async {
        loop {
            let (done, _) = oneshot::channel();
            let offset = Offset::ZERO;
            asks.send(Ask::Trim(Trim { offset, done })).await.unwrap();
        }
    };

    tokio::select! {
        () = flood => {}
        () = bench.tiered(2 * SEGMENTS_PER_COMMIT_MAX as u64) => {}
    }

    bench.tasks.shutdown(Duration::from_secs(5)).await;
}

/// A repair that ran while the agent was away wrote a manifest that the agent does not know.
#[tokio::test]
async fn a_remembered_manifest_is_confirmed_and_replaced_by_a_newer_one() {
    let bench = Bench::start();
    let cluster_id = bench.manifest.borrow().header().cluster_id;
    let (deps, before) = (bench.deps.clone(), LeaderEpoch::new(0));
    drop(Archive::open(deps, AT, cluster_id, before).await.unwrap());
    assert_eq!(bench.manifest.borrow().header().version.get(), 0);

    let (done, answer) = oneshot::channel();
    bench.asks.send(Ask::Confirm(done)).await.unwrap();
    answer.await.unwrap().unwrap();

    assert_eq!(bench.manifest.borrow().header().version.get(), 2);
    bench.tasks.shutdown(Duration::from_secs(5)).await;
}

/// Who holds a directory knows nothing of what happened to the bucket.
#[tokio::test]
async fn local_copies_may_go_once_the_bucket_was_seen_to_have_them_and_not_before() {
    let mut bench = Bench::start();
    bench.seal(2);
    bench.tiered(2).await;
    let superfluous = |end| Superfluous {
        offsets: Offset::ZERO..Offset::new(end),
        is_urgent: true,
    };

    bench.superfluous.send_replace(superfluous(1));
    let allowed = bench.actor.recv().await.unwrap();
    assert!(matches!(allowed, Message::Drop { below } if below.get() == 1));

    delete_everything(&bench.deps.store, AT, &CancellationToken::new())
        .await
        .unwrap();
    bench.superfluous.send_replace(superfluous(2));
    let refused = bench.actor.recv().await.unwrap();
    let Message::BucketDamaged { error, repair } = refused else {
        panic!("{refused:?}");
    };
    assert!(error.to_string().contains("/manifest/"), "{error}");
    assert!(repair.contains("esker bucket repair"), "{repair}");
    bench.tasks.shutdown(Duration::from_secs(5)).await;
}

#[test]
fn a_file_that_only_the_upload_cannot_read_is_damage_in_the_end() {
    let unread = |code: i32| Error::LocalFile {
        path: "00000000000000000000.log".to_owned(),
        source: Arc::new(std::io::Error::from_raw_os_error(code)),
    };
    let (eio, emfile) = (unread(5), unread(24));

    assert!(local_damage(&eio, None, LOCAL_READS_MAX - 1).is_none());
    let damage = local_damage(&eio, None, LOCAL_READS_MAX).unwrap();
    let text = damage.to_string();
    assert!(
        text.contains("os error 5") && text.contains("000.log"),
        "{text}"
    );
    // A shortage passes, so it is not damage.
    assert!(local_damage(&emfile, None, LOCAL_READS_MAX).is_none());
    let in_bucket = Error::corrupt("key", "it is short");
    assert!(local_damage(&in_bucket, None, LOCAL_READS_MAX).is_none());
    // What a check has seen needs no second try.
    assert!(local_damage(&in_bucket, Some(damage), 0).is_some());
}
