//! The cluster's metadata: topics, who leads which partition, producer ids.
//!
//! # Contract
//!
//! The metadata is a log of [`MetaRecord`]s in the bucket, a numbered write-once chain
//! (`esker_tiering::chain`). Its only writer is the author of the newest [`MetaRecord::Open`];
//! a writer that loses a slot to somebody else is deposed for good. A record counts when its slot
//! was won, and only then is it applied, acted upon and answered. Safety needs no clock.
//!
//! The state is a pure function of the records ([`ClusterState::apply`]). An agent never leads a
//! partition before the record that elects it is won, so leader epochs are unique and rise.
//!
//! An agent takes over a partition led by another agent only if that one drained
//! ([`MetaRecord::AgentDrained`]: everything it had is in the bucket, named by these manifests), or if the operator said so
//! ([`MetaRecord::Elected`] with `is_unclean`).

mod body;
mod controller;
mod election;
mod error;
mod log;
mod record;
mod state;

pub use controller::{Controller, Led, Member, Started};
pub use error::ControlError;
pub use record::{Drained, Election, MetaRecord, TopicConfig};
pub use state::{ClusterState, PartitionState, StateError, TopicState};
