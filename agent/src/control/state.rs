//! The cluster's metadata as of one slot of the metadata log: a pure function of the records.

use std::collections::{BTreeMap, BTreeSet};

use esker_proto::types::{
    AgentEpoch, AgentId, ControllerEpoch, LeaderEpoch, PartitionId, TopicId, TopicName,
    TopicPartition,
};

use esker_tiering::archive::LeftAt;

use super::record::{Drained, Election, MetaRecord, TopicConfig};

/// Everything the metadata log says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterState {
    /// The newest controller's epoch; 0 before the first.
    pub controller_epoch: ControllerEpoch,
    /// The newest controller.
    pub controller: Option<AgentId>,
    /// Every agent that ever started.
    pub agents: BTreeMap<AgentId, AgentState>,
    /// Topics, tombstones among them.
    pub topics: BTreeMap<TopicId, TopicState>,
    /// Topics of which nothing is left in the bucket.
    pub purged: BTreeSet<TopicId>,
    /// The next producer id that nobody was given.
    pub next_producer_id: i64,
}

/// One agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentState {
    /// Rises at each start.
    pub agent_epoch: AgentEpoch,
    /// Where clients reach it.
    pub address: String,
    /// Its availability zone.
    pub zone: String,
    /// Its program version.
    pub version: String,
    /// It left with everything it had in the bucket.
    pub is_drained: bool,
}

/// One topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicState {
    /// Its name; a tombstone's may be in use again.
    pub name: TopicName,
    /// Its settings.
    pub config: TopicConfig,
    /// Its partitions, by number.
    pub partitions: Vec<PartitionState>,
    /// Deleted, with data perhaps still there.
    pub is_deleted: bool,
}

/// One partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionState {
    /// The agent that leads it, or led it last.
    pub leader: AgentId,
    /// The newest epoch of that leader.
    pub leader_epoch: LeaderEpoch,
    /// The first epoch since another agent led it: what is older on the leader's disk may have been
    /// overtaken.
    pub led_since: LeaderEpoch,
    /// The manifest that was its newest when a leader left with all of it in the bucket.
    pub left: Option<LeftAt>,
}

/// A record that contradicts the state: written by a faulty agent, or damaged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// A controller epoch that is not one above the last.
    #[error("controller epoch does not follow the last. last=`{last}`, got=`{got}`")]
    ControllerEpoch {
        last: ControllerEpoch,
        got: ControllerEpoch,
    },
    /// A record about a topic that is not there.
    #[error("record about an unknown topic. topic_id=`{0}`")]
    UnknownTopic(TopicId),
    /// A topic created twice.
    #[error("topic created twice. name=`{0}`")]
    TopicExists(TopicName),
    /// An election that does not raise the epoch by one.
    #[error(
        "leader epoch does not follow the last. partition=`{partition}`, last=`{last}`, got=`{got}`"
    )]
    LeaderEpoch {
        partition: TopicPartition,
        last: LeaderEpoch,
        got: LeaderEpoch,
    },
    /// A record about an agent that never started, or an older start of it.
    #[error("record about an agent that has not started. agent_id=`{0}`")]
    UnknownAgent(AgentId),
    /// Fewer partitions than before.
    #[error("partitions cannot be taken away. topic_id=`{0}`")]
    FewerPartitions(TopicId),
}

impl ClusterState {
    /// Applies the next record.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the record contradicts the state, which it then leaves unchanged.
    pub fn apply(&mut self, record: &MetaRecord) -> Result<(), StateError> {
        match record {
            MetaRecord::Open {
                controller_epoch,
                agent_id,
            } => self.open(*controller_epoch, *agent_id),
            MetaRecord::AgentStarted {
                agent_id,
                agent_epoch,
                address,
                zone,
                version,
            } => {
                let agent = AgentState {
                    agent_epoch: *agent_epoch,
                    address: address.clone(),
                    zone: zone.clone(),
                    version: version.clone(),
                    is_drained: false,
                };
                self.agents.insert(*agent_id, agent);
                Ok(())
            }
            MetaRecord::AgentDrained {
                agent_id,
                agent_epoch,
                partitions,
            } => self.drained(*agent_id, *agent_epoch, partitions),
            MetaRecord::Elected {
                agent_id,
                partitions,
                ..
            } => self.elected(*agent_id, partitions),
            MetaRecord::TopicCreated { .. } => self.created(record),
            MetaRecord::TopicAltered {
                topic_id,
                partitions,
                config,
                leader,
            } => self.altered(*topic_id, *partitions, config, *leader),
            MetaRecord::TopicDeleted { topic_id } => {
                self.topic_mut(*topic_id)?.is_deleted = true;
                Ok(())
            }
            MetaRecord::TopicPurged { topic_id } => {
                self.topic_mut(*topic_id)?;
                self.topics.remove(topic_id);
                self.purged.insert(*topic_id);
                Ok(())
            }
            MetaRecord::ProducerIdsReserved { end } => {
                self.next_producer_id = self.next_producer_id.max(*end);
                Ok(())
            }
        }
    }

    /// Returns the live topic of this name.
    pub fn topic_named(&self, name: &TopicName) -> Option<(TopicId, &TopicState)> {
        let mut live = self.topics.iter().filter(|(_, topic)| !topic.is_deleted);
        live.find(|(_, topic)| topic.name == *name)
            .map(|(id, topic)| (*id, topic))
    }

    /// Returns every partition of every live topic.
    pub fn partitions(&self) -> impl Iterator<Item = (TopicPartition, PartitionState)> {
        let live = self.topics.iter().filter(|(_, topic)| !topic.is_deleted);
        live.flat_map(|(topic_id, topic)| {
            (0u32..).zip(&topic.partitions).map(|(number, state)| {
                let partition = PartitionId::new(number);
                (
                    TopicPartition {
                        topic_id: *topic_id,
                        partition,
                    },
                    *state,
                )
            })
        })
    }

    fn topic_mut(&mut self, topic_id: TopicId) -> Result<&mut TopicState, StateError> {
        self.topics
            .get_mut(&topic_id)
            .ok_or(StateError::UnknownTopic(topic_id))
    }

    fn open(&mut self, got: ControllerEpoch, agent_id: AgentId) -> Result<(), StateError> {
        let last = self.controller_epoch;
        if got != last.next() {
            return Err(StateError::ControllerEpoch { last, got });
        }
        self.controller_epoch = got;
        self.controller = Some(agent_id);
        Ok(())
    }

    fn drained(
        &mut self,
        agent_id: AgentId,
        agent_epoch: AgentEpoch,
        partitions: &[Drained],
    ) -> Result<(), StateError> {
        match self.agents.get_mut(&agent_id) {
            Some(agent) if agent.agent_epoch == agent_epoch => agent.is_drained = true,
            _ => return Err(StateError::UnknownAgent(agent_id)),
        }
        for drained in partitions {
            // Its topic may have been purged meanwhile.
            if let Ok(partition) = self.partition(drained.topic_partition())
                && partition.leader == agent_id
            {
                partition.left = Some(LeftAt {
                    version: drained.manifest_version,
                    tiered_offset: drained.tiered_offset,
                    leader_epoch: partition.leader_epoch,
                });
            }
        }
        Ok(())
    }

    fn elected(&mut self, agent_id: AgentId, elections: &[Election]) -> Result<(), StateError> {
        for election in elections {
            let partition = election.topic_partition();
            let last = self.partition(partition)?.leader_epoch;
            if election.leader_epoch != last.next() {
                let got = election.leader_epoch;
                return Err(StateError::LeaderEpoch {
                    partition,
                    last,
                    got,
                });
            }
        }
        for election in elections {
            let leader_epoch = election.leader_epoch;
            let partition = self.partition(election.topic_partition())?;
            let is_change = partition.leader != agent_id;
            *partition = PartitionState {
                leader: agent_id,
                leader_epoch,
                led_since: if is_change {
                    leader_epoch
                } else {
                    partition.led_since
                },
                left: partition.left,
            };
        }
        Ok(())
    }

    fn partition(&mut self, at: TopicPartition) -> Result<&mut PartitionState, StateError> {
        let index = usize::try_from(at.partition.get()).unwrap_or(usize::MAX);
        let topic = self.topic_mut(at.topic_id)?;
        topic
            .partitions
            .get_mut(index)
            .ok_or(StateError::UnknownTopic(at.topic_id))
    }

    fn created(&mut self, record: &MetaRecord) -> Result<(), StateError> {
        let MetaRecord::TopicCreated {
            topic_id,
            name,
            partitions,
            config,
            leader,
        } = record
        else {
            return Ok(());
        };
        if self.topics.contains_key(topic_id) || self.topic_named(name).is_some() {
            return Err(StateError::TopicExists(name.clone()));
        }
        let topic = TopicState {
            name: name.clone(),
            config: config.clone(),
            partitions: vec![first_leader(*leader); count(*partitions)],
            is_deleted: false,
        };
        self.topics.insert(*topic_id, topic);
        Ok(())
    }

    fn altered(
        &mut self,
        topic_id: TopicId,
        partitions: u32,
        config: &TopicConfig,
        leader: AgentId,
    ) -> Result<(), StateError> {
        let topic = self.topic_mut(topic_id)?;
        if count(partitions) < topic.partitions.len() {
            return Err(StateError::FewerPartitions(topic_id));
        }
        topic
            .partitions
            .resize(count(partitions), first_leader(leader));
        topic.config = config.clone();
        Ok(())
    }
}

fn count(partitions: u32) -> usize {
    usize::try_from(partitions).expect("a u32 fits usize on every supported machine")
}

const fn first_leader(leader: AgentId) -> PartitionState {
    PartitionState {
        leader,
        leader_epoch: LeaderEpoch::new(1),
        led_since: LeaderEpoch::new(1),
        left: None,
    }
}

#[cfg(test)]
mod tests;
