//! The controller: the one writer of the metadata log, and the state everybody reads.

use std::sync::Arc;

use esker_proto::types::{AgentEpoch, AgentId, ClusterId, LeaderEpoch, ProducerId, TopicPartition};
use esker_tiering::{archive::LeftAt, env::IdGenerator, store::Store};
use tokio::sync::{Mutex, watch};

use crate::data_dir::DataDir;

use super::{
    election::{Candidacy, Candidate, candidacy},
    error::ControlError,
    log::{Author, MetaLog},
    record::{Drained, Election, MetaRecord},
    state::{ClusterState, PartitionState},
};

/// Producer ids taken from the log at a time: one record for so many producers.
const PRODUCER_IDS_PER_BLOCK: i64 = 1000;

/// Who this agent is to the cluster.
#[derive(Clone, Debug)]
pub struct Member {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// This agent.
    pub agent_id: AgentId,
    /// Where clients reach it.
    pub address: String,
    /// Its availability zone.
    pub zone: String,
}

/// A partition that this agent leads from its start on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Led {
    /// The partition.
    pub at: TopicPartition,
    /// In this epoch.
    pub leader_epoch: LeaderEpoch,
    /// Of what this agent has on disk, only what it wrote in this epoch or later counts.
    pub led_since: LeaderEpoch,
    /// The manifest that was its newest when a leader left with all of it in the bucket.
    pub left: Option<LeftAt>,
}

impl Led {
    fn of((at, state): (TopicPartition, PartitionState)) -> Self {
        let PartitionState {
            leader_epoch,
            led_since,
            left,
            ..
        } = state;
        Self {
            at,
            leader_epoch,
            led_since,
            left,
        }
    }
}

/// A controller, and what it leads.
#[derive(Debug)]
pub struct Started {
    /// The controller.
    pub controller: Arc<Controller>,
    /// Every partition of the cluster.
    pub led: Vec<Led>,
    /// The start of this agent before this one, by the metadata.
    pub previous_epoch: AgentEpoch,
}

/// Changes the metadata, one record at a time.
#[derive(Debug)]
pub struct Controller {
    member: Member,
    agent_epoch: AgentEpoch,
    log: Mutex<MetaLog>,
    state: watch::Sender<Arc<ClusterState>>,
    /// Producer ids taken from the log and not given out.
    producer_ids: Mutex<std::ops::Range<i64>>,
}

impl Controller {
    /// Takes over the metadata, registers this agent and elects it.
    ///
    /// `take_over` names agents that are lost: what they had acknowledged and not uploaded is given
    /// up. It is an order about these agents, not a licence: others are not touched.
    ///
    /// # Errors
    ///
    /// `NotDrained` if an agent that is not named may hold the only copy of something. Then nothing
    /// but the opening was written.
    pub(crate) async fn start(
        store: Store,
        ids: Arc<dyn IdGenerator>,
        member: Member,
        data_dir: &DataDir,
        take_over: &[AgentId],
    ) -> Result<Started, ControlError> {
        let author = Author {
            cluster_id: member.cluster_id,
            agent_id: member.agent_id,
        };
        let candidate = Candidate {
            agent_id: member.agent_id,
            noted_epoch: data_dir.agent_epoch(),
        };
        // An agent that must not lead shall not depose the one that does.
        may_lead(&MetaLog::read(&store).await?, candidate, take_over)?;
        let mut log = MetaLog::open(store, ids, author).await?;
        // The log may have moved between the look and the opening.
        let found = may_lead(log.state(), candidate, take_over)?;
        let previous_epoch = candidate.last_epoch(log.state());
        let agent_epoch = previous_epoch.next();
        data_dir
            .note_start(agent_epoch)
            .map_err(|error| ControlError::DataDir(Arc::new(error)))?;
        log.append(MetaRecord::AgentStarted {
            agent_id: member.agent_id,
            agent_epoch,
            address: member.address.clone(),
            zone: member.zone.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })
        .await?;
        elect(&mut log, member.agent_id, found.clean, false).await?;
        elect(&mut log, member.agent_id, found.unclean, true).await?;
        let led = log.state().partitions().map(Led::of).collect();
        let state = watch::Sender::new(Arc::new(log.state().clone()));
        let controller = Self {
            member,
            agent_epoch,
            log: Mutex::new(log),
            state,
            producer_ids: Mutex::new(0..0),
        };
        Ok(Started {
            controller: Arc::new(controller),
            led,
            previous_epoch,
        })
    }

    /// Returns this agent.
    pub const fn agent_id(&self) -> AgentId {
        self.member.agent_id
    }

    /// Returns this start of the agent.
    pub const fn agent_epoch(&self) -> AgentEpoch {
        self.agent_epoch
    }

    /// Returns where clients reach this agent.
    pub fn address(&self) -> &str {
        &self.member.address
    }

    /// Returns the cluster.
    pub const fn cluster_id(&self) -> ClusterId {
        self.member.cluster_id
    }

    /// Returns the state after the newest record.
    pub fn state(&self) -> Arc<ClusterState> {
        Arc::clone(&self.state.borrow())
    }

    /// Appends what `build` makes of the state; nobody else appends in between. Not cancel-safe:
    /// call it from a task of its own.
    ///
    /// # Errors
    ///
    /// What `build` returns; otherwise [`ControlError`] says whether the record may have been
    /// written.
    pub async fn append(
        &self,
        build: impl FnOnce(&ClusterState) -> Result<MetaRecord, ControlError> + Send,
    ) -> Result<(), ControlError> {
        let mut log = self.log.lock().await;
        let appended = append_built(&mut log, build).await;
        self.state.send_replace(Arc::new(log.state().clone()));
        appended
    }

    /// Returns a producer id that nobody else has.
    ///
    /// # Errors
    ///
    /// If a new block of ids had to be taken from the log, and could not be.
    pub async fn next_producer_id(&self) -> Result<ProducerId, ControlError> {
        let mut ids = self.producer_ids.lock().await;
        if ids.is_empty() {
            let start = self.state().next_producer_id;
            let end = start + PRODUCER_IDS_PER_BLOCK;
            self.append(|_| Ok(MetaRecord::ProducerIdsReserved { end }))
                .await?;
            *ids = start..end;
        }
        let id = ids.start;
        ids.start += 1;
        Ok(ProducerId::new(id))
    }

    /// Records that everything this agent had is in the bucket, and which manifests name it.
    ///
    /// # Errors
    ///
    /// If the record could not be written: the agent then counts as gone without a drain.
    pub async fn drained(&self, partitions: Vec<Drained>) -> Result<(), ControlError> {
        let (agent_id, agent_epoch) = (self.member.agent_id, self.agent_epoch);
        self.append(|_| {
            Ok(MetaRecord::AgentDrained {
                agent_id,
                agent_epoch,
                partitions,
            })
        })
        .await
    }

    /// Returns whether another agent has become the controller.
    ///
    /// # Errors
    ///
    /// If the bucket does not answer.
    pub async fn is_deposed(&self) -> Result<bool, ControlError> {
        let mut log = self.log.lock().await;
        let is_deposed = log.is_deposed().await;
        // Looking also settles a record whose outcome was unknown.
        self.state.send_replace(Arc::new(log.state().clone()));
        is_deposed
    }
}

/// Builds the record on what is certain: one whose outcome was unknown is settled first.
async fn append_built(
    log: &mut MetaLog,
    build: impl FnOnce(&ClusterState) -> Result<MetaRecord, ControlError> + Send,
) -> Result<(), ControlError> {
    log.settle().await?;
    let record = build(log.state())?;
    log.append(record).await
}

/// Returns what the candidate may lead, or which agents keep it from leading.
fn may_lead(
    state: &ClusterState,
    candidate: Candidate,
    take_over: &[AgentId],
) -> Result<Candidacy, ControlError> {
    let found = candidacy(state, candidate);
    let mut missing = found.missing_agents.clone();
    missing.retain(|agent_id| !take_over.contains(agent_id));
    if missing.is_empty() {
        return Ok(found);
    }
    Err(ControlError::NotDrained(missing))
}

async fn elect(
    log: &mut MetaLog,
    agent_id: AgentId,
    partitions: Vec<Election>,
    is_unclean: bool,
) -> Result<(), ControlError> {
    if partitions.is_empty() {
        return Ok(());
    }
    if is_unclean {
        tracing::warn!(
            partitions = partitions.len(),
            "taking over partitions of agents that have not drained, as told"
        );
    }
    log.append(MetaRecord::Elected {
        agent_id,
        partitions,
        is_unclean,
    })
    .await
}
