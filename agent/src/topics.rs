//! Creating, altering and deleting topics: the metadata record first, the partitions after it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use esker_proto::{
    topic_limits::{self, OutOfBounds},
    types::{PartitionId, TopicId, TopicName, TopicPartition},
};
use esker_tiering::env::{IdGenerator, TaskSet};
use futures::{StreamExt, TryStreamExt};
use tokio::sync::{Mutex, MutexGuard};

use crate::{
    backoff::Backoff,
    config::Settings,
    control::{ClusterState, ControlError, Controller, MetaRecord, TopicConfig, TopicState},
    descriptors::Descriptors,
    log::disk_space,
    partition::{
        OPENINGS_AT_A_TIME, OpenError, Opening, PartitionHandle, PartitionSettings, Start,
        open_or_set_aside,
    },
    registry::{Registry, Topic},
};

/// Files that a new partition takes: a directory, two files, and one more while a file is replaced.
const FILES_PER_PARTITION: u64 = 4;
/// What they take on the disk, in blocks of 4 KiB.
const BYTES_PER_PARTITION: u64 = 16 << 10;

/// Whether topics may be changed.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    is_closed: bool,
}

/// Changes the topics of the cluster.
#[derive(Debug)]
pub(crate) struct Topics {
    pub(crate) settings: Settings,
    pub(crate) controller: Arc<Controller>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) opening: Arc<Opening>,
    pub(crate) descriptors: Descriptors,
    pub(crate) ids: Arc<dyn IdGenerator>,
    pub(crate) tasks: TaskSet,
    /// Largest batch that any topic has allowed since the agent started.
    pub(crate) largest_batch_bytes: AtomicU32,
    /// One change at a time: a record and the partitions it makes belong together.
    pub(crate) changes: Mutex<Changes>,
}

impl Topics {
    /// Creates a topic; it serves when this returns.
    pub(crate) async fn create(
        &self,
        name: TopicName,
        partitions: u32,
        config: TopicConfig,
    ) -> Result<Arc<Topic>, ControlError> {
        let partitions = if partitions == 0 {
            self.settings.partitions
        } else {
            partitions
        };
        self.check(partitions, &config, &config)?;
        let _turn = self.turn().await?;
        self.check_room(partitions)?;
        let topic_id = TopicId::new(self.ids.uuid());
        let record = MetaRecord::TopicCreated {
            topic_id,
            name: name.clone(),
            partitions,
            config,
            leader: self.controller.agent_id(),
        };
        self.change(|state| match state.topic_named(&name) {
            Some(_) => Err(ControlError::TopicExists(name.clone())),
            None => Ok(record),
        })
        .await?;
        tracing::info!(topic = %name, %topic_id, partitions, "topic created");
        let topic = self.registry.topic(&name);
        let topic = topic.ok_or(ControlError::UnknownTopic(name))?;
        check_opened(&topic)?;
        Ok(topic)
    }

    /// Lays `change` over a topic's settings, gives those in `reset` back to the default, and adds
    /// partitions up to `partitions` unless that is 0.
    pub(crate) async fn alter(
        &self,
        topic: &Topic,
        partitions: u32,
        change: TopicConfig,
        reset: &[String],
    ) -> Result<(), ControlError> {
        let _turn = self.turn().await?;
        let before = topic.partition_count();
        let partitions = if partitions == 0 { before } else { partitions };
        if partitions < before {
            return Err(ControlError::Invalid(format!(
                "partitions cannot be taken away. partitions=`{before}`, asked=`{partitions}`"
            )));
        }
        self.check_room(partitions - before)?;
        let leader = self.controller.agent_id();
        self.change(|state| {
            let current = live(state, topic)?.config.clone();
            let config = laid_over(current, change.clone(), reset)?;
            self.check(partitions, &config, &change)?;
            Ok(MetaRecord::TopicAltered {
                topic_id: topic.topic_id,
                partitions,
                config,
                leader,
            })
        })
        .await?;
        tracing::info!(topic = %topic.name, partitions, "topic altered");
        check_opened(topic)
    }

    /// Deletes a topic. Its name is free when this returns; its objects go in the background.
    pub(crate) async fn delete(&self, topic: &Topic) -> Result<(), ControlError> {
        let _turn = self.turn().await?;
        let topic_id = topic.topic_id;
        self.change(|state| live(state, topic).map(|_| MetaRecord::TopicDeleted { topic_id }))
            .await?;
        tracing::info!(topic = %topic.name, %topic_id, "topic deleted");
        Ok(())
    }

    /// Serves what the metadata says, also where a change became known only after its caller was
    /// told that nobody knows.
    pub(crate) async fn catch_up(&self) -> Result<(), ControlError> {
        let _turn = self.turn().await?;
        self.follow().await
    }

    /// Makes no more changes, and waits for one that is under way: a drain has to see every
    /// partition there will ever be.
    pub(crate) async fn close(&self) {
        self.changes.lock().await.is_closed = true;
    }

    async fn turn(&self) -> Result<MutexGuard<'_, Changes>, ControlError> {
        let turn = self.changes.lock().await;
        match turn.is_closed {
            true => Err(ControlError::ShuttingDown),
            false => Ok(turn),
        }
    }

    /// Appends a record, and does what it says, or what one before it turned out to say.
    async fn change(
        &self,
        build: impl FnOnce(&ClusterState) -> Result<MetaRecord, ControlError> + Send,
    ) -> Result<(), ControlError> {
        let appended = self.controller.append(build).await;
        self.follow().await?;
        appended
    }

    async fn follow(&self) -> Result<(), ControlError> {
        let state = self.controller.state();
        for topic in self.registry.topics() {
            if live(&state, &topic).is_err() {
                self.retire(&topic);
            }
        }
        let served = state.topics.iter().filter(|(_, topic)| !topic.is_deleted);
        let mut all_served = Ok(());
        for (topic_id, topic) in served {
            // One that cannot be served must not keep the others from it.
            all_served = self.serve(*topic_id, topic).await.and(all_served);
        }
        all_served
    }

    /// Opens what this topic has and the agent does not serve yet.
    async fn serve(&self, topic_id: TopicId, state: &TopicState) -> Result<(), ControlError> {
        let settings = PartitionSettings::resolve(&self.settings, &state.config);
        self.note_batch_bytes(settings.batch_bytes_max);
        let count = u32::try_from(state.partitions.len()).unwrap_or(u32::MAX);
        let Some(topic) = self.registry.topic(&state.name) else {
            let opened = self.open_new(topic_id, 0..count, &settings).await?;
            let topic = Topic::new(topic_id, state.name.clone(), opened);
            self.registry.insert(Arc::new(topic));
            return Ok(());
        };
        for partition in topic.partitions() {
            partition.change_settings(&settings).await;
        }
        self.open_again(&topic, state, &settings).await;
        let missing = topic.partition_count()..count;
        topic.extend(self.open_new(topic_id, missing, &settings).await?);
        Ok(())
    }

    /// Opens the partitions that could not be because something had run out, and those that were new:
    /// nothing of them can be damaged.
    async fn open_again(&self, topic: &Topic, state: &TopicState, settings: &PartitionSettings) {
        for unopened in topic.partitions() {
            let (at, error) = (unopened.topic_partition(), unopened.unopened());
            if error.is_some_and(|error| is_new(state, at) || error.is_shortage()) {
                self.replace(topic, at, state, settings).await;
            }
        }
    }

    /// Opens a partition again whose part in the bucket could not be opened. Returns whether that is
    /// settled, so that it need not be tried again.
    pub(crate) async fn reopen(&self, at: TopicPartition) -> bool {
        // The agent is ending otherwise.
        let Ok(_turn) = self.turn().await else {
            return true;
        };
        let state = self.controller.state();
        let mut topics = self.registry.topics().into_iter();
        let topic = topics.find(|topic| topic.topic_id == at.topic_id);
        let (Some(topic), Some(known)) = (topic, state.topics.get(&at.topic_id)) else {
            return true;
        };
        let is_closed = || {
            let partition = topic.partition(at.partition);
            partition.is_some_and(|partition| partition.is_closed_by_bucket())
        };
        if is_closed() {
            let settings = PartitionSettings::resolve(&self.settings, &known.config);
            self.replace(&topic, at, known, &settings).await;
        }
        !is_closed()
    }

    /// Opens a partition once more, and puts what comes of it in its place.
    async fn replace(
        &self,
        topic: &Topic,
        at: TopicPartition,
        state: &TopicState,
        settings: &PartitionSettings,
    ) {
        let Some(led) = state.partitions.get(index(at)) else {
            return;
        };
        let start = match is_new(state, at) {
            true => Start::New,
            false => Start::Existing {
                leader_epoch: led.leader_epoch,
                led_since: led.led_since,
                left: led.left,
            },
        };
        let opened = open_or_set_aside(&self.opening, at, start, settings.clone()).await;
        match opened.map(|opened| topic.replace(opened)) {
            Ok(before) => before.iter().for_each(PartitionHandle::stop),
            Err(error) => {
                tracing::warn!(partition = %at, %error, "cannot open the partition again")
            }
        }
    }

    /// Notes how large the batches of a topic may be.
    pub(crate) fn note_batch_bytes(&self, bytes: u32) {
        self.largest_batch_bytes.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Returns how large batches may be, of any topic.
    pub(crate) fn largest_batch_bytes(&self) -> u32 {
        self.largest_batch_bytes.load(Ordering::Relaxed)
    }

    fn retire(&self, topic: &Topic) {
        self.registry.remove(&topic.name);
        let partitions = topic.partitions();
        partitions.iter().for_each(PartitionHandle::stop);
        self.purge(topic.topic_id, partitions);
    }

    /// Deletes what is left of a topic that has its tombstone, until that succeeds.
    /// `serving` are the handles of its partitions, if any were served: what they have under way
    /// ends first.
    pub(crate) fn purge(&self, topic_id: TopicId, serving: Vec<PartitionHandle>) {
        let controller = Arc::clone(&self.controller);
        let opening = Arc::clone(&self.opening);
        let stopped = self.tasks.token().clone();
        self.tasks.spawn("purge topic", async move {
            for partition in serving {
                partition.stopped().await;
            }
            let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
            loop {
                match purge_once(&controller, &opening, topic_id).await {
                    Ok(Purge::Done) => return,
                    // Some stores list what was deleted for a while: the pauses grow here too.
                    Ok(Purge::LookAgain) => {}
                    Err(error) => {
                        tracing::info!(%topic_id, %error, "deleting the topic failed, will retry");
                    }
                }
                let wait = backoff.next();
                tokio::select! {
                    () = stopped.cancelled() => return,
                    () = tokio::time::sleep(wait) => {}
                }
            }
        });
    }

    /// Removes the local logs of topics that were purged while this agent was away. A log that the
    /// metadata know nothing of stays: it may be all there is of a topic.
    pub(crate) fn remove_purged_logs(&self) {
        let (opening, state) = (Arc::clone(&self.opening), self.controller.state());
        self.tasks.spawn("remove purged logs", async move {
            let topics = opening.data_dir.topics().unwrap_or_default();
            for topic_id in topics.into_iter().filter(|id| !state.topics.contains_key(id)) {
                if !state.purged.contains(&topic_id) {
                    tracing::warn!(%topic_id, "local log of a topic that the metadata do not know, keeping it");
                    continue;
                }
                match opening.delete_local(topic_id).await {
                    Ok(()) => tracing::info!(%topic_id, "removed the local log of a deleted topic"),
                    Err(error) => {
                        tracing::warn!(%topic_id, %error, "cannot remove the local log of a deleted topic, will retry at the next start");
                    }
                }
            }
        });
    }

    /// Checks what a topic is asked to be, given all of its settings and those that change.
    fn check(
        &self,
        partitions: u32,
        config: &TopicConfig,
        change: &TopicConfig,
    ) -> Result<(), ControlError> {
        let invalid = |error: OutOfBounds| ControlError::Invalid(error.to_string());
        check_bounds(partitions, change).map_err(invalid)?;
        if change.segment_bytes.is_none() && change.batch_bytes_max.is_none() {
            return Ok(());
        }
        let resolved = PartitionSettings::resolve(&self.settings, config);
        let faults = self
            .settings
            .faults_of_sizes(resolved.segment_bytes, resolved.batch_bytes_max.into());
        match faults.is_empty() {
            true => Ok(()),
            false => Err(ControlError::Invalid(faults.join("; "))),
        }
    }

    /// Refuses partitions that this machine has no room for, before the metadata names them.
    fn check_room(&self, added: u32) -> Result<(), ControlError> {
        let added = u64::from(added);
        let partitions = self.registry.partition_count() + added;
        let files = u64::try_from(self.descriptors.partitions).unwrap_or(u64::MAX);
        if added > 0 && partitions > files {
            return Err(ControlError::NoRoom(format!(
                "each takes an open file; raise the agent's limit of open files (LimitNOFILE= of its \
                 unit). partitions=`{partitions}`, files_for_partitions=`{files}`"
            )));
        }
        let space = disk_space(&self.opening.data_dir.logs()).map_err(|error| {
            ControlError::NoRoom(format!("cannot read the free space: {error}"))
        })?;
        let (bytes, inodes) = (added * BYTES_PER_PARTITION, added * FILES_PER_PARTITION);
        if added > 0 && space.available_bytes < bytes {
            let free = space.available_bytes;
            return Err(ControlError::NoRoom(format!(
                "free some space on the disk of the logs, or enlarge it. bytes=`{bytes}`, free=`{free}`"
            )));
        }
        match space.available_files {
            Some(free) if free < inodes => Err(ControlError::NoRoom(format!(
                "free some inodes on the disk of the logs. inodes=`{inodes}`, free=`{free}`"
            ))),
            _ => Ok(()),
        }
    }

    async fn open_new(
        &self,
        topic_id: TopicId,
        numbers: std::ops::Range<u32>,
        settings: &PartitionSettings,
    ) -> Result<Vec<PartitionHandle>, ControlError> {
        let opened = numbers.map(|number| {
            let at = TopicPartition {
                topic_id,
                partition: PartitionId::new(number),
            };
            open_or_set_aside(&self.opening, at, Start::New, settings.clone())
        });
        let opened = futures::stream::iter(opened).buffered(OPENINGS_AT_A_TIME);
        opened
            .try_collect()
            .await
            .map_err(|error: OpenError| ControlError::Open(error.into()))
    }
}

/// What one pass over a deleted topic came to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Purge {
    Done,
    /// Objects were found and deleted. A request that was under way when the partition stopped may
    /// have arrived meanwhile.
    LookAgain,
}

fn index(at: TopicPartition) -> usize {
    usize::try_from(at.partition.get()).unwrap_or(usize::MAX)
}

/// Whether no agent has led the partition before.
fn is_new(state: &TopicState, at: TopicPartition) -> bool {
    let led = state.partitions.get(index(at));
    led.is_some_and(|led| led.leader_epoch.get() == 1)
}

/// Says which partition of a topic could not be opened, if any.
fn check_opened(topic: &Topic) -> Result<(), ControlError> {
    let partitions = topic.partitions();
    match partitions.iter().find_map(PartitionHandle::unopened) {
        Some(error) => Err(ControlError::Open(Arc::clone(error))),
        None => Ok(()),
    }
}

/// Deletes a topic's objects, and once none is found its local logs, then its tombstone.
async fn purge_once(
    controller: &Controller,
    opening: &Opening,
    topic_id: TopicId,
) -> anyhow::Result<Purge> {
    let state = controller.state();
    let Some(topic) = state.topics.get(&topic_id) else {
        return Ok(Purge::Done);
    };
    let mut deleted = 0;
    for (number, _) in (0u32..).zip(&topic.partitions) {
        let at = TopicPartition {
            topic_id,
            partition: PartitionId::new(number),
        };
        deleted += opening.delete_remote(at).await?;
    }
    if deleted > 0 {
        return Ok(Purge::LookAgain);
    }
    opening.delete_local(topic_id).await?;
    controller
        .append(|_| Ok(MetaRecord::TopicPurged { topic_id }))
        .await?;
    Ok(Purge::Done)
}

/// Finds a topic's state, unless the topic was deleted since it was looked up.
fn live<'a>(state: &'a ClusterState, topic: &Topic) -> Result<&'a TopicState, ControlError> {
    let found = state.topics.get(&topic.topic_id);
    found
        .filter(|state| !state.is_deleted)
        .ok_or_else(|| ControlError::UnknownTopic(topic.name.clone()))
}

fn check_bounds(partitions: u32, change: &TopicConfig) -> Result<(), OutOfBounds> {
    topic_limits::PARTITIONS.check(partitions.into())?;
    let sizes = [
        (
            topic_limits::LOCAL_RETENTION_BYTES,
            change.local_retention_bytes,
        ),
        (topic_limits::SEGMENT_BYTES, change.segment_bytes),
        (topic_limits::SEGMENT_MS, change.segment_ms),
        (
            topic_limits::BATCH_BYTES_MAX,
            change.batch_bytes_max.map(u64::from),
        ),
    ];
    for (limit, asked) in sizes {
        asked.map_or(Ok(()), |asked| limit.check(asked))?;
    }
    let limits = [
        (topic_limits::RETENTION_MS, change.retention_ms),
        (topic_limits::RETENTION_BYTES, change.retention_bytes),
        (
            topic_limits::TIMESTAMP_BEFORE_MAX_MS,
            change.timestamp_before_max_ms,
        ),
        (
            topic_limits::TIMESTAMP_AFTER_MAX_MS,
            change.timestamp_after_max_ms,
        ),
    ];
    for (limit, asked) in limits {
        asked.map_or(Ok(()), |asked| limit.check_or_none(asked))?;
    }
    Ok(())
}

type Reset = fn(&mut TopicConfig);

/// What can be given back to the default: by its name in the API, or by that of the command's flag.
const RESETS: &[(&[&str], Reset)] = &[
    (&["retention_ms", "retention"], |c| c.retention_ms = None),
    (&["retention_bytes"], |c| c.retention_bytes = None),
    (&["local_retention_bytes"], |c| {
        c.local_retention_bytes = None
    }),
    (&["segment_bytes"], |c| c.segment_bytes = None),
    (&["segment_ms", "segment_age"], |c| c.segment_ms = None),
    (&["batch_bytes_max"], |c| c.batch_bytes_max = None),
    (&["timestamps"], |c| c.timestamps = None),
    (&["timestamp_before_max_ms", "timestamp_before_max"], |c| {
        c.timestamp_before_max_ms = None;
    }),
    (&["timestamp_after_max_ms", "timestamp_after_max"], |c| {
        c.timestamp_after_max_ms = None;
    }),
    (&["check_compressed"], |c| c.check_compressed = None),
];

fn laid_over(
    base: TopicConfig,
    change: TopicConfig,
    reset: &[String],
) -> Result<TopicConfig, ControlError> {
    let mut config = TopicConfig {
        retention_ms: change.retention_ms.or(base.retention_ms),
        retention_bytes: change.retention_bytes.or(base.retention_bytes),
        local_retention_bytes: change.local_retention_bytes.or(base.local_retention_bytes),
        segment_bytes: change.segment_bytes.or(base.segment_bytes),
        segment_ms: change.segment_ms.or(base.segment_ms),
        batch_bytes_max: change.batch_bytes_max.or(base.batch_bytes_max),
        timestamps: change.timestamps.or(base.timestamps),
        timestamp_before_max_ms: change
            .timestamp_before_max_ms
            .or(base.timestamp_before_max_ms),
        timestamp_after_max_ms: change
            .timestamp_after_max_ms
            .or(base.timestamp_after_max_ms),
        check_compressed: change.check_compressed.or(base.check_compressed),
    };
    for name in reset {
        let wanted = name.replace('-', "_");
        let found = RESETS
            .iter()
            .find(|(names, _)| names.contains(&wanted.as_str()));
        let Some((_, reset)) = found else {
            let names: Vec<_> = RESETS.iter().map(|(names, _)| names[0]).collect();
            return Err(ControlError::Invalid(format!(
                "unknown topic setting; expected one of {}. name=`{name}`",
                names.join(", ")
            )));
        };
        reset(&mut config);
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_leaves_other_settings_and_a_reset_gives_one_back() {
        let base = TopicConfig {
            retention_ms: Some(5),
            segment_bytes: Some(7),
            ..TopicConfig::default()
        };
        let change = TopicConfig {
            retention_ms: Some(6),
            ..TopicConfig::default()
        };

        let config = laid_over(base.clone(), change, &["segment-bytes".to_owned()]).unwrap();

        assert_eq!(
            config,
            TopicConfig {
                retention_ms: Some(6),
                ..TopicConfig::default()
            }
        );
        assert!(laid_over(base.clone(), TopicConfig::default(), &["colour".to_owned()]).is_err());
        for name in ["retention", "retention-ms", "retention_ms"] {
            let config = laid_over(base.clone(), TopicConfig::default(), &[name.to_owned()]);
            assert_eq!(config.unwrap().retention_ms, None, "{name}");
        }
    }
}
