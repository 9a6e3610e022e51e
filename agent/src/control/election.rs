//! Decides which partitions a starting agent may lead. Pure.

use esker_proto::types::{AgentEpoch, AgentId, TopicPartition};

use super::{record::Election, state::ClusterState};

/// What a starting agent may lead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Candidacy {
    /// Its own, or those of agents that drained.
    pub(super) clean: Vec<Election>,
    /// Those of agents that are gone with data nobody else has.
    pub(super) unclean: Vec<Election>,
    /// The agents those last ones belong to.
    pub(super) missing_agents: Vec<AgentId>,
}

/// Who starts, and what it knows of its earlier starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) agent_id: AgentId,
    /// The newest start that its data directory knows of. The directory notes a start just before
    /// the metadata does, so it may be one ahead; one that is behind was copied or restored.
    pub(super) noted_epoch: AgentEpoch,
}

impl Candidate {
    /// The epoch of its last start, by the metadata.
    pub(super) fn last_epoch(self, state: &ClusterState) -> AgentEpoch {
        let known = state.agents.get(&self.agent_id);
        known.map_or_else(AgentEpoch::default, |agent| agent.agent_epoch)
    }

    fn is_current(self, state: &ClusterState) -> bool {
        let last = self.last_epoch(state);
        self.noted_epoch == last || self.noted_epoch == last.next()
    }
}

/// Sorts all partitions by whether the candidate may lead them.
pub(super) fn candidacy(state: &ClusterState, candidate: Candidate) -> Candidacy {
    let is_current = candidate.is_current(state);
    let mut candidacy = Candidacy::default();
    for (
        TopicPartition {
            topic_id,
            partition,
        },
        led,
    ) in state.partitions()
    {
        let election = Election {
            topic_id,
            partition,
            leader_epoch: led.leader_epoch.next(),
        };
        let leader_drained = state
            .agents
            .get(&led.leader)
            .is_some_and(|agent| agent.is_drained);
        let is_own = led.leader == candidate.agent_id && is_current;
        if is_own || leader_drained {
            candidacy.clean.push(election);
        } else {
            candidacy.unclean.push(election);
            candidacy.missing_agents.push(led.leader);
        }
    }
    candidacy.missing_agents.sort_unstable();
    candidacy.missing_agents.dedup();
    candidacy
}

#[cfg(test)]
mod tests {
    use esker_proto::types::{LeaderEpoch, PartitionId, TopicId};
    use uuid::Uuid;

    use super::*;
    use crate::control::record::{MetaRecord, TopicConfig};

    const ME: AgentId = AgentId::new(Uuid::from_u128(1));
    const OTHER: AgentId = AgentId::new(Uuid::from_u128(2));

    fn led_by_other(drained: bool) -> ClusterState {
        let mut state = ClusterState::default();
        let agent_epoch = AgentEpoch::new(1);
        let mut records = vec![
            MetaRecord::AgentStarted {
                agent_id: OTHER,
                agent_epoch,
                address: String::new(),
                zone: String::new(),
                version: String::new(),
            },
            MetaRecord::TopicCreated {
                topic_id: TopicId::new(Uuid::from_u128(7)),
                name: "orders".parse().unwrap(),
                partitions: 1,
                config: TopicConfig::default(),
                leader: OTHER,
            },
        ];
        if drained {
            records.push(MetaRecord::AgentDrained {
                agent_id: OTHER,
                agent_epoch,
                partitions: Vec::new(),
            });
        }
        records
            .iter()
            .for_each(|record| state.apply(record).unwrap());
        state
    }

    fn second_epoch() -> Election {
        Election {
            topic_id: TopicId::new(Uuid::from_u128(7)),
            partition: PartitionId::new(0),
            leader_epoch: LeaderEpoch::new(2),
        }
    }

    /// `OTHER` has started once, `ME` never.
    fn current(agent_id: AgentId) -> Candidate {
        let noted_epoch = AgentEpoch::new(u64::from(agent_id == OTHER));
        Candidate {
            agent_id,
            noted_epoch,
        }
    }

    #[test]
    fn a_directory_that_lags_behind_the_metadata_leads_nothing_silently() {
        let restored = Candidate {
            noted_epoch: AgentEpoch::new(0),
            ..current(OTHER)
        };
        let found = candidacy(&led_by_other(false), restored);
        assert_eq!((found.clean, found.missing_agents), (vec![], vec![OTHER]));

        let crashed_before_the_record = Candidate {
            noted_epoch: AgentEpoch::new(2),
            ..current(OTHER)
        };
        let found = candidacy(&led_by_other(false), crashed_before_the_record);
        assert_eq!(found.clean, [second_epoch()]);
    }

    #[test]
    fn an_agent_leads_its_own_and_what_a_drained_agent_left() {
        assert_eq!(
            candidacy(&led_by_other(false), current(OTHER)).clean,
            [second_epoch()]
        );
        let left = candidacy(&led_by_other(true), current(ME));
        assert_eq!((left.clean, left.unclean), (vec![second_epoch()], vec![]));
    }

    #[test]
    fn nothing_is_taken_silently_from_an_agent_that_may_hold_the_only_copy() {
        let found = candidacy(&led_by_other(false), current(ME));
        assert_eq!((found.clean, found.unclean), (vec![], vec![second_epoch()]));
        assert_eq!(found.missing_agents, [OTHER]);
    }
}
