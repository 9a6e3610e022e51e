use esker_proto::types::{ManifestVersion, Offset};
use uuid::Uuid;

use super::*;

const fn agent(n: u128) -> AgentId {
    AgentId::new(Uuid::from_u128(n))
}

const fn topic(n: u128) -> TopicId {
    TopicId::new(Uuid::from_u128(n))
}

fn created(n: u128, name: &str, partitions: u32) -> MetaRecord {
    MetaRecord::TopicCreated {
        topic_id: topic(n),
        name: name.parse().unwrap(),
        partitions,
        config: TopicConfig::default(),
        leader: agent(1),
    }
}

fn state_after(records: &[MetaRecord]) -> ClusterState {
    let mut state = ClusterState::default();
    for record in records {
        state.apply(record).unwrap();
    }
    state
}

fn election(n: u128, partition: u32, epoch: u32) -> Election {
    Election {
        topic_id: topic(n),
        partition: PartitionId::new(partition),
        leader_epoch: LeaderEpoch::new(epoch),
    }
}

#[test]
fn controller_epochs_rise_by_one() {
    let mut state = ClusterState::default();
    let open = |epoch| MetaRecord::Open {
        controller_epoch: ControllerEpoch::new(epoch),
        agent_id: agent(1),
    };

    state.apply(&open(1)).unwrap();

    assert!(state.apply(&open(1)).is_err());
    assert!(state.apply(&open(3)).is_err());
    state.apply(&open(2)).unwrap();
}

#[test]
fn a_name_is_free_again_after_its_topic_was_deleted() {
    let mut state = state_after(&[created(1, "orders", 2)]);
    assert!(state.apply(&created(2, "orders", 1)).is_err());

    state
        .apply(&MetaRecord::TopicDeleted { topic_id: topic(1) })
        .unwrap();
    state.apply(&created(2, "orders", 1)).unwrap();

    let (id, found) = state.topic_named(&"orders".parse().unwrap()).unwrap();
    assert_eq!((id, found.partitions.len()), (topic(2), 1));
    assert!(
        state.topics.contains_key(&topic(1)),
        "the tombstone stays until purged"
    );
}

#[test]
fn an_election_raises_the_epoch_by_one_or_changes_nothing() {
    let mut state = state_after(&[created(1, "orders", 2)]);
    let elected = |partitions| MetaRecord::Elected {
        agent_id: agent(2),
        partitions,
        is_unclean: false,
    };

    let mixed = elected(vec![election(1, 0, 2), election(1, 1, 7)]);
    assert!(state.apply(&mixed).is_err());
    assert_eq!(state, state_after(&[created(1, "orders", 2)]));

    state.apply(&elected(vec![election(1, 0, 2)])).unwrap();
    let leaders: Vec<_> = state.partitions().map(|(_, led)| led.leader).collect();
    assert_eq!(leaders, [agent(2), agent(1)]);
}

#[test]
fn a_drain_by_an_older_start_does_not_count() {
    let started = |epoch| MetaRecord::AgentStarted {
        agent_id: agent(1),
        agent_epoch: AgentEpoch::new(epoch),
        address: String::new(),
        zone: String::new(),
        version: String::new(),
    };
    let mut state = state_after(&[started(1), started(2)]);
    let drained = |epoch| MetaRecord::AgentDrained {
        agent_id: agent(1),
        agent_epoch: AgentEpoch::new(epoch),
        partitions: Vec::new(),
    };

    assert!(state.apply(&drained(1)).is_err());
    state.apply(&drained(2)).unwrap();

    assert!(state.agents[&agent(1)].is_drained);
}

#[test]
fn what_a_leader_left_is_known_to_whoever_leads_next_until_another_leaves() {
    let started = MetaRecord::AgentStarted {
        agent_id: agent(1),
        agent_epoch: AgentEpoch::new(1),
        address: String::new(),
        zone: String::new(),
        version: String::new(),
    };
    let drained = |topic_id, partition, version| Drained {
        topic_id,
        partition: PartitionId::new(partition),
        manifest_version: ManifestVersion::new(version),
        tiered_offset: Offset::new(version * 10),
    };
    let record = |partitions| MetaRecord::AgentDrained {
        agent_id: agent(1),
        agent_epoch: AgentEpoch::new(1),
        partitions,
    };
    let elected = MetaRecord::Elected {
        agent_id: agent(2),
        partitions: vec![election(1, 0, 2)],
        is_unclean: false,
    };
    let purged = drained(topic(9), 0, 1);
    let mut state = state_after(&[
        started,
        created(1, "orders", 2),
        record(vec![drained(topic(1), 0, 7), purged]),
        elected,
    ]);
    let left = |state: &ClusterState| -> Vec<_> {
        let left = state.partitions().map(|(_, led)| led.left);
        left.map(|left| left.map(|left| (left.version.get(), left.leader_epoch.get())))
            .collect()
    };
    assert_eq!(left(&state), [Some((7, 1)), None]);

    // It leads the second only.
    let again = record(vec![drained(topic(1), 0, 8), drained(topic(1), 1, 9)]);
    state.apply(&again).unwrap();
    assert_eq!(left(&state), [Some((7, 1)), Some((9, 1))]);
}

#[test]
fn drains_recorded_before_manifests_were_named_are_read() {
    let text = r#"{"type":"agent_drained","agent_id":"00000000-0000-0000-0000-000000000001","agent_epoch":2}"#;
    let record = MetaRecord::AgentDrained {
        agent_id: agent(1),
        agent_epoch: AgentEpoch::new(2),
        partitions: Vec::new(),
    };
    assert_eq!(serde_json::from_str::<MetaRecord>(text).unwrap(), record);
    assert_eq!(serde_json::to_string(&record).unwrap(), text);
}

#[test]
fn partitions_are_never_taken_away() {
    let mut state = state_after(&[created(1, "orders", 2)]);
    let altered = |partitions| MetaRecord::TopicAltered {
        topic_id: topic(1),
        partitions,
        config: TopicConfig::default(),
        leader: agent(1),
    };
    assert_eq!(
        state.apply(&altered(1)),
        Err(StateError::FewerPartitions(topic(1)))
    );
    state.apply(&altered(3)).unwrap();
    assert_eq!(state.partitions().count(), 3);
}

#[test]
fn records_keep_their_persisted_form() {
    let record = MetaRecord::Elected {
        agent_id: agent(1),
        partitions: vec![election(2, 3, 4)],
        is_unclean: true,
    };
    let text = serde_json::to_string(&record).unwrap();
    assert_eq!(
        text,
        r#"{"type":"elected","agent_id":"00000000-0000-0000-0000-000000000001","partitions":[{"topic_id":"00000000-0000-0000-0000-000000000002","partition":3,"leader_epoch":4}],"is_unclean":true}"#
    );
    assert_eq!(serde_json::from_str::<MetaRecord>(&text).unwrap(), record);
}
