//! Identities.

use std::{fmt, str::FromStr};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// Wraps a UUID.
            pub const fn new(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// Wraps the 16 bytes of a UUID.
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }

            /// Returns the 16 bytes of the UUID.
            pub fn to_bytes(self) -> Bytes {
                Bytes::copy_from_slice(self.0.as_bytes())
            }

            /// Returns the UUID.
            pub const fn get(self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.as_hyphenated().fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(text).map(Self)
            }
        }
    };
}

uuid_id! {
    /// One cluster: all agents of one bucket prefix. Drawn when the prefix is first used.
    ClusterId
}
uuid_id! {
    /// One agent and its data directory. An emptied directory is another agent.
    AgentId
}
uuid_id! {
    /// One topic. A topic deleted and created again under its old name gets a new id.
    TopicId
}
uuid_id! {
    /// One upload attempt of one segment. Drawn afresh for each, so that no put ever lands on an
    /// existing object.
    SegmentId
}

/// Number of a partition within its topic, from 0.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct PartitionId(u32);

impl PartitionId {
    /// Wraps a partition number.
    pub const fn new(partition: u32) -> Self {
        Self(partition)
    }

    /// Returns the partition number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One partition of one topic: one log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TopicPartition {
    /// The topic.
    pub topic_id: TopicId,
    /// The partition of that topic.
    pub partition: PartitionId,
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic_id, self.partition)
    }
}
