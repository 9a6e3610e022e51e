//! The only way to a partition from outside: cheap to clone.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use esker_index::Manifest;
use esker_proto::types::{LeaderEpoch, Offset, TopicPartition};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{
    archiver::{Ask, Trim},
    error::PartitionError,
    message::{Append, Message},
    open::OpenError,
    settings::PartitionSettings,
    view::View,
};
use crate::log::{Flushed, LogReader};

/// Talks to one partition.
#[derive(Clone, Debug)]
pub(crate) struct PartitionHandle {
    pub(super) at: TopicPartition,
    pub(super) leader_epoch: LeaderEpoch,
    pub(super) inbox: mpsc::Sender<Message>,
    pub(super) asks: mpsc::Sender<Ask>,
    /// The published manifest is known to be the newest.
    pub(super) is_confirmed: Arc<AtomicBool>,
    pub(super) view: watch::Receiver<View>,
    pub(super) manifest: watch::Receiver<Arc<Manifest>>,
    /// Reads the local log.
    pub(super) tail: LogReader,
    pub(super) settings: Arc<watch::Sender<PartitionSettings>>,
    /// Why it could not be opened, if so.
    pub(super) unopened: Option<PartitionError>,
    pub(super) cancel: CancellationToken,
}

impl PartitionHandle {
    /// Returns which partition this is.
    pub(crate) const fn topic_partition(&self) -> TopicPartition {
        self.at
    }

    /// Returns why it could not be opened, if so.
    pub(crate) fn unopened(&self) -> Option<&Arc<OpenError>> {
        match &self.unopened {
            Some(PartitionError::Unopened(error)) => Some(error),
            _ => None,
        }
    }

    /// Whether the manifest was read from the bucket since the agent started.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.is_confirmed.load(Ordering::Relaxed)
    }

    /// Whether it could not be opened because of its part in the bucket.
    pub(crate) fn is_closed_by_bucket(&self) -> bool {
        self.unopened().is_some_and(|error| error.is_of_bucket())
    }

    /// Returns the epoch this agent leads it in.
    pub(crate) const fn leader_epoch(&self) -> LeaderEpoch {
        self.leader_epoch
    }

    /// Returns the tail as of now.
    pub(crate) fn view(&self) -> View {
        self.view.borrow().clone()
    }

    /// Returns how far its log is on the disk; nothing if it could not be opened.
    pub(crate) fn flushed(&self) -> Option<Flushed> {
        self.unopened.is_none().then(|| Flushed {
            leader_epoch: self.leader_epoch,
            offset: self.tail.durable_offset(),
        })
    }

    /// Returns what is in the bucket as of now.
    pub(crate) fn manifest(&self) -> Arc<Manifest> {
        Arc::clone(&self.manifest.borrow())
    }

    /// Returns where the log starts.
    ///
    /// # Errors
    ///
    /// If nobody knows, because the partition's part in the bucket could not be read.
    pub(crate) fn log_start_offset(&self) -> Result<Offset, PartitionError> {
        match &self.unopened {
            Some(PartitionError::Unopened(error)) if error.is_of_bucket() => {
                Err(PartitionError::Unopened(Arc::clone(error)))
            }
            _ => Ok(self.manifest.borrow().log_start_offset()),
        }
    }

    /// Checks that the log still has the record that a reader read directly before `next_offset`.
    ///
    /// # Errors
    ///
    /// [`PartitionError::Truncated`] if it has another one there, or none.
    pub(crate) fn check_read(
        &self,
        next_offset: Offset,
        leader_epoch: LeaderEpoch,
    ) -> Result<(), PartitionError> {
        // The view first, the manifest second, as for reads.
        let view = self.view();
        let manifest = self.manifest();
        let log_end_offset = view.log_end_offset.max(manifest.tiered_offset());
        let divergent_offset = match &self.unopened {
            None => self
                .tail
                .epochs()
                .divergence(leader_epoch, next_offset, log_end_offset),
            // What lies beyond the bucket only the local log could tell.
            Some(_) if next_offset > log_end_offset => None,
            Some(_) => manifest
                .epochs()
                .divergence(leader_epoch, next_offset, log_end_offset),
        };
        match divergent_offset {
            None => Ok(()),
            Some(divergent_offset) => Err(PartitionError::Truncated {
                offset: next_offset,
                leader_epoch,
                divergent_offset,
            }),
        }
    }

    /// Returns where the visible part of the log ends.
    ///
    /// # Errors
    ///
    /// If nobody knows, because the partition could not be opened.
    pub(crate) fn high_watermark(&self) -> Result<Offset, PartitionError> {
        match &self.unopened {
            Some(error) => Err(error.clone()),
            None => Ok(self.view.borrow().high_watermark),
        }
    }

    /// Whether the records of compressed batches are checked before they are handed over.
    pub(crate) fn is_compressed_checked(&self) -> bool {
        self.settings.borrow().is_compressed_checked
    }

    /// Hands over a batch; the answer comes through its reply. Waits while the inbox is full.
    pub(crate) async fn append(&self, append: Append) {
        if let Err(mpsc::error::SendError(Message::Append(append))) =
            self.inbox.send(Message::Append(append)).await
        {
            append.reply.send(Err(PartitionError::ShuttingDown));
        }
    }

    /// Seals the active segment and waits until everything appended so far is in the bucket.
    pub(crate) async fn seal(&self, drop_local: bool) -> Result<(), PartitionError> {
        self.ask(|done| Message::Seal { drop_local, done }).await
    }

    /// Takes no more batches and seals the active segment. What is returned ends when everything is
    /// in the bucket.
    pub(crate) async fn close(
        &self,
    ) -> impl Future<Output = Result<(), PartitionError>> + Send + use<> {
        let (done, uploaded) = oneshot::channel();
        let sent = self.inbox.send(Message::Close { done }).await;
        // Requests are served in their order: once this one is answered, the segment is sealed.
        self.pulse().await;
        async move {
            match sent {
                Ok(()) => uploaded.await.unwrap_or(Err(PartitionError::ShuttingDown)),
                Err(_) => Err(PartitionError::ShuttingDown),
            }
        }
    }

    /// Waits until the partition's task has come round to its inbox, or has ended.
    pub(crate) async fn pulse(&self) {
        let (alive, answer) = oneshot::channel();
        if self.inbox.send(Message::Pulse(alive)).await.is_ok() {
            // A task that ends drops it, which is an answer too.
            let _ = answer.await;
        }
    }

    /// Raises the log start offset.
    pub(crate) async fn trim_below(&self, offset: Offset) -> Result<Offset, PartitionError> {
        let (done, answer) = oneshot::channel();
        let ask = Ask::Trim(Trim { offset, done });
        if self.asks.send(ask).await.is_err() {
            return Err(PartitionError::ShuttingDown);
        }
        answer.await.unwrap_or(Err(PartitionError::ShuttingDown))
    }

    /// Makes sure that the manifest is the newest, before the bucket is read by it.
    pub(super) async fn confirm(&self) -> Result<(), PartitionError> {
        if self.is_confirmed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (done, answer) = oneshot::channel();
        if self.asks.send(Ask::Confirm(done)).await.is_err() {
            return Err(PartitionError::ShuttingDown);
        }
        answer.await.unwrap_or(Err(PartitionError::ShuttingDown))
    }

    /// Makes sure that the bucket has what was uploaded last, and the manifest that names it.
    pub(crate) async fn see(&self) -> Result<(), PartitionError> {
        let (done, answer) = oneshot::channel();
        if self.asks.send(Ask::See(done)).await.is_err() {
            return Err(PartitionError::ShuttingDown);
        }
        answer.await.unwrap_or(Err(PartitionError::ShuttingDown))
    }

    /// Has the partition look at its segments again, unless it has enough to do.
    pub(crate) fn nudge(&self) {
        let _ = self.inbox.try_send(Message::SettingsChanged);
    }

    /// Refuses everything from here on: another agent leads.
    pub(crate) async fn fence(&self) {
        // A partition that is gone refuses everything already.
        let _ = self.inbox.send(Message::Fence).await;
    }

    /// Ends the partition's tasks, now: its topic is deleted.
    pub(crate) fn stop(&self) {
        self.cancel.cancel();
    }

    /// Waits until the partition's tasks have ended.
    pub(crate) async fn stopped(&self) {
        // Each task drops its sender when it ends.
        let (mut view, mut manifest) = (self.view.clone(), self.manifest.clone());
        while view.changed().await.is_ok() {}
        while manifest.changed().await.is_ok() {}
    }

    /// Puts settings in force, unless they are already.
    pub(crate) async fn change_settings(&self, settings: &PartitionSettings) {
        let is_new = self.settings.send_if_modified(|current| {
            let is_new = current != settings;
            current.clone_from(settings);
            is_new
        });
        if !is_new {
            return;
        }
        // A partition that is gone has no use for settings.
        let _ = self.inbox.send(Message::SettingsChanged).await;
    }

    async fn ask<T>(
        &self,
        message: impl FnOnce(oneshot::Sender<Result<T, PartitionError>>) -> Message,
    ) -> Result<T, PartitionError> {
        let (done, answer) = oneshot::channel();
        if self.inbox.send(message(done)).await.is_err() {
            return Err(PartitionError::ShuttingDown);
        }
        answer.await.unwrap_or(Err(PartitionError::ShuttingDown))
    }
}
