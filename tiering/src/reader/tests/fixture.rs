//! A small log in the bucket, and a reader of it.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use esker_index::{EpochHistory, IndexEntry, Manifest, NewSegment, SegmentMeta, Update};
use esker_proto::{
    batch::{BatchBuilder, BatchHeader, Compression, RecordBatch},
    types::{
        ClusterId, LeaderEpoch, Offset, PartitionId, Position, SegmentId, TimestampMs, TopicId,
        TopicPartition,
    },
};
use object_store::ObjectStore;
use prometheus::Registry;
use tokio::sync::watch;
use uuid::Uuid;

pub(super) use super::faulty_store::Fault;
use super::faulty_store::FaultyStore;
use crate::{
    env::TaskSet,
    error::Error,
    keys::{Key, PageName, SegmentName},
    reader::{Cursor, Read, Reader, ReaderOptions},
    store::Store,
};

pub(super) const KIB: u64 = 1024;

/// Shape of a test log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) segments: usize,
    pub(super) entries: usize,
    pub(super) batches: usize,
    pub(super) records: u32,
    pub(super) value_bytes: usize,
    pub(super) chunk_bytes: u64,
}

impl Default for Shape {
    /// Three segments of about 48 KiB, in chunks of about 8 KiB with two entries of two batches.
    fn default() -> Self {
        Self {
            segments: 3,
            entries: 12,
            batches: 2,
            records: 5,
            value_bytes: 390,
            chunk_bytes: 8 * KIB,
        }
    }
}

/// A log in the bucket, and what it should read as.
pub(super) struct Log {
    pub(super) shape: Shape,
    pub(super) objects: Arc<FaultyStore>,
    pub(super) tp: TopicPartition,
    pub(super) manifest: Manifest,
    pub(super) batches: Vec<RecordBatch>,
    pub(super) segments: Vec<SegmentMeta>,
    watch: watch::Sender<Arc<Manifest>>,
    nonce: u128,
}

impl Log {
    pub(super) async fn new(shape: Shape) -> Self {
        Self::on(FaultyStore::default(), shape).await
    }

    /// A log whose store lets reads through one by one.
    pub(super) async fn gated(shape: Shape) -> Self {
        Self::on(FaultyStore::gated(), shape).await
    }

    async fn on(objects: FaultyStore, shape: Shape) -> Self {
        let tp = TopicPartition {
            topic_id: TopicId::new(Uuid::from_u128(7)),
            partition: PartitionId::new(0),
        };
        let manifest = Manifest::create(ClusterId::new(Uuid::from_u128(1)), tp);
        let watch = watch::Sender::new(Arc::new(manifest.clone()));
        let objects = Arc::new(objects);
        let (batches, segments) = (Vec::new(), Vec::new());
        let mut log = Self {
            shape,
            objects,
            tp,
            manifest,
            batches,
            segments,
            watch,
            nonce: 0,
        };
        log.apply(Update::Open {
            leader_epoch: LeaderEpoch::new(1),
        })
        .await;
        let mut all = Vec::new();
        for _ in 0..shape.segments {
            all.push(Update::AddSegment(log.put_segment().await));
        }
        log.apply(Update::All(all)).await;
        log
    }

    /// Commits and publishes.
    pub(super) async fn apply(&mut self, update: Update) {
        self.nonce += 1;
        let next = self.manifest.apply(update, self.nonce).unwrap();
        for page in next.new_pages {
            let key = Key::Page(self.tp, PageName::from(&page.page_ref));
            self.objects.replace(key, page.bytes).await;
        }
        self.manifest = next.manifest;
        self.watch.send_replace(Arc::new(self.manifest.clone()));
    }

    pub(super) fn manifests(&self) -> watch::Receiver<Arc<Manifest>> {
        self.watch.subscribe()
    }

    pub(super) fn segment_key(&self, index: usize) -> Key {
        Key::Segment(self.tp, SegmentName::from(&self.segments[index]))
    }

    pub(super) fn end(&self) -> Offset {
        self.batches
            .last()
            .map_or(Offset::ZERO, |batch| batch.header().next_offset())
    }

    /// The bytes from the batch that holds `offset` on.
    pub(super) fn expected_from(&self, offset: Offset) -> Vec<u8> {
        let holds = |batch: &&RecordBatch| batch.header().next_offset() > offset;
        self.batches
            .iter()
            .filter(holds)
            .flat_map(|batch| batch.bytes().to_vec())
            .collect()
    }

    /// Makes one more segment and puts its object.
    pub(super) async fn put_segment(&mut self) -> NewSegment {
        let mut bytes = BytesMut::new();
        let mut entries = Vec::new();
        for _ in 0..self.shape.entries {
            let position = Position::new(bytes.len() as u64);
            let batches: Vec<_> = (0..self.shape.batches).map(|_| self.push_batch()).collect();
            batches
                .iter()
                .for_each(|batch| bytes.extend_from_slice(batch.bytes()));
            entries.push(entry_of(position, &batches));
        }
        let segment_id = SegmentId::new(Uuid::from_u128(1000 + self.segments.len() as u128));
        let leader_epoch = LeaderEpoch::new(1);
        let meta = SegmentMeta::of_entries(segment_id, leader_epoch, 0, &entries).unwrap();
        self.segments.push(meta);
        bytes.extend_from_slice(&[0xee; 100]); // a trailer, which nobody may read
        let key = self.segment_key(self.segments.len() - 1);
        self.objects.replace(key, bytes.freeze()).await;
        let mut epochs = EpochHistory::new();
        epochs.push(leader_epoch, Offset::ZERO).unwrap();
        NewSegment {
            meta,
            entries,
            epochs,
            producers: Bytes::new(),
        }
    }

    fn push_batch(&mut self) -> RecordBatch {
        let base_offset = self.end();
        let mut builder = BatchBuilder::new(Compression::None);
        for index in 0..self.shape.records {
            let offset = base_offset.advance(index).get();
            let value = vec![u8::try_from(offset % 251).unwrap(); self.shape.value_bytes];
            let timestamp = timestamp_of(Offset::new(offset));
            builder.push(timestamp, None, Some(&value), &[]).unwrap();
        }
        let batch = RecordBatch::validate(builder.finish(None)).unwrap();
        let (header, body) = batch.stamped(base_offset, LeaderEpoch::new(1));
        let bytes = [&header[..], &body].concat();
        let batch = RecordBatch::validate(bytes.into()).unwrap();
        self.batches.push(batch.clone());
        batch
    }
}

/// Ten milliseconds apart, and every other one a little late.
pub(super) fn timestamp_of(offset: Offset) -> TimestampMs {
    let offset = i64::try_from(offset.get()).unwrap();
    TimestampMs::new(1000 + offset * 10 - if offset % 2 == 1 { 15 } else { 0 })
}

fn entry_of(position: Position, batches: &[RecordBatch]) -> IndexEntry {
    let headers: Vec<&BatchHeader> = batches.iter().map(RecordBatch::header).collect();
    IndexEntry {
        base_offset: headers[0].base_offset,
        position,
        length: headers.iter().map(|header| header.size_bytes).sum(),
        record_count: headers.iter().map(|header| header.record_count).sum(),
        min_timestamp: headers
            .iter()
            .map(|header| header.base_timestamp)
            .min()
            .unwrap(),
        max_timestamp: headers
            .iter()
            .map(|header| header.max_timestamp)
            .max()
            .unwrap(),
    }
}

/// A reader of a log, and its handles.
pub(super) struct Bench {
    pub(super) log: Log,
    pub(super) reader: Reader,
    pub(super) registry: Registry,
    pub(super) tasks: TaskSet,
}

impl Bench {
    pub(super) async fn new(log: Log) -> Self {
        Self::with(log, |_| {}).await
    }

    pub(super) async fn with(log: Log, change: impl FnOnce(&mut ReaderOptions)) -> Self {
        let registry = Registry::new();
        let objects: Arc<dyn ObjectStore> = log.objects.clone();
        let store = Store::from_object_store(objects, "", &registry).unwrap();
        let mut options = ReaderOptions {
            cache_memory_bytes: 256 * KIB,
            budget_bytes: 256 * KIB,
            deadline: Duration::from_secs(30),
            chunk_bytes: log.shape.chunk_bytes,
            ..ReaderOptions::default()
        };
        change(&mut options);
        let tasks = TaskSet::new();
        let reader = Reader::open(store, options, &registry, tasks.clone())
            .await
            .unwrap();
        Self {
            log,
            reader,
            registry,
            tasks,
        }
    }

    pub(super) fn cursor(&self, offset: Offset) -> Cursor {
        self.reader.read(self.log.manifests(), self.log.tp, offset)
    }

    /// A counter's or gauge's value, summed over its labels.
    pub(super) fn metric(&self, name: &str) -> u64 {
        let families = self.registry.gather();
        let family = families
            .iter()
            .find(|family| family.name() == format!("esker_tiering_{name}"));
        let metrics = family.expect("registered").get_metric();
        let sum: f64 = metrics
            .iter()
            .map(|metric| metric.get_counter().get_value() + metric.get_gauge().get_value())
            .sum();
        format!("{sum:.0}").parse().unwrap()
    }

    /// Waits until nothing is being fetched.
    pub(super) async fn settle(&self) {
        while self.reader.0.fetcher.is_busy() {
            tokio::task::yield_now().await;
        }
    }
}

/// Reads one run of batches.
pub(super) async fn read(cursor: &mut Cursor, max_bytes: usize) -> Result<Bytes, Error> {
    match cursor.next(max_bytes).await? {
        Read::Batches { bytes, .. } => Ok(bytes.concat().into()),
        Read::AtEnd => Ok(Bytes::new()),
    }
}

/// Reads everything from where the cursor is.
pub(super) async fn read_all(cursor: &mut Cursor, max_bytes: usize) -> Result<Vec<u8>, Error> {
    let mut all = Vec::new();
    loop {
        let bytes = read(cursor, max_bytes).await?;
        if bytes.is_empty() {
            return Ok(all);
        }
        all.extend_from_slice(&bytes);
    }
}
