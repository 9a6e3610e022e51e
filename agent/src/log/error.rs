//! Why the local log refuses, classified by what the caller should do next.

use std::{io, path::Path, path::PathBuf, sync::Arc};

use esker_index::producers::SnapshotError;
use esker_proto::{
    batch::BatchError,
    types::{LeaderEpoch, Offset, Position},
};

use super::disk::is_shortage;

/// What the caller of the log can do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The log is out of service until it is opened again, which may need an operator.
    Offline,
    /// A newer leader has written. Drop what is being appended.
    Fenced,
    /// The caller broke a rule of the log. Nothing changed.
    Invalid,
    /// The offset is not in the local log: look in the bucket, or wait.
    OutOfRange,
    /// The files are not what was written. Keep them, and page someone.
    Corrupt,
}

/// An error of the local log. Cheap to clone: all who wait for a failed log get the same one.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The operating system failed. Never tried again: the log is offline for good.
    #[error("{action} failed: {source}. path=`{}`", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: Arc<io::Error>,
    },
    /// The log was closed, or the threads that write it are gone.
    #[error("log is closed. path=`{}`", path.display())]
    Closed {
        /// The log's directory.
        path: PathBuf,
    },
    /// A batch that does not begin where the log ends.
    #[error("batch does not follow the log. log_end_offset=`{log_end_offset}`, got=`{got}`")]
    OffsetGap {
        /// Where the log ends.
        log_end_offset: Offset,
        /// Where the batch begins.
        got: Offset,
    },
    /// A batch or an epoch older than what the log has seen.
    #[error("leader epoch is older than the log's. current=`{current}`, got=`{got}`")]
    StaleEpoch {
        /// The newest epoch of the log.
        current: LeaderEpoch,
        /// The one that came.
        got: LeaderEpoch,
    },
    /// An offset that is not in the local log.
    #[error("offset is not in the local log. offset=`{offset}`, start=`{start}`, end=`{end}`")]
    OutOfRange {
        /// The offset asked for.
        offset: Offset,
        /// The local log start offset.
        start: Offset,
        /// The flushed end of the log.
        end: Offset,
    },
    /// A truncation that would cut what is tiered.
    #[error("truncation below its floor. offset=`{offset}`, floor=`{floor}`")]
    BelowFloor {
        /// Where the log should be cut.
        offset: Offset,
        /// Below this it must not be.
        floor: Offset,
    },
    /// A file is damaged in a way that no crash explains.
    #[error("segment is corrupt: {damage}. path=`{}`, offset=`{offset}`, position=`{position}`", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The offset that the batch there must have.
        offset: Offset,
        /// Where the first bad byte may be.
        position: Position,
        /// What is wrong.
        damage: Damage,
    },
    /// The log is whole and ends below what was acknowledged.
    #[error("acknowledged records are gone. acknowledged_below=`{flushed_offset}`, log_end_offset=`{log_end_offset}`, path=`{}`", path.display())]
    Lost {
        /// The log's directory.
        path: PathBuf,
        /// Below this everything was flushed.
        flushed_offset: Offset,
        /// Where the log and the bucket end.
        log_end_offset: Offset,
    },
    /// The log had files, and has none.
    #[error("local log is gone with all its files. acknowledged_below=`{flushed_offset}`, path=`{}`", path.display())]
    Vanished {
        /// The log's directory.
        path: PathBuf,
        /// Below this everything was flushed.
        flushed_offset: Offset,
    },
    /// The bucket has more of an epoch than the log that wrote it.
    #[error("local log ends below what it uploaded in this leader epoch, so the data directory is an older copy. log_end_offset=`{log_end_offset}`, tiered_offset=`{tiered_offset}`, leader_epoch=`{leader_epoch}`, path=`{}`", path.display())]
    Rewound {
        /// The log's directory.
        path: PathBuf,
        /// Where the log ends.
        log_end_offset: Offset,
        /// Where the bucket ends.
        tiered_offset: Offset,
        /// The epoch that wrote the end of the tiered log.
        leader_epoch: LeaderEpoch,
    },
    /// The producer snapshot that the log should begin with does not hold.
    #[error("producer snapshot for the start of the log cannot be read. path=`{}`", path.display())]
    Producers {
        /// The log's directory.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: SnapshotError,
    },
    /// Records between the bucket and the local log are missing.
    #[error("local log begins above the tiered offset. start=`{start}`, tiered_offset=`{tiered_offset}`, path=`{}`", path.display())]
    Gap {
        /// The local log start offset.
        start: Offset,
        /// Where the tiered log ends.
        tiered_offset: Offset,
        /// The log's directory.
        path: PathBuf,
    },
    /// The local log holds other records than the bucket at the same offsets.
    #[error("local log diverges from the tiered log. offset=`{offset}`, local_epoch=`{local}`, tiered_epoch=`{tiered}`, path=`{}`", path.display())]
    Diverged {
        /// The last tiered offset.
        offset: Offset,
        /// The epoch that wrote it here.
        local: LeaderEpoch,
        /// The epoch that wrote it there.
        tiered: LeaderEpoch,
        /// The log's directory.
        path: PathBuf,
    },
}

/// What is wrong with a segment file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// A batch does not hold, and valid batches follow or it was known to be durable.
    #[error("bad batch, {0}")]
    Batch(BatchError),
    /// A batch holds another offset than its place in the log.
    #[error("batch has another offset than its place, expected=`{expected}`, got=`{got}`")]
    Offset {
        /// The offset that follows.
        expected: Offset,
        /// The batch's.
        got: Offset,
    },
    /// A batch's leader epoch contradicts the epoch history.
    #[error("batch has another leader epoch than the history, got=`{got}`")]
    Epoch {
        /// The batch's.
        got: LeaderEpoch,
    },
    /// A batch claims records above the end of the log.
    #[error(
        "batch reaches above the end of the log, log_end_offset=`{log_end_offset}`, got=`{got}`"
    )]
    Beyond {
        /// Where the log ends.
        log_end_offset: Offset,
        /// Where the batch claims to end.
        got: Offset,
    },
    /// The file does not have the length it was sealed or flushed with.
    #[error("file has another length than was written, expected=`{expected}`, got=`{got}`")]
    Length {
        /// The length it was sealed with, or at least the one it was flushed with.
        expected: u64,
        /// The length it has.
        got: u64,
    },
    /// The next segment does not begin where this one ends.
    #[error("next segment begins elsewhere, expected=`{expected}`, got=`{got}`")]
    Chain {
        /// Where this one ends.
        expected: Offset,
        /// Where the next one begins.
        got: Offset,
    },
}

impl Error {
    /// What the caller can do.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { .. } | Self::Closed { .. } => ErrorKind::Offline,
            Self::StaleEpoch { .. } => ErrorKind::Fenced,
            Self::OffsetGap { .. } | Self::BelowFloor { .. } => ErrorKind::Invalid,
            Self::OutOfRange { .. } => ErrorKind::OutOfRange,
            Self::Corrupt { .. }
            | Self::Lost { .. }
            | Self::Vanished { .. }
            | Self::Rewound { .. }
            | Self::Producers { .. }
            | Self::Gap { .. }
            | Self::Diverged { .. } => ErrorKind::Corrupt,
        }
    }

    /// Whether cutting the log repairs it; otherwise it must be given up as a whole.
    pub const fn is_repaired_by_a_cut(&self) -> bool {
        matches!(
            self,
            Self::Corrupt { .. } | Self::Lost { .. } | Self::Vanished { .. }
        )
    }

    /// Whether something has run out, such as space or open files, so that it may succeed later.
    pub fn is_shortage(&self) -> bool {
        matches!(self, Self::Io { source, .. } if is_shortage(source))
    }

    /// Whether the system failed at this file alone, as far as its code tells: what has run out, and a
    /// read-only disk, fail for every log.
    pub fn is_of_one_file(&self) -> bool {
        let is_read_only = |source: &io::Error| source.kind() == io::ErrorKind::ReadOnlyFilesystem;
        matches!(self, Self::Io { source, .. } if !is_shortage(source) && !is_read_only(source))
    }

    /// Whether it is one file that is damaged or cannot be read, so that a copy elsewhere will do.
    pub fn is_of_copy(&self) -> bool {
        matches!(self, Self::Corrupt { .. }) || self.is_of_one_file()
    }

    /// Whether a file does not exist that was to be opened.
    pub(super) fn is_missing_file(&self) -> bool {
        matches!(self, Self::Io { action: "open", source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether the disk is full, so that room will help.
    pub fn is_disk_full(&self) -> bool {
        let full = |source: &io::Error| {
            matches!(
                source.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            )
        };
        matches!(self, Self::Io { source, .. } if full(source))
    }
}

/// Adds what was tried, and on what, to an error of the operating system.
pub(super) fn failed<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> Error + use<'a> {
    move |source| Error::Io {
        action,
        path: path.to_owned(),
        source: Arc::new(source),
    }
}
