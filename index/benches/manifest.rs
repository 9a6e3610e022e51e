//! The bounds of the index at a million segments of 64 entries in one partition: what a commit
//! costs and how long a lookup takes. Sizes are printed and asserted; times are criterion's.
//!
//! `cargo bench -p esker-index`

use std::hint::black_box;

use bytes::Bytes;
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use esker_index::{
    EpochHistory, HEAD_ROWS_MAX, IndexEntry, Manifest, ManifestParts, NewPage, NewSegment,
    PAGES_PER_MERGE, PageId, PageRef, Place, Rows, RowsBuilder, SegmentMeta, SegmentTrailer,
    Update,
};
use esker_proto::types::{
    ClusterId, LeaderEpoch, ManifestVersion, Offset, PartitionId, Position, SegmentId, TimestampMs,
    TopicId, TopicPartition,
};
use uuid::Uuid;

const SEGMENTS: u64 = 1_000_000;
const ENTRIES: u64 = 64;
const SEGMENTS_PER_HEAD: u64 = HEAD_ROWS_MAX as u64 / ENTRIES;
const COMMIT_BYTES_MAX: usize = 256 << 10;
const SEGMENT_BYTES: f64 = 64.0 * 1024.0 * 1024.0;
/// A snapshot of about a hundred producers.
const PRODUCERS_BYTES: usize = 12_000;

/// Segments as a busy partition makes them: batches of some 16 KiB, 100-byte records, entries that
/// overshoot their interval by part of a batch, timestamps that advance unevenly.
struct Log {
    noise: u64,
    offset: u64,
    timestamp: i64,
}

impl Log {
    const fn new(offset: Offset) -> Self {
        Self {
            noise: 0x9e37_79b9_7f4a_7c15,
            offset: offset.get(),
            timestamp: 1_800_000_000_000,
        }
    }

    fn random(&mut self) -> u64 {
        self.noise ^= self.noise << 13;
        self.noise ^= self.noise >> 7;
        self.noise ^= self.noise << 17;
        self.noise
    }

    fn segment(&mut self) -> (SegmentMeta, Vec<IndexEntry>) {
        let mut position = Position::ZERO;
        let mut entries = Vec::new();
        for _ in 0..ENTRIES {
            let length = (1 << 20) + u32::try_from(self.random() % 16_384).expect("small");
            let record_count = length / 108 + u32::try_from(self.random() % 50).expect("small");
            let took_ms = i64::try_from(20 + self.random() % 12).expect("small");
            entries.push(IndexEntry {
                base_offset: Offset::new(self.offset),
                position,
                length,
                record_count,
                min_timestamp: TimestampMs::new(self.timestamp),
                max_timestamp: TimestampMs::new(self.timestamp + took_ms),
            });
            self.offset += u64::from(record_count);
            self.timestamp += took_ms;
            position = position.advance(length.into());
        }
        let id = SegmentId::new(Uuid::from_u64_pair(self.random(), self.random()));
        let crc32c = u32::try_from(self.random() >> 32).expect("32 bits");
        let meta = SegmentMeta::of_entries(id, LeaderEpoch::new(1), crc32c, &entries);
        (meta.expect("there are entries"), entries)
    }

    fn rows(&mut self, segments: u64) -> Rows {
        let mut rows = RowsBuilder::new();
        for _ in 0..segments {
            let (meta, entries) = self.segment();
            rows.push(meta, &entries)
                .expect("segments follow each other");
        }
        rows.finish()
    }

    fn new_segment(&mut self) -> NewSegment {
        let (meta, entries) = self.segment();
        let mut epochs = EpochHistory::new();
        epochs
            .push(LeaderEpoch::new(1), Offset::ZERO)
            .expect("the first epoch");
        NewSegment {
            meta,
            entries,
            epochs,
            producers: producers(),
        }
    }
}

fn producers() -> Bytes {
    vec![0xa5; PRODUCERS_BYTES].into()
}

fn partition() -> TopicPartition {
    let topic_id = TopicId::new(Uuid::from_u128(2));
    TopicPartition {
        topic_id,
        partition: PartitionId::new(3),
    }
}

fn empty(log_start_offset: Offset) -> Manifest {
    let cluster_id = ClusterId::new(Uuid::from_u128(1));
    Manifest::create_at(cluster_id, partition(), log_start_offset)
}

/// The manifest of a million segments, just before its head spills; page references are made up,
/// the head is real.
fn million() -> Manifest {
    let records_per_segment = 630_000;
    let mut pages = Vec::new();
    let mut offset = Offset::ZERO;
    let mut left = SEGMENTS - SEGMENTS_PER_HEAD;
    for level in [2_u8, 1, 0] {
        let per_page = SEGMENTS_PER_HEAD * (PAGES_PER_MERGE as u64).pow(level.into());
        while left >= per_page {
            let next = Offset::new(offset.get() + per_page * records_per_segment);
            pages.push(page_ref(level, offset, next, per_page));
            (offset, left) = (next, left - per_page);
        }
    }
    let head = Log::new(offset).rows(SEGMENTS_PER_HEAD);
    let mut header = *empty(offset).header();
    header.version = ManifestVersion::new(SEGMENTS);
    header.leader_epoch = LeaderEpoch::new(1);
    header.nonce = u128::MAX;
    let mut epochs = EpochHistory::new();
    epochs
        .push(LeaderEpoch::new(1), Offset::ZERO)
        .expect("the first epoch");
    let parts = ManifestParts {
        header,
        log_start_offset: Offset::ZERO,
        tiered_offset: head.next_offset().expect("the head has rows"),
        epochs,
        producers: producers(),
        pages: pages.into(),
        head,
    };
    Manifest::from_parts(parts).expect("invariants hold")
}

fn page_ref(level: u8, base_offset: Offset, next_offset: Offset, segments: u64) -> PageRef {
    PageRef {
        id: PageId::new(Uuid::from_u64_pair(base_offset.get(), !base_offset.get())),
        leader_epoch: LeaderEpoch::new(1),
        level,
        base_offset,
        next_offset,
        row_count: u32::try_from(segments * ENTRIES).expect("within a page"),
        segment_count: u32::try_from(segments).expect("within a page"),
        segment_bytes: segments << 26,
        min_timestamp: TimestampMs::new(1_700_000_000_000),
        max_timestamp: TimestampMs::new(1_700_000_100_000),
        min_uploaded_at: TimestampMs::new(1_700_000_100_000),
        max_uploaded_at: TimestampMs::new(1_700_000_100_000),
        size_bytes: segments * 900,
        crc32c: u32::MAX,
    }
}

fn commit(c: &mut Criterion) {
    let manifest = million();
    let spilled = {
        let mut log = Log::new(manifest.tiered_offset());
        manifest
            .apply(Update::AddSegment(log.new_segment()), 1)
            .expect("the segment follows")
    };
    let full = manifest.encode([0xff; 32]).len();
    let list = spilled.manifest.encode([0xff; 32]).len();
    println!(
        "at 1 M segments: {} pages; commit with a full head {full} B, with one segment in it {list} B",
        manifest.pages().len()
    );
    assert!(
        full < COMMIT_BYTES_MAX,
        "commit is too large. bytes=`{full}`"
    );

    let mut group = c.benchmark_group("commit at 1M segments");
    group.bench_function("encode, full head", |b| {
        b.iter(|| manifest.encode(black_box([1; 32])))
    });
    group.bench_function("apply and encode, head spills", |b| {
        let segment = Log::new(manifest.tiered_offset()).new_segment();
        b.iter_batched(
            || Update::AddSegment(segment.clone()),
            |update| {
                manifest
                    .apply(update, 1)
                    .expect("it fits")
                    .manifest
                    .encode([1; 32])
            },
            BatchSize::SmallInput,
        );
    });
    let object = manifest.encode([1; 32]);
    group.bench_function("decode", |b| b.iter(|| Manifest::decode(object.clone())));
    group.finish();
    println!(
        "index and manifest bytes: {:.3} % of the data",
        100.0 * overhead(full, list)
    );
}

/// All index bytes written per byte of data: trailer, commit of an average head, each row's way
/// through three levels of pages.
fn overhead(full: usize, list: usize) -> f64 {
    let mut log = Log::new(Offset::ZERO);
    let NewSegment {
        meta,
        entries,
        epochs,
        producers,
    } = log.new_segment();
    let cluster_id = ClusterId::new(Uuid::from_u128(1));
    let topic_partition = partition();
    let trailer = SegmentTrailer {
        cluster_id,
        topic_partition,
        meta,
        entries,
        epochs,
        producers,
    }
    .encode();
    let trailer = trailer.expect("within limits").len();
    let page = merge(heads(1)).bytes.len();
    let pages_per_segment = 3 * page / usize::try_from(SEGMENTS_PER_HEAD).expect("small");
    let bytes = trailer + full.midpoint(list) + pages_per_segment;
    println!(
        "per segment: trailer {trailer} B, commit {} B, pages {pages_per_segment} B",
        full.midpoint(list)
    );
    bytes as f64 / SEGMENT_BYTES
}

type Pages = Vec<(PageRef, Rows)>;

/// A manifest with `count` pages, each a full head, and the pages' rows.
fn heads(count: u64) -> (Manifest, Pages) {
    let mut log = Log::new(Offset::ZERO);
    let mut pages = Vec::new();
    let open = Update::Open {
        leader_epoch: LeaderEpoch::new(1),
    };
    let mut manifest = empty(Offset::ZERO).apply(open, 1).expect("opens").manifest;
    for nonce in 0..count {
        let added = (0..=SEGMENTS_PER_HEAD).map(|_| Update::AddSegment(log.new_segment()));
        let next = manifest
            .apply(Update::All(added.collect()), nonce.into())
            .expect("it fits");
        for page in next.new_pages {
            let rows = Rows::decode_page(page.bytes, &page.page_ref).expect("just made");
            pages.push((page.page_ref, rows));
        }
        manifest = next.manifest;
    }
    (manifest, pages)
}

fn merge((manifest, merged): (Manifest, Pages)) -> NewPage {
    let update = Update::MergePages { merged };
    let next = manifest.apply(update, 99).expect("neighbours");
    next.new_pages.into_iter().next().expect("one page")
}

fn pages(c: &mut Criterion) {
    let mut group = c.benchmark_group("page of 262144 rows");
    group.sample_size(10);
    let heads = heads(64);
    let page = merge(heads.clone());
    let rows = Rows::decode_page(page.bytes.clone(), &page.page_ref).expect("just made");
    let (page_ref, size) = (page.page_ref, page.bytes.len());
    println!(
        "largest page: {} rows, {size} B, {:.2} B a row, {} B in memory",
        page_ref.row_count,
        size as f64 / f64::from(page_ref.row_count),
        rows.memory_bytes()
    );
    group.bench_function("merge", |b| {
        b.iter_batched(|| heads.clone(), merge, BatchSize::PerIteration);
    });
    group.bench_function("decode", |b| {
        b.iter(|| Rows::decode_page(page.bytes.clone(), &page_ref).expect("just made"));
    });
    group.finish();
}

fn locate(c: &mut Criterion) {
    let manifest = million();
    // Eight of the 244 large pages are warm, 67 MB: lookups miss the processor's caches.
    let warm: Vec<(PageRef, Rows)> = manifest.pages()[..8]
        .iter()
        .map(|page| (*page, Log::new(page.base_offset).rows(4096)))
        .collect();
    let mut log = Log::new(Offset::ZERO);
    let mut group = c.benchmark_group("locate with warm pages");
    group.bench_function("offset", |b| {
        b.iter(|| {
            let which = usize::try_from(log.random() % 8).expect("small");
            let (page, rows) = &warm[which];
            let span = rows
                .next_offset()
                .expect("rows")
                .min(page.next_offset)
                .since(page.base_offset);
            let offset = Offset::new(page.base_offset.get() + log.random() % span);
            let Place::Page(found) = manifest.find(offset) else {
                unreachable!()
            };
            assert_eq!(found.id, page.id);
            rows.seek(offset).map(|row| rows.row(row))
        });
    });
    group.bench_function("timestamp", |b| {
        b.iter(|| {
            let which = usize::try_from(log.random() % 8).expect("small");
            let (page, rows) = &warm[which];
            let timestamp = TimestampMs::new(
                1_800_000_000_000 + i64::try_from(log.random() % 6_000_000).expect("small"),
            );
            black_box(manifest.find_timestamp(timestamp, page.base_offset));
            rows.seek_timestamp(timestamp, page.base_offset)
                .map(|row| rows.row(row))
        });
    });
    group.finish();
}

criterion_group!(benches, commit, pages, locate);
criterion_main!(benches);
