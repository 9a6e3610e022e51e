//! The agent, put together: start, serve, drain.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, OnceLock, atomic::AtomicU32},
    time::Duration,
};

use esker_proto::types::{ManifestVersion, TopicId, TopicPartition};
use esker_tiering::{
    archive::{ArchiveDeps, ArchiveMetrics, PartSizes, UploadBudget},
    chain::RetryPolicy,
    env::{Clock, IdGenerator, RandomIds, SystemClock, TaskSet},
    keys::Keys,
    reader::{Reader, ReaderOptions},
    store::{Store, StoreOptions},
};
use futures::{FutureExt, StreamExt, TryStreamExt, future::join_all};
use prometheus::Registry as Metrics;
use tokio::{
    sync::{Mutex, watch},
    time::{Instant, timeout_at},
};
use tonic_health::server::HealthReporter;

use crate::{
    clocks::{Clocks, RetentionClock},
    cluster,
    config::Settings,
    connections::Connections,
    control::{Controller, Drained, Led, Member},
    data_dir::{DataDir, LockedDir},
    descriptors::Descriptors,
    health::{Health, Phase},
    http::{self, Pages},
    limits::Limits,
    log::{FlushPool, Found, OffsetCheckpoint, PoolOptions},
    memory::MemoryBudget,
    metrics::{Gauges, TrafficMetrics},
    partition::{
        ArchiverContext, OPENINGS_AT_A_TIME, Opening, PartitionHandle, PartitionSettings, Start,
        open_or_set_aside,
    },
    pulse::Pulse,
    registry::{Registry, Topic},
    reopen, run_note, server, service,
    shared::Shared,
    start_error::StartError,
    topics::Topics,
    watchers,
};

/// After a drain, streams that clients keep open are cut off after this long.
const STREAMS_TIMEOUT: Duration = Duration::from_secs(5);

/// Partitions whose objects are looked up at a time at the end of a drain.
const LOOKS_AT_A_TIME: usize = 16;

/// What the agent takes from its surroundings.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// Wall-clock time.
    pub clock: Arc<dyn Clock>,
    /// Fresh identities.
    pub ids: Arc<dyn IdGenerator>,
    /// Skip the conformance probe of the store: only for a store that was probed just now.
    pub store_is_probed: bool,
    /// How the store is opened, apart from where it is.
    pub store_options: StoreOptions,
}

impl Default for Surroundings {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            ids: Arc::new(RandomIds),
            store_is_probed: false,
            store_options: StoreOptions::default(),
        }
    }
}

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    shared: Arc<Shared>,
    metrics: Metrics,
    grpc_address: SocketAddr,
    http_address: SocketAddr,
    /// Ends after everything else: whoever asks shall hear that the agent drains.
    http_tasks: TaskSet,
}

/// How an agent's drain went.
#[derive(Clone, Debug)]
pub struct DrainReport {
    /// Everything it had is in the bucket, and the metadata says so.
    pub is_complete: bool,
    /// Local bytes that are not.
    pub unuploaded_bytes: u64,
    /// What was done, and how long it took.
    pub steps: Vec<(&'static str, Duration)>,
}

impl Agent {
    /// Starts an agent: it serves when this returns.
    ///
    /// # Errors
    ///
    /// [`StartError`], which says what to mend. Nothing is left running.
    pub async fn start(settings: Settings, around: Surroundings) -> Result<Self, StartError> {
        let metrics = Metrics::new();
        let health = Health::new();
        let http_tasks = TaskSet::new();
        let shared_cell = Arc::new(OnceLock::new());
        let pages = Pages {
            health: health.clone(),
            metrics: metrics.clone(),
            gauges: Gauges::register(&metrics)?,
            shared: Arc::clone(&shared_cell),
        };
        let http_address = http::serve(settings.http_listen, pages, &http_tasks).await?;
        let listener = server::bind(settings.listen).await?;
        let grpc_address = server::local_address(&listener, settings.listen)?;

        let (grpc_health, health_service) = tonic_health::server::health_reporter();
        let signs = Signs {
            metrics: metrics.clone(),
            health,
            grpc_health,
        };
        let shared = match recover(settings, around, signs, grpc_address).await {
            Ok(shared) => shared,
            Err(error) => {
                http_tasks.shutdown(STREAMS_TIMEOUT).await;
                return Err(error);
            }
        };
        // From here on more is acknowledged than the last run left. A full disk is no reason not to
        // start: the checkpoint before this one claims less.
        if let Err(error) = shared.write_checkpoint(false) {
            tracing::warn!(%error, "cannot write the offset checkpoint, retrying every second");
        }
        let routes = service::routes(&shared, health_service).map_err(StartError::Reflection)?;
        let connections = Connections::new(listener, shared.topics.descriptors.connections);
        server::serve(connections, routes, &shared.tasks);
        watchers::spawn(&shared);
        // Set once, here.
        let _ = shared_cell.set(Arc::clone(&shared));
        shared.health.enter(Phase::Serving);
        tracing::info!(%grpc_address, %http_address, "agent is serving");
        Ok(Self {
            shared,
            metrics,
            grpc_address,
            http_address,
            http_tasks,
        })
    }

    /// Returns the address of the gRPC service.
    pub const fn grpc_address(&self) -> SocketAddr {
        self.grpc_address
    }

    /// Returns the address of the HTTP side.
    pub const fn http_address(&self) -> SocketAddr {
        self.http_address
    }

    /// Returns the registry of its metrics.
    pub const fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns the store it works on.
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    /// Returns how to ask whether everything that owns state is alive.
    pub(crate) fn pulse(&self) -> Pulse {
        Pulse::new(Arc::clone(&self.shared))
    }

    /// Ends when another agent has taken over.
    pub async fn fenced(&self) {
        let mut phase = self.shared.health.watch();
        // The sender lives as long as the agent.
        let _ = phase.wait_for(|phase| *phase == Phase::Fenced).await;
    }

    /// Drains and ends: takes no more batches, uploads the tail, and says so in the metadata, all
    /// within `drain-timeout`. What could not be uploaded stays on disk for the next start.
    pub async fn drain(self) -> DrainReport {
        self.shared.health.enter(Phase::Draining);
        let deadline = Instant::now() + self.shared.settings.drain_timeout.duration();
        let mut timed = Stopwatch::start();
        let flushed = timeout_at(deadline, flush(&self.shared, &mut timed)).await;
        let is_complete = flushed.unwrap_or_else(|_| {
            timed.lap("wait in vain until drain-timeout");
            false
        });
        let unuploaded_bytes = self.shared.registry.unuploaded_bytes();
        self.end(&mut timed).await;
        DrainReport {
            is_complete,
            unuploaded_bytes,
            steps: timed.steps,
        }
    }

    /// Ends without uploading anything: what is acknowledged is on disk.
    pub async fn stop(self) {
        self.end(&mut Stopwatch::start()).await;
    }

    async fn end(self, timed: &mut Stopwatch) {
        // What is not a task of ours, such as a connection, may keep the directory open a little longer.
        if self.shared.tasks.shutdown(STREAMS_TIMEOUT).await {
            // Nothing is flushed any more.
            if let Err(error) = self.shared.write_checkpoint(true) {
                tracing::warn!(%error, "cannot write the offset checkpoint");
            }
            self.close_data_dir();
        }
        timed.lap("close streams and logs");
        self.http_tasks.shutdown(STREAMS_TIMEOUT).await;
    }
}

impl Agent {
    /// Nothing writes to the directory any more.
    fn close_data_dir(&self) {
        let data_dir = &self.shared.topics.opening.data_dir;
        match data_dir.sync_all() {
            Ok(()) => run_note::close(data_dir.root(), self.shared.controller.agent_epoch()),
            Err(error) => {
                tracing::warn!(%error, "cannot flush the data directory; the next start reads the bucket");
            }
        }
        data_dir.unlock();
    }
}

/// Notes and logs how long steps take.
struct Stopwatch {
    steps: Vec<(&'static str, Duration)>,
    since: Instant,
}

impl Stopwatch {
    fn start() -> Self {
        Self {
            steps: Vec::new(),
            since: Instant::now(),
        }
    }

    fn lap(&mut self, step: &'static str) {
        let took = self.since.elapsed();
        let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        tracing::info!(step, millis, "step done");
        self.steps.push((step, took));
        self.since = Instant::now();
    }
}

/// Brings everything of every partition into the bucket, and says so in the metadata. Returns
/// whether it did.
async fn flush(shared: &Shared, timed: &mut Stopwatch) -> bool {
    if !close_partitions(shared, timed).await {
        return false;
    }
    let recorded = shared.controller.drained(newest_manifests(shared)).await;
    timed.lap("record the drain");
    if let Err(error) = &recorded {
        tracing::warn!(%error, "the drain could not be recorded");
    }
    recorded.is_ok()
}

/// Returns which manifests name what this agent leaves.
fn newest_manifests(shared: &Shared) -> Vec<Drained> {
    let topics = shared.registry.topics();
    let partitions = topics.iter().flat_map(|topic| topic.partitions());
    let drained = partitions.filter_map(|partition| {
        let manifest = partition.manifest();
        let TopicPartition {
            topic_id,
            partition,
        } = partition.topic_partition();
        let manifest_version = manifest.header().version;
        (manifest_version > ManifestVersion::default()).then(|| Drained {
            topic_id,
            partition,
            manifest_version,
            tiered_offset: manifest.tiered_offset(),
        })
    });
    drained.collect()
}

fn note_left(partition: &PartitionHandle, error: &impl std::fmt::Display) {
    let partition = partition.topic_partition();
    tracing::warn!(%partition, %error, "partition is not fully in the bucket; keeping its local data");
}

/// Returns whether everything of every partition is in the bucket, and the bucket still has it.
async fn close_partitions(shared: &Shared, timed: &mut Stopwatch) -> bool {
    shared.topics.close().await;
    let topics = shared.registry.topics();
    let partitions: Vec<_> = topics.iter().flat_map(|topic| topic.partitions()).collect();
    let closing = join_all(partitions.iter().map(|partition| partition.close())).await;
    timed.lap("seal the logs");
    let closed = join_all(closing).await;
    timed.lap("upload and commit what was sealed");
    let mut is_all_uploaded = true;
    let mut closed_well = Vec::new();
    for (partition, closed) in partitions.into_iter().zip(closed) {
        match closed {
            Ok(()) => closed_well.push(partition),
            Err(error) => {
                is_all_uploaded = false;
                note_left(&partition, &error);
            }
        }
    }
    let is_seen = see_uploaded(shared, closed_well).await;
    timed.lap("see that the bucket has it");
    is_all_uploaded && is_seen
}

/// Returns whether the bucket still has what was uploaded. Of a partition that was idle since the start
/// it is only asked whether there is anything at all, by one listing for a topic: the drain before
/// answered for the rest.
async fn see_uploaded(shared: &Shared, mut partitions: Vec<PartitionHandle>) -> bool {
    // One that could not be opened has uploaded nothing.
    partitions.retain(|partition| partition.unopened().is_none());
    let (used, mut idle): (Vec<_>, Vec<_>) = partitions
        .into_iter()
        .partition(PartitionHandle::is_confirmed);
    idle.retain(|partition| partition.manifest().header().version != ManifestVersion::default());
    let used = used.into_iter().map(|partition| async move {
        let seen = partition.see().await;
        let left = seen.err().map(|error| (partition, error.to_string()));
        left.into_iter().collect::<Vec<_>>()
    });
    let idle = idle.chunk_by(|a, b| topic_of(a) == topic_of(b));
    let idle = idle.map(|idle| see_folders(&shared.store, idle));
    let looks = used.map(FutureExt::boxed).chain(idle.map(FutureExt::boxed));
    let looks: Vec<_> = looks.collect();
    let mut left = futures::stream::iter(looks).buffer_unordered(LOOKS_AT_A_TIME);
    let mut is_all_seen = true;
    while let Some(left) = left.next().await {
        for (partition, error) in left {
            is_all_seen = false;
            note_left(&partition, &error);
        }
    }
    is_all_seen
}

fn topic_of(partition: &PartitionHandle) -> TopicId {
    partition.topic_partition().topic_id
}

/// Returns which of these partitions of one topic the bucket has nothing of.
async fn see_folders(
    store: &Store,
    partitions: &[PartitionHandle],
) -> Vec<(PartitionHandle, String)> {
    let Some(first) = partitions.first() else {
        return Vec::new();
    };
    let folders = store.folders(&Keys::topic(topic_of(first))).await;
    let lacks = |partition: &&PartitionHandle| match &folders {
        Ok(folders) => !folders.contains(&Keys::new(partition.topic_partition()).folder()),
        Err(_) => true,
    };
    let lacking = partitions.iter().filter(lacks);
    let reason = match &folders {
        Ok(_) => "the bucket has nothing of it: its objects were deleted".to_owned(),
        Err(error) => error.to_string(),
    };
    lacking
        .map(|partition| (partition.clone(), reason.clone()))
        .collect()
}

async fn recover(
    settings: Settings,
    around: Surroundings,
    signs: Signs,
    grpc_address: SocketAddr,
) -> Result<Arc<Shared>, StartError> {
    let Some(url) = &settings.store else {
        return Err(StartError::NoStore);
    };
    // First, since it costs no request: an agent that is started again and again on a directory it
    // cannot have must not ask the bucket each time.
    let data_dir = LockedDir::take(&settings.data_dir)?;
    data_dir.make_room()?;
    let options = StoreOptions {
        request_timeout: settings.store_stall_timeout.duration(),
        requests_max: usize::try_from(settings.store_requests_max).unwrap_or(usize::MAX),
        ..around.store_options.clone()
    };
    let store = Store::open(url, options, &signs.metrics).await?;
    if !around.store_is_probed {
        cluster::probe(&store, &*around.ids).await?;
    }
    let cluster_id = cluster::identify(&store, &*around.ids, &*around.clock).await?;
    let data_dir = DataDir::open(data_dir, cluster_id, &*around.ids)?;
    let member = Member {
        cluster_id,
        agent_id: data_dir.agent_id(),
        address: settings.advertised_address(grpc_address),
        zone: settings.zone.clone(),
    };
    let ids = Arc::clone(&around.ids);
    let started =
        Controller::start(store.clone(), ids, member, &data_dir, &settings.take_over).await?;
    let is_as_left = run_note::is_as_left(data_dir.root(), started.previous_epoch);
    run_note::begin(data_dir.root(), started.controller.agent_epoch());
    let parts = Parts {
        settings,
        around,
        signs,
        store,
        data_dir,
        is_as_left,
    };
    let shared = assemble(parts, Arc::clone(&started.controller)).await?;
    open_partitions(&shared, started.led).await?;
    resume_purges(&shared);
    shared.topics.remove_purged_logs();
    Ok(shared)
}

/// What the agent is put together from.
struct Parts {
    settings: Settings,
    around: Surroundings,
    signs: Signs,
    store: Store,
    data_dir: DataDir,
    is_as_left: bool,
}

/// What tells the outside how the agent is.
struct Signs {
    metrics: Metrics,
    health: Health,
    grpc_health: HealthReporter,
}

fn archive_deps(
    settings: &Settings,
    around: &Surroundings,
    store: &Store,
    metrics: &Metrics,
    tasks: &TaskSet,
) -> Result<ArchiveDeps, StartError> {
    Ok(ArchiveDeps {
        store: store.clone(),
        ids: Arc::clone(&around.ids),
        clock: Arc::clone(&around.clock),
        tasks: tasks.clone(),
        budget: UploadBudget::new(settings.upload_memory_bytes.get()),
        metrics: ArchiveMetrics::register(metrics)?,
        parts: PartSizes::default(),
        policy: RetryPolicy::default(),
    })
}

async fn assemble(parts: Parts, controller: Arc<Controller>) -> Result<Arc<Shared>, StartError> {
    let Parts {
        settings,
        around,
        signs,
        store,
        data_dir,
        is_as_left,
    } = parts;
    let metrics = signs.metrics;
    let tasks = TaskSet::new();
    let limits = Arc::new(Limits::new(settings.unuploaded_bytes_max.get()));
    let options = reader_options(&settings, &data_dir)?;
    let reader = Reader::open(store.clone(), options, &metrics, tasks.clone()).await?;
    let clocks = Clocks::new(Arc::clone(&around.clock), store.clone());
    let registry = Arc::new(Registry::default());
    let archiver = ArchiverContext {
        cluster_id: controller.cluster_id(),
        deps: archive_deps(&settings, &around, &store, &metrics, &tasks)?,
        retention_clock: Arc::new(RetentionClock::register(clocks.clone(), &metrics)?),
        clocks,
        registry: Arc::clone(&registry),
        retention_interval: settings.retention_interval.duration(),
        stores_again: watch::Sender::new(0),
    };
    let descriptors = Descriptors::of_process(settings.connections_max);
    let options = flush_options(&settings, descriptors);
    let flush_pool = FlushPool::start(&data_dir.logs(), options)?;
    let checkpoint = open_checkpoint(&flush_pool, &data_dir)?;
    let opening = Arc::new(Opening {
        data_dir,
        is_as_left,
        checkpoint,
        flush_pool,
        archiver: Arc::new(archiver),
        limits: Arc::clone(&limits),
        traffic: TrafficMetrics::register(&metrics)?,
        tasks: tasks.clone(),
    });
    let topics = Topics {
        settings: settings.clone(),
        controller: Arc::clone(&controller),
        registry: Arc::clone(&registry),
        opening,
        descriptors,
        largest_batch_bytes: AtomicU32::default(),
        ids: around.ids,
        tasks: tasks.clone(),
        changes: Mutex::default(),
    };
    Ok(Arc::new(Shared {
        check_memory: MemoryBudget::new(service::CHECK_BYTES_MAX),
        produce_memory: MemoryBudget::new(settings.produce_buffer_bytes.get()),
        request_memory: MemoryBudget::new(service::REQUESTS_BYTES_MAX),
        settings,
        clock: around.clock,
        store,
        reader,
        controller,
        registry,
        topics,
        limits,
        health: signs.health,
        grpc_health: signs.grpc_health,
        tasks,
        round_robin: AtomicU32::new(0),
    }))
}

/// Opens the record of how far logs were flushed. Without it a log that lost its end, or all its files,
/// may pass for a whole one.
fn open_checkpoint(
    flush_pool: &FlushPool,
    data_dir: &DataDir,
) -> Result<Arc<OffsetCheckpoint>, StartError> {
    let (checkpoint, found) = OffsetCheckpoint::open(flush_pool, data_dir.root())?;
    match found {
        Found::Whole => {}
        Found::Nothing if !data_dir.has_logs() => {}
        Found::Nothing => tracing::warn!(
            "offset checkpoint is missing from the data directory, cannot tell whether local logs lost \
             acknowledged records; a new one is written"
        ),
        Found::Damaged(aside) => tracing::warn!(
            kept_as = %aside.display(),
            "offset checkpoint is damaged, cannot tell whether local logs lost acknowledged records; a \
             new one is written"
        ),
    }
    Ok(Arc::new(checkpoint))
}

fn flush_options(settings: &Settings, descriptors: Descriptors) -> PoolOptions {
    PoolOptions {
        policy: settings.flush,
        open_files_max: descriptors.sealed,
        room_bytes: usize::try_from(settings.produce_buffer_bytes.get()).unwrap_or(usize::MAX),
        ..PoolOptions::default()
    }
}

fn reader_options(settings: &Settings, data_dir: &DataDir) -> Result<ReaderOptions, StartError> {
    let disk_bytes = settings.cache_disk_bytes.get();
    if disk_bytes > 0 {
        data_dir.prepare_cache()?;
    }
    Ok(ReaderOptions {
        cache_memory_bytes: settings.cache_memory_bytes.get(),
        cache_disk: (disk_bytes > 0).then(|| (data_dir.cache(), disk_bytes)),
        budget_bytes: settings.read_budget_bytes.get(),
        ..ReaderOptions::default()
    })
}

/// Opens every partition that this agent now leads, and makes the topics known. One that is damaged
/// is known too, and refuses everything.
async fn open_partitions(shared: &Arc<Shared>, led: Vec<Led>) -> Result<(), StartError> {
    let state = shared.controller.state();
    let settings_of = |topic_id: &TopicId| {
        let config = state.topics.get(topic_id).map(|topic| topic.config.clone());
        PartitionSettings::resolve(&shared.settings, &config.unwrap_or_default())
    };
    let openings = led.into_iter().map(|led| {
        let settings = settings_of(&led.at.topic_id);
        shared.topics.note_batch_bytes(settings.batch_bytes_max);
        let start = Start::Existing {
            leader_epoch: led.leader_epoch,
            led_since: led.led_since,
            left: led.left,
        };
        let opening = Arc::clone(&shared.topics.opening);
        async move { open_or_set_aside(&opening, led.at, start, settings).await }
    });
    let opened: Vec<_> = futures::stream::iter(openings)
        .buffer_unordered(OPENINGS_AT_A_TIME)
        .try_collect()
        .await?;
    let mut by_topic: BTreeMap<TopicId, Vec<PartitionHandle>> = BTreeMap::new();
    for partition in opened {
        by_topic
            .entry(partition.topic_partition().topic_id)
            .or_default()
            .push(partition);
    }
    for (topic_id, mut partitions) in by_topic {
        partitions.sort_by_key(PartitionHandle::topic_partition);
        if let Some(topic) = state.topics.get(&topic_id) {
            let name = topic.name.clone();
            for partition in &partitions {
                reopen::watch(shared, partition);
            }
            shared
                .registry
                .insert(Arc::new(Topic::new(topic_id, name, partitions)));
        }
    }
    Ok(())
}

/// Goes on deleting topics whose tombstone was written before the last stop.
fn resume_purges(shared: &Shared) {
    let state = shared.controller.state();
    for (topic_id, _) in state.topics.iter().filter(|(_, topic)| topic.is_deleted) {
        shared.topics.purge(*topic_id, Vec::new());
    }
}
