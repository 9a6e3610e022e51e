//! A change of topics is made whole or not at all, whoever goes away meanwhile.

use std::time::Duration;

use bytes::Bytes;
use esker_client::{
    AlterTopicRequest, ConsumerConfig, Partitions, ProducerConfig, RecordRef, StartAt,
    TopicSettings,
};
use esker_proto::v1::{
    CreateTopicRequest, ErrorKind, FetchRequest, ListOffsetsRequest, ProduceRequest,
    list_offsets_request::Position, produce_response::Result as Answer,
};
use esker_tests::{
    agent::{Plan, directory_url, until},
    s3::{Fault, Latency, Rule, S3Server, Verb},
};
use tempfile::TempDir;

use super::support::{
    Raw, TOPIC, batch, connect, create, describe, detail, publish, replay_all, s3_url,
};
use crate::support::BUCKET;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_whose_creator_went_away_amid_its_creation_is_served() {
    let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
    let home = TempDir::new().unwrap();
    // Nothing else looks at the metadata and makes good what was left undone.
    let agent = Plan::new(s3_url(&server), home.path())
        .with("metadata-poll", "1h")
        .start()
        .await
        .unwrap();
    let slow = Fault::Delay(Latency::Fixed(Duration::from_millis(300)));
    let slow = server.add_fault(Rule::new(slow).verb(Verb::Put).key_contains("meta/log/"));
    let mut raw = Raw::connect(agent.grpc_address()).await;
    let request = CreateTopicRequest {
        name: TOPIC.to_owned(),
        partitions: 2,
        settings: None,
    };
    tokio::select! {
        created = raw.admin.create_topic(request) => panic!("{created:?}"),
        () = until("the record is under way", async || slow.fired() > 0) => {}
    }
    drop(raw);
    let client = connect(agent.grpc_address()).await;
    until("the topic is served", async || {
        client.admin().describe_topic(TOPIC).await.is_ok()
    })
    .await;
    publish(&client, 0..100).await;
    replay_all(&client, 100).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_could_not_be_opened_is_served_once_it_can_be() {
    let home = TempDir::new().unwrap();
    let plan = Plan::new(directory_url(home.path()), home.path());
    let agent = plan.with("metadata-poll", "100ms").start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    let log = home.path().join("log");
    std::fs::rename(&log, home.path().join("aside")).unwrap();
    std::fs::write(&log, "in the way").unwrap();
    let created = client
        .admin()
        .create_topic(TOPIC, 1, TopicSettings::default())
        .await;
    let error = created.unwrap_err();
    assert_eq!(error.wire_kind(), ErrorKind::Storage, "{error}");
    assert!(
        !error.has_no_side_effects(),
        "the topic exists from here on"
    );

    // Meanwhile it can be described, and says why it is not served.
    assert_ne!(describe(&client).await[0].offline_reason, "");
    std::fs::remove_file(&log).unwrap();
    std::fs::create_dir(&log).unwrap();
    until("the topic is served", async || {
        describe(&client).await[0].offline_reason.is_empty()
    })
    .await;
    publish(&client, 0..10).await;
    replay_all(&client, 10).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_can_be_added_and_not_taken_away() {
    let home = TempDir::new().unwrap();
    let plan = Plan::new(directory_url(home.path()), home.path());
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    let alter = |partitions| AlterTopicRequest {
        name: TOPIC.to_owned(),
        partitions,
        ..AlterTopicRequest::default()
    };
    client.admin().alter_topic(alter(3)).await.unwrap();
    let error = client.admin().alter_topic(alter(2)).await.unwrap_err();
    assert_eq!(error.wire_kind(), ErrorKind::InvalidArgument);
    assert_eq!(describe(&client).await.len(), 3);
    publish(&client, 0..300).await;
    agent.stop().await;

    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    assert_eq!(describe(&client).await.len(), 3);
    replay_all(&client, 300).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_who_create_or_delete_one_topic_at_a_time_one_succeeds() {
    let home = TempDir::new().unwrap();
    let plan = Plan::new(directory_url(home.path()), home.path());
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    for _ in 0..3 {
        let admin = client.admin();
        let creating = (0..8).map(|_| admin.create_topic(TOPIC, 1, TopicSettings::default()));
        let created = futures::future::join_all(creating).await;
        assert_eq!(created.iter().filter(|created| created.is_ok()).count(), 1);
        for error in created.into_iter().filter_map(Result::err) {
            assert_eq!(error.wire_kind(), ErrorKind::TopicExists, "{error}");
        }
        let deleting = (0..8).map(|_| admin.delete_topic(TOPIC));
        let deleted = futures::future::join_all(deleting).await;
        assert_eq!(deleted.iter().filter(|deleted| deleted.is_ok()).count(), 1);
        for error in deleted.into_iter().filter_map(Result::err) {
            assert_eq!(error.wire_kind(), ErrorKind::UnknownTopic, "{error}");
        }
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_created_again_is_another_one_to_those_who_knew_the_first() {
    let home = TempDir::new().unwrap();
    let plan = Plan::new(directory_url(home.path()), home.path());
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    let producer = client.producer(TOPIC, ProducerConfig::default());
    let producer = producer.await.unwrap();
    publish(&client, 0..10).await;
    let mut consumer = client.consumer(ConsumerConfig::default());
    let start = StartAt::Earliest;
    let assigned = consumer.assign(TOPIC, Partitions::All, start, None).await;
    assigned.unwrap();
    consumer.next().await.unwrap().unwrap();
    let saved = consumer.saved_positions();

    client.admin().delete_topic(TOPIC).await.unwrap();
    create(&client, 1).await;
    publish(&client, 0..100).await;

    let delivery = producer.send(RecordRef::new(b"x")).await.unwrap();
    let refused = delivery.await.unwrap_err();
    assert_eq!(refused.wire_kind(), ErrorKind::UnknownTopicId, "{refused}");
    let ended = loop {
        match consumer.next().await {
            Ok(fetched) => assert!(fetched.is_some(), "ended without an error"),
            Err(error) => break error,
        }
    };
    assert_eq!(ended.wire_kind(), ErrorKind::UnknownTopicId, "{ended}");
    let resumed = consumer
        .assign(TOPIC, Partitions::All, StartAt::Saved(saved), None)
        .await;
    let refused = resumed.unwrap_err();
    assert_eq!(refused.kind(), esker_client::ErrorKind::TopicRecreated);
    replay_all(&client, 100).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_id_is_compared_if_one_is_given() {
    let home = TempDir::new().unwrap();
    let plan = Plan::new(directory_url(home.path()), home.path());
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    let topic = client.admin().describe_topic(TOPIC).await.unwrap().topic;
    let topic_id: esker_proto::types::TopicId = topic.unwrap().topic_id.parse().unwrap();
    let mut raw = Raw::connect(agent.grpc_address()).await;
    for (topic_id, expected) in [
        (Bytes::new(), None),
        (topic_id.to_bytes(), None),
        (
            Bytes::from_static(&[7; 16]),
            Some(ErrorKind::UnknownTopicId),
        ),
        (
            Bytes::from_static(b"short"),
            Some(ErrorKind::InvalidArgument),
        ),
    ] {
        let request = FetchRequest {
            topic: TOPIC.to_owned(),
            topic_id: topic_id.clone(),
            end_offset: Some(0),
            ..FetchRequest::default()
        };
        let fetched = raw.fetch(request).await.err();
        assert_eq!(fetched.map(|status| detail(&status).kind()), expected);
        let request = ListOffsetsRequest {
            topic: TOPIC.to_owned(),
            topic_id: topic_id.clone(),
            position: Some(Position::Latest(true)),
            ..ListOffsetsRequest::default()
        };
        let listed = raw.log.list_offsets(request).await.err();
        assert_eq!(listed.map(|status| detail(&status).kind()), expected);
        let request = ProduceRequest {
            topic: TOPIC.to_owned(),
            topic_id,
            batch: batch(&["a"]),
            ..ProduceRequest::default()
        };
        let answers = raw.log.produce(futures::stream::iter([request])).await;
        let answer = answers.unwrap().into_inner().message().await.unwrap();
        let refused = match answer.unwrap().result.unwrap() {
            Answer::Ack(_) => None,
            Answer::Error(error) => Some(error.kind()),
        };
        assert_eq!(refused, expected);
    }
    agent.stop().await;
}
