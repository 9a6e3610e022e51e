//! What the local log can carry, beside what the disk can: `cargo bench -p esker-agent --bench log`.
//!
//! Prints append throughput of 1 MiB batches over four logs, and the time to the flush event of 1 KiB
//! batches at 10,000 a second, for a few ways to share flushes. Writes below `ESKER_BENCH_DIR`, or the
//! current directory.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a bench stops at the first failure"
)]

use std::{
    collections::VecDeque,
    fs::File,
    io::Write,
    num::NonZeroUsize,
    path::Path,
    time::{Duration, Instant},
};

use bytes::Bytes;
use esker_agent::log::{FlushPool, LocalLog, LogEvent, LogEvents, PoolOptions, RecoverAt};
use esker_proto::{
    batch::{BatchBuilder, Compression, RecordBatch},
    types::{LeaderEpoch, Offset, TimestampMs},
};
use tokio::time::MissedTickBehavior;

const LOGS: usize = 4;
const SEGMENT_BYTES: u64 = 64 << 20;

fn main() {
    let root = std::env::var_os("ESKER_BENCH_DIR").unwrap_or_else(|| ".".into());
    let root = tempfile::tempdir_in(root).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    limits(root.path());
    for (threads, files_max) in [(1, 16), (1, 1), (2, 16), (2, 1), (4, 16)] {
        let options = PoolOptions {
            threads: NonZeroUsize::new(threads).unwrap(),
            files_max,
            ..PoolOptions::default()
        };
        println!("threads {threads}, syncfs above {files_max} files");
        runtime.block_on(throughput(root.path(), options));
        runtime.block_on(latency(root.path(), options));
    }
}

/// What the disk does by itself: four files in turn, written 4 MiB and flushed.
fn limits(root: &Path) {
    let data = vec![7; 4 << 20];
    let mut files: Vec<File> = (0..LOGS)
        .map(|number| File::create(root.join(format!("limit-{number}"))).unwrap())
        .collect();
    let started = Instant::now();
    for _ in 0..64 {
        for file in &mut files {
            file.write_all(&data).unwrap();
            file.sync_data().unwrap();
        }
    }
    let bytes = data.len() * 64 * LOGS;
    println!(
        "disk: write + fdatasync of 4 MiB {:.0} MB/s",
        mb_per_s(bytes as u64, started)
    );
    let mut times = Vec::new();
    for _ in 0..1_000 {
        let started = Instant::now();
        files[0].write_all(&data[..1_024]).unwrap();
        files[0].sync_data().unwrap();
        times.push(started.elapsed());
    }
    println!("disk: write + fdatasync of 1 KiB {}", percentiles(times));
}

struct BenchLog {
    log: LocalLog,
    events: LogEvents,
    /// When each batch that is not flushed was appended, and the offset after it.
    waiting: VecDeque<(Offset, Instant)>,
}

fn open(root: &Path, pool: &FlushPool) -> Vec<BenchLog> {
    (0..LOGS)
        .map(|number| {
            let dir = root.join(format!("log-{number}"));
            esker_agent::log::remove_dir(&dir).unwrap();
            let (log, events, _) = LocalLog::open(pool, &dir, &RecoverAt::default()).unwrap();
            BenchLog {
                log,
                events,
                waiting: VecDeque::new(),
            }
        })
        .collect()
}

fn batch(bytes: usize) -> RecordBatch {
    let mut builder = BatchBuilder::new(Compression::None);
    let value = vec![7; 100.min(bytes)];
    while builder.size_bytes() < bytes {
        builder
            .push(TimestampMs::new(1), Some(b"key-8byt"), Some(&value), &[])
            .unwrap();
    }
    RecordBatch::validate(builder.finish(None)).unwrap()
}

impl BenchLog {
    async fn append(&mut self, pool: &FlushPool, batch: &RecordBatch) {
        let (base_offset, epoch) = (self.log.log_end_offset(), LeaderEpoch::new(1));
        let (header, body): (_, Bytes) = batch.stamped(base_offset, epoch);
        let room = pool.reserve(header.len() + body.len()).await;
        let stamped = batch.header().stamped(base_offset, epoch);
        self.waiting
            .push_back((stamped.next_offset(), Instant::now()));
        self.log.append(header, body, &stamped, room).unwrap();
        if self.log.active_bytes() >= SEGMENT_BYTES {
            self.log.roll().unwrap();
            let below = self.log.flushed_offset();
            self.log.delete_below(below).unwrap();
        }
    }

    fn take_flushed(&mut self, event: LogEvent, times: &mut Vec<Duration>) {
        let LogEvent::Flushed { log_end_offset } = event else {
            panic!("{event:?}")
        };
        while let Some((offset, since)) = self.waiting.front()
            && *offset <= log_end_offset
        {
            times.push(since.elapsed());
            self.waiting.pop_front();
        }
    }
}

async fn throughput(root: &Path, options: PoolOptions) {
    let pool = FlushPool::start(root, options).unwrap();
    let mut logs = open(root, &pool);
    let batch = batch(1 << 20);
    let bytes = (2_048 * batch.bytes().len()) as u64;
    let (started, cpu) = (Instant::now(), cpu_seconds());
    for number in 0..2_048 {
        logs[number % LOGS].append(&pool, &batch).await;
    }
    for log in &logs {
        log.log.sync().await.unwrap();
    }
    let (user, system) = cpu_seconds();
    println!(
        "  1 MiB batches: {:.0} MB/s, {:.2} s user and {:.2} s system a GB",
        mb_per_s(bytes, started),
        (user - cpu.0) / (bytes as f64 / 1e9),
        (system - cpu.1) / (bytes as f64 / 1e9),
    );
}

async fn latency(root: &Path, options: PoolOptions) {
    let pool = FlushPool::start(root, options).unwrap();
    let mut logs = open(root, &pool);
    let batch = batch(1 << 10);
    let mut times = Vec::new();
    let mut tick = tokio::time::interval(Duration::from_millis(1));
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let cpu = cpu_seconds();
    let mut sent = 0;
    while sent < 30_000 {
        let [a, b, c, d] = &mut logs[..] else {
            unreachable!()
        };
        let (at, event) = tokio::select! {
            biased;
            event = a.events.next() => (0, event),
            event = b.events.next() => (1, event),
            event = c.events.next() => (2, event),
            event = d.events.next() => (3, event),
            _ = tick.tick() => {
                for _ in 0..10 {
                    logs[sent % LOGS].append(&pool, &batch).await;
                    sent += 1;
                }
                continue;
            }
        };
        logs[at].take_flushed(event, &mut times);
    }
    let (user, system) = cpu_seconds();
    println!(
        "  1 KiB batches, 10,000/s: {}, {:.2} s user and {:.2} s system in 3 s",
        percentiles(times),
        user - cpu.0,
        system - cpu.1
    );
}

fn mb_per_s(bytes: u64, since: Instant) -> f64 {
    bytes as f64 / 1e6 / since.elapsed().as_secs_f64()
}

fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let ms = |part: usize| times[(times.len() - 1) * part / 1_000].as_secs_f64() * 1e3;
    format!(
        "p50 {:.2} ms, p99 {:.2} ms, p999 {:.2} ms",
        ms(500),
        ms(990),
        ms(999)
    )
}

/// User and system time of this process, in seconds.
fn cpu_seconds() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    let seconds = |at: usize| fields[at].parse::<f64>().unwrap() / 100.0;
    (seconds(11), seconds(12))
}
