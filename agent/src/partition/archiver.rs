//! The task that owns a partition's remote part: uploads, trims, retention, garbage.
//!
//! It is driven by levels, not by queued work: it looks at which sealed segments the bucket lacks
//! and at the clock, does one thing, and looks again. So a restart or a long outage of the bucket
//! needs no bookkeeping, and nothing piles up.
//!
//! A partition that was never uploaded has nothing in the bucket: its manifest chain is opened by
//! the first upload. An idle partition sends no requests at all.

use std::{sync::Arc, time::Duration};

use esker_index::Manifest;
use esker_proto::types::{ClusterId, LeaderEpoch, Offset, TopicPartition};
use esker_tiering::{
    ErrorKind,
    archive::{Archive, ArchiveDeps, SEGMENTS_PER_COMMIT_MAX},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use super::{error::PartitionError, message::Message, settings::PartitionSettings};
use crate::{
    backoff::Backoff,
    clocks::{Clocks, RetentionClock},
    log::SealedSegment,
    registry::Registry,
};

/// How often a partition that is written to looks for orphans, which costs a listing.
const ORPHAN_SCAN_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// Retries are logged as a warning from this one on.
const WARN_FROM_ATTEMPT: u32 = 3;

/// Asks an archiver to raise the log start offset.
#[derive(Debug)]
pub(super) struct Trim {
    pub(super) offset: Offset,
    pub(super) done: oneshot::Sender<Result<Offset, PartitionError>>,
}

/// What the actor tells its archiver about the tail: the sealed segments below the high watermark
/// that were not in the bucket when it looked, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Sealed {
    pub(super) segments: Vec<SealedSegment>,
    /// Where the last of them ends.
    pub(super) next_offset: Offset,
}

/// What all archivers share.
#[derive(Debug)]
pub(crate) struct ArchiverContext {
    pub(crate) cluster_id: ClusterId,
    pub(crate) deps: ArchiveDeps,
    pub(crate) clocks: Clocks,
    pub(crate) retention_clock: Arc<RetentionClock>,
    /// Knows the names of topics.
    pub(crate) registry: Arc<Registry>,
    pub(crate) retention_interval: Duration,
}

/// One partition's archiver.
#[derive(Debug)]
pub(super) struct Archiver {
    pub(super) context: Arc<ArchiverContext>,
    pub(super) at: TopicPartition,
    pub(super) leader_epoch: LeaderEpoch,
    /// Absent until something has to be written.
    pub(super) archive: Option<Archive>,
    pub(super) sealed: watch::Receiver<Sealed>,
    pub(super) manifest: watch::Sender<Arc<Manifest>>,
    pub(super) settings: watch::Receiver<PartitionSettings>,
    pub(super) trims: mpsc::Receiver<Trim>,
    pub(super) actor: mpsc::Sender<Message>,
    pub(super) cancel: CancellationToken,
    /// When orphans are looked for next, if anything was uploaded since the last time.
    pub(super) scan_at: Option<Instant>,
}

/// What the archiver woke up for.
enum Wake {
    Stop,
    Trim(Trim),
    Sealed,
    Retention,
    Retry,
}

impl Archiver {
    /// Runs until cancelled or fenced. What it does is boxed while it lasts: most of a thousand
    /// partitions wait at a time, and the state of an upload takes tens of kilobytes.
    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
        let mut retry_at = None;
        let mut retention = tokio::time::interval(self.context.retention_interval);
        retention.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // What was sealed before this task began counts as a change.
        self.sealed.mark_changed();
        loop {
            // Only an upload says whether uploads go: a trim or a look at retention that succeeds
            // must not end the retries of one that did not.
            let is_upload = match self.wake(retry_at, &mut retention).await {
                Wake::Stop => return,
                Wake::Trim(trim) => match self.on_trim(trim).await {
                    Err(error) => return self.fenced(&error).await,
                    Ok(()) => continue,
                },
                Wake::Sealed | Wake::Retry => true,
                Wake::Retention => false,
            };
            let result = if is_upload {
                Box::pin(self.upload_pending()).await
            } else {
                Box::pin(self.retain()).await
            };
            match result {
                Ok(()) if is_upload => {
                    backoff.reset();
                    retry_at = None;
                }
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Fenced => {
                    return self.fenced(&error).await;
                }
                Err(error) => {
                    let wait = backoff.next();
                    self.note_failure(&error, backoff.attempts(), wait);
                    retry_at = Some(Instant::now() + wait);
                }
            }
        }
    }

    /// Trims and answers. An error means that a newer leader was met on the way.
    async fn on_trim(&mut self, trim: Trim) -> Result<(), Arc<esker_tiering::Error>> {
        let Trim { offset, done } = trim;
        let trimmed = Box::pin(self.trim(offset)).await;
        let fenced = match &trimmed {
            Err(PartitionError::Store(error)) if error.kind() == ErrorKind::Fenced => {
                Some(Arc::clone(error))
            }
            _ => None,
        };
        // Whoever asked may have gone: the trim is done all the same.
        let _ = done.send(trimmed);
        fenced.map_or(Ok(()), Err)
    }

    /// Waits for the next thing to do. Trims come first, so that an operator does not wait
    /// behind a backlog; while an upload is being retried nothing new starts one early.
    async fn wake(
        &mut self,
        retry_at: Option<Instant>,
        retention: &mut tokio::time::Interval,
    ) -> Wake {
        let is_retrying = retry_at.is_some();
        let retry = tokio::time::sleep_until(retry_at.unwrap_or_else(Instant::now));
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Wake::Stop,
            trim = self.trims.recv() => trim.map_or(Wake::Stop, Wake::Trim),
            () = retry, if is_retrying => Wake::Retry,
            changed = self.sealed.changed(), if !is_retrying => {
                if changed.is_ok() { Wake::Sealed } else { Wake::Stop }
            }
            _ = retention.tick() => Wake::Retention,
        }
    }

    async fn upload_pending(&mut self) -> Result<(), esker_tiering::Error> {
        loop {
            let tiered_offset = self.manifest.borrow().tiered_offset();
            let due = pending(&self.sealed.borrow_and_update(), tiered_offset);
            if due.is_empty() {
                return Ok(());
            }
            self.upload(&due).await?;
        }
    }

    async fn upload(
        &mut self,
        due: &[esker_tiering::archive::SealedSegment],
    ) -> Result<(), esker_tiering::Error> {
        self.open().await?;
        let Some(archive) = &mut self.archive else {
            return Ok(());
        };
        let uploaded = archive.upload_many(due, &self.cancel).await;
        // What was committed before an error counts.
        self.publish();
        self.scan_at
            .get_or_insert_with(|| Instant::now() + ORPHAN_SCAN_INTERVAL);
        uploaded
    }

    async fn retain(&mut self) -> Result<(), esker_tiering::Error> {
        let policy = self.settings.borrow().retention;
        let Some(archive) = &mut self.archive else {
            return Ok(());
        };
        if self.scan_at.is_some_and(|at| at <= Instant::now()) {
            self.scan_at = None;
            archive.request_scan();
        }
        let now = self.context.retention_clock.now();
        let before = archive.manifest();
        let trimmed = archive.apply_retention(now, policy).await?;
        if trimmed.is_some() {
            let after = archive.manifest();
            let reason = policy.reason(&before, now);
            self.log_trim(&before, &after, reason);
        }
        self.collect().await
    }

    fn log_trim(&self, before: &Manifest, after: &Manifest, reason: &str) {
        let (from, to) = (before.log_start_offset(), after.log_start_offset());
        tracing::info!(
            topic = self.context.registry.name_of(self.at.topic_id),
            partition = %self.at.partition,
            from_offset = %from,
            to_offset = %to,
            records = to.since(from),
            bytes = before.bucket_bytes().saturating_sub(after.bucket_bytes()),
            reason,
            "retention removed records"
        );
    }

    /// Merges index pages when due, and deletes what no manifest names any more. Each manifest is
    /// published before what it stopped naming goes, so that readers can resolve again.
    async fn collect(&mut self) -> Result<(), esker_tiering::Error> {
        self.publish();
        let Some(archive) = &mut self.archive else {
            return Ok(());
        };
        let merged = archive.merge_pages().await;
        self.publish();
        let Some(archive) = &mut self.archive else {
            return Ok(());
        };
        let collected = archive.collect_garbage().await;
        self.publish();
        merged.and(collected).map(drop)
    }

    async fn trim(&mut self, offset: Offset) -> Result<Offset, PartitionError> {
        let manifest = Arc::clone(&self.manifest.borrow());
        if offset <= manifest.log_start_offset() {
            return Ok(manifest.log_start_offset());
        }
        let tiered_offset = manifest.tiered_offset();
        if offset > tiered_offset {
            return Err(PartitionError::TrimAboveTiered {
                offset,
                tiered_offset,
            });
        }
        self.trim_tiered(offset)
            .await
            .map_err(|error| PartitionError::Store(Arc::new(error)))?;
        Ok(self.manifest.borrow().log_start_offset())
    }

    async fn trim_tiered(&mut self, offset: Offset) -> Result<(), esker_tiering::Error> {
        let Some(archive) = &mut self.archive else {
            return Ok(());
        };
        archive.trim_below(offset).await?;
        // The trim is committed; what it freed may be deleted now or at the next look.
        if let Err(error) = self.collect().await {
            tracing::info!(partition = %self.at, %error, "trimmed segments are deleted later");
        }
        Ok(())
    }

    async fn open(&mut self) -> Result<(), esker_tiering::Error> {
        if self.archive.is_none() {
            let Self {
                context,
                at,
                leader_epoch,
                ..
            } = self;
            let opened =
                Archive::open(context.deps.clone(), *at, context.cluster_id, *leader_epoch).await?;
            self.archive = Some(opened);
            self.publish();
        }
        Ok(())
    }

    fn publish(&self) {
        if let Some(archive) = &self.archive {
            self.manifest.send_replace(archive.manifest());
        }
    }

    /// Stops the actor, and then refuses everything until the partition ends. The manifest stays
    /// published meanwhile: for the actor its end would be that of the partition.
    async fn fenced(mut self, error: &esker_tiering::Error) {
        tracing::error!(partition = %self.at, %error, "a newer leader owns this partition");
        // If the actor is gone already, there is nobody left to stop.
        let _ = self.actor.send(Message::Fence).await;
        let cancel = self.cancel.clone();
        while let Some(Some(Trim { done, .. })) =
            cancel.run_until_cancelled(self.trims.recv()).await
        {
            let _ = done.send(Err(PartitionError::Fenced));
        }
    }

    fn note_failure(&self, error: &esker_tiering::Error, attempt: u32, wait: Duration) {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        if attempt < WARN_FROM_ATTEMPT {
            tracing::info!(partition = %self.at, %error, attempt, wait_ms, "tiering retries");
        } else {
            tracing::warn!(partition = %self.at, %error, attempt, wait_ms, "tiering retries");
        }
    }
}

/// Decides which segments go up next: the oldest that the bucket lacks.
fn pending(sealed: &Sealed, tiered_offset: Offset) -> Vec<esker_tiering::archive::SealedSegment> {
    let lacking = sealed
        .segments
        .iter()
        .filter(|segment| segment.next_offset > tiered_offset);
    lacking
        .take(SEGMENTS_PER_COMMIT_MAX)
        .map(to_upload)
        .collect()
}

fn to_upload(segment: &SealedSegment) -> esker_tiering::archive::SealedSegment {
    esker_tiering::archive::SealedSegment {
        path: segment.path.clone(),
        base_offset: segment.base_offset,
        next_offset: segment.next_offset,
        size_bytes: segment.size_bytes,
        entries: segment.entries.to_vec(),
        epochs: segment.epochs.clone(),
        producers: segment.producers.clone(),
    }
}
