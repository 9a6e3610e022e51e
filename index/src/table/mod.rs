//! The Parquet form of rows: the bytes of manifests and pages.
//!
//! # Layout
//!
//! An ordinary Parquet file of one row group (none without rows), one row per index entry, and text
//! as key-value metadata. DuckDB, Polars and Spark read it as it is. Behind the leading `PAR1`, where
//! Parquet readers do not look, stands an envelope:
//!
//! ```text
//! "PAR1" | "ESKRIDX1" | format version u32 | file length u64 | CRC-32C of all other bytes u32 | Parquet …
//! ```
//!
//! so that no byte that changed since it was written gets as far as the Parquet parser. Columns may
//! be added behind the ones named in `schema.rs`, and keys may be added, within a format version: a
//! reader ignores those it does not know.
//!
//! Nothing is compressed: delta and dictionary encodings leave little to gain (see the bench), and
//! without a decompressor a small file cannot claim a large memory.

mod envelope;
mod read;
mod schema;
mod write;

pub(crate) use read::read;
pub(crate) use write::write;

#[cfg(test)]
mod tests;
