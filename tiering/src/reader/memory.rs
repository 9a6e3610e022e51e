//! The memory tier of the chunk cache.

use std::sync::Arc;

use foyer::{Cache, EvictionConfig, LruConfig};

use super::{chunk::Chunk, plan::ChunkId};

/// Chunks by recency. What falls out lives on while a reader still has slices of it.
#[derive(Clone, Debug)]
pub(super) struct MemoryCache {
    cache: Cache<ChunkId, Arc<Chunk>>,
    capacity_bytes: usize,
}

impl MemoryCache {
    /// Starts empty.
    pub(super) fn new(capacity_bytes: u64) -> Self {
        // Plain recency: a chunk fetched ahead must outlive chunks already read, and a filter for
        // one-hit wonders would throw out exactly what a replay is about to read. One shard: with
        // few large chunks, shards fill unevenly and evict while others have room.
        let capacity_bytes = usize::try_from(capacity_bytes).unwrap_or(usize::MAX);
        let cache = Cache::builder(capacity_bytes)
            .with_name("esker_chunks")
            .with_shards(1)
            .with_eviction_config(EvictionConfig::from(LruConfig::default()))
            .with_weighter(|_: &ChunkId, chunk: &Arc<Chunk>| chunk.size_bytes())
            .build();
        Self {
            cache,
            capacity_bytes,
        }
    }

    pub(super) fn get(&self, id: &ChunkId) -> Option<Arc<Chunk>> {
        self.cache.get(id).map(|entry| Arc::clone(entry.value()))
    }

    pub(super) fn contains(&self, id: &ChunkId) -> bool {
        self.cache.contains(id)
    }

    pub(super) fn insert(&self, id: ChunkId, chunk: Arc<Chunk>) {
        // Else it would push out everything and stay, although it does not fit.
        if chunk.size_bytes() <= self.capacity_bytes {
            self.cache.insert(id, chunk);
        }
    }

    pub(super) fn clear(&self) {
        self.cache.clear();
    }
}
