//! How fast batches are built, checked and read: per record, and per byte for the checks.

use std::{hint::black_box, time::Duration};

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use esker_proto::{
    batch::{BatchBuilder, Compression, RecordBatch, crc32c},
    partitioner::murmur2,
    types::{LeaderEpoch, Offset, TimestampMs},
};

/// Records of a batch of about 1 MiB.
const RECORDS: u64 = 9000;
const VALUE: [u8; 100] = *b"The quick brown fox jumps over the lazy dog and runs on through the meadow until the sun is down. ..";

fn fill(builder: &mut BatchBuilder) {
    for index in 0..RECORDS {
        let timestamp = TimestampMs::new(1_700_000_000_000 + (index / 1000).cast_signed());
        let key = index.to_be_bytes();
        builder
            .push(
                timestamp,
                Some(black_box(&key)),
                Some(black_box(&VALUE)),
                &[],
            )
            .expect("the batch has room");
    }
}

fn build(compression: Compression) -> Bytes {
    let mut builder = BatchBuilder::new(compression);
    fill(&mut builder);
    builder.finish(None)
}

/// Push and finish, CRC included: the buffer used again at once, and three batches in flight.
fn bench_build(c: &mut Criterion) {
    let mut group = c.benchmark_group("build");
    group.throughput(Throughput::Elements(RECORDS));
    for compression in Compression::ALL {
        group.bench_function(BenchmarkId::new("dropped", compression), |b| {
            let mut builder = BatchBuilder::with_capacity(compression, 1 << 20);
            b.iter(|| {
                fill(&mut builder);
                builder.finish(None)
            });
        });
    }
    group.bench_function("held", |b| {
        let mut builder = BatchBuilder::with_capacity(Compression::None, 1 << 20);
        let mut in_flight = std::collections::VecDeque::new();
        b.iter(|| {
            fill(&mut builder);
            in_flight.push_back(builder.finish(None));
            if in_flight.len() > 3 {
                in_flight.pop_front();
            }
        });
    });
    group.bench_function("recycled", |b| {
        let mut builder = BatchBuilder::with_capacity(Compression::None, 1 << 20);
        let mut in_flight = std::collections::VecDeque::new();
        b.iter(|| {
            fill(&mut builder);
            in_flight.push_back(builder.finish(None));
            if in_flight.len() > 3
                && let Some(oldest) = in_flight.pop_front()
            {
                builder.recycle(oldest);
            }
        });
    });
    group.finish();
}

fn sum_lengths(batch: &RecordBatch) -> u64 {
    let records = batch.records().expect("the records decompress");
    let mut sum = 0;
    for record in &records {
        let record = record.expect("the record is whole");
        let bytes = record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len);
        sum += record.offset.get() + bytes as u64;
    }
    sum
}

fn bench_read(c: &mut Criterion) {
    let mut group = c.benchmark_group("read");
    group.throughput(Throughput::Elements(RECORDS));
    for compression in Compression::ALL {
        let batch = RecordBatch::validate(build(compression)).expect("the batch is valid");
        group.bench_function(BenchmarkId::new("records", compression), |b| {
            b.iter(|| sum_lengths(black_box(&batch)));
        });
    }
    group.finish();
}

/// What the leader does with a batch.
fn bench_append(c: &mut Criterion) {
    let bytes = build(Compression::None);
    let mut group = c.benchmark_group("append");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("crc32c", |b| b.iter(|| crc32c(black_box(&bytes))));
    group.bench_function("validate-and-stamp", |b| {
        b.iter(|| {
            let batch = RecordBatch::validate(black_box(&bytes).clone()).expect("it is valid");
            batch.stamped(Offset::new(7), LeaderEpoch::new(1))
        });
    });
    let batch = RecordBatch::validate(bytes.clone()).expect("it is valid");
    group.bench_function("check-records", |b| {
        b.iter(|| black_box(&batch).check_records().expect("its records hold"));
    });
    group.finish();
    c.bench_function("murmur2/8-bytes", |b| {
        b.iter(|| murmur2(black_box(b"12345678")))
    });
}

fn short() -> Criterion {
    let criterion = Criterion::default();
    criterion
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
}

criterion_group! {
    name = benches;
    config = short();
    targets = bench_build, bench_read, bench_append
}
criterion_main!(benches);
