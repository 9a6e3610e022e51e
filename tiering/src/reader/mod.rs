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
//! cache and budget. It is fetched once however many cursors want it (`flights`).
//!
//! # What a reader may see
//!
//! Only what the manifest names, and only batches whose length, CRC and offsets were checked when
//! their chunk arrived, from the store or from disk. Bytes are never copied between the store's
//! client and the caller: slices share the chunk.
//!
//! # Memory
//!
//! Every chunk is charged to one budget from before its fetch until the last slice of it is dropped
//! (`budget`): cache, fetches under way, and what readers pin together never exceed
//! [`ReaderOptions::cache_memory_bytes`] + [`ReaderOptions::budget_bytes`]. Of these the cache takes
//! at most the first, so the second is always there for chunks that readers wait for. They are
//! served in the order they came, one chunk per reader at a time, before anything fetched ahead; the
//! chunk a cursor keeps between calls is taken from it when others wait. A reader's window is at
//! most its equal share of half the memory.
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
mod timestamp;
mod window;

#[cfg(test)]
mod tests;

use std::{path::PathBuf, sync::Arc, time::Duration};

pub use cursor::{Cursor, Read};
use esker_index::Manifest;
use esker_proto::types::{Offset, TimestampMs, TopicPartition};
use prometheus::Registry;
use tokio::sync::watch;

use self::{
    budget::Limits,
    disk::{DiskCache, DiskLimits},
    fetcher::{Fetcher, FetcherParts},
    metrics::{Active, Metrics},
    pages::Pages,
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
    /// Memory, on top of the cache, for chunks under way and chunks that readers pin. At least one
    /// chunk's worth for each reader that shall make progress at the same time.
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
    chunk_bytes: u64,
    /// Bytes that all windows may have ahead together.
    window_bytes: u64,
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
        let limits = Limits {
            total_bytes: options.cache_memory_bytes + options.budget_bytes,
            speculative_bytes: options.cache_memory_bytes + options.budget_bytes / 2,
            cached_bytes: options.cache_memory_bytes,
        };
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
        Ok(Self(Arc::new(Inner {
            fetcher: Arc::new(fetcher),
            pages: Arc::new(pages),
            chunk_bytes: options.chunk_bytes,
            window_bytes: options.cache_memory_bytes.min(options.budget_bytes) / 2,
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

    /// Waits for writes to the disk cache. Call it at shutdown.
    pub async fn close(&self) {
        self.0.fetcher.close().await;
    }
}

impl Inner {
    fn activate(&self) -> Active {
        Active::new(&self.fetcher.metrics().cold_readers)
    }

    /// How many chunks each of the active readers may have ahead.
    fn share_chunks(&self) -> usize {
        let readers = u64::try_from(self.fetcher.metrics().cold_readers.get())
            .unwrap_or(0)
            .max(1);
        let chunks = self.window_bytes / self.chunk_bytes;
        // One chunk each even if there are more readers than chunks: the budget refuses what is too
        // much. None if the cache is too small to keep it until it is read.
        let share = (chunks / readers).clamp(chunks.min(1), WINDOW_CHUNKS_MAX);
        usize::try_from(share).unwrap_or(0)
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
