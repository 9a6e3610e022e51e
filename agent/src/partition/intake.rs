//! Whether a partition takes batches. Once closed it never opens again.

use std::sync::Arc;

use super::error::{Damaged, PartitionError};

/// The state of a partition's intake.
#[derive(Clone, Debug)]
pub(super) enum Intake {
    /// Batches are taken.
    Open,
    /// The agent drains, or the topic goes: what is there still goes up.
    Closed,
    /// The disk failed.
    Offline(Arc<str>),
    /// The local log is damaged.
    Damaged(Arc<Damaged>),
    /// Another agent leads.
    Fenced,
}

impl Intake {
    /// Takes no more batches.
    pub(super) fn close(&mut self) {
        if matches!(self, Self::Open) {
            *self = Self::Closed;
        }
    }

    /// Whether a batch may come in.
    pub(super) fn check(&self) -> Result<(), PartitionError> {
        match self {
            Self::Open => Ok(()),
            Self::Closed => Err(PartitionError::ShuttingDown),
            Self::Offline(_) | Self::Damaged(_) | Self::Fenced => self.check_writable(),
        }
    }

    /// Whether what is there can still be sealed and uploaded.
    pub(super) fn check_writable(&self) -> Result<(), PartitionError> {
        match self {
            Self::Open | Self::Closed => Ok(()),
            Self::Offline(reason) => Err(PartitionError::Storage(Arc::clone(reason))),
            Self::Damaged(damaged) => Err(PartitionError::Damaged(Arc::clone(damaged))),
            Self::Fenced => Err(PartitionError::Fenced),
        }
    }

    /// What those are told who wait for a batch that may or may not stay.
    pub(super) fn unknown_outcome(&self) -> PartitionError {
        match self {
            Self::Offline(reason) => PartitionError::Storage(Arc::clone(reason)),
            Self::Damaged(damaged) => PartitionError::Storage(damaged.to_string().into()),
            Self::Fenced => PartitionError::FencedInFlight,
            Self::Open | Self::Closed => {
                PartitionError::TimedOut("the flush before the agent ended")
            }
        }
    }

    /// Whether nothing of the log can be sealed and uploaded any more.
    pub(super) const fn is_offline(&self) -> bool {
        matches!(self, Self::Offline(_) | Self::Damaged(_))
    }

    /// Why no batches are taken, for people.
    pub(super) fn offline_reason(&self) -> Option<Arc<str>> {
        match self {
            Self::Open => None,
            Self::Closed => Some("shutting down".into()),
            Self::Offline(reason) => Some(Arc::clone(reason)),
            Self::Damaged(damaged) => Some(damaged.to_string().into()),
            Self::Fenced => Some("fenced by a newer leader".into()),
        }
    }
}
