//! A small log in a store in memory, and a store that counts, delays and damages what is read.

use std::{
    collections::HashMap,
    fmt,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use esker_index::{EpochHistory, IndexEntry, Manifest, NewSegment, SegmentMeta, Update};
use esker_proto::{
    batch::{BatchBuilder, BatchHeader, Compression, RecordBatch},
    types::{
        ClusterId, LeaderEpoch, Offset, PartitionId, Position, SegmentId, TimestampMs, TopicId,
        TopicPartition,
    },
};
use futures::stream::BoxStream;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, memory::InMemory, path::Path,
};
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::sync::{Semaphore, watch};
use uuid::Uuid;

use crate::{
    env::TaskSet,
    error::Error,
    keys::{Key, PageName, SegmentName},
    reader::{Cursor, Read, Reader, ReaderOptions},
    store::Store,
};

pub(super) const KIB: u64 = 1024;

/// What happens to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// One bit of the reply is flipped, this many bytes into the object.
    FlipAt(u64),
    Panic,
    Hang,
    Fail,
    Delay(Duration),
}

/// Reads what is in memory, with faults by key.
#[derive(Debug, Default)]
pub(super) struct FaultyStore {
    inner: InMemory,
    /// Fault, and how often it still strikes.
    faults: Mutex<HashMap<String, (Fault, usize)>>,
    gets: Mutex<Vec<(String, Range<u64>)>>,
    in_flight: AtomicUsize,
    in_flight_max: AtomicUsize,
    gate: Option<Semaphore>,
}

impl FaultyStore {
    pub(super) fn strike(&self, key: Key, fault: Fault, times: usize) {
        self.faults.lock().insert(key.to_string(), (fault, times));
    }

    /// Reads so far, in order.
    pub(super) fn gets(&self) -> Vec<(String, Range<u64>)> {
        self.gets.lock().clone()
    }

    pub(super) fn forget_gets(&self) {
        self.gets.lock().clear();
    }

    pub(super) fn in_flight_max(&self) -> usize {
        self.in_flight_max.load(Ordering::SeqCst)
    }

    /// Lets this many more reads through a closed gate.
    pub(super) fn let_through(&self, reads: usize) {
        self.gate
            .as_ref()
            .expect("made with a gate")
            .add_permits(reads);
    }

    pub(super) async fn replace(&self, key: Key, bytes: Bytes) {
        self.inner
            .put(&Path::from(key.to_string()), bytes.into())
            .await
            .unwrap();
    }

    pub(super) async fn remove(&self, key: Key) {
        self.inner
            .delete(&Path::from(key.to_string()))
            .await
            .unwrap();
    }

    pub(super) async fn content(&self, key: Key) -> Bytes {
        let path = Path::from(key.to_string());
        self.inner.get(&path).await.unwrap().bytes().await.unwrap()
    }

    fn next_fault(&self, key: &str) -> Option<Fault> {
        let mut faults = self.faults.lock();
        let (fault, times) = faults.get_mut(key)?;
        *times = times.checked_sub(1)?;
        Some(*fault)
    }

    async fn read(&self, path: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        let fault = self.next_fault(path.as_ref());
        match fault {
            Some(Fault::Panic) => panic!("planted"),
            Some(Fault::Hang) => std::future::pending::<()>().await,
            Some(Fault::Fail) => {
                return Err(object_store::Error::Generic {
                    store: "faulty",
                    source: "planted".into(),
                });
            }
            Some(Fault::Delay(delay)) => tokio::time::sleep(delay).await,
            Some(Fault::FlipAt(_)) | None => {}
        }
        let mut reply = self.inner.get_opts(path, options).await?;
        if let Some(Fault::FlipAt(position)) = fault {
            reply = flipped(reply, position).await?;
        }
        Ok(reply)
    }
}

async fn flipped(reply: GetResult, position: u64) -> object_store::Result<GetResult> {
    let (meta, range, attributes) = (
        reply.meta.clone(),
        reply.range.clone(),
        reply.attributes.clone(),
    );
    let extensions = reply.extensions.clone();
    let mut bytes = BytesMut::from(reply.bytes().await?);
    if range.contains(&position) {
        bytes[usize::try_from(position - range.start).unwrap()] ^= 0x10;
    }
    let bytes = bytes.freeze();
    let payload = GetResultPayload::Stream(Box::pin(futures::stream::iter([Ok(bytes)])));
    Ok(GetResult {
        payload,
        meta,
        range,
        attributes,
        extensions,
    })
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        self.inner.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        if options.head {
            return self.inner.get_opts(path, options).await;
        }
        let range = match &options.range {
            Some(GetRange::Bounded(range)) => range.clone(),
            _ => 0..0,
        };
        self.gets.lock().push((path.to_string(), range));
        if let Some(gate) = &self.gate {
            gate.acquire().await.unwrap().forget();
        }
        let in_flight = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.in_flight_max.fetch_max(in_flight, Ordering::SeqCst);
        let reply = self.read(path, options).await;
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        reply
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &Path,
        to: &Path,
        options: CopyOptions,
    ) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("faulty")
    }
}

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
        Self::on(
            FaultyStore {
                gate: Some(Semaphore::new(0)),
                ..FaultyStore::default()
            },
            shape,
        )
        .await
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
