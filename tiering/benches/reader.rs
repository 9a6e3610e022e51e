//! Replays sealed segments from a directory store through the reader, cold, beside the limit of the
//! same run: plain concurrent ranged GETs of the same objects.
//!
//! `cargo bench -p esker-tiering --bench reader [-- MIB BATCH_KIB]`

use std::{env, path::Path, sync::Arc, time::Instant};

use bytes::{Bytes, BytesMut};
use esker_index::{EpochHistory, IndexBuilder, Manifest, NewSegment, SegmentMeta, Update};
use esker_proto::{
    batch::{BatchBuilder, Batches, Compression, RecordBatch},
    types::{
        ClusterId, LeaderEpoch, Offset, PartitionId, SegmentId, TimestampMs, TopicId,
        TopicPartition,
    },
};
use esker_tiering::{
    env::TaskSet,
    keys::{Key, SegmentName},
    reader::{CHUNK_BYTES, Read, Reader, ReaderOptions},
    store::Store,
};
use futures::{StreamExt, stream};
use object_store::local::LocalFileSystem;
use prometheus::Registry;
use tokio::sync::watch;
use uuid::Uuid;

const MIB: usize = 1 << 20;
const SEGMENT_BYTES: usize = 64 * MIB;
/// Rounds of each measurement; the best counts, since others share the machine.
const ROUNDS: usize = 5;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

struct Log {
    tp: TopicPartition,
    manifest: Manifest,
    segments: Vec<SegmentMeta>,
    size_bytes: u64,
}

fn main() -> Outcome<()> {
    let mut sizes = env::args()
        .skip(1)
        .filter_map(|arg| arg.parse::<usize>().ok());
    let (log_bytes, batch_bytes) = (
        sizes.next().unwrap_or(1024) * MIB,
        sizes.next().unwrap_or(1024) * 1024,
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(run(log_bytes, batch_bytes))
}

async fn run(log_bytes: usize, batch_bytes: usize) -> Outcome<()> {
    let dir = tempfile::tempdir()?;
    let log = write_log(&open(dir.path())?, log_bytes, batch_bytes).await?;
    println!(
        "{} MiB in batches of {} KiB",
        log.size_bytes >> 20,
        batch_bytes >> 10
    );

    let mut plain: f64 = 0.0;
    for in_flight in [1, 2, 4, 8] {
        let before = processor_seconds();
        let rate = best_plain(&open(dir.path())?, &log, in_flight).await?;
        let cost = cost(&log, before);
        println!("plain ranged GETs of 4 MiB, {in_flight} in flight   {rate:>8.0} MB/s, {cost}");
        plain = plain.max(rate);
    }
    for (chunk_mib, ahead) in [
        (1, 1),
        (1, 4),
        (1, 16),
        (2, 2),
        (4, 1),
        (4, 2),
        (4, 4),
        (4, 16),
    ] {
        let options = || ReaderOptions {
            chunk_bytes: chunk_mib << 20,
            // Half of it may be ahead.
            budget_bytes: (chunk_mib << 21) * ahead,
            ..ReaderOptions::default()
        };
        let before = processor_seconds();
        let rate = best_replay(dir.path(), &log, options).await?;
        println!(
            "replay, cold, chunks of {chunk_mib} MiB, {ahead:>2} ahead  {}, {}",
            beside(rate, plain),
            cost(&log, before)
        );
    }
    println!("peak memory of this process            {}", peak_memory());
    let large = || ReaderOptions {
        cache_memory_bytes: 8 << 30,
        ..ReaderOptions::default()
    };
    println!(
        "replay, warm memory                    {}",
        beside(warm(dir.path(), &log, large()).await?, plain)
    );
    let scratch = tempfile::tempdir()?;
    let with_disk = || ReaderOptions {
        cache_disk: Some((scratch.path().to_path_buf(), 4 << 30)),
        ..ReaderOptions::default()
    };
    println!(
        "replay, cold, disk cache written       {}",
        beside(first_replay(dir.path(), &log, with_disk()).await?, plain)
    );
    println!(
        "checks alone, one core                 {:>8.0} MB/s",
        check_rate(&open(dir.path())?, &log).await?
    );
    Ok(())
}

/// What a leg of several rounds cost.
fn cost(log: &Log, before: f64) -> String {
    let rounds = f64::from(u32::try_from(ROUNDS).unwrap_or(1));
    let seconds = (processor_seconds() - before) / rounds / (megabytes(log) / 1000.0);
    format!("{seconds:.2} processor seconds/GB")
}

/// As Linux tells it.
fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.map_or_else(|| "unknown".to_owned(), |peak| peak.trim().to_owned())
}

fn beside(rate: f64, plain: f64) -> String {
    format!("{rate:>8.0} MB/s, ratio to plain {:.2}", rate / plain)
}

fn open(dir: &Path) -> Outcome<Store> {
    let objects = Arc::new(LocalFileSystem::new_with_prefix(dir)?);
    Ok(Store::from_object_store(objects, "", &Registry::new())?)
}

async fn write_log(store: &Store, log_bytes: usize, batch_bytes: usize) -> Outcome<Log> {
    let tp = TopicPartition {
        topic_id: TopicId::new(Uuid::from_u128(7)),
        partition: PartitionId::new(0),
    };
    let manifest = Manifest::create(ClusterId::new(Uuid::from_u128(1)), tp);
    let mut log = Log {
        tp,
        manifest,
        segments: Vec::new(),
        size_bytes: 0,
    };
    let body = batch(batch_bytes)?;
    while log.size_bytes < log_bytes as u64 {
        let (bytes, segment) = segment(&log, &body)?;
        let key = Key::Segment(tp, SegmentName::from(&segment.meta)).to_string();
        store.put_object(&key, bytes).await?;
        log.size_bytes += segment.meta.size_bytes;
        log.segments.push(segment.meta);
        let nonce = log.segments.len() as u128;
        log.manifest = log
            .manifest
            .apply(Update::AddSegment(segment), nonce)?
            .manifest;
    }
    Ok(log)
}

/// Records of 100 bytes with a key of 8.
fn batch(batch_bytes: usize) -> Outcome<RecordBatch> {
    let mut builder = BatchBuilder::new(Compression::None);
    let mut number = 0_u64;
    while builder.size_bytes() + 128 < batch_bytes {
        let key = number.to_be_bytes();
        let value: Vec<u8> = (0..100)
            .map(|at| number.wrapping_mul(at + 7).to_le_bytes()[0])
            .collect();
        builder.push(TimestampMs::new(0), Some(&key), Some(&value), &[])?;
        number += 1;
    }
    Ok(RecordBatch::validate(builder.finish(None))?)
}

fn segment(log: &Log, batch: &RecordBatch) -> Outcome<(Bytes, NewSegment)> {
    let leader_epoch = LeaderEpoch::new(0);
    let mut bytes = BytesMut::with_capacity(SEGMENT_BYTES + 2 * MIB);
    let mut offset = log.manifest.tiered_offset();
    let mut index = IndexBuilder::new();
    while bytes.len() < SEGMENT_BYTES {
        let (header, body) = batch.stamped(offset, leader_epoch);
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(&body);
        index.push(&batch.header().stamped(offset, leader_epoch));
        offset = offset.advance(batch.header().record_count);
    }
    let entries = index.finish();
    let segment_id = SegmentId::new(Uuid::from_u128(log.segments.len() as u128));
    let meta =
        SegmentMeta::of_entries(segment_id, leader_epoch, 0, &entries).ok_or("no entries")?;
    let mut epochs = EpochHistory::new();
    epochs.push(leader_epoch, Offset::ZERO)?;
    Ok((
        bytes.freeze(),
        NewSegment {
            meta,
            entries,
            epochs,
            producers: Bytes::new(),
        },
    ))
}

async fn best_plain(store: &Store, log: &Log, in_flight: usize) -> Outcome<f64> {
    let mut best: f64 = 0.0;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        plain(store, log, in_flight).await?;
        best = best.max(rate(log, start));
    }
    Ok(best)
}

async fn plain(store: &Store, log: &Log, in_flight: usize) -> Outcome<()> {
    let ranges = log.segments.iter().flat_map(|segment| {
        let key = Key::Segment(log.tp, SegmentName::from(segment)).to_string();
        let size_bytes = segment.size_bytes;
        let step = usize::try_from(CHUNK_BYTES).unwrap_or(usize::MAX);
        (0..size_bytes)
            .step_by(step)
            .map(move |start| (key.clone(), start..(start + CHUNK_BYTES).min(size_bytes)))
    });
    let mut gets = stream::iter(ranges)
        .map(|(key, range)| async move { store.get_range(&key, range).await })
        .buffered(in_flight);
    while let Some(bytes) = gets.next().await {
        std::hint::black_box(bytes?.len());
    }
    Ok(())
}

async fn best_replay(dir: &Path, log: &Log, options: impl Fn() -> ReaderOptions) -> Outcome<f64> {
    let mut best: f64 = 0.0;
    for _ in 0..ROUNDS {
        best = best.max(first_replay(dir, log, options()).await?);
    }
    Ok(best)
}

async fn first_replay(dir: &Path, log: &Log, options: ReaderOptions) -> Outcome<f64> {
    let reader = Reader::open(open(dir)?, options, &Registry::new(), TaskSet::new()).await?;
    let start = Instant::now();
    replay(&reader, log).await?;
    Ok(rate(log, start))
}

async fn warm(dir: &Path, log: &Log, options: ReaderOptions) -> Outcome<f64> {
    let reader = Reader::open(open(dir)?, options, &Registry::new(), TaskSet::new()).await?;
    replay(&reader, log).await?;
    let start = Instant::now();
    replay(&reader, log).await?;
    Ok(rate(log, start))
}

async fn replay(reader: &Reader, log: &Log) -> Outcome<()> {
    let watch = watch::Sender::new(Arc::new(log.manifest.clone()));
    let mut cursor = reader.read(watch.subscribe(), log.tp, Offset::ZERO);
    let mut size_bytes = 0;
    while let Read::Batches { bytes, .. } = cursor.next(MIB + MIB / 2).await? {
        size_bytes += bytes.iter().map(Bytes::len).sum::<usize>() as u64;
    }
    assert_eq!(size_bytes, log.size_bytes);
    Ok(())
}

async fn check_rate(store: &Store, log: &Log) -> Outcome<f64> {
    let mut seconds = 0.0;
    for segment in &log.segments {
        let key = Key::Segment(log.tp, SegmentName::from(segment)).to_string();
        let bytes = store.get(&key).await?;
        let start = Instant::now();
        for batch in Batches::new(bytes) {
            std::hint::black_box(batch?);
        }
        seconds += start.elapsed().as_secs_f64();
    }
    Ok(megabytes(log) / seconds)
}

/// Processor seconds of this process so far. They tell more than the clock when others share the
/// machine.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split(' ')
        .collect();
    let ticks = |at: usize| fields.get(at).and_then(|ticks| ticks.parse::<f64>().ok());
    (ticks(12).unwrap_or(0.0) + ticks(13).unwrap_or(0.0)) / 100.0
}

fn rate(log: &Log, start: Instant) -> f64 {
    megabytes(log) / start.elapsed().as_secs_f64()
}

fn megabytes(log: &Log) -> f64 {
    u32::try_from(log.size_bytes / 1_000_000).map_or(f64::MAX, f64::from)
}
