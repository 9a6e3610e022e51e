//! What a partition's task is sent, and how it answers producers.

use std::sync::Arc;

use esker_proto::{
    batch::{RecordBatch, RecordTimes},
    types::Offset,
    v1::ErrorDetail,
};
use tokio::sync::{mpsc::OwnedPermit, oneshot};

use super::{engine::Acks, error::PartitionError};
use crate::{
    log,
    memory::MemoryPermit,
    service::{abandoned, produce_detail},
};

/// Anything a partition's task is asked to do.
#[derive(Debug)]
pub(crate) enum Message {
    /// Append a batch.
    Append(Append),
    /// Seal the active segment; answer when everything up to here is in the bucket.
    Seal {
        drop_local: bool,
        done: oneshot::Sender<Result<(), PartitionError>>,
    },
    /// Take no more batches; then as `Seal`.
    Close {
        done: oneshot::Sender<Result<(), PartitionError>>,
    },
    /// A newer leader epoch was seen.
    Fence,
    /// The local log was found damaged.
    Damaged(Arc<log::Error>),
    /// The bucket has what the local segments below hold: they may go.
    Drop { below: Offset },
    /// What the bucket had of this partition is gone or damaged. Nothing local may go.
    BucketDamaged {
        error: Arc<esker_tiering::Error>,
        /// The command that shows what can be done.
        repair: String,
    },
    /// Look at the settings again.
    SettingsChanged,
    /// Say that the task is alive.
    Pulse(oneshot::Sender<()>),
}

/// One batch to append.
#[derive(Debug)]
pub(crate) struct Append {
    pub(crate) batch: RecordBatch,
    /// Those of its records.
    pub(crate) times: RecordTimes,
    pub(crate) acks: Acks,
    /// Given back when the batch is on the disk, or refused.
    pub(crate) memory: MemoryPermit,
    pub(crate) reply: Reply,
}

/// A batch that came as far as its producer asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Appended {
    pub(crate) base_offset: Offset,
    pub(crate) is_duplicate: bool,
    pub(crate) throttle_ms: u32,
}

/// One answer in a produce stream.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) request_id: u64,
    pub(crate) outcome: Result<Appended, ErrorDetail>,
}

/// A reserved place for one answer.
#[derive(Debug)]
pub(crate) struct Reply {
    request_id: u64,
    /// Taken by the answer.
    slot: Option<OwnedPermit<Answer>>,
}

impl Reply {
    pub(crate) const fn new(request_id: u64, slot: OwnedPermit<Answer>) -> Self {
        Self {
            request_id,
            slot: Some(slot),
        }
    }

    /// Answers. Never waits: the place was reserved.
    pub(crate) fn send(mut self, outcome: Result<Appended, PartitionError>) {
        self.answer(outcome.map_err(|error| produce_detail(&error)));
    }

    /// Answers with an error that arose before a partition was found.
    pub(crate) fn refuse(mut self, detail: ErrorDetail) {
        self.answer(Err(detail));
    }

    fn answer(&mut self, outcome: Result<Appended, ErrorDetail>) {
        let request_id = self.request_id;
        if let Some(slot) = self.slot.take() {
            slot.send(Answer {
                request_id,
                outcome,
            });
        }
    }
}

/// Nobody waits for an answer that does not come: a batch that is dropped says so.
impl Drop for Reply {
    fn drop(&mut self) {
        self.answer(Err(abandoned()));
    }
}
