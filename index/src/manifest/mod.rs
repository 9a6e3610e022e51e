//! The manifest of one partition: which segment objects hold its tiered log, and their index.
//!
//! # Overview
//!
//! ```text
//!            pages (immutable objects, older first)        head (committed with the manifest)
//! log start ─┤ level 2 ┤ level 2 ┤ level 1 ┤ level 0 ┤ rows of the newest segments ├─ tiered offset
//! ```
//!
//! A manifest is a value. [`Manifest::apply`] makes the next one from an [`Update`]; nothing is
//! changed in place. The caller stores the new pages, then commits the encoded manifest as the next
//! version, and only then deletes dropped pages.
//!
//! # Bounds
//!
//! Each commit writes the head and one line per page. The head holds at most [`HEAD_ROWS_MAX`] rows
//! and [`HEAD_SEGMENTS_MAX`] segments; a segment that does not fit pushes all of it into a page.
//! [`PAGES_PER_MERGE`] pages of a level become one page of the next, up to [`PAGE_LEVEL_MAX`], so
//! that at a million segments there are a few hundred pages. A lookup needs the head or one page.
//!
//! # Objects
//!
//! Manifest and pages are tables of the same columns (see `table/mod.rs`). A page is named by its
//! first offset, the epoch of the leader that wrote it and an id drawn from the nonce of the
//! update, so that no two writers ever write one key.

mod codec;
mod draft;
mod invariants;
mod locate;
mod merge;
mod page;
mod update;

use bytes::Bytes;
use esker_proto::types::{ClusterId, LeaderEpoch, ManifestVersion, Offset, TopicPartition};

pub use locate::Place;
pub use merge::{PAGE_LEVEL_MAX, PAGE_ROWS_MAX, PAGES_PER_MERGE};
pub use page::{NewPage, PageId, PageRef};
pub use update::{NewSegment, Next, Update};

use crate::{EpochHistory, Error, Rows, Sha256Digest};

/// Most rows that are committed with a manifest.
pub const HEAD_ROWS_MAX: usize = 4096;
/// Most segments whose rows are committed with a manifest.
pub const HEAD_SEGMENTS_MAX: usize = 1024;

/// What a manifest says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// The partition.
    pub topic_partition: TopicPartition,
    /// Number of the commit.
    pub version: ManifestVersion,
    /// Epoch of the leader that committed it.
    pub leader_epoch: LeaderEpoch,
    /// Drawn afresh for each commit; tells the writer's own object from a rival's.
    pub nonce: u128,
    /// SHA-256 of the previous version's object. Zero in a value that [`Manifest::apply`] made:
    /// [`Manifest::encode`] writes it and [`Manifest::decode`] gives it back.
    pub prev_sha256: Sha256Digest,
}

/// All of a manifest. [`Manifest::from_parts`] checks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestParts {
    /// What it says of itself.
    pub header: Header,
    /// First offset a client may read.
    pub log_start_offset: Offset,
    /// Offset after the last tiered record.
    pub tiered_offset: Offset,
    /// Leader epochs of the tiered log.
    pub epochs: EpochHistory,
    /// Producer snapshot at the tiered offset.
    pub producers: Bytes,
    /// The older part of the index, in offset order.
    pub pages: std::sync::Arc<[PageRef]>,
    /// The newest rows.
    pub head: Rows,
}

/// The manifest of one partition at one version. Immutable; cheap to clone but for the epochs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest(ManifestParts);

impl Manifest {
    /// Returns the manifest of a partition that has tiered nothing. It is version 0, which is never
    /// stored.
    pub fn create(cluster_id: ClusterId, topic_partition: TopicPartition) -> Self {
        Self::create_at(cluster_id, topic_partition, Offset::ZERO)
    }

    /// Returns such a manifest of a log that starts at `log_start_offset`.
    pub fn create_at(
        cluster_id: ClusterId,
        topic_partition: TopicPartition,
        log_start_offset: Offset,
    ) -> Self {
        Self(ManifestParts {
            header: Header {
                cluster_id,
                topic_partition,
                version: ManifestVersion::new(0),
                leader_epoch: LeaderEpoch::new(0),
                nonce: 0,
                prev_sha256: [0; 32],
            },
            log_start_offset,
            tiered_offset: log_start_offset,
            epochs: EpochHistory::new(),
            producers: Bytes::new(),
            pages: [].into(),
            head: Rows::default(),
        })
    }

    /// Returns the manifest made of `parts`, if the invariants hold.
    pub fn from_parts(parts: ManifestParts) -> Result<Self, Error> {
        invariants::check(&parts)?;
        Ok(Self(parts))
    }

    /// Checks that this version may follow `previous`: what a reader of the chain relies on.
    pub fn check_follows(&self, previous: &Self) -> Result<(), Error> {
        invariants::check_follows(&previous.0, &self.0)
    }

    /// Returns what the manifest says of itself.
    pub const fn header(&self) -> &Header {
        &self.0.header
    }

    /// Returns the first offset a client may read.
    pub const fn log_start_offset(&self) -> Offset {
        self.0.log_start_offset
    }

    /// Returns the offset after the last tiered record.
    pub const fn tiered_offset(&self) -> Offset {
        self.0.tiered_offset
    }

    /// Returns the leader epochs of the tiered log.
    pub const fn epochs(&self) -> &EpochHistory {
        &self.0.epochs
    }

    /// Returns the producer snapshot at the tiered offset.
    pub const fn producers(&self) -> &Bytes {
        &self.0.producers
    }

    /// Returns the older part of the index, in offset order.
    pub fn pages(&self) -> &[PageRef] {
        &self.0.pages
    }

    /// Returns the rows that are committed with the manifest.
    pub const fn head(&self) -> &Rows {
        &self.0.head
    }

    /// Returns how many segments hold the log. See [`PageRef::segment_count`] for the oldest page.
    pub fn segment_count(&self) -> u64 {
        let paged: u64 = self
            .0
            .pages
            .iter()
            .map(|page| u64::from(page.segment_count))
            .sum();
        paged + self.0.head.segments().len() as u64
    }

    /// Returns the bytes of all segments' batches. See [`PageRef::segment_count`] for the oldest
    /// page.
    pub fn bucket_bytes(&self) -> u64 {
        let add = |sum: u64, page: &PageRef| sum.saturating_add(page.segment_bytes);
        self.0.pages.iter().fold(self.0.head.segment_bytes(), add)
    }
}

#[cfg(test)]
mod tests;
