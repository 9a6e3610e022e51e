//! An agent that ended in order leaves everything to the next one; one that did not leaves nothing
//! to be taken silently.

use std::{sync::Arc, time::Duration};

use esker_agent::{StartError, agent::Agent};
use esker_proto::{
    types::TimestampMs,
    v1::{CreateTopicRequest, ErrorKind},
};
use esker_tests::{
    agent::{Plan, directory_url, until},
    s3::{Fault, Latency, Rule, S3Server, Verb},
};
use esker_tiering::env::{ManualClock, TaskSet};
use tempfile::TempDir;

use super::support::{
    PROGRAM, Raw, TOPIC, agent_id_in, assert_intact, batch_of, connect, create, describe, detail,
    now, publish, replay_all, s3_url, seal,
};
use crate::support::BUCKET;

struct Bench {
    _home: TempDir,
    store: String,
    first: TempDir,
    second: TempDir,
    plan: Plan,
}

fn bench() -> Bench {
    let home = TempDir::new().unwrap();
    let store = directory_url(home.path());
    let (first, second) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let plan = Plan::new(&store, first.path());
    Bench {
        _home: home,
        store,
        first,
        second,
        plan,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_sigterm_an_agent_on_an_empty_disk_serves_everything_and_goes_on() {
    let bench = bench();
    let agent = bench.plan.spawn(PROGRAM).await.unwrap();
    let client = connect(agent.grpc).await;
    create(&client, 2).await;
    publish(&client, 0..3000).await;
    let before = describe(&client).await;

    agent.terminate().unwrap();
    let exit = agent.ended().await.unwrap();

    assert_eq!(exit.code, Some(0), "{exit:?}");
    let agent = bench.plan.clone().on(bench.second.path());
    let agent = agent.spawn(PROGRAM).await.unwrap();
    let client = connect(agent.grpc).await;
    let replay = replay_all(&client, 3000).await;
    assert_eq!(replay.from_bucket, 3000);
    for (before, after) in before.iter().zip(describe(&client).await) {
        assert_eq!(after.tiered_offset, before.log_end_offset);
        assert_eq!(after.log_end_offset, before.log_end_offset);
        assert_eq!(after.leader_epoch, before.leader_epoch + 1);
    }
    publish(&client, 3000..4000).await;
    replay_all(&client, 4000).await;
    assert_intact(&bench.store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_on_the_same_disk_keeps_what_is_not_in_the_bucket() {
    let bench = bench();
    let agent = bench.plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    publish(&client, 0..100).await;
    assert_eq!(describe(&client).await[0].tiered_offset, 0);
    agent.stop().await;

    let agent = bench.plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    replay_all(&client, 100).await;
    publish(&client, 100..200).await;
    let replay = replay_all(&client, 200).await;
    assert_eq!(replay.from_bucket, 0);
    assert!(agent.drain().await.is_complete);
    assert_intact(&bench.store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_of_an_agent_that_did_not_drain_are_not_taken_silently() {
    let bench = bench();
    let agent = bench.plan.spawn(PROGRAM).await.unwrap();
    let client = connect(agent.grpc).await;
    create(&client, 1).await;
    publish(&client, 0..100).await;
    agent.kill().unwrap();

    let other = bench.plan.clone().on(bench.second.path());
    let refused = other.spawn(PROGRAM).await.unwrap_err().to_string();
    assert!(refused.contains("exit code Some(75)"), "{refused}");
    assert!(refused.contains("have not drained"), "{refused}");
    assert!(refused.contains("--take-over"), "{refused}");

    // The one that has the data was not deposed by the attempt, nor by its being refused.
    let agent = bench.plan.start().await.unwrap();
    replay_all(&connect(agent.grpc_address()).await, 100).await;
    agent.stop().await;

    // Told so, the other one gives up what was not in the bucket, and goes on from there.
    let agent = other
        .with("take-over", agent_id_in(bench.first.path()))
        .start()
        .await
        .unwrap();
    let client = connect(agent.grpc_address()).await;
    replay_all(&client, 0).await;
    publish(&client, 0..50).await;
    replay_all(&client, 50).await;
    assert!(agent.drain().await.is_complete);

    // The first one's disk has been overtaken: what it had is not mixed into the log.
    let agent = bench.plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    replay_all(&client, 50).await;
    publish(&client, 50..60).await;
    replay_all(&client, 60).await;
    assert!(agent.drain().await.is_complete);
    assert_intact(&bench.store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_directory_in_use_is_refused() {
    let bench = bench();
    let agent = bench.plan.start().await.unwrap();
    let refused = bench.plan.start().await.unwrap_err();
    assert!(matches!(refused, StartError::DataDir(_)), "{refused}");
    assert_eq!(refused.exit_code(), 74);
    agent.stop().await;
}

async fn sends_again(agent: &Agent, expected: &[(u64, bool)]) {
    let mut raw = Raw::connect(agent.grpc_address()).await;
    let batches = (0..5).map(|n| (TOPIC, 0, batch_of(900, 0, 2 * n)));
    let answers = raw.produce_all(batches).await;
    let answers: Vec<_> = answers
        .into_iter()
        .map(|ack| ack.map(|ack| (ack.base_offset, ack.duplicate)).unwrap())
        .collect();
    assert_eq!(answers, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_sent_again_after_a_restart_is_answered_with_its_first_offset() {
    let bench = bench();
    let agent = bench.plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    publish(&client, 0..10).await;
    let first = [10, 12, 14, 16, 18].map(|offset| (offset, false));
    let again = [10, 12, 14, 16, 18].map(|offset| (offset, true));
    sends_again(&agent, &first).await;
    sends_again(&agent, &again).await;
    agent.stop().await;

    // From the tail, then from tail and bucket, then from the bucket alone.
    let agent = bench.plan.start().await.unwrap();
    sends_again(&agent, &again).await;
    seal(&connect(agent.grpc_address()).await, true).await;
    agent.stop().await;
    let agent = bench.plan.start().await.unwrap();
    sends_again(&agent, &again).await;
    assert!(agent.drain().await.is_complete);
    let agent = bench.plan.clone().on(bench.second.path());
    let agent = agent.start().await.unwrap();
    sends_again(&agent, &again).await;
    let mut raw = Raw::connect(agent.grpc_address()).await;
    let next = raw.produce(TOPIC, 0, batch_of(900, 0, 10)).await.unwrap();
    assert_eq!((next.base_offset, next.duplicate), (20, false));
    assert!(bench.first.path().exists());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_topic_costs_no_requests() {
    let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
    let home = TempDir::new().unwrap();
    let plan = Plan::new(s3_url(&server), home.path())
        .with("retention", "1h")
        .with("retention-interval", "100ms")
        .with("segment-age", "100ms")
        .with("metadata-poll", "500ms");
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 8).await;
    let before = server.counts();
    // The look at the metadata is the agent's, not the topic's: one GET each time.
    until("the agent looks after itself", async || {
        server.counts().of(Verb::Get) >= before.of(Verb::Get) + 3
    })
    .await;
    let after = server.counts();
    let looks = after.of(Verb::Get) - before.of(Verb::Get);
    assert_eq!(after.total() - before.total(), looks, "{before} {after}");
    let keys = server.keys(BUCKET);
    let is_of_topic = |key: &&String| key.contains("topics/");
    assert_eq!(keys.iter().find(is_of_topic), None, "not even once");
    // In that time retention was looked at a dozen times, for each of eight partitions.
    assert!(looks < 8, "{before} {after}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_topic_is_created_behind_the_back_of_a_drain() {
    let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
    let home = TempDir::new().unwrap();
    let agent = Plan::new(s3_url(&server), home.path())
        .start()
        .await
        .unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    publish(&client, 0..100).await;
    let mut raw = Raw::connect(agent.grpc_address()).await;
    let held = Fault::Delay(Latency::Fixed(Duration::from_millis(700)));
    let held = server.add_fault(Rule::new(held).verb(Verb::Put).key_contains("/segments/"));
    let tasks = TaskSet::new();
    let draining = tasks.spawn("drain", agent.drain());
    until("the tail goes up", async || held.fired() > 0).await;

    let request = CreateTopicRequest {
        name: "late".to_owned(),
        ..CreateTopicRequest::default()
    };
    let refused = detail(&raw.admin.create_topic(request).await.unwrap_err());
    assert_eq!(refused.kind(), ErrorKind::ShuttingDown, "{refused:?}");
    assert!(refused.has_no_side_effects);
    let refused = raw.produce(TOPIC, 0, batch_of(1, 0, 0)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ShuttingDown, "{refused:?}");
    assert!(draining.await.unwrap().is_complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_is_sealed_at_its_age_however_often_the_agent_restarts() {
    let bench = bench();
    let plan = bench.plan.clone().with("segment-age", "1h");
    let later = |hours: i64| {
        let now = TimestampMs::new(now().get() + hours * 3_600_000);
        let clock = Arc::new(ManualClock::new(now));
        plan.clone().around(|around| around.clock = clock)
    };
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    publish(&client, 0..100).await;
    agent.stop().await;

    // A clock that was set back makes nothing older, and nothing fails.
    let agent = later(-5).start().await.unwrap();
    let at = describe(&connect(agent.grpc_address()).await)
        .await
        .remove(0);
    assert_eq!((at.tiered_offset, at.high_watermark), (0, 100));
    agent.stop().await;

    let agent = later(2).start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    until("the segment is sealed and uploaded", async || {
        describe(&client).await[0].tiered_offset == 100
    })
    .await;
    agent.stop().await;
}
