//! The task that owns a partition. One method for each thing that can happen.

use std::{future::pending, path::Path, sync::Arc};

use esker_index::{
    Manifest,
    producers::{Check, ProducerError},
};
use esker_proto::{
    batch::{BatchHeader, RecordTimes},
    types::{LeaderEpoch, Offset, TopicPartition},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use super::{
    archiver::Sealed,
    drops::Superfluous,
    engine::{Acks, Event, LeaderEngine},
    error::{Damaged, PartitionError},
    intake::Intake,
    message::{Append, Appended, Message, Reply},
    settings::PartitionSettings,
    spread::spread,
    timestamps::TimestampKind,
    view::View,
};
use crate::{
    clocks::{Clocks, RetentionClock},
    limits::{Admission, Limits},
    log::{self, LocalLog, LogEvent, LogEvents},
    metrics::TrafficMetrics,
};

/// By this share of its age a segment is sealed earlier, at most.
const AGE_SPREAD: f64 = 0.1;
/// An idle producer is forgotten after this long, as in Kafka.
const PRODUCER_EXPIRY_MS: u64 = 24 * 3_600_000;
/// How often idle producers are looked for.
const PRODUCER_EXPIRY_INTERVAL: std::time::Duration = std::time::Duration::from_secs(60);
/// When a refused producer should come back.
const RETRY_AFTER_MS: u32 = 500;

/// Somebody who waits for what is below an offset to be in the bucket.
#[derive(Debug)]
struct TierWaiter {
    offset: Offset,
    /// And for local copies of it to go.
    drop_local: bool,
    done: oneshot::Sender<Result<(), PartitionError>>,
}

/// A producer waiting for its acknowledgement.
#[derive(Debug)]
struct Waiting {
    appended: Appended,
    reply: Reply,
}

/// What a partition's task talks to.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) data_dir: Arc<Path>,
    pub(super) inbox: mpsc::Receiver<Message>,
    pub(super) events: LogEvents,
    pub(super) manifest: watch::Receiver<Arc<Manifest>>,
    pub(super) settings: watch::Receiver<PartitionSettings>,
    pub(super) view: watch::Sender<View>,
    pub(super) sealed: watch::Sender<Sealed>,
    pub(super) superfluous: watch::Sender<Superfluous>,
    pub(super) limits: Arc<Limits>,
    pub(super) traffic: TrafficMetrics,
    pub(super) clocks: Clocks,
    pub(super) retention_clock: Arc<RetentionClock>,
    pub(super) cancel: CancellationToken,
}

/// One partition's state, and what it talks to.
#[derive(Debug)]
pub(super) struct Actor {
    at: TopicPartition,
    leader_epoch: LeaderEpoch,
    log: LocalLog,
    engine: LeaderEngine<Waiting>,
    intake: Intake,
    tier_waiters: Vec<TierWaiter>,
    /// This partition's part of the agent's un-uploaded bytes: none while it is offline.
    unuploaded_bytes: u64,
    /// Why the log cannot create a file at present.
    shortage: Option<log::Error>,
    links: Links,
}

impl Actor {
    pub(super) fn new(
        at: TopicPartition,
        leader_epoch: LeaderEpoch,
        log: LocalLog,
        links: Links,
    ) -> Self {
        let engine = LeaderEngine::new([], log.log_end_offset());
        Self {
            at,
            leader_epoch,
            log,
            engine,
            intake: Intake::Open,
            tier_waiters: Vec::new(),
            unuploaded_bytes: 0,
            shortage: None,
            links,
        }
    }

    /// Runs until cancelled.
    ///
    /// Progress of the disk comes first, so that acknowledgements never wait behind new work; then
    /// what the bucket has, so that local data goes before more comes; then requests.
    pub(super) async fn run(mut self) {
        let mut expiry = interval(PRODUCER_EXPIRY_INTERVAL);
        expiry.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.publish_sealed();
        self.on_tiered();
        loop {
            let roll_at = self.roll_at();
            tokio::select! {
                biased;
                () = self.links.cancel.cancelled() => break,
                event = self.links.events.next() => self.on_log_event(event),
                changed = self.links.manifest.changed() => {
                    if changed.is_err() { break }
                    self.on_tiered();
                }
                message = self.links.inbox.recv() => {
                    let Some(message) = message else { break };
                    self.on_message(message);
                }
                () = sleep_until(roll_at) => self.roll(),
                _ = expiry.tick() => {
                    self.log.expire_producers(self.links.retention_clock.now(), PRODUCER_EXPIRY_MS);
                }
            }
        }
        Box::pin(self.stop()).await;
    }

    fn on_message(&mut self, message: Message) {
        match message {
            Message::Append(append) => self.on_append(append),
            Message::Seal { drop_local, done } => self.on_seal(drop_local, done),
            Message::Close { done } => {
                self.intake.close();
                self.on_seal(false, done);
            }
            Message::Fence => {
                self.intake = Intake::Fenced;
                self.abandon();
                self.publish_view();
            }
            Message::Drop { below } => self.drop_local(below),
            Message::Damaged(source) => self.on_damage(source),
            Message::BucketDamaged { error, repair } => self.on_bucket_damage(&error, &repair),
            // The age at which the active segment is sealed is read afresh in each turn.
            Message::SettingsChanged => self.on_tiered(),
            // Whoever asked may have lost patience.
            Message::Pulse(alive) => drop(alive.send(())),
        }
    }

    fn on_append(&mut self, append: Append) {
        let header = *append.batch.header();
        match self.check(&header, append.times) {
            Err(error) => {
                self.links.traffic.note_refused();
                append.reply.send(Err(error));
            }
            Ok((throttle_ms, Check::Duplicate { base_offset })) => {
                self.links.traffic.note_duplicate();
                let appended = Appended {
                    base_offset,
                    is_duplicate: true,
                    throttle_ms,
                };
                // The first one may still be on its way to the disk.
                let next_offset = base_offset.advance(header.record_count);
                self.await_ack(append.acks, append.reply, appended, next_offset);
            }
            Ok((throttle_ms, Check::Append)) => self.append(append, throttle_ms),
        }
    }

    /// Decides what to do with a batch, and how long its producer should then pause.
    ///
    /// The retry of a batch that is in the log gets its offset, even if the batch would not be taken now.
    fn check(
        &self,
        header: &BatchHeader,
        times: RecordTimes,
    ) -> Result<(u32, Check), PartitionError> {
        self.intake.check()?;
        match self.log.check_producer(header).map_err(refused)? {
            Check::Append => Ok((self.admit(header, times)?, Check::Append)),
            duplicate @ Check::Duplicate { .. } => Ok((0, duplicate)),
        }
    }

    /// Decides whether a batch may come in, and how long its producer should then pause.
    fn admit(&self, header: &BatchHeader, times: RecordTimes) -> Result<u32, PartitionError> {
        let max = self.links.settings.borrow().batch_bytes_max;
        if header.size_bytes > max {
            return Err(PartitionError::BatchTooLarge {
                size_bytes: header.size_bytes,
                max,
            });
        }
        self.check_times(times)?;
        let refused = |reason: &str| PartitionError::Throttled {
            reason: reason.to_owned(),
            retry_after_ms: RETRY_AFTER_MS,
        };
        if let Some(error) = &self.shortage {
            let cause = cause_of(error);
            return Err(refused(&format!("the agent cannot create a file: {cause}")));
        }
        match self.links.limits.admit() {
            Admission::Accept => Ok(0),
            Admission::Throttle(millis) => Ok(millis),
            Admission::RefuseUnuploaded => {
                Err(refused("un-uploaded data has reached unuploaded-bytes-max"))
            }
            Admission::RefuseDisk => Err(refused(
                "the volume of the logs has reached its disk-reserve",
            )),
        }
    }

    /// Refuses times that are out of bounds by the agent's clock and by the store's: a batch does not
    /// suffer for one that is wrong.
    fn check_times(&self, times: RecordTimes) -> Result<(), PartitionError> {
        let policy = self.links.settings.borrow().timestamps;
        let clocks = &self.links.clocks;
        policy
            .check(times, clocks.local())
            .or_else(|error| match clocks.store() {
                Some(now) => policy.check(times, now),
                None => Err(error),
            })
            .map_err(PartitionError::Timestamp)
    }

    /// Returns the batch's header as the log gets it.
    fn stamped(&self, header: BatchHeader, base_offset: Offset) -> BatchHeader {
        let header = match self.links.settings.borrow().timestamps.kind {
            TimestampKind::Create => header,
            TimestampKind::Append => header.with_append_time(self.links.clocks.local()),
        };
        header.stamped(base_offset, self.leader_epoch)
    }

    fn append(&mut self, append: Append, throttle_ms: u32) {
        let base_offset = self.log.log_end_offset();
        let header = self.stamped(*append.batch.header(), base_offset);
        self.roll_for(header.size_bytes);
        let Append {
            batch,
            acks,
            memory,
            reply,
            ..
        } = append;
        if let Err(error) = self
            .log
            .append(header.encode(), batch.body(), &header, memory.into())
        {
            reply.send(Err(PartitionError::Log(Arc::new(error))));
            return;
        }
        self.links
            .limits
            .note_appended(u64::from(header.size_bytes));
        self.links
            .traffic
            .note_append(header.record_count, header.size_bytes);
        let appended = Appended {
            base_offset,
            is_duplicate: false,
            throttle_ms,
        };
        self.await_ack(acks, reply, appended, header.next_offset());
    }

    fn await_ack(&mut self, acks: Acks, reply: Reply, appended: Appended, next_offset: Offset) {
        let waiting = Waiting { appended, reply };
        self.engine.await_ack(acks, next_offset, waiting);
        self.acknowledge();
    }

    fn on_log_event(&mut self, event: LogEvent) {
        match event {
            LogEvent::Flushed { log_end_offset } => {
                self.engine.on_event(Event::Flushed(log_end_offset));
                // Visible first: whoever is told that a batch is written may read it at once.
                self.publish_view();
                self.acknowledge();
                self.publish_sealed();
            }
            LogEvent::Short(error) => {
                let cause = cause_of(&error);
                tracing::warn!(
                    partition = %self.at, %error, %cause,
                    "cannot create a file, refusing batches until it succeeds"
                );
                self.shortage = Some(error);
            }
            LogEvent::Resumed => {
                tracing::info!(partition = %self.at, "files can be created again");
                self.shortage = None;
            }
            LogEvent::Failed(error) => self.on_failure(&error),
        }
    }

    fn on_failure(&mut self, error: &log::Error) {
        // Only a new start reads the files back and knows what the disk holds.
        let reason = format!("{error}; fix the disk or its permissions, then restart the agent");
        tracing::error!(partition = %self.at, reason, "partition is offline");
        self.intake = Intake::Offline(reason.into());
        self.abandon();
        self.publish_view();
    }

    /// The bytes that are damaged may be nowhere else, so nothing is sealed or uploaded any more, and
    /// what is on disk is kept as it is.
    fn on_damage(&mut self, source: Arc<log::Error>) {
        if self.intake.is_offline() {
            return;
        }
        let damaged = Damaged {
            at: self.at,
            data_dir: Arc::clone(&self.links.data_dir),
            source,
        };
        tracing::error!(partition = %self.at, error = %damaged, "partition is offline; the others are served");
        self.intake = Intake::Damaged(Arc::new(damaged));
        self.abandon();
        self.publish_view();
    }

    fn on_bucket_damage(&mut self, error: &esker_tiering::Error, repair: &str) {
        if self.intake.check_writable().is_err() {
            return;
        }
        let at = self.at;
        let reason = format!("{error}; stop the agent, then `{repair}` shows what can be done");
        tracing::error!(partition = %at, reason, "partition is offline");
        self.intake = Intake::Offline(reason.into());
        self.abandon();
        self.publish_view();
    }

    fn acknowledge(&mut self) {
        while let Some(Waiting { appended, reply }) = self.engine.due() {
            reply.send(Ok(appended));
        }
    }

    /// The bucket has more: local data may go, and somebody may have waited for it.
    fn on_tiered(&mut self) {
        self.links.manifest.mark_unchanged();
        self.publish_sealed();
        self.publish_superfluous();
        self.publish_view();
        self.answer_tier_waiters();
    }

    fn answer_tier_waiters(&mut self) {
        let tiered_offset = self.links.manifest.borrow().tiered_offset();
        let oldest = self.log.sealed().next().map(|segment| segment.next_offset);
        let is_reached = |waiter: &TierWaiter| {
            let is_dropped = oldest.is_none_or(|oldest| oldest > waiter.offset);
            waiter.offset <= tiered_offset && (is_dropped || !waiter.drop_local)
        };
        let reached = self
            .tier_waiters
            .extract_if(.., |waiter| is_reached(waiter));
        for waiter in reached {
            // Whoever waited may have gone.
            let _ = waiter.done.send(Ok(()));
        }
    }

    /// Says which sealed segments are in the bucket, by the manifest, and beyond what local retention
    /// keeps. They go once the archiver has seen that the bucket has them.
    fn publish_superfluous(&self) {
        let superfluous = self.superfluous();
        self.links.superfluous.send_if_modified(|before| {
            let is_news = *before != superfluous;
            *before = superfluous;
            is_news
        });
    }

    fn superfluous(&self) -> Superfluous {
        if self.intake.check_writable().is_err() {
            return Superfluous::default();
        }
        let tiered_offset = self.links.manifest.borrow().tiered_offset();
        let is_awaited = |waiter: &TierWaiter| waiter.drop_local && waiter.offset <= tiered_offset;
        let is_urgent =
            self.links.limits.is_disk_short() || self.tier_waiters.iter().any(is_awaited);
        let keep = match is_urgent {
            true => 0,
            false => self.links.settings.borrow().local_retention_bytes,
        };
        let start = self.log.local_log_start_offset();
        let mut tiered_bytes = self.log.size_bytes() - self.log.bytes_from(tiered_offset);
        let mut end = start;
        for segment in self.log.sealed() {
            if segment.next_offset > tiered_offset || tiered_bytes <= keep {
                break;
            }
            tiered_bytes = tiered_bytes.saturating_sub(segment.size_bytes);
            end = segment.next_offset;
        }
        Superfluous {
            offsets: start..end,
            is_urgent,
        }
    }

    /// Drops sealed segments that were seen in the bucket.
    fn drop_local(&mut self, below: Offset) {
        // What is on the disk of an offline partition may be all there is.
        if self.intake.check_writable().is_err() {
            return;
        }
        if let Err(error) = self.log.delete_below(below) {
            self.on_failure(&error);
        }
        self.on_tiered();
    }

    fn on_seal(&mut self, drop_local: bool, done: oneshot::Sender<Result<(), PartitionError>>) {
        if let Err(error) = self.intake.check_writable() {
            let _ = done.send(Err(error));
            return;
        }
        self.roll();
        self.tier_waiters.push(TierWaiter {
            offset: self.log.log_end_offset(),
            drop_local,
            done,
        });
        // It may all be there already.
        self.on_tiered();
    }

    /// Seals the active segment if a batch of this size would make it too large.
    fn roll_for(&mut self, batch_bytes: u32) {
        let limit = self.links.settings.borrow().segment_bytes;
        if self.log.active_bytes() + u64::from(batch_bytes) > limit {
            self.roll();
        }
    }

    /// When the active segment is old enough to be sealed.
    fn roll_at(&self) -> Option<Instant> {
        let age = self.links.settings.borrow().segment_age;
        let age = self.links.limits.segment_age(age);
        // Partitions that fill together should not upload together.
        let age = age.mul_f64(1.0 - AGE_SPREAD * spread(self.at));
        let left = age.saturating_sub(self.log.active_age()?);
        Some(Instant::now() + left)
    }

    fn roll(&mut self) {
        match self.log.roll() {
            Ok(_) => self.publish_sealed(),
            Err(error) => self.on_failure(&error),
        }
    }

    fn publish_sealed(&self) {
        let high_watermark = self.engine.high_watermark();
        let tiered_offset = self.links.manifest.borrow().tiered_offset();
        let lacking = self
            .log
            .sealed()
            .filter(|segment| segment.next_offset > tiered_offset);
        let due: Vec<_> = lacking
            .take_while(|segment| segment.next_offset <= high_watermark)
            .collect();
        let newest = due
            .last()
            .map_or(tiered_offset, |segment| segment.next_offset);
        self.links.sealed.send_if_modified(|sealed| {
            let is_awaited = !self.tier_waiters.is_empty();
            let is_news = newest > sealed.next_offset || (is_awaited && !sealed.is_awaited);
            if is_news {
                *sealed = Sealed {
                    segments: due.into_iter().cloned().collect(),
                    next_offset: newest.max(sealed.next_offset),
                    is_awaited,
                };
            }
            is_news
        });
    }

    fn publish_view(&mut self) {
        let tiered_offset = self.links.manifest.borrow().tiered_offset();
        let unuploaded_bytes = self.log.bytes_from(tiered_offset);
        // What cannot be uploaded before somebody repairs it must not hold back other topics.
        let counted = match self.intake.is_offline() {
            true => 0,
            false => unuploaded_bytes,
        };
        self.links
            .limits
            .replace_unuploaded(self.unuploaded_bytes, counted);
        self.unuploaded_bytes = counted;
        self.links.view.send_replace(View {
            high_watermark: self.engine.high_watermark(),
            log_end_offset: self.log.log_end_offset(),
            local_log_start_offset: self.log.local_log_start_offset(),
            local_bytes: self.log.size_bytes(),
            unuploaded_bytes,
            offline: self.intake.offline_reason(),
        });
    }

    /// Answers everybody who waits, since nobody else will: their batches may or may not stay. Local
    /// copies stay.
    fn abandon(&mut self) {
        self.publish_superfluous();
        let error = self.intake.unknown_outcome();
        for Waiting { reply, .. } in self.engine.abandon() {
            reply.send(Err(error.clone()));
        }
        for waiter in self.tier_waiters.drain(..) {
            let _ = waiter.done.send(Err(error.clone()));
        }
    }

    async fn stop(mut self) {
        self.intake.close();
        self.links
            .limits
            .replace_unuploaded(self.unuploaded_bytes, 0);
        let flushed = self.log.sync_unless_short().await;
        if flushed.is_ok() {
            self.engine
                .on_event(Event::Flushed(self.log.log_end_offset()));
            self.acknowledge();
        }
        self.abandon();
        self.links.inbox.close();
        while let Ok(message) = self.links.inbox.try_recv() {
            if let Message::Append(append) = message {
                append.reply.send(Err(PartitionError::ShuttingDown));
            }
        }
        if let Err(error) = self.log.close().await {
            tracing::warn!(partition = %self.at, %error, "local log was not closed in order");
        }
    }
}

/// What the system said.
fn cause_of(error: &log::Error) -> String {
    std::error::Error::source(error).map_or_else(String::new, ToString::to_string)
}

fn refused(error: ProducerError) -> PartitionError {
    match error {
        ProducerError::TooMany { .. } => PartitionError::Throttled {
            reason: error.to_string(),
            retry_after_ms: RETRY_AFTER_MS,
        },
        error => PartitionError::Producer(error),
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => pending().await,
    }
}
