//! The partitions this agent serves, by topic.

use std::{collections::BTreeMap, sync::Arc};

use esker_proto::types::{PartitionId, TopicId, TopicName, TopicPartition};
use parking_lot::RwLock;

use crate::{log::Flushed, partition::PartitionHandle};

/// One topic and the handles of its partitions.
#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) topic_id: TopicId,
    pub(crate) name: TopicName,
    partitions: RwLock<Vec<PartitionHandle>>,
}

impl Topic {
    pub(crate) const fn new(
        topic_id: TopicId,
        name: TopicName,
        partitions: Vec<PartitionHandle>,
    ) -> Self {
        Self {
            topic_id,
            name,
            partitions: RwLock::new(partitions),
        }
    }

    /// Returns how many partitions there are.
    pub(crate) fn partition_count(&self) -> u32 {
        u32::try_from(self.partitions.read().len()).unwrap_or(u32::MAX)
    }

    /// Returns one partition.
    pub(crate) fn partition(&self, partition: PartitionId) -> Option<PartitionHandle> {
        let index = usize::try_from(partition.get()).ok()?;
        self.partitions.read().get(index).cloned()
    }

    /// Returns all partitions, by number.
    pub(crate) fn partitions(&self) -> Vec<PartitionHandle> {
        self.partitions.read().clone()
    }

    /// Puts another handle in a partition's place, and returns the one before it.
    pub(crate) fn replace(&self, partition: PartitionHandle) -> Option<PartitionHandle> {
        let number = partition.topic_partition().partition.get();
        let index = usize::try_from(number).ok()?;
        let mut partitions = self.partitions.write();
        let place = partitions.get_mut(index)?;
        Some(std::mem::replace(place, partition))
    }

    /// Adds partitions after the last.
    pub(crate) fn extend(&self, partitions: Vec<PartitionHandle>) {
        self.partitions.write().extend(partitions);
    }
}

/// All topics of the agent.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    topics: RwLock<BTreeMap<TopicName, Arc<Topic>>>,
}

impl Registry {
    /// Returns a topic.
    pub(crate) fn topic(&self, name: &TopicName) -> Option<Arc<Topic>> {
        self.topics.read().get(name).cloned()
    }

    /// Returns all topics, by name.
    pub(crate) fn topics(&self) -> Vec<Arc<Topic>> {
        self.topics.read().values().cloned().collect()
    }

    /// Returns the name of a topic, for people; its id until it is known.
    pub(crate) fn name_of(&self, topic_id: TopicId) -> String {
        let topics = self.topics.read();
        let topic = topics.values().find(|topic| topic.topic_id == topic_id);
        topic.map_or_else(|| topic_id.to_string(), |topic| topic.name.to_string())
    }

    /// Returns how far each log is on the disk.
    pub(crate) fn flushed(&self) -> Vec<(TopicPartition, Flushed)> {
        let topics = self.topics.read();
        let mut flushed = Vec::new();
        for topic in topics.values() {
            let partitions = topic.partitions.read();
            let known = partitions
                .iter()
                .filter_map(|partition| Some((partition.topic_partition(), partition.flushed()?)));
            flushed.extend(known);
        }
        flushed
    }

    /// Returns the local bytes of all partitions that are not in the bucket, of those that are offline
    /// as well.
    pub(crate) fn unuploaded_bytes(&self) -> u64 {
        let topics = self.topics();
        let partitions = topics.iter().flat_map(|topic| topic.partitions());
        partitions
            .map(|partition| partition.view().unuploaded_bytes)
            .sum()
    }

    /// Returns how many partitions there are of all topics.
    pub(crate) fn partition_count(&self) -> u64 {
        let topics = self.topics.read();
        topics
            .values()
            .map(|topic| u64::from(topic.partition_count()))
            .sum()
    }

    /// Makes a topic known.
    pub(crate) fn insert(&self, topic: Arc<Topic>) {
        self.topics.write().insert(topic.name.clone(), topic);
    }

    /// Forgets a topic, and returns it.
    pub(crate) fn remove(&self, name: &TopicName) -> Option<Arc<Topic>> {
        self.topics.write().remove(name)
    }
}
