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
mod remembered;
pub(crate) mod scan;
mod sealed;
mod seen;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod trim;
mod upload;
mod view;

use std::sync::Arc;

use esker_index::{Manifest, SegmentMeta};
use esker_proto::types::{ClusterId, LeaderEpoch, TopicPartition};
use tokio::sync::watch;

pub use beyond::{LeftAt, LocalExtent, LocalLog};
pub use budget::UploadBudget;
pub use delete::delete_everything;
pub use garbage::Collected;
pub use metrics::ArchiveMetrics;
pub use plan::Reason;
pub use remembered::{ManifestFile, Remembered};
pub use sealed::SealedSegment;
pub use seen::see;
pub use upload::SEGMENTS_PER_COMMIT_MAX;
pub use view::{Viewer, is_newest, view};

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
use seen::Seen;

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
    /// Which segments are put in parts.
    pub parts: PartSizes,
    /// How long a commit is tried before its outcome counts as unknown.
    pub policy: RetryPolicy,
}

/// How large segments are put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartSizes {
    /// A segment above this is put in parts, so that it need not fit into memory.
    pub above_bytes: u64,
    /// Size of a part.
    pub part_bytes: u64,
}

impl Default for PartSizes {
    /// A segment of the usual size is one request: parts cost one each, and two for the object.
    fn default() -> Self {
        Self {
            above_bytes: 96 << 20,
            part_bytes: 8 << 20,
        }
    }
}

/// What an owner knows of a partition whose manifest it opens.
#[derive(Clone, Debug, Default)]
pub struct OpenWith {
    /// Where the newest manifest is remembered.
    pub file: Option<ManifestFile>,
    /// An earlier owner may have left objects that no manifest names: it crashed, or says so.
    pub has_garbage: bool,
    /// The owner's log as it was when it began to lead without opening the manifest. What the
    /// bucket has beyond that came from somebody else, who passes for this owner, or is what only a
    /// lost manifest can have named.
    pub local: Option<LocalExtent>,
    /// What the last owner that left in order said of its newest manifest.
    pub left: Option<LeftAt>,
}

impl OpenWith {
    fn refuse_more(&self, manifest: &Manifest, keys: &Keys) -> Result<(), Error> {
        let tiered_offset = manifest.tiered_offset();
        let local = self.local.as_ref();
        if local.is_none_or(|local| tiered_offset <= local.log_end_offset) {
            return Ok(());
        }
        tracing::error!(
            partition = %keys.topic_partition(), %tiered_offset,
            "the bucket has more than this agent's log: an agent on a copy of its data directory uploaded it"
        );
        let epoch = u64::from(manifest.header().leader_epoch.get());
        Err(Error::Fenced {
            key: keys.manifest(manifest.header().version),
            ours: epoch,
            theirs: epoch,
        })
    }
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
    file: Option<ManifestFile>,
    /// The file holds the newest manifest.
    is_remembered: bool,
    /// A page to merge was damaged.
    cannot_merge: bool,
    /// The last look at whether the bucket has this owner's manifests.
    seen: Seen,
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
        let with = OpenWith {
            has_garbage: true,
            ..OpenWith::default()
        };
        Self::open_into(published, with, deps, topic_partition, leader_epoch).await
    }

    /// As [`Archive::open_into`], for a partition that was led before. Refuses, before it writes anything,
    /// if segments lie above the newest manifest that only a lost one can have named, or if the last owner
    /// that left in order had a newer one; `local` tells the former from uploads that were never
    /// committed. See `beyond` for how.
    ///
    /// # Errors
    ///
    /// `Corrupt` then; else those of [`Archive::open`].
    pub async fn reopen(
        local: &dyn LocalLog,
        published: watch::Sender<Arc<Manifest>>,
        with: OpenWith,
        deps: ArchiveDeps,
        topic_partition: TopicPartition,
        leader_epoch: LeaderEpoch,
    ) -> Result<Self, Error> {
        let check = Some(local);
        Self::open_checked(check, published, with, deps, topic_partition, leader_epoch).await
    }

    /// As [`Archive::open`], for a partition whose readers follow `published` already. It shows the
    /// manifest of the same cluster that they know so far. If that was remembered and is not the newest,
    /// this checks what [`Archive::reopen`] does.
    ///
    /// Each manifest is shown there as soon as its commit is certain, and so before anything that it
    /// stopped naming is deleted: a reader that misses an object finds where its rows are now.
    ///
    /// # Errors
    ///
    /// Those of [`Archive::open`].
    pub async fn open_into(
        published: watch::Sender<Arc<Manifest>>,
        with: OpenWith,
        deps: ArchiveDeps,
        topic_partition: TopicPartition,
        leader_epoch: LeaderEpoch,
    ) -> Result<Self, Error> {
        let local = with.local.clone();
        let local = local.as_ref().map(|extent| extent as &dyn LocalLog);
        Self::open_checked(local, published, with, deps, topic_partition, leader_epoch).await
    }

    async fn open_checked(
        local: Option<&dyn LocalLog>,
        published: watch::Sender<Arc<Manifest>>,
        with: OpenWith,
        deps: ArchiveDeps,
        topic_partition: TopicPartition,
        leader_epoch: LeaderEpoch,
    ) -> Result<Self, Error> {
        let keys = Keys::new(topic_partition);
        if let Some(file) = &with.file {
            file.forget()?;
        }
        let cluster_id = published.borrow().header().cluster_id;
        let known = Arc::clone(&published.borrow());
        let check = Check {
            local,
            known: &known,
            is_remembered: with.local.is_some(),
            left: with.left,
        };
        let chain = commit::open_chain(&deps, keys, cluster_id, leader_epoch, check).await?;
        let manifest = &chain.tip().body;
        with.refuse_more(manifest, &keys)?;
        let opened_at = chain.tip().slot;
        let pages = Pages::new(deps.store.clone(), keys, deps.tasks.clone());
        let mut garbage = Garbage::default();
        if with.has_garbage && chain.opened_at() > 1 {
            garbage.request_edge_scan(manifest.tiered_offset());
        }
        published.send_replace(Arc::new(manifest.clone()));
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
            file: with.file,
            is_remembered: false,
            cannot_merge: false,
            seen: Seen::now(opened_at),
        })
    }

    /// Writes the newest manifest to the file given at opening, unless it is there already or a
    /// commit is in doubt. A failure costs the next start some requests, nothing more.
    pub async fn remember(&mut self) {
        let Some(file) = self.file.clone() else {
            return;
        };
        if self.is_remembered || self.pending.is_some() || self.fenced.is_some() {
            return;
        }
        let remembered = Remembered {
            leader_epoch: self.leader_epoch,
            manifest: self.manifest(),
            has_garbage: !self.garbage.is_empty(),
        };
        let path = file.path().display().to_string();
        // Encoding takes milliseconds.
        let writing = self
            .deps
            .tasks
            .spawn_blocking(move || file.write(&remembered));
        match writing.await {
            Ok(Ok(())) => self.is_remembered = true,
            Ok(Err(error)) => {
                tracing::warn!(path, %error, "cannot keep a local copy of the manifest; the next start reads the bucket");
            }
            Err(_) => {}
        }
    }

    /// Removes the file, before a commit that makes it old is sent.
    fn forget(&mut self) -> Result<(), Error> {
        self.is_remembered = false;
        self.file.as_ref().map_or(Ok(()), ManifestFile::forget)
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
