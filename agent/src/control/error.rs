//! Why the metadata could not be changed.

use std::sync::Arc;

use esker_proto::{
    types::{AgentId, TopicName},
    v1::ErrorKind,
};

use super::state::StateError;
use crate::{data_dir::DataDirError, partition::OpenError};

/// What went wrong with the metadata.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ControlError {
    /// Another agent has become the controller. This one must stop.
    #[error("another agent has taken over the metadata of this cluster")]
    Deposed,
    /// Partitions are led by agents that are gone but have not drained.
    #[error(
        "partitions belong to agents that have not drained, or whose data directory is older than \
         their last start: {agents}. Start those agents again on their own directories; or, if these are \
         lost for good, start this one with --take-over {agents} and give up what they had acknowledged \
         but not uploaded",
        agents = shown(.0)
    )]
    NotDrained(Vec<AgentId>),
    /// The metadata log moved each time this agent tried to open it.
    #[error("other agents keep taking over the metadata of this cluster; run one agent at a time")]
    Contended,
    /// There is a topic of this name.
    #[error("topic exists already. topic=`{0}`")]
    TopicExists(TopicName),
    /// The topic is not there, or not any more.
    #[error("no such topic. topic=`{0}`")]
    UnknownTopic(TopicName),
    /// The data directory does not take the note of this start.
    #[error(transparent)]
    DataDir(Arc<DataDirError>),
    /// The agent is going away.
    #[error("agent is shutting down")]
    ShuttingDown,
    /// This machine lacks what new partitions would take.
    #[error("no room for new partitions: {0}")]
    NoRoom(String),
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The log says something that cannot be.
    #[error("metadata log is inconsistent at slot {slot}: {source}")]
    Inconsistent {
        /// Where.
        slot: u64,
        /// What.
        source: StateError,
    },
    /// The bucket did not do what was asked.
    #[error("metadata log: {0}")]
    Store(Arc<esker_tiering::Error>),
    /// The record was written, but a partition could not be opened.
    #[error("partition cannot be opened: {0}")]
    Open(Arc<OpenError>),
}

impl ControlError {
    /// The wire's name for it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Deposed | Self::Contended => ErrorKind::NotController,
            Self::NotDrained(_) => ErrorKind::NotLeader,
            Self::TopicExists(_) => ErrorKind::TopicExists,
            Self::UnknownTopic(_) => ErrorKind::UnknownTopic,
            Self::ShuttingDown => ErrorKind::ShuttingDown,
            Self::Invalid(_) => ErrorKind::InvalidArgument,
            Self::Inconsistent { .. } => ErrorKind::CorruptData,
            Self::Store(error) if error.kind() == esker_tiering::ErrorKind::Corrupt => {
                ErrorKind::CorruptData
            }
            Self::Store(_) => ErrorKind::BucketUnavailable,
            Self::Open(_) | Self::DataDir(_) | Self::NoRoom(_) => ErrorKind::Storage,
        }
    }

    /// Whether it is certain that nothing was changed.
    pub fn has_no_side_effects(&self) -> bool {
        match self {
            Self::Store(error) => error.has_no_side_effects(),
            Self::Open(_) => false,
            _ => true,
        }
    }
}

impl From<esker_tiering::Error> for ControlError {
    fn from(error: esker_tiering::Error) -> Self {
        match error.kind() {
            esker_tiering::ErrorKind::Fenced => Self::Deposed,
            _ => Self::Store(Arc::new(error)),
        }
    }
}

fn shown(agents: &[AgentId]) -> String {
    let ids: Vec<_> = agents.iter().map(ToString::to_string).collect();
    ids.join(",")
}
