//! Opens a partition: what the bucket has, what the disk has, and the two tasks that own them.

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use esker_index::Manifest;
use esker_proto::types::{ClusterId, LeaderEpoch, Offset, TopicId, TopicPartition};
use esker_tiering::{
    archive::{
        self, Archive, LeftAt, LocalExtent, ManifestFile, OpenWith, Remembered, delete_everything,
    },
    env::TaskSet,
    scrub::repair_command,
};
use futures::future::BoxFuture;
use tokio::sync::{mpsc, watch};

use super::{
    actor::{Actor, Links},
    archiver::{Archiver, ArchiverContext, Sealed},
    drops::Superfluous,
    error::repair,
    handle::PartitionHandle,
    offline::{SetAside, set_aside},
    settings::PartitionSettings,
    view::View,
};
use crate::{
    data_dir::DataDir,
    limits::Limits,
    log::{
        self, FlushPolicy, FlushPool, LocalLog, LogEvents, OffsetCheckpoint, RecoverAt, Recovered,
    },
    metrics::TrafficMetrics,
};

/// Partitions opened at a time: each takes a thread for its files and may ask the bucket.
pub(crate) const OPENINGS_AT_A_TIME: usize = 16;
/// Requests to a partition that may wait. Producers wait for room beyond it.
pub(super) const INBOX_LEN: usize = 256;
/// What is asked of an archiver and may wait.
pub(super) const ASKS_LEN: usize = 8;

/// What all partitions are opened with.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) data_dir: DataDir,
    /// Whether the local copies of manifests are those of this agent's last run.
    pub(crate) is_as_left: bool,
    pub(crate) checkpoint: Arc<OffsetCheckpoint>,
    pub(crate) flush_pool: FlushPool,
    pub(crate) archiver: Arc<ArchiverContext>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) traffic: TrafficMetrics,
    pub(crate) tasks: TaskSet,
}

/// Where a partition comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start {
    /// Created just now: neither bucket nor disk have anything of it.
    New,
    /// It was there before.
    Existing {
        /// The epoch this agent leads it in.
        leader_epoch: LeaderEpoch,
        /// Since this epoch no other agent led it: a local log that is older may have been overtaken,
        /// and is discarded.
        led_since: LeaderEpoch,
        /// The manifest that was its newest when a leader left with all of it in the bucket.
        left: Option<LeftAt>,
    },
}

impl Start {
    const fn leader_epoch(self) -> LeaderEpoch {
        match self {
            Self::New => LeaderEpoch::new(1),
            Self::Existing { leader_epoch, .. } => leader_epoch,
        }
    }
}

/// Why a partition could not be opened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    /// Its part in the bucket cannot be read or opened.
    #[error("partition cannot be opened in the bucket. partition=`{at}`: {source}{}", bucket_repair(*at, .store, .source))]
    Bucket {
        /// Which.
        at: TopicPartition,
        /// The store's URL.
        store: Arc<str>,
        /// Why.
        source: esker_tiering::Error,
    },
    /// Its local log cannot be recovered.
    #[error("local log cannot be opened. partition=`{at}`: {source}{}", advice(*at, data_dir, .source))]
    Log {
        /// Which.
        at: TopicPartition,
        /// The agent's data directory.
        data_dir: Arc<Path>,
        /// Why.
        source: log::Error,
    },
    /// The agent is ending.
    #[error("agent is shutting down")]
    ShuttingDown,
}

impl OpenError {
    /// Whether the others can be served all the same: this partition is damaged, or its log cannot be
    /// opened. A newer owner and a store that does not answer concern them all.
    pub(crate) fn is_of_one_partition(&self) -> bool {
        match self {
            Self::Bucket { source, .. } => {
                self.is_corrupt() || matches!(source, esker_tiering::Error::Index { .. })
            }
            Self::Log { source, .. } => source.kind() != log::ErrorKind::Fenced,
            Self::ShuttingDown => false,
        }
    }

    /// Whether the system had run out of something, such as space or open files, so that opening it
    /// again may succeed.
    pub(crate) fn is_shortage(&self) -> bool {
        matches!(self, Self::Log { source, .. } if source.is_shortage())
    }

    /// Whether what is stored is wrong, in the bucket or on the disk.
    pub(crate) fn is_corrupt(&self) -> bool {
        use esker_tiering::ErrorKind::{Corrupt, NotFound, OutOfRange};
        match self {
            // What is not found is an object that the chain or the manifest names.
            Self::Bucket { source, .. } => {
                matches!(source.kind(), Corrupt | NotFound | OutOfRange)
            }
            Self::Log { source, .. } => source.kind() == log::ErrorKind::Corrupt,
            Self::ShuttingDown => false,
        }
    }

    /// Whether it is the part in the bucket that could not be opened.
    pub(crate) const fn is_of_bucket(&self) -> bool {
        matches!(self, Self::Bucket { .. })
    }
}

/// Names the command that repairs what is damaged in the bucket.
fn bucket_repair(at: TopicPartition, store: &str, source: &esker_tiering::Error) -> String {
    match source.kind() {
        esker_tiering::ErrorKind::Corrupt | esker_tiering::ErrorKind::NotFound => {
            let command = repair_command(store, at);
            format!("; `{command}` shows what can be done")
        }
        _ => String::new(),
    }
}

/// Says what to do about a log that cannot be opened.
fn advice(at: TopicPartition, data_dir: &Path, error: &log::Error) -> String {
    if error.kind() == log::ErrorKind::Corrupt {
        return format!("; {}", repair(at, data_dir, error));
    }
    match (error.is_disk_full(), error.is_of_one_file()) {
        (true, _) => {
            "; free some space on the disk of the data directory, or enlarge it".to_owned()
        }
        (_, true) => "; make the file readable and writable, then restart the agent".to_owned(),
        _ => String::new(),
    }
}

/// Opens one partition and starts its tasks. It serves when this returns; one that is damaged, or whose
/// log cannot be opened, is set aside and refuses everything.
///
/// # Errors
///
/// [`OpenError`], where what went wrong concerns more than this partition.
pub(crate) async fn open_or_set_aside(
    opening: &Arc<Opening>,
    at: TopicPartition,
    start: Start,
    settings: PartitionSettings,
) -> Result<PartitionHandle, OpenError> {
    let mut manifest = Arc::new(Manifest::create(opening.archiver.cluster_id, at));
    let opened = match open_chain(opening, at, start).await {
        Ok(chain) => {
            manifest = Arc::clone(&chain.published.borrow());
            open_on(opening, at, chain, settings.clone()).await
        }
        Err(error) => Err(error),
    };
    let error = match opened {
        Err(error) if error.is_of_one_partition() => error,
        opened => return opened,
    };
    let aside = SetAside {
        at,
        is_new: matches!(start, Start::New),
        leader_epoch: start.leader_epoch(),
        manifest,
        settings,
        error,
    };
    Ok(set_aside(opening, aside).await)
}

/// What the bucket has of a partition.
struct Chain {
    leader_epoch: LeaderEpoch,
    led_since: LeaderEpoch,
    archive: Option<Archive>,
    published: watch::Sender<Arc<Manifest>>,
    /// What the archive is opened with, if it is not.
    with: OpenWith,
}

async fn open_chain(
    opening: &Opening,
    at: TopicPartition,
    start: Start,
) -> Result<Chain, OpenError> {
    let context = &opening.archiver;
    let leader_epoch = start.leader_epoch();
    let (led_since, left) = match start {
        Start::New => (leader_epoch, None),
        Start::Existing {
            led_since, left, ..
        } => (led_since, left),
    };
    let remembered = recall(opening, at, start).await?;
    let mut with = OpenWith {
        file: Some(opening.data_dir.manifest_file(at)),
        has_garbage: remembered.as_ref().is_none_or(|known| known.has_garbage),
        local: None,
        left,
    };
    let empty = || Arc::new(Manifest::create(context.cluster_id, at));
    let is_known = remembered.is_some();
    let published = watch::Sender::new(remembered.map_or_else(empty, |known| known.manifest));
    // Where another agent may have led, it is fenced before anything is served.
    let archive = if is_known {
        None
    } else {
        let (published, with) = (published.clone(), std::mem::take(&mut with));
        let local = LocalDir {
            opening,
            at,
            led_since,
        };
        let deps = context.deps.clone();
        let opened = Archive::reopen(&local, published, with, deps, at, leader_epoch).await;
        Some(opened.map_err(|source| OpenError::Bucket {
            at,
            store: context.deps.store.name().into(),
            source,
        })?)
    };
    Ok(Chain {
        leader_epoch,
        led_since,
        archive,
        published,
        with,
    })
}

/// The local log of a partition whose manifest is not opened yet.
#[derive(Debug)]
struct LocalDir<'a> {
    opening: &'a Opening,
    at: TopicPartition,
    led_since: LeaderEpoch,
}

impl archive::LocalLog for LocalDir<'_> {
    fn extent<'a>(&'a self, newest: Option<&'a Manifest>) -> BoxFuture<'a, LocalExtent> {
        let Self {
            opening,
            at,
            led_since,
        } = *self;
        let empty = Manifest::create(opening.archiver.cluster_id, at);
        let recover_at = recover_at(opening, at, led_since, newest.unwrap_or(&empty));
        let (dir, pool) = (opening.data_dir.partition(at), opening.flush_pool.clone());
        let look = move || {
            let is_overtaken = log::newest_epoch(&pool, &dir)?.is_some_and(|e| e < led_since);
            match dir.exists() && !is_overtaken {
                true => log::extent(&pool, &dir, &recover_at).map(|(log_end_offset, epochs)| {
                    LocalExtent {
                        log_end_offset,
                        epochs,
                    }
                }),
                false => Ok(LocalExtent::default()),
            }
        };
        let looking = opening.tasks.spawn_blocking(look);
        Box::pin(async move {
            match looking.await {
                Ok(Ok(extent)) => extent,
                // What cannot be read holds nothing that can be told.
                Ok(Err(error)) => {
                    tracing::warn!(partition = %at, %error, "local log cannot be read");
                    LocalExtent::default()
                }
                Err(_) => LocalExtent::default(),
            }
        })
    }
}

fn recover_at(
    opening: &Opening,
    at: TopicPartition,
    led_since: LeaderEpoch,
    manifest: &Manifest,
) -> RecoverAt {
    RecoverAt {
        tiered_offset: manifest.tiered_offset(),
        epochs: manifest.epochs().clone(),
        producers: Some(manifest.producers().clone()).filter(|bytes| !bytes.is_empty()),
        known: opening.checkpoint.known(at, led_since),
        is_flushed_first: opening.flush_pool.policy() == FlushPolicy::Ack,
        now: opening.archiver.clocks.local(),
    }
}

/// Returns the newest manifest, if it is known without asking the bucket: the partition is new, or
/// nobody else has led it since this agent's last run, which left a copy.
async fn recall(
    opening: &Opening,
    at: TopicPartition,
    start: Start,
) -> Result<Option<Remembered>, OpenError> {
    let (file, cluster_id) = (
        opening.data_dir.manifest_file(at),
        opening.archiver.cluster_id,
    );
    let work: Box<dyn FnOnce() -> Option<Remembered> + Send> = match start {
        Start::New => Box::new(move || Some(remember_new(&file, cluster_id, at))),
        Start::Existing { .. } if !opening.is_as_left => return Ok(None),
        Start::Existing { led_since, .. } => Box::new(move || {
            file.read().filter(|known| {
                let header = known.manifest.header();
                known.leader_epoch >= led_since
                    && (header.cluster_id, header.topic_partition) == (cluster_id, at)
            })
        }),
    };
    let recalled = opening.tasks.spawn_blocking(work).await;
    recalled.map_err(|_| OpenError::ShuttingDown)
}

fn remember_new(file: &ManifestFile, cluster_id: ClusterId, at: TopicPartition) -> Remembered {
    let remembered = Remembered {
        leader_epoch: Start::New.leader_epoch(),
        manifest: Arc::new(Manifest::create(cluster_id, at)),
        has_garbage: false,
    };
    if let Err(error) = file.write(&remembered) {
        tracing::warn!(partition = %at, %error, "cannot keep a local copy of the manifest; the next start reads the bucket");
    }
    remembered
}

/// Opens the local log on what the bucket has, and starts the tasks.
async fn open_on(
    opening: &Arc<Opening>,
    at: TopicPartition,
    chain: Chain,
    settings: PartitionSettings,
) -> Result<PartitionHandle, OpenError> {
    let Chain {
        leader_epoch,
        led_since,
        archive,
        published,
        mut with,
    } = chain;
    let manifest = Arc::clone(&published.borrow());
    let opened = open_log(opening, at, manifest, led_since).await?;
    let (mut log, events) = opened;
    with.local = Some(LocalExtent {
        log_end_offset: log.log_end_offset(),
        epochs: log.epochs().clone(),
    });
    begin_epoch(&mut log, leader_epoch)
        .await
        .map_err(|source| opening.cannot_open(at, source))?;
    let parts = Parts {
        at,
        leader_epoch,
        archive,
        published,
        with,
        log,
        events,
        settings,
    };
    Ok(start_tasks(opening, parts))
}

async fn open_log(
    opening: &Arc<Opening>,
    at: TopicPartition,
    manifest: Arc<Manifest>,
    led_since: LeaderEpoch,
) -> Result<(LocalLog, LogEvents), OpenError> {
    let (tasks, opener) = (opening.tasks.clone(), Arc::clone(opening));
    let tiered_offset = manifest.tiered_offset();
    let work = move || {
        let opening = &opener;
        let dir = opening.data_dir.partition(at);
        log::finish_removal(&dir)?;
        // Only what is known to be older goes; whatever else is odd about it, recovery refuses.
        let newest = log::newest_epoch(&opening.flush_pool, &dir)?;
        if newest.is_some_and(|newest| newest < led_since) {
            tracing::info!(partition = %at, "discarding a local log that another leader overtook");
            log::remove_dir(&dir)?;
        }
        let recover_at = recover_at(opening, at, led_since, &manifest);
        LocalLog::open(&opening.flush_pool, &dir, &recover_at)
    };
    let opened = tasks
        .spawn_blocking(work)
        .await
        .map_err(|_| OpenError::ShuttingDown)?;
    let (log, events, recovered) = opened.map_err(|source| opening.cannot_open(at, source))?;
    report(at, &recovered, tiered_offset);
    let log_end_offset = recovered.log_end_offset;
    tracing::debug!(partition = %at, %log_end_offset, was_clean = recovered.was_clean, "log opened");
    Ok((log, events))
}

/// Says what opening a log took from it.
fn report(at: TopicPartition, recovered: &Recovered, tiered_offset: Offset) {
    let log_end_offset = recovered.log_end_offset;
    if let Some(cut) = &recovered.cut {
        tracing::warn!(
            partition = %at, path = %cut.path.display(), position = %cut.position, %log_end_offset,
            bytes = cut.bytes, damage = %cut.damage,
            "cut a torn tail off the local log; neither its mark nor the offset checkpoint shows that \
             it was acknowledged"
        );
    }
    for error in &recovered.distrusted {
        tracing::warn!(partition = %at, %error, "local copy is damaged, reading the bucket");
    }
    if let Some(repaired) = &recovered.repaired {
        let (cut_offset, acknowledged_below) = (repaired.cut_offset, repaired.flushed_offset);
        tracing::warn!(
            partition = %at, %cut_offset, %tiered_offset, %acknowledged_below, %log_end_offset,
            lost_records = acknowledged_below.since(log_end_offset),
            "opened a local log that was cut by `log repair`; offsets from here on are given out again"
        );
    }
}

/// The epoch is durable before the first batch can carry it. Where something has run out, opening the
/// log fails: the agent does not wait for that to pass before it serves the others.
async fn begin_epoch(log: &mut LocalLog, leader_epoch: LeaderEpoch) -> Result<(), log::Error> {
    log.begin_epoch(leader_epoch)?;
    log.sync_unless_short().await
}

/// A partition about to be served.
struct Parts {
    at: TopicPartition,
    leader_epoch: LeaderEpoch,
    archive: Option<Archive>,
    published: watch::Sender<Arc<Manifest>>,
    with: OpenWith,
    log: LocalLog,
    events: LogEvents,
    settings: PartitionSettings,
}

fn start_tasks(opening: &Opening, parts: Parts) -> PartitionHandle {
    let Parts {
        at,
        leader_epoch,
        archive,
        published,
        with,
        log,
        events,
        settings,
    } = parts;
    let tasks = opening.tasks.child();
    let (inbox, messages) = mpsc::channel(INBOX_LEN);
    let (asks_in, asks) = mpsc::channel(ASKS_LEN);
    let manifest = published.subscribe();
    let is_confirmed = Arc::new(AtomicBool::new(archive.is_some()));
    let settings_in = Arc::new(watch::Sender::new(settings));
    let sealed_in = watch::Sender::new(Sealed::default());
    let superfluous_in = watch::Sender::new(Superfluous::default());
    let (view_in, view) = watch::channel(View::of(&log));
    let archiver = Archiver {
        context: Arc::clone(&opening.archiver),
        at,
        leader_epoch,
        archive,
        with,
        is_confirmed: Arc::clone(&is_confirmed),
        sealed: sealed_in.subscribe(),
        superfluous: superfluous_in.subscribe(),
        manifest: published,
        settings: settings_in.subscribe(),
        asks,
        actor: inbox.clone(),
        cancel: tasks.token().clone(),
        scan_at: None,
    };
    let links = Links {
        data_dir: opening.data_dir.root().into(),
        inbox: messages,
        events,
        manifest: manifest.clone(),
        settings: settings_in.subscribe(),
        view: view_in,
        sealed: sealed_in,
        superfluous: superfluous_in,
        limits: Arc::clone(&opening.limits),
        traffic: opening.traffic.clone(),
        clocks: opening.archiver.clocks.clone(),
        retention_clock: Arc::clone(&opening.archiver.retention_clock),
        cancel: tasks.token().clone(),
    };
    let tail = log.reader();
    tasks.spawn_vital("archiver", archiver.run());
    tasks.spawn_vital("partition", Actor::new(at, leader_epoch, log, links).run());
    PartitionHandle {
        at,
        leader_epoch,
        inbox,
        asks: asks_in,
        is_confirmed,
        view,
        manifest,
        tail,
        settings: settings_in,
        unopened: None,
        cancel: tasks.token().clone(),
    }
}

impl Opening {
    fn cannot_open(&self, at: TopicPartition, source: log::Error) -> OpenError {
        let data_dir = self.data_dir.root().into();
        OpenError::Log {
            at,
            data_dir,
            source,
        }
    }

    /// Deletes the objects of a partition whose topic has a tombstone, and returns how many.
    pub(crate) async fn delete_remote(
        &self,
        at: TopicPartition,
    ) -> Result<u64, esker_tiering::Error> {
        delete_everything(&self.archiver.deps.store, at, self.tasks.token()).await
    }

    /// Deletes the local logs of a topic that has a tombstone.
    pub(crate) async fn delete_local(&self, topic_id: TopicId) -> Result<(), log::Error> {
        let (dir, manifests) = (
            self.data_dir.topic(topic_id),
            self.data_dir.manifests(topic_id),
        );
        let checkpoint = Arc::clone(&self.checkpoint);
        let remove = move || {
            // What stays of them is never read.
            let _ = std::fs::remove_dir_all(manifests);
            log::remove_dir(&dir)?;
            checkpoint.forget(|at| at.topic_id == topic_id)
        };
        let removed = self.tasks.spawn_blocking(remove).await;
        // The agent is ending: the next one goes on.
        removed.unwrap_or(Ok(()))
    }
}
