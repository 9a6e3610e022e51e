//! The manifest and the offset index of one partition, as values.
//!
//! A [`Manifest`] says which segment objects hold the tiered part of a partition's log, and where in
//! them each run of batches lies. It is an open Parquet table whose newest rows (the head) are
//! committed with it and whose older rows live in immutable pages; a [`Rows`] is either of them in
//! memory. A [`SegmentTrailer`] at the end of each segment object repeats what the manifest knows of
//! it, so that the index can be rebuilt from segments alone.
//!
//! **Architecture invariant:** nothing here does I/O, reads a clock or draws a random number. Time,
//! nonces and fetched pages come in as arguments; pages to store come out as bytes.

mod checksum;
mod epoch_history;
mod error;
mod index_builder;
mod manifest;
pub mod producers;
pub mod retention;
mod rows;
mod segment_meta;
mod table;
#[cfg(test)]
mod testing;
mod trailer;

pub use checksum::{Sha256Digest, sha256};
pub use epoch_history::{EpochHistory, EpochStart};
pub use error::{Error, ErrorKind};
pub use index_builder::{INDEX_INTERVAL_BYTES, IndexBuilder};
pub use manifest::{
    HEAD_ROWS_MAX, HEAD_SEGMENTS_MAX, Header, Manifest, ManifestParts, NewPage, NewSegment, Next,
    PAGE_LEVEL_MAX, PAGE_ROWS_MAX, PAGES_PER_MERGE, PageId, PageRef, Place, Update,
};
pub use rows::{Row, Rows, RowsBuilder};
pub use segment_meta::{IndexEntry, SEGMENT_ENTRIES_MAX, SegmentMeta};
pub use trailer::{SegmentTrailer, TRAILER_TAIL_BYTES};
