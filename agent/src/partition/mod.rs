//! One partition at its leader: the task that owns it, and the handle that talks to it.
//!
//! # Contract
//!
//! **Owner.** One task (`actor`) owns a partition's mutable state: the local log, the producers'
//! dedup table, the acknowledgements that are due. Everything else reaches it through its bounded
//! inbox, or reads the immutable [`View`] it publishes.
//!
//! **Order of an append.** A batch is checked (sequence first, so that a retry of what was written is
//! answered as such; then size and time), stamped with offset and leader epoch, queued to the log, and only when its group is flushed does the high watermark rise, is the
//! view published, and is the producer answered, in this order: whoever was told can read.
//!
//! **Order of tiering.** A second task (`archiver`) owns the partition's remote part. Sealed
//! segments below the high watermark go up, oldest first; the manifest is published when its commit
//! is won; then, only below the tiered offset, and only once the archiver has seen that the bucket still
//! has it (`drops`), the actor drops local data: first the new view, then the files. A reader that still
//! holds the old view still holds the files.
//!
//! **What a reader may see.** Offsets in `[log_start_offset, high_watermark)`, each from the tail or
//! the bucket, the same bytes from both. A reader takes the view first and the manifest second;
//! since local data goes only after the manifest names it, no offset is ever in neither.
//!
//! **Fencing.** The leader epoch stands in every batch, object key and manifest. An archiver that
//! loses its chain to a newer epoch makes the partition refuse everything from then on.
//!
//! **Failure of the disk.** A failed write or flush takes the partition offline: whoever waits is
//! told that the outcome is unknown, the flush is never tried again, reads below the high watermark
//! go on. Only a restart, which recovers from what the disk holds, brings it back.
//!
//! **Failure to open.** A partition whose chain or local log is damaged is set aside (`offline`): it
//! refuses everything, the agent serves the others. What concerns them all as well, such as a newer
//! owner, a bucket that does not answer or a full disk, keeps the agent from starting.
//!
//! **Not handled.** Followers: with one replica a batch is committed when it is flushed. The engine
//! has their place (`engine::LeaderEngine`).

mod actor;
mod archiver;
mod drops;
mod engine;
mod error;
mod handle;
mod intake;
mod message;
mod offline;
mod open;
mod reads;
mod settings;
mod spread;
mod timestamps;
mod uploads;
mod view;

pub(crate) use archiver::ArchiverContext;
pub use engine::Acks;
pub use error::PartitionError;
pub(crate) use handle::PartitionHandle;
pub(crate) use message::{Answer, Append, Reply};
pub use open::OpenError;
pub(crate) use open::{OPENINGS_AT_A_TIME, Opening, Start, open_or_set_aside};
pub(crate) use reads::{Chunk, Session, Slice, Source};
pub use settings::PartitionSettings;
pub use timestamps::{TimestampError, TimestampKind, TimestampPolicy, UnknownTimestampKind};
pub use view::View;
