//! The disk tier of the chunk cache: a scratch directory that may be lost or emptied at any time.
//!
//! Writes are bounded in rate and in queue, and dropped when they fall behind: a replay never waits
//! for them. What is read back is checked like what is fetched, so a rotten file costs a fetch.

use std::{
    io::{Read, Write},
    path::Path,
    sync::Arc,
};

use bytes::Bytes;
use esker_proto::types::{Position, SegmentId};
use foyer::{
    BlockEngineConfig, Code, DeviceBuilder, FsDeviceBuilder, HybridCache, HybridCacheBuilder, Load,
    PsyncIoEngineConfig, RecoverMode, Throttle,
};
use uuid::Uuid;

use super::{chunk::Chunk, plan::ChunkId};

/// Evicted as a whole; a chunk must fit into one.
const BLOCK_BYTES: usize = 32 << 20;
/// Memory for writes under way, and as much again for those that wait.
const WRITE_BUFFER_BYTES: usize = 16 << 20;

/// How much to keep, and how fast to write.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskLimits {
    pub(super) capacity_bytes: u64,
    pub(super) write_bytes_per_second: u64,
}

/// Chunks on disk.
#[derive(Clone, Debug)]
pub(super) struct DiskCache(HybridCache<ChunkId, Stored>);

/// What is written: the chunk itself, so that its bytes stay charged until they are.
#[derive(Clone, Debug)]
pub(super) enum Stored {
    Fetched(Arc<Chunk>),
    Loaded(Bytes),
}

impl DiskCache {
    /// Opens or creates the directory, and takes over what holds of its content.
    pub(super) async fn open(dir: &Path, limits: DiskLimits) -> Result<Self, foyer::Error> {
        let as_usize = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        let throttle =
            Throttle::new().with_write_throughput(as_usize(limits.write_bytes_per_second));
        let device = FsDeviceBuilder::new(dir)
            .with_capacity(as_usize(limits.capacity_bytes))
            .with_throttle(throttle)
            .build()?;
        let engine = BlockEngineConfig::new(device)
            .with_block_size(BLOCK_BYTES)
            .with_buffer_pool_size(WRITE_BUFFER_BYTES)
            .with_submit_queue_size_threshold(WRITE_BUFFER_BYTES);
        // The memory half of foyer's hybrid keeps nothing: chunks in memory are ours to charge.
        let cache = HybridCacheBuilder::new()
            .with_name("esker_chunks_on_disk")
            .with_flush_on_close(false)
            .memory(1)
            .with_shards(1)
            .storage()
            .with_io_engine_config(PsyncIoEngineConfig::new())
            .with_recover_mode(RecoverMode::Quiet)
            .with_engine_config(engine)
            .build()
            .await?;
        Ok(Self(cache))
    }

    /// Queues a chunk to be written, or drops it when writes are behind.
    pub(super) fn offer(&self, id: ChunkId, chunk: Arc<Chunk>) {
        if chunk.size_bytes() < BLOCK_BYTES / 2 {
            drop(self.0.storage_writer(id).insert(Stored::Fetched(chunk)));
        }
    }

    /// Whether a chunk is probably here.
    pub(super) fn may_contain(&self, id: &ChunkId) -> bool {
        self.0.storage().may_contains(id)
    }

    /// Loads a chunk. A failing disk is a miss.
    pub(super) async fn load(&self, id: &ChunkId) -> Option<Bytes> {
        match self.0.storage().load(id).await {
            Ok(Load::Entry { value, .. }) => Some(value.into_bytes()),
            Ok(Load::Piece { piece, .. }) => Some(piece.value().clone().into_bytes()),
            Ok(Load::Miss | Load::Throttled) => None,
            Err(error) => {
                tracing::warn!(%error, "chunk cache on disk cannot be read");
                None
            }
        }
    }

    /// Forgets a chunk whose bytes do not hold.
    pub(super) fn forget(&self, id: &ChunkId) {
        self.0.storage().delete(id);
    }

    /// Waits for the writes under way.
    pub(super) async fn close(&self) {
        if let Err(error) = self.0.close().await {
            tracing::warn!(%error, "chunk cache on disk cannot be closed");
        }
    }
}

impl Stored {
    fn bytes(&self) -> &Bytes {
        match self {
            Self::Fetched(chunk) => chunk.peek(),
            Self::Loaded(bytes) => bytes,
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Fetched(chunk) => chunk.peek().clone(),
            Self::Loaded(bytes) => bytes,
        }
    }
}

impl Code for Stored {
    fn encode(&self, writer: &mut impl Write) -> Result<(), foyer::Error> {
        let bytes = self.bytes();
        (bytes.len() as u64).encode(writer)?;
        writer.write_all(bytes).map_err(foyer::Error::io_error)
    }

    fn decode(reader: &mut impl Read) -> Result<Self, foyer::Error> {
        let length = u64::decode(reader)?;
        let mut bytes = Vec::new();
        // The reader ends with the entry, so a rotten length allocates no more than that.
        reader
            .take(length)
            .read_to_end(&mut bytes)
            .map_err(foyer::Error::io_error)?;
        Ok(Self::Loaded(bytes.into()))
    }

    fn estimated_size(&self) -> usize {
        size_of::<u64>() + self.bytes().len()
    }
}

impl Code for ChunkId {
    fn encode(&self, writer: &mut impl Write) -> Result<(), foyer::Error> {
        self.segment_id.get().as_u128().encode(writer)?;
        self.position.get().encode(writer)?;
        self.length.encode(writer)
    }

    fn decode(reader: &mut impl Read) -> Result<Self, foyer::Error> {
        Ok(Self {
            segment_id: SegmentId::new(Uuid::from_u128(u128::decode(reader)?)),
            position: Position::new(u64::decode(reader)?),
            length: u32::decode(reader)?,
        })
    }

    fn estimated_size(&self) -> usize {
        size_of::<u128>() + size_of::<u64>() + size_of::<u32>()
    }
}
