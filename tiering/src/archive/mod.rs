//! One partition's part in the bucket, in the hands of its leader.
//!
//! [`Archive`] uploads, trims and collects garbage. The order of its writes, what fences it and what
//! a crash leaves behind is the contract of this crate, stated in its head. Which objects are
//! garbage is decided in `plan`, without I/O.
//!
//! One task owns an archive and calls it one method at a time. Others follow its manifest on
//! [`Archive::watch`], which shows committed versions only, or look for themselves with [`view`].

pub(crate) mod beyond;
mod budget;
mod commit;
mod delete;
mod garbage;
mod metrics;
pub(crate) mod pages;
pub(crate) mod plan;
pub(crate) mod scan;
mod sealed;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod trim;
mod upload;
mod view;

use std::sync::Arc;

use esker_index::{Manifest, SegmentMeta};
use esker_proto::types::{ClusterId, LeaderEpoch, TopicPartition};
use tokio::sync::watch;

pub use beyond::{LocalExtent, LocalLog};
pub use budget::UploadBudget;
pub use delete::delete_everything;
pub use garbage::Collected;
pub use metrics::ArchiveMetrics;
pub use plan::Reason;
pub use sealed::SealedSegment;
pub use upload::SEGMENTS_PER_COMMIT_MAX;
pub use view::{Viewer, view};

use crate::{
    chain::{Chain, RetryPolicy},
    env::{Clock, IdGenerator, TaskSet},
    error::Error,
    keys::Keys,
    store::Store,
};
use beyond::Check;
use commit::Fallout;
use garbage::Garbage;
use pages::Pages;

/// What all archives of a process share.
#[derive(Clone, Debug)]
pub struct ArchiveDeps {
    /// The bucket.
    pub store: Store,
    /// Names of segments, nonces of commits.
    pub ids: Arc<dyn IdGenerator>,
    /// Says when a segment was uploaded, where the store's own clock is not known.
    pub clock: Arc<dyn Clock>,
    /// Where files are read and pages decoded.
    pub tasks: TaskSet,
    /// Memory of uploads in flight.
    pub budget: UploadBudget,
    /// Counts.
    pub metrics: ArchiveMetrics,
    /// How long a commit is tried before its outcome counts as unknown.
    pub policy: RetryPolicy,
}

/// The owner's handle on a partition's part in the bucket, from the opening of its epoch until a
/// newer epoch is opened.
///
/// An error of kind `Fenced` is final: every later call returns it. After one of kind `Unknown` the
/// next call finds out what happened before it does anything else: it sends the very same commit
/// again, and reads whose it is that stands there. Any method may be dropped at an await; a commit
/// that was sent by then counts as unknown.
#[derive(Debug)]
pub struct Archive {
    deps: ArchiveDeps,
    keys: Keys,
    leader_epoch: LeaderEpoch,
    chain: Chain<Manifest>,
    published: watch::Sender<Arc<Manifest>>,
    /// Of the commit in flight, or whose outcome is not known.
    pending: Option<Fallout>,
    fenced: Option<Error>,
    pages: Pages,
    /// The oldest segment, when it lies in a page and retention has looked at it.
    oldest: Option<SegmentMeta>,
    garbage: Garbage,
    /// A page to merge was damaged.
    cannot_merge: bool,
}

impl Archive {
    /// Opens the partition's manifest in `leader_epoch`. After that no leader of an earlier epoch
    /// can commit anything. A partition without a manifest gets an empty one.
    ///
    /// A leader epoch belongs to one owner. To call this again with the same epoch is allowed to
    /// the same owner only, after an error.
    ///
    /// # Errors
    ///
    /// `Fenced` if a later epoch was opened; `Unknown` if nobody can tell whether this one was;
    /// `Corrupt` if the chain is damaged or of another cluster.
    pub async fn open(
        deps: ArchiveDeps,
        topic_partition: TopicPartition,
        cluster_id: ClusterId,
        leader_epoch: LeaderEpoch,
    ) -> Result<Self, Error> {
        let published = watch::Sender::new(Arc::new(Manifest::create(cluster_id, topic_partition)));
        Self::open_into(published, deps, topic_partition, leader_epoch).await
    }

    /// As [`Archive::open_into`], for a partition that was led before. Refuses, before it writes anything,
    /// if segments lie above the newest manifest that only a lost one can have named; `local` tells
    /// them from uploads that were never committed. See `beyond` for how.
    ///
    /// # Errors
    ///
    /// `Corrupt` then; else those of [`Archive::open`].
    pub async fn reopen(
        local: &dyn LocalLog,
        published: watch::Sender<Arc<Manifest>>,
        deps: ArchiveDeps,
        topic_partition: TopicPartition,
        leader_epoch: LeaderEpoch,
    ) -> Result<Self, Error> {
        let check = Some(local);
        Self::open_checked(check, published, deps, topic_partition, leader_epoch).await
    }

    /// As [`Archive::open`], for a partition whose readers follow `published` already. It shows the
    /// manifest of the same cluster that they know so far.
    ///
    /// Each manifest is shown there as soon as its commit is certain, and so before anything that it
    /// stopped naming is deleted: a reader that misses an object finds where its rows are now.
    ///
    /// # Errors
    ///
    /// Those of [`Archive::open`].
    pub async fn open_into(
        published: watch::Sender<Arc<Manifest>>,
        deps: ArchiveDeps,
        topic_partition: TopicPartition,
        leader_epoch: LeaderEpoch,
    ) -> Result<Self, Error> {
        Self::open_checked(None, published, deps, topic_partition, leader_epoch).await
    }

    async fn open_checked(
        local: Option<&dyn LocalLog>,
        published: watch::Sender<Arc<Manifest>>,
        deps: ArchiveDeps,
        topic_partition: TopicPartition,
        leader_epoch: LeaderEpoch,
    ) -> Result<Self, Error> {
        let keys = Keys::new(topic_partition);
        let cluster_id = published.borrow().header().cluster_id;
        let known = published.borrow().tiered_offset();
        let check = Check { local, known };
        let chain = commit::open_chain(&deps, keys, cluster_id, leader_epoch, check).await?;
        let pages = Pages::new(deps.store.clone(), keys, deps.tasks.clone());
        published.send_replace(Arc::new(chain.tip().body.clone()));
        let mut garbage = Garbage::default();
        if chain.opened_at() > 1 {
            garbage.request_scan();
        }
        Ok(Self {
            deps,
            keys,
            leader_epoch,
            chain,
            published,
            pending: None,
            fenced: None,
            pages,
            oldest: None,
            garbage,
            cannot_merge: false,
        })
    }

    /// Returns the latest committed manifest.
    pub fn manifest(&self) -> Arc<Manifest> {
        Arc::clone(&self.published.borrow())
    }

    /// Follows the committed manifests.
    pub fn watch(&self) -> watch::Receiver<Arc<Manifest>> {
        self.published.subscribe()
    }

    /// Returns the partition.
    pub const fn topic_partition(&self) -> TopicPartition {
        self.keys.topic_partition()
    }

    /// Returns the epoch this handle opened.
    pub const fn leader_epoch(&self) -> LeaderEpoch {
        self.leader_epoch
    }

    /// Deletes all the partition has in the bucket. See [`delete_everything`].
    ///
    /// # Errors
    ///
    /// Those of [`delete_everything`].
    pub async fn delete_everything(
        self,
        cancel: &tokio_util::sync::CancellationToken,
    ) -> Result<u64, Error> {
        delete_everything(&self.deps.store, self.topic_partition(), cancel).await
    }
}
