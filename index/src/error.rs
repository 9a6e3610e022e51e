//! Errors, classed by what the caller should do next.

use esker_proto::types::{LeaderEpoch, Offset};

/// What the caller can do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A newer owner exists. Drop the handle and open a new one.
    Fenced,
    /// The update does not fit the manifest. Nothing was changed.
    Invalid,
    /// Stored bytes are wrong. Keep the evidence and page someone.
    Corrupt,
}

/// Why bytes or an update were refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An update by the leader of an epoch that is over.
    #[error("fenced by a newer leader. ours=`{ours}`, theirs=`{theirs}`")]
    Fenced {
        /// Epoch of the update.
        ours: LeaderEpoch,
        /// Epoch of the manifest.
        theirs: LeaderEpoch,
    },
    /// A segment that does not begin where the manifest ends.
    #[error(
        "segment does not follow the tiered offset. base_offset=`{base_offset}`, tiered_offset=`{tiered_offset}`"
    )]
    SegmentOutOfPlace {
        /// Where the segment begins.
        base_offset: Offset,
        /// Where the manifest ends.
        tiered_offset: Offset,
    },
    /// A trim outside what the manifest holds.
    #[error(
        "trim is outside the tiered log. offset=`{offset}`, log_start_offset=`{log_start_offset}`, tiered_offset=`{tiered_offset}`"
    )]
    TrimOutOfRange {
        /// The wanted log start.
        offset: Offset,
        /// The log start.
        log_start_offset: Offset,
        /// Where the manifest ends.
        tiered_offset: Offset,
    },
    /// Pages to merge that are not neighbours in the manifest, or not there any more.
    #[error("pages to merge are not a run of the manifest's pages. pages=`{pages}`")]
    PagesMoved {
        /// How many pages were to be merged.
        pages: usize,
    },
    /// A leader epoch or its start offset that goes backwards.
    #[error(
        "epoch history goes backwards. leader_epoch=`{leader_epoch}`, start_offset=`{start_offset}`"
    )]
    EpochsNotAscending {
        /// The epoch.
        leader_epoch: LeaderEpoch,
        /// Its first offset.
        start_offset: Offset,
    },
    /// An epoch history that disagrees with the manifest's about offsets that are tiered.
    #[error("epoch history does not extend the manifest's. start_offset=`{start_offset}`")]
    EpochsDiverge {
        /// First offset of an epoch that is missing.
        start_offset: Offset,
    },
    /// An invariant that does not hold.
    #[error("invariant broken. invariant=`{id}`, at=`{at}`")]
    Invariant {
        /// The invariant's id, as in `manifest/invariants.rs` and `rows/invariants.rs`.
        id: &'static str,
        /// An offset, index or count that shows it.
        at: u64,
    },
    /// More of something than the format allows.
    #[error("limit exceeded. limit=`{limit}`, actual=`{actual}`")]
    TooLarge {
        /// Name of the limit.
        limit: &'static str,
        /// The count or size found.
        actual: u64,
    },
    /// The bytes given do not reach back to the beginning of the trailer.
    #[error("trailer is longer than the bytes given. needed_bytes=`{needed_bytes}`")]
    TailTooShort {
        /// How many bytes from the end are needed.
        needed_bytes: usize,
    },
    /// The object does not begin or end as this format does.
    #[error("not an object of this format. format=`{format}`")]
    NotThisFormat {
        /// Name of the format.
        format: &'static str,
    },
    /// A format version that this code does not know.
    #[error("unknown format version. format=`{format}`, version=`{version}`")]
    UnknownVersion {
        /// Name of the format.
        format: &'static str,
        /// The version found.
        version: u32,
    },
    /// Fewer or more bytes than the object says it has.
    #[error("wrong length. format=`{format}`, expected=`{expected}`, actual=`{actual}`")]
    WrongLength {
        /// Name of the format.
        format: &'static str,
        /// The length recorded.
        expected: u64,
        /// The length found.
        actual: u64,
    },
    /// Bytes that changed since they were written.
    #[error("checksum mismatch. format=`{format}`")]
    ChecksumMismatch {
        /// Name of the format.
        format: &'static str,
    },
    /// The checksum holds but the content makes no sense.
    #[error("malformed content. what=`{what}`")]
    Malformed {
        /// The part that makes no sense.
        what: &'static str,
    },
}

impl Error {
    /// Returns what the caller should do.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Fenced { .. } => ErrorKind::Fenced,
            Self::SegmentOutOfPlace { .. }
            | Self::TrimOutOfRange { .. }
            | Self::PagesMoved { .. }
            | Self::EpochsNotAscending { .. }
            | Self::EpochsDiverge { .. }
            | Self::TailTooShort { .. }
            | Self::TooLarge { .. } => ErrorKind::Invalid,
            Self::Invariant { .. }
            | Self::NotThisFormat { .. }
            | Self::UnknownVersion { .. }
            | Self::WrongLength { .. }
            | Self::ChecksumMismatch { .. }
            | Self::Malformed { .. } => ErrorKind::Corrupt,
        }
    }
}

/// Turns a predicate into an error that names the invariant.
pub(crate) fn ensure(holds: bool, id: &'static str, at: u64) -> Result<(), Error> {
    if holds {
        Ok(())
    } else {
        Err(Error::Invariant { id, at })
    }
}
