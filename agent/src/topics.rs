//! Creating, altering and deleting topics: the metadata record first, the partitions after it.

use std::{sync::Arc, time::Duration};

use esker_proto::types::{PartitionId, TopicId, TopicName, TopicPartition};
use esker_tiering::env::{IdGenerator, TaskSet};
use futures::future::try_join_all;

use crate::{
    backoff::Backoff,
    config::Settings,
    control::{ControlError, Controller, MetaRecord, TopicConfig},
    partition::{OpenError, Opening, PartitionHandle, PartitionSettings, Start, open},
    registry::{Registry, Topic},
};

/// Most partitions of one topic.
const PARTITIONS_MAX: u32 = 10_000;
/// Smallest segment a topic may ask for.
const SEGMENT_BYTES_MIN: u64 = 64 << 10;

/// Changes the topics of the cluster.
#[derive(Debug)]
pub(crate) struct Topics {
    pub(crate) settings: Settings,
    pub(crate) controller: Arc<Controller>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) opening: Arc<Opening>,
    pub(crate) ids: Arc<dyn IdGenerator>,
    pub(crate) tasks: TaskSet,
    /// One change at a time: a record and the partitions it makes belong together.
    pub(crate) changes: tokio::sync::Mutex<()>,
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
        self.check(partitions, &config)?;
        let _turn = self.changes.lock().await;
        let topic_id = TopicId::new(self.ids.uuid());
        let leader = self.controller.agent_id();
        let settings = PartitionSettings::resolve(&self.settings, &config);
        let record = MetaRecord::TopicCreated {
            topic_id,
            name: name.clone(),
            partitions,
            config,
            leader,
        };
        self.controller
            .append(|state| match state.topic_named(&name) {
                Some(_) => Err(ControlError::TopicExists(name.clone())),
                None => Ok(record),
            })
            .await?;
        let opened = self.open_new(topic_id, 0..partitions, &settings).await?;
        let topic = Arc::new(Topic::new(topic_id, name, opened));
        self.registry.insert(Arc::clone(&topic));
        tracing::info!(topic = %topic.name, %topic_id, partitions, "topic created");
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
        let _turn = self.changes.lock().await;
        let before = topic.partition_count();
        let partitions = if partitions == 0 { before } else { partitions };
        if partitions < before {
            return Err(ControlError::Invalid(format!(
                "partitions cannot be taken away. partitions=`{before}`, asked=`{partitions}`"
            )));
        }
        let state = self.controller.state();
        let current = state
            .topics
            .get(&topic.topic_id)
            .map(|state| state.config.clone());
        let config = laid_over(current.unwrap_or_default(), change, reset)?;
        self.check(partitions, &config)?;
        let topic_id = topic.topic_id;
        let leader = self.controller.agent_id();
        let settings = PartitionSettings::resolve(&self.settings, &config);
        let record = MetaRecord::TopicAltered {
            topic_id,
            partitions,
            config,
            leader,
        };
        self.controller.append(|_| Ok(record)).await?;
        for partition in topic.partitions() {
            partition.change_settings(settings.clone()).await;
        }
        topic.extend(
            self.open_new(topic_id, before..partitions, &settings)
                .await?,
        );
        tracing::info!(topic = %topic.name, partitions, "topic altered");
        Ok(())
    }

    /// Deletes a topic. Its name is free when this returns; its objects go in the background.
    pub(crate) async fn delete(&self, topic: &Topic) -> Result<(), ControlError> {
        let _turn = self.changes.lock().await;
        let topic_id = topic.topic_id;
        self.controller
            .append(|_| Ok(MetaRecord::TopicDeleted { topic_id }))
            .await?;
        self.registry.remove(&topic.name);
        for partition in topic.partitions() {
            partition.stop();
        }
        tracing::info!(topic = %topic.name, %topic_id, "topic deleted");
        self.purge(topic_id);
        Ok(())
    }

    /// Deletes what is left of a topic that has its tombstone, until that succeeds.
    pub(crate) fn purge(&self, topic_id: TopicId) {
        let controller = Arc::clone(&self.controller);
        let opening = Arc::clone(&self.opening);
        let stopped = self.tasks.token().clone();
        self.tasks.spawn("purge topic", async move {
            let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
            loop {
                let purged = purge_once(&controller, &opening, topic_id).await;
                let Err(error) = purged else { return };
                let wait = backoff.next();
                tracing::info!(%topic_id, %error, "deleting the topic's objects goes on later");
                tokio::select! {
                    () = stopped.cancelled() => return,
                    () = tokio::time::sleep(wait) => {}
                }
            }
        });
    }

    fn check(&self, partitions: u32, config: &TopicConfig) -> Result<(), ControlError> {
        if !(1..=PARTITIONS_MAX).contains(&partitions) {
            return Err(ControlError::Invalid(format!(
                "a topic has 1 to {PARTITIONS_MAX} partitions. asked=`{partitions}`"
            )));
        }
        let settings = PartitionSettings::resolve(&self.settings, config);
        if settings.segment_bytes < SEGMENT_BYTES_MIN {
            return Err(ControlError::Invalid(format!(
                "segment_bytes is below {SEGMENT_BYTES_MIN}. asked=`{}`",
                settings.segment_bytes
            )));
        }
        if settings.segment_age.is_zero() {
            return Err(ControlError::Invalid("segment_ms is 0".to_owned()));
        }
        if u64::from(settings.batch_bytes_max) > self.settings.produce_buffer_bytes.get() {
            return Err(ControlError::Invalid(
                "batch_bytes_max is above the agent's produce-buffer-bytes".to_owned(),
            ));
        }
        Ok(())
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
            open(&self.opening, at, Start::New, settings.clone())
        });
        try_join_all(opened)
            .await
            .map_err(|error: OpenError| ControlError::Open(error.into()))
    }
}

/// Deletes a topic's objects, then its local logs, then its tombstone.
async fn purge_once(
    controller: &Controller,
    opening: &Opening,
    topic_id: TopicId,
) -> anyhow::Result<()> {
    let state = controller.state();
    let Some(topic) = state.topics.get(&topic_id) else {
        return Ok(());
    };
    for (number, _) in (0u32..).zip(&topic.partitions) {
        let at = TopicPartition {
            topic_id,
            partition: PartitionId::new(number),
        };
        opening.delete_remote(at).await?;
    }
    opening.delete_local(topic_id).await?;
    controller
        .append(|_| Ok(MetaRecord::TopicPurged { topic_id }))
        .await?;
    Ok(())
}

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
    };
    for name in reset {
        match name.replace('-', "_").as_str() {
            "retention_ms" => config.retention_ms = None,
            "retention_bytes" => config.retention_bytes = None,
            "local_retention_bytes" => config.local_retention_bytes = None,
            "segment_bytes" => config.segment_bytes = None,
            "segment_ms" => config.segment_ms = None,
            "batch_bytes_max" => config.batch_bytes_max = None,
            _ => {
                return Err(ControlError::Invalid(format!(
                    "no such topic setting. name=`{name}`"
                )));
            }
        }
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
        assert!(laid_over(base, TopicConfig::default(), &["colour".to_owned()]).is_err());
    }
}
