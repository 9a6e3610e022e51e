//! The task that owns a partition's remote part: uploads, trims, retention, garbage.
//!
//! It is driven by levels, not by queued work: it looks at which sealed segments the bucket lacks
//! and at the clock, does one thing, and looks again. So a restart or a long outage of the bucket
//! needs no bookkeeping, and nothing piles up.
//!
//! The manifest chain is opened by the first upload or trim. Until then the archiver goes by the
//! manifest that the last run left in the data directory, so that an idle partition sends no requests,
//! over restarts too, and a partition that was never uploaded has nothing in the bucket.
//!
//! Local copies go only once it has seen that the bucket has what they hold.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use esker_index::{
    Manifest,
    retention::{self, Decision},
};
use esker_proto::types::{ClusterId, LeaderEpoch, Offset, OffsetRange, TopicPartition};
use esker_tiering::{
    Error, ErrorKind,
    archive::{Archive, ArchiveDeps, OpenWith, SEGMENTS_PER_COMMIT_MAX, is_newest, see},
    keys::Key,
    scrub::repair_command,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, Interval, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use super::{
    drops::{Drops, Superfluous},
    error::PartitionError,
    message::Message,
    settings::PartitionSettings,
    spread::spread,
    uploads::Uploads,
};
use crate::{
    clocks::{Clocks, RetentionClock},
    log::{self, SealedSegment},
    registry::Registry,
};

/// How often a partition that is written to looks for orphans, which costs a listing.
const ORPHAN_SCAN_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// A backlog is committed at the latest after this much: so long a trim or retention waits.
const BYTES_PER_COMMIT_MAX: u64 = 256 << 20;
/// Retries of a local file that cannot be read, though a check of it finds nothing.
const LOCAL_READS_MAX: u32 = 5;
/// Retries are logged as a warning from this one on.
const WARN_FROM_ATTEMPT: u32 = 3;

/// Asks an archiver to raise the log start offset.
#[derive(Debug)]
pub(super) struct Trim {
    pub(super) offset: Offset,
    pub(super) done: oneshot::Sender<Result<Offset, PartitionError>>,
}

/// What others ask of an archiver.
#[derive(Debug)]
pub(super) enum Ask {
    /// Raise the log start offset.
    Trim(Trim),
    /// Make sure that the published manifest is the newest.
    Confirm(oneshot::Sender<Result<(), PartitionError>>),
    /// Make sure that the bucket has what was uploaded last, and the manifest that names it.
    See(oneshot::Sender<Result<(), PartitionError>>),
}

impl Ask {
    /// Refuses it.
    pub(super) fn refuse(self, error: PartitionError) {
        // The caller may have gone.
        match self {
            Self::Trim(Trim { done, .. }) => drop(done.send(Err(error))),
            Self::Confirm(done) | Self::See(done) => drop(done.send(Err(error))),
        }
    }
}

/// What the actor tells its archiver about the tail: the sealed segments below the high watermark
/// that were not in the bucket when it looked, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Sealed {
    pub(super) segments: Vec<SealedSegment>,
    /// Where the last of them ends.
    pub(super) next_offset: Offset,
    /// A drain, or somebody who asked for it, waits for them to be in the bucket.
    pub(super) is_awaited: bool,
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
    /// Counts uploads that succeeded, of any partition: who waits to retry tries then, since the
    /// bucket answers again.
    pub(crate) stores_again: watch::Sender<u64>,
}

impl ArchiverContext {
    fn note_success(&self) {
        self.stores_again
            .send_modify(|count| *count = count.wrapping_add(1));
    }
}

/// One partition's archiver.
#[derive(Debug)]
pub(super) struct Archiver {
    pub(super) context: Arc<ArchiverContext>,
    pub(super) at: TopicPartition,
    pub(super) leader_epoch: LeaderEpoch,
    /// Absent until something has to be written.
    pub(super) archive: Option<Archive>,
    /// What the archive is opened with.
    pub(super) with: OpenWith,
    /// The published manifest is known to be the newest.
    pub(super) is_confirmed: Arc<AtomicBool>,
    pub(super) sealed: watch::Receiver<Sealed>,
    pub(super) superfluous: watch::Receiver<Superfluous>,
    pub(super) manifest: watch::Sender<Arc<Manifest>>,
    pub(super) settings: watch::Receiver<PartitionSettings>,
    pub(super) asks: mpsc::Receiver<Ask>,
    pub(super) actor: mpsc::Sender<Message>,
    pub(super) cancel: CancellationToken,
    /// When orphans are looked for next, if anything was uploaded since the last time.
    pub(super) scan_at: Option<Instant>,
}

/// What the archiver woke up for.
enum Wake {
    Stop,
    Ask(Ask),
    Drop,
    Upload,
    Retention,
}

impl Archiver {
    /// Runs until cancelled or fenced. What it does is boxed while it lasts: most of a thousand
    /// partitions wait at a time, and the state of an upload takes tens of kilobytes.
    pub(super) async fn run(mut self) {
        let mut uploads = Uploads::new(self.context.stores_again.subscribe());
        let mut drops = Drops::new(self.superfluous.clone());
        // Spread, so that the partitions of an agent do not ask the bucket together.
        let interval = self.context.retention_interval;
        let first = Instant::now() + interval.mul_f64(spread(self.at));
        let mut retention = tokio::time::interval_at(first, interval);
        retention.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // What was sealed before this task began counts as a change.
        self.sealed.mark_changed();
        self.remember().await;
        loop {
            let done = match self.wake(&mut uploads, &mut drops, &mut retention).await {
                Wake::Stop => return self.remember().await,
                Wake::Ask(Ask::Trim(trim)) => self.on_trim(trim).await,
                Wake::Ask(Ask::Confirm(done)) => self.on_confirm(done).await,
                Wake::Ask(Ask::See(done)) => self.on_see(done).await,
                Wake::Drop => Box::pin(self.allow_drop(&mut drops)).await,
                Wake::Upload => Box::pin(self.upload_some(&mut uploads)).await,
                Wake::Retention => Box::pin(self.retain()).await,
            };
            if let Err(error) = done {
                return self.fenced(&error).await;
            }
        }
    }

    /// Waits for the next thing to do. A backlog is uploaded piece by piece, so that retention and
    /// trims, which may free what the backlog fills, get their turns in between; and a piece follows
    /// each trim, so that trims without end do not keep uploads waiting.
    async fn wake(
        &mut self,
        uploads: &mut Uploads,
        drops: &mut Drops,
        retention: &mut Interval,
    ) -> Wake {
        let may_ask = !(uploads.is_ready() && uploads.was_passed_over);
        let woken = tokio::select! {
            biased;
            () = self.cancel.cancelled() => Wake::Stop,
            ask = self.asks.recv(), if may_ask => ask.map_or(Wake::Stop, Wake::Ask),
            _ = retention.tick() => Wake::Retention,
            is_open = drops.due() => if is_open { Wake::Drop } else { Wake::Stop },
            is_open = uploads.due(&mut self.sealed) => {
                if is_open { Wake::Upload } else { Wake::Stop }
            }
        };
        uploads.was_passed_over = matches!(woken, Wake::Ask(_));
        woken
    }

    /// Answers whether the published manifest is the newest, and catches up if it was not. One that
    /// was remembered since before this start is confirmed before anything is read by it: a bucket
    /// that was repaired meanwhile has a newer one. An error means that a newer leader was met.
    async fn on_confirm(
        &mut self,
        done: oneshot::Sender<Result<(), PartitionError>>,
    ) -> Result<(), Arc<Error>> {
        let confirmed = Box::pin(self.confirm()).await.map_err(Arc::new);
        let fenced = confirmed.clone().err();
        // The caller may have gone.
        let _ = done.send(confirmed.map_err(PartitionError::Store));
        fenced
            .filter(|error| error.kind() == ErrorKind::Fenced)
            .map_or(Ok(()), Err)
    }

    /// Answers whether the bucket has what was uploaded last. An error means that a newer leader was met.
    async fn on_see(
        &mut self,
        done: oneshot::Sender<Result<(), PartitionError>>,
    ) -> Result<(), Arc<Error>> {
        let end = self.manifest.borrow().tiered_offset();
        let last = Offset::new(end.get().saturating_sub(1));
        let seen = Box::pin(self.see(last..end)).await.map_err(Arc::new);
        let fenced = seen.clone().err();
        // The caller may have gone.
        let _ = done.send(seen.map_err(PartitionError::Store));
        fenced
            .filter(|error| error.kind() == ErrorKind::Fenced)
            .map_or(Ok(()), Err)
    }

    /// Has the actor let go of local copies, if the bucket has what they hold. An error means that a
    /// newer leader was met.
    async fn allow_drop(&mut self, drops: &mut Drops) -> Result<(), Arc<Error>> {
        let offsets = drops.begin();
        let below = offsets.end;
        match self.see(offsets).await {
            Ok(()) => {
                drops.seen(below);
                // If the actor is gone already, nothing goes.
                let _ = self.actor.send(Message::Drop { below }).await;
            }
            Err(error) if error.kind() == ErrorKind::Fenced => return Err(Arc::new(error)),
            Err(error) if error.kind() == ErrorKind::Corrupt => self.report_damage(error).await,
            Err(error) => tracing::info!(
                partition = %self.at, %error,
                "cannot see whether the bucket has what was uploaded, keeping local copies"
            ),
        }
        Ok(())
    }

    async fn see(&mut self, offsets: OffsetRange) -> Result<(), Error> {
        match &mut self.archive {
            Some(archive) => archive.see(&offsets).await,
            None => {
                let manifest = Arc::clone(&self.manifest.borrow());
                see(&self.context.deps.store, &manifest, &offsets).await
            }
        }
    }

    async fn confirm(&mut self) -> Result<(), Error> {
        if self.archive.is_some() {
            return Ok(());
        }
        let manifest = Arc::clone(&self.manifest.borrow());
        if is_newest(&self.context.deps.store, &manifest).await? {
            self.is_confirmed.store(true, Ordering::Relaxed);
            return Ok(());
        }
        self.open().await
    }

    /// Uploads one commit's worth of what is sealed. An error means that a newer leader was met.
    async fn upload_some(&mut self, uploads: &mut Uploads) -> Result<(), Arc<Error>> {
        let tiered_offset = self.manifest.borrow().tiered_offset();
        let due = pending(&self.sealed.borrow_and_update(), tiered_offset);
        if due.is_empty() {
            uploads.done();
            self.remember().await;
            return Ok(());
        }
        let result = self.upload(&due).await;
        if self.manifest.borrow().tiered_offset() > tiered_offset {
            self.context.note_success();
        }
        match result {
            Ok(()) => uploads.succeeded(),
            Err(error) if error.kind() == ErrorKind::Fenced => return Err(Arc::new(error)),
            Err(error) if self.is_local_damage(&error, uploads.attempts()).await => uploads.done(),
            Err(error) => {
                let wait = uploads.failed(&error, self.sealed.borrow().is_awaited);
                self.note_failure(&error, uploads.attempts(), wait);
                if self.is_bucket_damage(&error) {
                    self.report_damage(error).await;
                }
            }
        }
        Ok(())
    }

    /// Trims and answers. An error means that a newer leader was met on the way.
    async fn on_trim(&mut self, trim: Trim) -> Result<(), Arc<Error>> {
        let Trim { offset, done } = trim;
        let trimmed = Box::pin(self.trim(offset)).await;
        self.remember().await;
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

    async fn upload(&mut self, due: &[esker_tiering::archive::SealedSegment]) -> Result<(), Error> {
        self.open().await?;
        let Some(archive) = &mut self.archive else {
            return Ok(());
        };
        self.scan_at
            .get_or_insert_with(|| Instant::now() + ORPHAN_SCAN_INTERVAL);
        archive.upload_many(due, &self.cancel).await
    }

    /// Applies retention and collects garbage. What fails is tried again at the next interval; an
    /// error means that a newer leader was met.
    async fn retain(&mut self) -> Result<(), Arc<Error>> {
        match self.try_retain().await {
            Err(error) if error.kind() == ErrorKind::Fenced => Err(Arc::new(error)),
            Err(error) => {
                tracing::warn!(
                    partition = %self.at, %error,
                    "retention or garbage collection failed, will retry at the next retention-interval"
                );
                if self.is_bucket_damage(&error) {
                    self.report_damage(error).await;
                }
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    async fn try_retain(&mut self) -> Result<(), Error> {
        let policy = self.settings.borrow().retention;
        let now = self.context.retention_clock.now();
        if self.archive.is_none() {
            let decision = retention::plan(&self.manifest.borrow(), None, now, policy);
            if decision == Decision::Keep && !self.with.has_garbage {
                return Ok(());
            }
            self.open().await?;
        }
        let Some(archive) = &mut self.archive else {
            return Ok(());
        };
        if self.scan_at.is_some_and(|at| at <= Instant::now()) {
            self.scan_at = None;
            archive.request_scan();
        }
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

    /// Merges index pages when due, and deletes what no manifest names any more.
    async fn collect(&mut self) -> Result<(), Error> {
        let Some(archive) = &mut self.archive else {
            return Ok(());
        };
        archive.collect_garbage().await?;
        archive.remember().await;
        Ok(())
    }

    /// Keeps a local copy of the manifest, so that the next start need not ask the bucket.
    async fn remember(&mut self) {
        if let Some(archive) = &mut self.archive {
            archive.remember().await;
        }
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

    async fn trim_tiered(&mut self, offset: Offset) -> Result<(), Error> {
        self.open().await?;
        let Some(archive) = &mut self.archive else {
            return Ok(());
        };
        archive.trim_below(offset).await?;
        // The trim is committed; what it freed may be deleted now or at the next look.
        if let Err(error) = self.collect().await {
            tracing::info!(partition = %self.at, %error, "deleting trimmed segments failed, will retry");
        }
        Ok(())
    }

    async fn open(&mut self) -> Result<(), Error> {
        if self.archive.is_none() {
            let (published, deps) = (self.manifest.clone(), self.context.deps.clone());
            let with = self.with.clone();
            let opened = Archive::open_into(published, with, deps, self.at, self.leader_epoch);
            self.archive = Some(opened.await?);
            self.is_confirmed.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Stops the actor, and then refuses everything until the partition ends. The manifest stays
    /// published meanwhile: for the actor its end would be that of the partition.
    async fn fenced(mut self, error: &Error) {
        tracing::error!(partition = %self.at, %error, "a newer leader owns this partition");
        // If the actor is gone already, there is nobody left to stop.
        let _ = self.actor.send(Message::Fence).await;
        let cancel = self.cancel.clone();
        while let Some(Some(ask)) = cancel.run_until_cancelled(self.asks.recv()).await {
            ask.refuse(PartitionError::Fenced);
        }
    }

    /// Whether an upload failed because a local segment is damaged, and not the bucket: then the actor
    /// takes the partition offline, and trying again is of no use.
    async fn is_local_damage(&self, error: &Error, attempts: u32) -> bool {
        if !matches!(error, Error::Corrupt { .. } | Error::LocalFile { .. }) {
            return false;
        }
        // What the bucket has may be gone from the disk.
        let tiered_offset = self.manifest.borrow().tiered_offset();
        let mut segments = self.sealed.borrow().segments.clone();
        segments.retain(|segment| segment.next_offset > tiered_offset);
        let check = move || segments.iter().find_map(|segment| segment.check().err());
        let checked = self.context.deps.tasks.spawn_blocking(check).await;
        match local_damage(error, checked.ok().flatten(), attempts) {
            Some(damage) => {
                let damaged = Message::Damaged(Arc::new(damage));
                self.actor.send(damaged).await.is_ok()
            }
            None => false,
        }
    }

    /// Whether this partition's manifest is damaged or gone, so that nothing can be committed.
    fn is_bucket_damage(&self, error: &Error) -> bool {
        match error {
            Error::Corrupt { key, .. } => {
                self.archive.is_none() || matches!(Key::parse(key), Some(Key::Manifest(..)))
            }
            _ => false,
        }
    }

    /// Has the actor take the partition offline.
    async fn report_damage(&self, error: Error) {
        let repair = repair_command(self.context.deps.store.name(), self.at);
        let error = error.into();
        // If the actor is gone already, there is nothing to take offline.
        let _ = self
            .actor
            .send(Message::BucketDamaged { error, repair })
            .await;
    }

    fn note_failure(&self, error: &Error, attempt: u32, wait: Duration) {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        if attempt < WARN_FROM_ATTEMPT {
            tracing::info!(partition = %self.at, %error, attempt, wait_ms, "upload failed, retrying");
        } else {
            tracing::warn!(partition = %self.at, %error, attempt, wait_ms, "upload failed, retrying");
        }
    }
}

/// Decides whether damage in the local log, and not the bucket, failed an upload. A check may find every
/// segment whole although the upload cannot read one. After some tries the upload is believed: its
/// backlog could fill the agent's share of un-uploaded bytes, and so throttle every partition.
fn local_damage(error: &Error, checked: Option<log::Error>, attempts: u32) -> Option<log::Error> {
    let is_damage =
        |error: &log::Error| error.kind() == log::ErrorKind::Corrupt || error.is_of_one_file();
    checked.filter(is_damage).or_else(|| match error {
        Error::LocalFile { path, source } if attempts >= LOCAL_READS_MAX => {
            let unread = log::Error::Io {
                action: "read",
                path: path.into(),
                source: Arc::clone(source),
            };
            Some(unread).filter(is_damage)
        }
        _ => None,
    })
}

/// Decides which segments go up next: the oldest that the bucket lacks, up to one commit's worth.
fn pending(sealed: &Sealed, tiered_offset: Offset) -> Vec<esker_tiering::archive::SealedSegment> {
    let lacking = sealed
        .segments
        .iter()
        .filter(|segment| segment.next_offset > tiered_offset);
    let mut bytes_before = 0;
    lacking
        .take(SEGMENTS_PER_COMMIT_MAX)
        .take_while(|segment| {
            let is_taken = bytes_before < BYTES_PER_COMMIT_MAX;
            bytes_before += segment.size_bytes;
            is_taken
        })
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

#[cfg(test)]
mod tests;
