//! A partition that could not be opened. It refuses everything, says why, and touches nothing of
//! what is in its directory and in the bucket, so that whoever mends it finds all of it.
//!
//! What its manifest names can still be read, if the manifest could be: the local log alone is bad
//! then. Where the log ends nobody knows, so that question is refused too: a replay must not end
//! early and look complete.

use std::sync::{Arc, atomic::AtomicBool};

use esker_index::Manifest;
use esker_proto::types::{LeaderEpoch, TopicPartition};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{
    archiver::Ask,
    error::PartitionError,
    handle::PartitionHandle,
    message::Message,
    open::{ASKS_LEN, INBOX_LEN, OpenError, Opening},
    settings::PartitionSettings,
    view::View,
};
use crate::log::{self, AtRest, LogReader};

/// A partition about to be set aside.
pub(super) struct SetAside {
    pub(super) at: TopicPartition,
    /// It never had a record.
    pub(super) is_new: bool,
    pub(super) leader_epoch: LeaderEpoch,
    /// What the bucket has, or an empty one if that could not be told.
    pub(super) manifest: Arc<Manifest>,
    pub(super) settings: PartitionSettings,
    pub(super) error: OpenError,
}

/// Starts the task that refuses, and returns the handle it is reached by.
pub(super) async fn set_aside(opening: &Arc<Opening>, aside: SetAside) -> PartitionHandle {
    let SetAside {
        at,
        is_new,
        leader_epoch,
        manifest,
        settings,
        error,
    } = aside;
    tracing::error!(partition = %at, %error, "partition is offline; the others are served");
    let local = look_at_local(opening, at, &manifest).await;
    let has_left = match &error {
        // A log that cannot be read may have held more than its files show.
        OpenError::Log { .. } => !is_new,
        _ => local.is_none_or(|local| local.unuploaded_bytes > 0),
    };
    let error = PartitionError::Unopened(Arc::new(error));
    let tasks = opening.tasks.child();
    let (inbox, messages) = mpsc::channel(INBOX_LEN);
    let (asks_in, asks) = mpsc::channel(ASKS_LEN);
    let view = View::unopened(&manifest, local.unwrap_or_default(), &error);
    let (view_in, view) = watch::channel(view);
    let (manifest_in, manifest) = watch::channel(manifest);
    let refusing = Refusing {
        error: error.clone(),
        has_left,
        messages,
        asks,
        view: view_in,
        _manifest: manifest_in,
        cancel: tasks.token().clone(),
    };
    tasks.spawn("offline partition", refusing.run());
    PartitionHandle {
        at,
        leader_epoch,
        inbox,
        asks: asks_in,
        is_confirmed: Arc::new(AtomicBool::new(true)),
        view,
        manifest,
        tail: LogReader::of_nothing(),
        settings: Arc::new(watch::Sender::new(settings)),
        unopened: Some(error),
        cancel: tasks.token().clone(),
    }
}

/// Returns what is in the partition's directory; nothing if it cannot even be looked at.
async fn look_at_local(
    opening: &Arc<Opening>,
    at: TopicPartition,
    manifest: &Manifest,
) -> Option<AtRest> {
    let tiered_offset = manifest.tiered_offset();
    let (dir, pool) = (opening.data_dir.partition(at), opening.flush_pool.clone());
    let look = move || match dir.exists() {
        true => log::at_rest(&pool, &dir, tiered_offset),
        false => Ok(AtRest::default()),
    };
    let looked = opening.tasks.spawn_blocking(look).await;
    looked.ok().and_then(Result::ok)
}

/// The task of a partition that could not be opened.
struct Refusing {
    error: PartitionError,
    /// There may be records on this disk that are nowhere else.
    has_left: bool,
    messages: mpsc::Receiver<Message>,
    asks: mpsc::Receiver<Ask>,
    view: watch::Sender<View>,
    /// Whoever waits for the partition's end waits for this to go.
    _manifest: watch::Sender<Arc<Manifest>>,
    cancel: CancellationToken,
}

impl Refusing {
    async fn run(mut self) {
        loop {
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => return,
                Some(message) = self.messages.recv() => self.on_message(message),
                Some(ask) = self.asks.recv() => ask.refuse(self.error.clone()),
                else => return,
            }
        }
    }

    fn on_message(&mut self, message: Message) {
        match message {
            Message::Append(append) => append.reply.send(Err(self.error.clone())),
            Message::Seal { done, .. } => drop(done.send(Err(self.error.clone()))),
            Message::Close { done } => {
                let closed = match self.has_left {
                    true => Err(self.error.clone()),
                    false => Ok(()),
                };
                drop(done.send(closed));
            }
            Message::Fence => {
                self.error = PartitionError::Fenced;
                let reason = self.error.to_string();
                self.view
                    .send_modify(|view| view.offline = Some(reason.into()));
            }
            // The rest wants no answer: what is dropped is answered.
            _ => {}
        }
    }
}
