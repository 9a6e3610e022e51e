//! The controller: the one writer of the metadata log, and the state everybody reads.

use std::sync::Arc;

use esker_proto::types::{AgentEpoch, AgentId, ClusterId, LeaderEpoch, ProducerId, TopicPartition};
use esker_tiering::{env::IdGenerator, store::Store};
use tokio::sync::{Mutex, watch};

use super::{
    election::candidacy,
    error::ControlError,
    log::{Author, MetaLog},
    record::{Election, MetaRecord},
    state::ClusterState,
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
    /// What this agent has of it on disk may have been overtaken.
    pub was_led_by_another: bool,
}

/// A controller, and what it leads.
#[derive(Debug)]
pub struct Started {
    /// The controller.
    pub controller: Arc<Controller>,
    /// Every partition of the cluster.
    pub led: Vec<Led>,
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
    /// # Errors
    ///
    /// `NotDrained` if another agent may hold the only copy of something, unless `take_over`.
    /// Then nothing but the opening was written.
    pub async fn start(
        store: Store,
        ids: Arc<dyn IdGenerator>,
        member: Member,
        take_over: bool,
    ) -> Result<Started, ControlError> {
        let author = Author {
            cluster_id: member.cluster_id,
            agent_id: member.agent_id,
        };
        refuse_undrained(&store, author, take_over).await?;
        let mut log = MetaLog::open(store, ids, author).await?;
        // The log may have moved between the look and the opening.
        let found = candidacy(log.state(), member.agent_id);
        if !found.unclean.is_empty() && !take_over {
            return Err(ControlError::NotDrained(found.missing_agents));
        }
        let before = log.state().clone();
        let last = before
            .agents
            .get(&member.agent_id)
            .map(|agent| agent.agent_epoch);
        let agent_epoch = last.unwrap_or_default().next();
        log.append(MetaRecord::AgentStarted {
            agent_id: member.agent_id,
            agent_epoch,
            address: member.address.clone(),
            zone: member.zone.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })
        .await?;
        elect(&mut log, member.agent_id, found.clean.clone(), false).await?;
        elect(&mut log, member.agent_id, found.unclean.clone(), true).await?;
        let elected = found.clean.into_iter().chain(found.unclean);
        let led = elected
            .map(|election| led(&before, &election, member.agent_id))
            .collect();
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
        })
    }

    /// Returns this agent.
    pub const fn agent_id(&self) -> AgentId {
        self.member.agent_id
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

    /// Records that everything this agent had is in the bucket.
    ///
    /// # Errors
    ///
    /// If the record could not be written: the agent then counts as gone without a drain.
    pub async fn drained(&self) -> Result<(), ControlError> {
        let (agent_id, agent_epoch) = (self.member.agent_id, self.agent_epoch);
        self.append(|_| {
            Ok(MetaRecord::AgentDrained {
                agent_id,
                agent_epoch,
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

/// Looks before it opens: an agent that must not lead shall not depose the one that does.
async fn refuse_undrained(
    store: &Store,
    author: Author,
    take_over: bool,
) -> Result<(), ControlError> {
    let state = MetaLog::read(store).await?;
    let found = candidacy(&state, author.agent_id);
    if found.unclean.is_empty() || take_over {
        return Ok(());
    }
    Err(ControlError::NotDrained(found.missing_agents))
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

fn led(before: &ClusterState, election: &Election, agent_id: AgentId) -> Led {
    let at = election.topic_partition();
    let previous = before.partitions().find(|(partition, _)| *partition == at);
    let was_led_by_another = previous.is_some_and(|(_, led)| led.leader != agent_id);
    Led {
        at,
        leader_epoch: election.leader_epoch,
        was_led_by_another,
    }
}
