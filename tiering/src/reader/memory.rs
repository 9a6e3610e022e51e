//! The memory tier of the chunk cache.

use std::sync::Arc;

use foyer::{Cache, EvictionConfig, LruConfig};

use super::{chunk::Chunk, plan::ChunkId};

/// Chunks by recency. What falls out lives on while a reader still has slices of it.
#[derive(Clone, Debug)]
pub(super) struct MemoryCache(Cache<ChunkId, Arc<Chunk>>);

impl MemoryCache {
    /// Starts empty.
    pub(super) fn new(capacity_bytes: u64) -> Self {
        // Plain recency: a chunk fetched ahead must outlive chunks already read, and a filter for
        // one-hit wonders would throw out exactly what a replay is about to read. One shard: with
        // few large chunks, shards fill unevenly and evict while others have room.
        let cache = Cache::builder(usize::try_from(capacity_bytes).unwrap_or(usize::MAX))
            .with_name("esker_chunks")
            .with_shards(1)
            .with_eviction_config(EvictionConfig::from(LruConfig::default()))
            .with_weighter(|_: &ChunkId, chunk: &Arc<Chunk>| chunk.size_bytes())
            .build();
        Self(cache)
    }

    pub(super) fn get(&self, id: &ChunkId) -> Option<Arc<Chunk>> {
        self.0.get(id).map(|entry| Arc::clone(entry.value()))
    }

    pub(super) fn contains(&self, id: &ChunkId) -> bool {
        self.0.contains(id)
    }

    pub(super) fn insert(&self, id: ChunkId, chunk: Arc<Chunk>) {
        self.0.insert(id, chunk);
    }

    #[cfg(test)]
    pub(super) fn clear(&self) {
        self.0.clear();
    }
}
