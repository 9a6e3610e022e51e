//! The records of the metadata log, as persisted: JSON objects tagged by `type`.
//!
//! Fields may be added with a default; a field's meaning and a tag never change.

use esker_proto::types::{
    AgentEpoch, AgentId, ControllerEpoch, LeaderEpoch, ManifestVersion, Offset, PartitionId,
    TopicId, TopicName, TopicPartition,
};
use serde::{Deserialize, Serialize};

use crate::partition::TimestampKind;

/// One step of the cluster's metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum MetaRecord {
    /// `agent_id` is the controller from here on.
    Open {
        controller_epoch: ControllerEpoch,
        agent_id: AgentId,
    },
    /// An agent started.
    AgentStarted {
        agent_id: AgentId,
        agent_epoch: AgentEpoch,
        address: String,
        zone: String,
        version: String,
    },
    /// An agent left with everything it had in the bucket: anybody may lead its partitions.
    AgentDrained {
        agent_id: AgentId,
        agent_epoch: AgentEpoch,
        /// Those it led, as far as they have a manifest.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        partitions: Vec<Drained>,
    },
    /// Partitions got a leader.
    Elected {
        agent_id: AgentId,
        partitions: Vec<Election>,
        is_unclean: bool,
    },
    /// A topic exists; its partitions are led by `leader` in epoch 1.
    TopicCreated {
        topic_id: TopicId,
        name: TopicName,
        partitions: u32,
        config: TopicConfig,
        leader: AgentId,
    },
    /// A topic has these settings, and this many partitions; `leader` leads the added ones.
    TopicAltered {
        topic_id: TopicId,
        partitions: u32,
        config: TopicConfig,
        leader: AgentId,
    },
    /// The tombstone: from here on the topic's data may be deleted.
    TopicDeleted { topic_id: TopicId },
    /// Nothing of the topic is left.
    TopicPurged { topic_id: TopicId },
    /// Producer ids below `end` have been given to agents to hand out.
    ProducerIdsReserved { end: i64 },
}

/// A partition and the epoch its new leader leads in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Election {
    /// The topic.
    pub topic_id: TopicId,
    /// The partition.
    pub partition: PartitionId,
    /// The new epoch: one above the last.
    pub leader_epoch: LeaderEpoch,
}

impl Election {
    /// Returns what was elected a leader for.
    pub const fn topic_partition(&self) -> TopicPartition {
        TopicPartition {
            topic_id: self.topic_id,
            partition: self.partition,
        }
    }
}

/// A partition whose leader left with all of it in the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drained {
    /// The topic.
    pub topic_id: TopicId,
    /// The partition.
    pub partition: PartitionId,
    /// Its newest manifest.
    pub manifest_version: ManifestVersion,
    /// Where that ends.
    pub tiered_offset: Offset,
}

impl Drained {
    /// Returns what was drained.
    pub const fn topic_partition(&self) -> TopicPartition {
        TopicPartition {
            topic_id: self.topic_id,
            partition: self.partition,
        }
    }
}

/// What a topic was told; an absent setting follows the agent's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicConfig {
    /// Age limit in milliseconds; -1 for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_ms: Option<i64>,
    /// Size limit of a partition's bucket data; -1 for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_bytes: Option<i64>,
    /// Tiered bytes also kept on local disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_retention_bytes: Option<u64>,
    /// Size at which a segment is sealed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment_bytes: Option<u64>,
    /// Age in milliseconds at which a segment is sealed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment_ms: Option<u64>,
    /// Largest batch accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_bytes_max: Option<u32>,
    /// Whose time records carry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamps: Option<TimestampKind>,
    /// How far before its append a record's time may be, in milliseconds; -1 for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp_before_max_ms: Option<i64>,
    /// How far after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp_after_max_ms: Option<i64>,
    /// Whether the records of compressed batches are checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check_compressed: Option<bool>,
}
