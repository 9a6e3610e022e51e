//! `esker bench index`: the manifest of a long partition, built as an agent builds it.

use std::{collections::HashMap, hint::black_box, time::Instant};

use anyhow::Context;
use clap::Args;
use esker_proto::types::{
    ClusterId, LeaderEpoch, Offset, PartitionId, Position, SegmentId, TimestampMs, TopicId,
    TopicPartition,
};
use esker_tiering::index::{
    EpochHistory, IndexEntry, Manifest, NewSegment, Next, PageId, Place, Rows, SegmentMeta, Update,
};

use super::outcome::{Outcome, rounded};

/// Index entries of a segment of 64 MiB.
const ENTRIES: u32 = 64;
const RECORDS_PER_ENTRY: u32 = 9_300;
const ENCODES: u32 = 50;
const LOOKUPS: u32 = 200_000;

#[derive(Debug, Args)]
pub(in crate::cli) struct IndexBench {
    /// Segments of the partition
    #[arg(long, default_value_t = 50_000)]
    segments: u64,
}

/// A manifest and the pages it names.
struct Partition {
    manifest: Manifest,
    pages: HashMap<PageId, Rows>,
    nonce: u128,
}

impl IndexBench {
    #[expect(clippy::cast_precision_loss, reason = "rates")]
    pub(super) fn run(&self) -> anyhow::Result<Vec<Outcome>> {
        let mut partition = Partition::open()?;
        let started = Instant::now();
        for number in 0..self.segments {
            partition.add(segment(number)?)?;
        }
        let commits = self.segments as f64 / started.elapsed().as_secs_f64();
        let bytes = partition.manifest.encode([0; 32]).len();
        let started = Instant::now();
        for _ in 0..ENCODES {
            black_box(partition.manifest.encode(black_box([1; 32])));
        }
        let encode_ms = started.elapsed().as_secs_f64() * 1000.0 / f64::from(ENCODES);
        let locate_us = partition.locate()?;

        let mut outcome = Outcome::new("index commits", commits, "commits/s");
        outcome.detail("segments", self.segments, self.segments.to_string());
        outcome.detail(
            "pages",
            partition.manifest.pages().len(),
            partition.pages.len().to_string(),
        );
        outcome.detail(
            "commit_bytes",
            bytes,
            format!("{} B", rounded(bytes as f64)),
        );
        outcome.detail("encode_ms", encode_ms, format!("{encode_ms:.2} ms"));
        outcome.detail("locate_us", locate_us, format!("{locate_us:.2} us"));
        Ok(vec![outcome])
    }
}

impl Partition {
    fn open() -> anyhow::Result<Self> {
        let topic_id = TopicId::new(uuid::Uuid::from_u128(2));
        let at = TopicPartition {
            topic_id,
            partition: PartitionId::new(0),
        };
        let empty = Manifest::create(ClusterId::new(uuid::Uuid::from_u128(1)), at);
        let opened = empty.apply(
            Update::Open {
                leader_epoch: LeaderEpoch::new(1),
            },
            1,
        )?;
        Ok(Self {
            manifest: opened.manifest,
            pages: HashMap::new(),
            nonce: 2,
        })
    }

    fn add(&mut self, segment: NewSegment) -> anyhow::Result<()> {
        self.apply(Update::AddSegment(segment))?;
        while let Some(run) = self.manifest.merge_due() {
            let mut merged = Vec::new();
            for page in run {
                let rows = self.pages.remove(&page.id).context("a page is missing")?;
                merged.push((page, rows));
            }
            self.apply(Update::MergePages { merged })?;
        }
        Ok(())
    }

    fn apply(&mut self, update: Update) -> anyhow::Result<()> {
        self.nonce += 2;
        let Next {
            manifest,
            new_pages,
            ..
        } = self.manifest.apply(update, self.nonce)?;
        self.manifest = manifest;
        for page in new_pages {
            let rows = Rows::decode_page(page.bytes, &page.page_ref)?;
            self.pages.insert(page.page_ref.id, rows);
        }
        Ok(())
    }

    /// Microseconds of a lookup with all pages at hand.
    fn locate(&self) -> anyhow::Result<f64> {
        let end = self.manifest.tiered_offset().get();
        let mut offset = 0_u64;
        let started = Instant::now();
        for _ in 0..LOOKUPS {
            // A step that is prime to the length goes everywhere.
            offset = (offset + 7_368_787 * u64::from(ENTRIES)) % end;
            let at = Offset::new(offset);
            let rows = match self.manifest.find(at) {
                Place::Page(page) => self.pages.get(&page.id).context("a page is missing")?,
                _ => self.manifest.head(),
            };
            black_box(rows.seek(at).context("an offset is missing")?);
        }
        Ok(started.elapsed().as_secs_f64() * 1e6 / f64::from(LOOKUPS))
    }
}

fn segment(number: u64) -> anyhow::Result<NewSegment> {
    let first = number * u64::from(ENTRIES);
    let entries: Vec<_> = (0..ENTRIES)
        .map(|entry| index_entry(first, entry))
        .collect();
    let id = SegmentId::new(uuid::Uuid::from_u128(u128::from(number) << 64 | 1));
    let meta = SegmentMeta::of_entries(id, LeaderEpoch::new(1), 7, &entries)
        .context("entries follow each other")?;
    let mut epochs = EpochHistory::new();
    epochs.push(LeaderEpoch::new(1), Offset::ZERO)?;
    Ok(NewSegment {
        meta,
        entries,
        epochs,
        producers: bytes::Bytes::new(),
    })
}

fn index_entry(first: u64, entry: u32) -> IndexEntry {
    let number = first + u64::from(entry);
    let timestamp = TimestampMs::new(1_700_000_000_000 + i64::try_from(number * 25).unwrap_or(0));
    IndexEntry {
        base_offset: Offset::new(number * u64::from(RECORDS_PER_ENTRY)),
        position: Position::new(u64::from(entry) << 20),
        length: 1 << 20,
        record_count: RECORDS_PER_ENTRY,
        min_timestamp: timestamp,
        max_timestamp: timestamp,
    }
}
