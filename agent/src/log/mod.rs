//! The local log: the hot tail of each partition on this agent's disk.
//!
//! # Overview
//!
//! A [`LocalLog`] belongs to one partition's task. Batches are appended to the active segment, a file
//! of batches back to back, which is rolled into a sealed one, uploaded as it is, and deleted once the
//! manifest names it. Writing and flushing is done by the threads of one [`FlushPool`] per agent, so
//! that partitions share flushes; [`LogEvents`] tell the task how far it is. Any number of
//! [`LogReader`]s read what is flushed.
//!
//! ```text
//!  in the bucket       sealed segments            active segment
//! ──────────────┬──────────────┬──────────────┬───────────────┬──────────┐
//!               │              │              │               │ queued   │
//!  local log start offset ≤ tiered offset   ≤ …        flushed offset   log end offset
//! ```
//!
//! # Files
//!
//! One file beside all logs says how far each was flushed: see `checkpoint`. In a log's directory see
//! `files`: segments, a state per sealed segment, the epoch history, the recovery mark. Segment
//! files are the very bytes that are uploaded; what is known besides stands beside them.
//!
//! # Order of writes
//!
//! What is queued for one log is done in order. A small file is replaced only after the batches before
//! it are flushed, and a segment begins only after the one before it is. So an epoch is durable before
//! its first batch, a state says only what is durable, and a segment that another one follows is
//! complete. A file that cannot be created because something has run out, such as open files or inodes,
//! has changed nothing: the log waits and tries again ([`LogEvent::Short`]), and what frees space is done
//! ahead of it. An event `Flushed` comes after the fsync of its group, file and directory, with
//! [`FlushPolicy::Ack`]; with [`FlushPolicy::Interval`] after the write.
//!
//! # What a reader may see
//!
//! Whole batches below the flushed offset and below the bound it names, which is the high watermark.
//! Bytes at an offset never change, except by truncation, which is never below the high watermark.
//!
//! # Crash at each step
//!
//! Recovery finds a prefix of what was appended that holds every flushed batch. A tail that a crash
//! tore is cut. What a crash cannot explain is refused with file and position: a bad batch that valid
//! ones follow, a batch or a file that is gone although it was flushed, a gap between segments. See
//! `recovery`.
//!
//! # Errors
//!
//! The first failure of a write or an fsync ends the log for this process ([`LogEvent::Failed`]); fsync
//! is never tried again, because the kernel forgets what it could not write. Opening the log again, in
//! this process or another, believes only what it can read back from the device.
//!
//! # Limits
//!
//! Bytes not yet flushed are bounded by [`PoolOptions::room_bytes`], which whoever brings a batch waits
//! for. What is on the disk is bounded by the owner, with [`LocalLog::bytes_from`] and [`disk_space`].
//!
//! # Not handled
//!
//! A bit that flips in a segment after it was sealed is not looked for here. Consumers and the uploader
//! compare checksums of what they read.

mod at_rest;
mod checkpoint;
mod disk;
mod error;
mod events;
mod examine;
mod extent;
mod files;
mod local;
mod mark;
mod open_files;
mod pool;
mod reader;
mod recovery;
mod repair;
mod sealed;
mod segment;
mod state;
mod truncation;

pub use at_rest::{AtRest, at_rest};
pub use checkpoint::{Flushed, Found, Known, OffsetCheckpoint};
pub use disk::{Dir, Disk, DiskFile, DiskSpace, OsDisk, disk_space};
pub use error::{Damage, Error, ErrorKind};
pub use events::{LogEvent, LogEvents};
pub use examine::{Examined, examine};
pub use extent::extent;
pub use local::{LocalLog, finish_removal, newest_epoch, remove_dir};
pub use pool::{FlushPolicy, FlushPool, PoolOptions, Room};
pub use reader::{LogReader, ReadWithin};
pub use recovery::{Cut, RecoverAt, Recovered};
pub use repair::{Repaired, discard, repair};
pub use sealed::SealedSegment;

#[cfg(test)]
mod tests;
