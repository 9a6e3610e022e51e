//! The cold-read path: from an offset to the bytes of its batches, through caches.
//!
//! # Overview
//!
//! An agent has one [`Reader`]; each consumer that reads below the tail has a [`Cursor`]. A cursor
//! resolves its offset by one manifest version, plans the chunk that holds it (`plan`), gets it
//! from memory, disk or the store (`fetcher`), cuts whole batches from it (`cut`) and has the
//! chunks after it fetched meanwhile (`window`).
//!
//! # Chunks
//!
//! A chunk is a run of index entries of one segment that begin in the same aligned 4 MiB of the
//! object. It ends at a batch border, so it can be checked on its own, and it is the unit of fetch,
//! cache and budget. It is fetched once however many cursors want it (`flights`). A cursor begins
//! with half a chunk at most and fetches nothing ahead before it has read that to its end. Where
//! more cursors are at work than whole chunks fit into the memory, chunks are smaller, down to one
//! index entry.
//!
//! # What a reader may see
//!
//! Only what the manifest names, and only batches whose length, CRC and offsets were checked when
//! their chunk arrived, from the store or from disk. Bytes are never copied between the store's
//! client and the caller: slices share the chunk.
//!
//! # Memory
//!
//! Everything is charged to one budget (`budget`): a chunk from before its fetch until the last
//! slice of it is dropped, what is read of the local log, and the responses made of either (`room`).
//! Together they never exceed [`ReaderOptions::cache_memory_bytes`] + [`ReaderOptions::budget_bytes`],
//! apart from single batches and chunks larger than their share. Of the second, a quarter is for
//! copies of pieces, an eighth is always there for the bucket and another for the tail; the cache
//! takes at most the first. Readers are served in the order they came, one chunk per reader at a
//! time, before anything fetched ahead.
//!
//! What a reader keeps for its next step (`holds`) is taken from it when others need the memory, the
//! longest unused first; it reads it again. What the transport has taken for a peer cannot be taken
//! back, so it has shares of its own, and a peer that takes nothing holds two small copies once they
//! are used up. A reader that finds no memory for half its deadline gets [`Error::ReadMemory`]. A
//! reader's window is at most its equal share of half the memory, among those that read lately.
//!
//! Index pages are outside of it: [`ReaderOptions::page_memory_bytes`] for decoded ones, and a bound
//! for the whole process on those being loaded (`page_load`).
//!
//! # Cancellation
//!
//! A fetch belongs to nobody: a reader that goes away, or times out, leaves it to land in the cache
//! (a store slower than the caller's patience still makes progress). Every fetch ends within
//! [`ReaderOptions::deadline`]; its error, or its panic, reaches every waiter; the next request
//! starts another.
//!
//! # Garbage
//!
//! Retention deletes objects under readers. One that finds an object gone resolves its offset again
//! by the newest manifest, a bounded number of times.
//!
//! # Not handled
//!
//! The tail: it has its own path, which shares nothing with this one, so replays cannot hold it up.
//! Keeping manifests current: whoever hands out the watch does that.

mod borrowers;
mod budget;
mod chunk;
mod cursor;
mod cut;
mod disk;
mod fetcher;
mod flights;
mod holds;
mod memory;
mod metrics;
mod pages;
mod plan;
mod room;
mod timestamp;
mod window;

#[cfg(test)]
mod tests;

use std::{path::PathBuf, sync::Arc, time::Duration};

pub use budget::Charge;
pub use chunk::Buffer;
pub use cursor::{Cursor, Read};
use esker_index::{Manifest, Rows};
use esker_proto::types::{Offset, TimestampMs, TopicPartition};
pub use holds::Hold;
use prometheus::Registry;
pub use room::{CopyRoom, ReadMemory, Taken};
use tokio::sync::watch;

use self::{
    budget::{Limits, Side},
    disk::{DiskCache, DiskLimits},
    fetcher::{Fetcher, FetcherParts},
    metrics::{Active, Metrics},
    pages::Pages,
    plan::ChunkPlan,
};
use crate::{env::TaskSet, error::Error, store::Store};

/// Stretch of a segment object whose index entries make a chunk.
pub const CHUNK_BYTES: u64 = 4 << 20;
/// Most chunks a reader has fetched ahead.
const WINDOW_CHUNKS_MAX: u64 = 16;

/// How much memory and disk cold reads may take.
#[derive(Clone, Debug)]
pub struct ReaderOptions {
    /// Memory for cached chunks.
    pub cache_memory_bytes: u64,
    /// Memory, on top of the cache, for everything else that readers hold: chunks under way and
    /// pinned, what was read of the local log, responses and pieces of them.
    pub budget_bytes: u64,
    /// Memory for decoded index pages.
    pub page_memory_bytes: u64,
    /// Directory and size of the disk cache, if there shall be one.
    pub cache_disk: Option<(PathBuf, u64)>,
    /// Most bytes written to the disk cache each second; the rest is not kept.
    pub cache_disk_write_bytes_per_second: u64,
    /// Longest time a fetch may take, waiting for memory included.
    pub deadline: Duration,
    /// Stretch of a segment object whose index entries make a chunk.
    pub chunk_bytes: u64,
}

impl Default for ReaderOptions {
    fn default() -> Self {
        Self {
            cache_memory_bytes: 128 << 20,
            budget_bytes: 128 << 20,
            page_memory_bytes: 32 << 20,
            cache_disk: None,
            cache_disk_write_bytes_per_second: 128 << 20,
            deadline: Duration::from_secs(60),
            chunk_bytes: CHUNK_BYTES,
        }
    }
}

/// Reads what is in the bucket. Cheap to clone; an agent has one.
#[derive(Clone, Debug)]
pub struct Reader(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    fetcher: Arc<Fetcher>,
    pages: Arc<Pages>,
    memory: ReadMemory,
    chunk_bytes: u64,
    /// Bytes that all windows may have ahead together.
    window_bytes: u64,
    /// Bytes that all chunks that readers are in the middle of may take together.
    current_bytes: u64,
}

impl Reader {
    /// Starts with what the disk cache holds, if there is one. Its fetches end with `tasks`.
    ///
    /// # Errors
    ///
    /// [`Error::Settings`] if the directory of the disk cache cannot be used,
    /// [`Error::MetricsTaken`] if `registry` counts another reader already.
    pub async fn open(
        store: Store,
        options: ReaderOptions,
        registry: &Registry,
        tasks: TaskSet,
    ) -> Result<Self, Error> {
        let disk = match &options.cache_disk {
            Some((dir, capacity_bytes)) => Some(open_disk(dir, *capacity_bytes, &options).await?),
            None => None,
        };
        let metrics = Metrics::register(registry)?;
        let limits = limits(&options);
        let pages = Pages::new(
            store.clone(),
            options.page_memory_bytes,
            options.deadline,
            metrics.page_misses.clone(),
            tasks.clone(),
        );
        let fetcher = Fetcher::new(FetcherParts {
            store,
            disk,
            cache_bytes: options.cache_memory_bytes,
            limits,
            deadline: options.deadline,
            metrics,
            tasks,
        });
        let memory = ReadMemory::new(
            fetcher.budget().clone(),
            options.budget_bytes / COPIES_PART,
            options.budget_bytes / 2,
            fetcher.patience(),
        );
        Ok(Self(Arc::new(Inner {
            fetcher: Arc::new(fetcher),
            pages: Arc::new(pages),
            memory,
            chunk_bytes: options.chunk_bytes,
            window_bytes: options.cache_memory_bytes.min(options.budget_bytes) / 2,
            current_bytes: limits.total_bytes / 2,
        })))
    }

    /// Reads a partition from `offset` on, by the newest manifest of the watch at each step.
    pub fn read(
        &self,
        manifest: watch::Receiver<Arc<Manifest>>,
        tp: TopicPartition,
        offset: Offset,
    ) -> Cursor {
        Cursor::new(self.0.clone(), tp, manifest, offset)
    }

    /// Finds the first tiered record whose timestamp is at least `timestamp`; its offset and
    /// timestamp, or `None` if there is none in the tiered part.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if the manifest is not the newest and objects are gone: take the newest
    /// and ask again.
    pub async fn offset_for_timestamp(
        &self,
        manifest: &Manifest,
        timestamp: TimestampMs,
    ) -> Result<Option<(Offset, TimestampMs)>, Error> {
        self.0.offset_for_timestamp(manifest, timestamp).await
    }

    /// Returns the memory that all reads share, also those of the local log.
    pub fn memory(&self) -> &ReadMemory {
        &self.0.memory
    }

    /// Waits for writes to the disk cache. Call it at shutdown.
    pub async fn close(&self) {
        self.0.fetcher.close().await;
    }
}

impl Inner {
    fn activate(&self) -> Active {
        Active::new(&self.fetcher.metrics().cold_readers)
    }

    /// How many readers have read lately.
    fn active(&self) -> u64 {
        let active = self.fetcher.budget().holds().count_active(Side::Bucket);
        active.max(1) as u64
    }

    /// Largest chunk with which all active readers fit into the memory.
    fn fair_bytes(&self) -> u64 {
        self.current_bytes / self.active()
    }

    /// Plans a chunk with row `index` in it: one that is here already, else of at most `max_bytes`,
    /// but at least one entry.
    fn plan(&self, rows: &Rows, index: usize, max_bytes: u64) -> ChunkPlan {
        let whole = ChunkPlan::around(rows, index, self.chunk_bytes);
        if self.fetcher.has(&whole.id) {
            return whole;
        }
        whole.part(index, max_bytes)
    }

    /// How many chunks of `chunk_bytes` each of the active readers may have ahead.
    fn share_chunks(&self, chunk_bytes: u64) -> usize {
        let readers = self.active();
        let chunks = self.window_bytes / chunk_bytes.max(1);
        // One chunk each even if there are more readers than chunks: the budget refuses what is too
        // much. None if the cache is too small to keep it until it is read.
        let share = (chunks / readers).clamp(chunks.min(1), WINDOW_CHUNKS_MAX);
        usize::try_from(share).unwrap_or(0)
    }
}

/// Part of the budget that copies of pieces may take.
const COPIES_PART: u64 = 4;
/// Part of the budget that is always there for the tail, and for the bucket.
const FLOOR_PART: u64 = 8;

const fn limits(options: &ReaderOptions) -> Limits {
    let (cached_bytes, budget_bytes) = (options.cache_memory_bytes, options.budget_bytes);
    Limits {
        total_bytes: cached_bytes + budget_bytes - budget_bytes / COPIES_PART,
        speculative_bytes: cached_bytes + budget_bytes / 2,
        cached_bytes,
        bucket_floor_bytes: cached_bytes + budget_bytes / FLOOR_PART,
        tail_floor_bytes: budget_bytes / FLOOR_PART,
    }
}

async fn open_disk(
    dir: &std::path::Path,
    capacity_bytes: u64,
    options: &ReaderOptions,
) -> Result<DiskCache, Error> {
    let limits = DiskLimits {
        capacity_bytes,
        write_bytes_per_second: options.cache_disk_write_bytes_per_second,
    };
    DiskCache::open(dir, limits)
        .await
        .map_err(|error| Error::Settings {
            store: dir.display().to_string(),
            reason: format!("disk cache cannot be opened: {error}"),
        })
}
