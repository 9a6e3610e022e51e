//! Errors, classified by what the caller should do next.

use std::{sync::Arc, time::Duration};

use esker_proto::types::Offset;

use crate::store::{Fault, StoreUrlError};

/// What the caller can do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Try again, with back-off.
    Unavailable,
    /// The store refuses these credentials: an operator has to mend them.
    Forbidden,
    /// There is no such object.
    NotFound,
    /// Fix the request or the settings.
    Invalid,
    /// This process has no room for it now. Try again, with back-off.
    Busy,
    /// Stored bytes are wrong. Stop, keep the evidence, tell somebody.
    Corrupt,
    /// The log does not hold that offset any more: begin at the log start, or elsewhere.
    OutOfRange,
    /// A newer owner exists. Drop this handle and open a new one.
    Fenced,
    /// A write may or may not have happened. Settle it, or drop this handle.
    Unknown,
}

/// Why something with the object store did not work.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The object is not there.
    #[error("object not found. key=`{key}`")]
    NotFound {
        /// Key of the object.
        key: String,
    },
    /// The store did not do what it was asked.
    #[error("{fault}. store=`{store}`, key=`{key}`")]
    Store {
        /// What went wrong, and which setting mends it.
        fault: Fault,
        /// The store, without secrets.
        store: Arc<str>,
        /// What the request was about; empty if it was about the store as a whole.
        key: String,
        /// What the store's client said.
        #[source]
        source: Arc<object_store::Error>,
    },
    /// The store did not answer in time.
    #[error("no answer from the store. operation=`{operation}`, key=`{key}`, waited=`{waited:?}`")]
    Timeout {
        /// What was asked.
        operation: &'static str,
        /// What it was asked about.
        key: String,
        /// How long the answer was waited for.
        waited: Duration,
    },
    /// The memory for reads is taken.
    #[error(
        "memory for reads is short: too many readers that are slow or stalled. bytes=`{bytes}`, \
         waited=`{waited:?}`"
    )]
    ReadMemory {
        /// What was needed.
        bytes: u64,
        /// How long it was waited for.
        waited: Duration,
    },
    /// Fetched bytes are wrong, each time in another way: the object itself may well be whole.
    #[error("bytes were damaged on their way from the store: {reason}. key=`{key}`")]
    DamagedOnTheWay {
        /// Key of the object.
        key: String,
        /// What was wrong the last time.
        reason: String,
    },
    /// Bytes in the store are not what was put there.
    #[error("corrupt object: {reason}. key=`{key}`")]
    Corrupt {
        /// Key of the object.
        key: String,
        /// What does not hold.
        reason: String,
    },
    /// The offset was trimmed.
    #[error(
        "offset is below the log start. offset=`{offset}`, log_start_offset=`{log_start_offset}`"
    )]
    OffsetOutOfRange {
        /// The offset asked for.
        offset: Offset,
        /// The first offset there is.
        log_start_offset: Offset,
    },
    /// A newer owner has taken over.
    #[error("fenced by a newer owner. key=`{key}`, ours=`{ours}`, theirs=`{theirs}`")]
    Fenced {
        /// The object that shows it.
        key: String,
        /// The epoch of this owner.
        ours: u64,
        /// The epoch of the newer owner.
        theirs: u64,
    },
    /// Nobody can tell whether a write happened.
    #[error("outcome of a write unknown. key=`{key}`")]
    OutcomeUnknown {
        /// Key of the object.
        key: String,
        /// Why the last attempt gave no answer.
        #[source]
        source: Option<Arc<Self>>,
    },
    /// The handle was fenced earlier.
    #[error("handle was fenced earlier. key=`{key}`")]
    GivenUp {
        /// The object it would have written.
        key: String,
    },
    /// The index refuses an update, or its bytes.
    #[error("index: {source}. key=`{key}`")]
    Index {
        /// The manifest or page.
        key: String,
        /// What does not hold.
        #[source]
        source: esker_index::Error,
    },
    /// A file of the local log cannot be read.
    #[error("local file cannot be read: {source}. path=`{path}`")]
    LocalFile {
        /// The file.
        path: String,
        /// What the system said.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// A store URL that cannot be understood.
    #[error("store url: {0}")]
    StoreUrl(#[from] StoreUrlError),
    /// A setting the store's client refuses.
    #[error("store settings refused: {reason}. store=`{store}`")]
    Settings {
        /// The store, without secrets.
        store: String,
        /// What to mend.
        reason: String,
    },
    /// The metrics of a store are in the registry already: one registry counts one store.
    #[error("the metrics of a store are in this registry already")]
    MetricsTaken,
    /// The work was cancelled: the process ends, or a newer epoch took over.
    #[error("cancelled. operation=`{operation}`")]
    Cancelled {
        /// What was cancelled.
        operation: &'static str,
    },
}

impl Error {
    /// Returns what the caller can do about it.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Store { fault, .. } => fault.kind(),
            Self::Timeout { .. }
            | Self::Cancelled { .. }
            | Self::LocalFile { .. }
            | Self::DamagedOnTheWay { .. } => ErrorKind::Unavailable,
            Self::ReadMemory { .. } => ErrorKind::Busy,
            Self::Corrupt { .. } => ErrorKind::Corrupt,
            Self::OffsetOutOfRange { .. } => ErrorKind::OutOfRange,
            Self::Fenced { .. } | Self::GivenUp { .. } => ErrorKind::Fenced,
            Self::OutcomeUnknown { .. } => ErrorKind::Unknown,
            Self::Index { source, .. } => match source.kind() {
                esker_index::ErrorKind::Fenced => ErrorKind::Fenced,
                esker_index::ErrorKind::Invalid => ErrorKind::Invalid,
                _ => ErrorKind::Corrupt,
            },
            Self::StoreUrl(_) | Self::Settings { .. } | Self::MetricsTaken => ErrorKind::Invalid,
        }
    }

    /// Whether the same request may succeed later.
    pub const fn is_retryable(&self) -> bool {
        matches!(self.kind(), ErrorKind::Unavailable | ErrorKind::Busy)
    }

    /// Whether the connection broke, which may have nothing to do with the store.
    pub(crate) const fn is_interrupted(&self) -> bool {
        matches!(
            self,
            Self::Store {
                fault: Fault::Interrupted,
                ..
            }
        )
    }

    /// Whether the object is missing, and nothing else is wrong.
    pub const fn is_not_found(&self) -> bool {
        matches!(self.kind(), ErrorKind::NotFound)
    }

    /// Whether a write that ended in this error surely changed nothing.
    pub const fn has_no_side_effects(&self) -> bool {
        match self {
            Self::Store { fault, .. } => fault.has_no_side_effects(),
            Self::Timeout { .. } | Self::OutcomeUnknown { .. } | Self::Cancelled { .. } => false,
            _ => true,
        }
    }

    /// Names an object whose bytes are wrong.
    pub fn corrupt(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Corrupt {
            key: key.into(),
            reason: reason.into(),
        }
    }
}
