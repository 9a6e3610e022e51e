//! A bucket in memory that fails on purpose, and sealed segments to put there.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use esker_index::{EpochHistory, IndexBuilder, Manifest};
use esker_proto::{
    batch::{BatchBuilder, Compression, RecordBatch},
    types::{ClusterId, LeaderEpoch, Offset, PartitionId, TimestampMs, TopicId, TopicPartition},
};
use futures::TryStreamExt;
use object_store::memory::InMemory;
use prometheus::Registry;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    archive::{Archive, ArchiveDeps, ArchiveMetrics, PartSizes, SealedSegment, UploadBudget, view},
    chain::RetryPolicy,
    env::{ManualClock, SeededIds, TaskSet},
    error::Error,
    keys::{Key, Keys},
    store::{ObjectInfo, Store},
    testing::{Faults, FaultyStore},
};

pub(crate) const CLUSTER: ClusterId = ClusterId::new(Uuid::from_u128(0xc1));
pub(crate) const PARTITION: TopicPartition = TopicPartition {
    topic_id: TopicId::new(Uuid::from_u128(0x70)),
    partition: PartitionId::new(3),
};
/// Records of a batch.
pub(crate) const BATCH: u64 = 5;

pub(crate) struct Fixture {
    pub objects: Arc<InMemory>,
    pub faults: Faults,
    pub deps: ArchiveDeps,
    pub dir: TempDir,
}

impl Fixture {
    pub(crate) fn new(seed: u64) -> Self {
        let objects = Arc::new(InMemory::new());
        let (faulty, faults) = FaultyStore::new(Arc::clone(&objects) as _, seed);
        let registry = Registry::new();
        let deps = ArchiveDeps {
            store: Store::from_object_store(Arc::new(faulty), "p", &registry).unwrap(),
            ids: Arc::new(SeededIds::new(seed)),
            clock: Arc::new(ManualClock::default()),
            tasks: TaskSet::new(),
            budget: UploadBudget::default(),
            metrics: ArchiveMetrics::register(&registry).unwrap(),
            parts: PartSizes::default(),
            // One try: what the chain makes of retries is the chain's matter.
            policy: RetryPolicy {
                deadline: Duration::ZERO,
                ..RetryPolicy::default()
            },
        };
        Self {
            objects,
            faults,
            deps,
            dir: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) async fn open(&self, epoch: u32) -> Result<Archive, Error> {
        self.open_at(PARTITION, epoch).await
    }

    pub(crate) async fn open_at(&self, at: TopicPartition, epoch: u32) -> Result<Archive, Error> {
        Archive::open(self.deps.clone(), at, CLUSTER, LeaderEpoch::new(epoch)).await
    }

    /// A sealed segment of batches of [`BATCH`] records in `[base, next)`.
    pub(crate) fn segment(&self, base: u64, next: u64, epoch: u32) -> SealedSegment {
        write_segment(self.dir.path(), base, next, epoch)
    }

    /// Segments of two batches each, back to back.
    pub(crate) fn segments(&self, base: u64, count: u64, epoch: u32) -> Vec<SealedSegment> {
        let bases = (0..count).map(|number| base + number * 2 * BATCH);
        bases
            .map(|base| self.segment(base, base + 2 * BATCH, epoch))
            .collect()
    }

    /// Everything in the bucket, without any fault in the way.
    pub(crate) async fn bucket(&self) -> Vec<ObjectInfo> {
        let plain = Store::from_object_store(Arc::clone(&self.objects) as _, "p", &Registry::new());
        plain.unwrap().list("", None).try_collect().await.unwrap()
    }

    pub(crate) fn plain_store(&self) -> Store {
        Store::from_object_store(Arc::clone(&self.objects) as _, "p", &Registry::new()).unwrap()
    }

    pub(crate) async fn manifest(&self) -> Arc<Manifest> {
        view(&self.plain_store(), PARTITION).await.unwrap().unwrap()
    }

    /// Returns when the bucket holds that version.
    pub(crate) async fn manifest_reaches(&self, version: u64) {
        while self.manifest().await.header().version.get() < version {
            tokio::task::yield_now().await;
        }
    }

    /// Keys of segments and pages in the bucket.
    pub(crate) async fn data_keys(&self) -> Vec<String> {
        let is_data =
            |key: &String| matches!(Key::parse(key), Some(Key::Segment(..) | Key::Page(..)));
        self.bucket()
            .await
            .into_iter()
            .map(|object| object.key)
            .filter(is_data)
            .collect()
    }

    /// Keys of segments and pages that the latest manifest names.
    pub(crate) async fn named_keys(&self) -> Vec<String> {
        let (manifest, keys) = (self.manifest().await, Keys::new(PARTITION));
        let mut named: Vec<String> = manifest
            .pages()
            .iter()
            .map(|page| keys.page(page.into()))
            .collect();
        let mut rows = vec![manifest.head().clone()];
        for page in manifest.pages() {
            let bytes = self
                .plain_store()
                .get(&keys.page(page.into()))
                .await
                .unwrap();
            rows.push(esker_index::Rows::decode_page(bytes, page).unwrap());
        }
        for meta in rows.iter().flat_map(esker_index::Rows::segments) {
            if meta.next_offset > manifest.log_start_offset() {
                named.push(keys.segment(meta.into()));
            }
        }
        named.sort();
        named
    }

    /// What may never be broken: each object a manifest names is there.
    pub(crate) async fn assert_nothing_dangles(&self) {
        let there = self.data_keys().await;
        for key in self.named_keys().await {
            assert!(there.contains(&key), "named but missing: {key}");
        }
    }

    pub(crate) async fn assert_nothing_dangles_if_any(&self) {
        if view(&self.plain_store(), PARTITION)
            .await
            .unwrap()
            .is_some()
        {
            self.assert_nothing_dangles().await;
        }
    }

    /// What holds once all is collected: there is nothing else.
    pub(crate) async fn assert_nothing_is_left_over(&self) {
        let mut there = self.data_keys().await;
        there.sort();
        assert_eq!(there, self.named_keys().await);
    }
}

pub(crate) fn never() -> CancellationToken {
    CancellationToken::new()
}

/// The timestamp of a record is its offset times a thousand.
pub(crate) fn batch(base: u64, epoch: u32) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    for offset in base..base + BATCH {
        let timestamp = TimestampMs::new(i64::try_from(offset * 1000).unwrap());
        builder.push(timestamp, None, Some(b"value"), &[]).unwrap();
    }
    let batch = RecordBatch::validate(builder.finish(None)).unwrap();
    let (header, body) = batch.stamped(Offset::new(base), LeaderEpoch::new(epoch));
    [&header[..], &body[..]].concat().into()
}

fn write_segment(dir: &Path, base: u64, next: u64, epoch: u32) -> SealedSegment {
    let (mut bytes, mut index) = (Vec::new(), IndexBuilder::new());
    let step = usize::try_from(BATCH).unwrap();
    for base in (base..next).step_by(step) {
        let batch = RecordBatch::validate(batch(base, epoch)).unwrap();
        index.push(batch.header());
        bytes.extend_from_slice(batch.bytes());
    }
    let path = dir.join(format!("{base:020}-{next:020}.log"));
    std::fs::write(&path, &bytes).unwrap();
    let mut epochs = EpochHistory::new();
    epochs
        .push(LeaderEpoch::new(epoch), Offset::new(base))
        .unwrap();
    SealedSegment {
        path,
        base_offset: Offset::new(base),
        next_offset: Offset::new(next),
        size_bytes: bytes.len() as u64,
        entries: index.finish(),
        epochs,
        producers: Bytes::from_static(b"producers"),
    }
}
