//! What retention, a trim or the deletion of a topic removes is gone, and nothing else.

use esker_client::{
    Client, ConsumerConfig, Offset, OutOfRange, PartitionId, Partitions, RecordRef, StartAt,
    TimestampMs, TopicSettings,
};
use esker_proto::v1::{ErrorKind, FetchRequest};
use esker_tests::{
    agent::{Plan, until},
    s3::{Fault, Latency, Rule, S3Server, Verb},
};
use tempfile::TempDir;

use super::support::{
    Raw, TOPIC, assert_intact, connect, create, create_with, describe, detail, now, publish,
    replay, replay_all, s3_url, seal, small_batches,
};
use crate::support::BUCKET;

struct Bench {
    server: S3Server,
    home: TempDir,
}

impl Bench {
    async fn start() -> Self {
        Self {
            server: S3Server::builder().bucket(BUCKET).start().await.unwrap(),
            home: TempDir::new().unwrap(),
        }
    }

    fn plan(&self) -> Plan {
        Plan::new(s3_url(&self.server), self.home.path()).with("retention-interval", "100ms")
    }

    fn segments(&self) -> usize {
        let keys = self.server.keys(BUCKET);
        keys.iter().filter(|key| key.contains("/segments/")).count()
    }

    fn objects_of(&self, topic_id: &str) -> Vec<String> {
        let keys = self.server.keys(BUCKET);
        keys.into_iter()
            .filter(|key| key.contains(topic_id))
            .collect()
    }
}

async fn start_offset(client: &Client) -> u64 {
    describe(client).await[0].log_start_offset
}

async fn assert_gone(raw: &mut Raw, offset: u64) {
    let request = FetchRequest {
        topic: TOPIC.to_owned(),
        offset,
        ..FetchRequest::default()
    };
    let error = detail(&raw.fetch(request).await.unwrap_err());
    assert_eq!(error.kind(), ErrorKind::OffsetOutOfRange, "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_by_size_removes_the_oldest_segments_only() {
    let bench = Bench::start().await;
    let agent = bench.plan().start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    publish(&client, 0..8000).await;
    seal(&client, true).await;
    let all = describe(&client).await.remove(0);
    assert_eq!(all.log_start_offset, 0, "there was no limit yet");

    let limit = all.bucket_bytes / 2;
    let settings = TopicSettings {
        retention_bytes: i64::try_from(limit).ok(),
        ..TopicSettings::default()
    };
    alter(&client, settings).await;

    until("the oldest go", async || start_offset(&client).await > 0).await;
    until("their objects go", async || {
        u64::try_from(bench.segments()).unwrap() == describe(&client).await[0].bucket_segments
    })
    .await;
    let after = describe(&client).await.remove(0);
    assert!(
        after.bucket_bytes >= limit - (300 << 10),
        "no more than need be"
    );
    assert!(after.bucket_bytes <= limit + (300 << 10), "{after:?}");
    let left = replay(&client).await;
    let expected: Vec<_> = (after.log_start_offset..8000).collect();
    assert_eq!(left.places.keys().copied().collect::<Vec<_>>(), expected);
    let mut raw = Raw::connect(agent.grpc_address()).await;
    assert_gone(&mut raw, after.log_start_offset - 1).await;
    agent.stop().await;
    assert_intact(&s3_url(&bench.server)).await;
}

async fn alter(client: &Client, settings: TopicSettings) {
    let request = esker_client::AlterTopicRequest {
        name: TOPIC.to_owned(),
        settings: Some(settings),
        ..Default::default()
    };
    client.admin().alter_topic(request).await.unwrap();
}

/// Produces a hundred records of this time, and seals them.
async fn publish_at(client: &Client, timestamp: TimestampMs) {
    let producer = client.producer(TOPIC, small_batches()).await.unwrap();
    for _ in 0..100 {
        let record = RecordRef {
            timestamp: Some(timestamp),
            ..RecordRef::new(b"value")
        };
        drop(producer.send(record).await.unwrap());
    }
    producer.flush().await.unwrap();
    seal(client, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn imported_history_is_kept_for_the_retention_time_after_it_arrived() {
    let bench = Bench::start().await;
    let agent = bench.plan().with("retention", "1h").start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    let in_2013 = TimestampMs::new(1_357_776_000_000);
    publish_at(&client, in_2013).await;
    publish_at(&client, in_2013).await;

    // Retention removes the first half for its size, and leaves the second although its records are old.
    let limit = describe(&client).await[0].bucket_bytes / 2;
    let settings = TopicSettings {
        retention_bytes: i64::try_from(limit).ok(),
        ..TopicSettings::default()
    };
    alter(&client, settings).await;
    until("the first half goes", async || {
        start_offset(&client).await == 100
    })
    .await;
    assert_eq!(describe(&client).await[0].high_watermark, 200);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_by_age_removes_what_is_older_and_keeps_the_rest() {
    let bench = Bench::start().await;
    let agent = bench.plan().start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    publish_at(&client, now()).await;
    publish_at(&client, TimestampMs::new(now().get() + 1_800_000)).await;

    let settings = TopicSettings {
        retention_ms: Some(1000),
        ..TopicSettings::default()
    };
    alter(&client, settings).await;

    until("the old go", async || start_offset(&client).await == 100).await;
    assert_eq!(describe(&client).await[0].high_watermark, 200);
    let mut raw = Raw::connect(agent.grpc_address()).await;
    assert_gone(&mut raw, 99).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trim_hides_what_lies_below_at_once_and_deletes_whole_segments() {
    let bench = Bench::start().await;
    let agent = bench.plan().start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    publish(&client, 0..4000).await;
    // The tail keeps copies, which must not be read either.
    seal(&client, false).await;
    let segments = bench.segments();

    let admin = client.admin();
    let partition = PartitionId::new(0);
    let start = admin
        .trim_partition(TOPIC, partition, Offset::new(2500))
        .await;

    assert_eq!(start.unwrap().get(), 2500);
    let mut raw = Raw::connect(agent.grpc_address()).await;
    assert_gone(&mut raw, 2499).await;
    let left = replay(&client).await;
    assert_eq!(
        left.places.keys().copied().collect::<Vec<_>>(),
        (2500..4000).collect::<Vec<_>>()
    );
    until("whole segments go", async || bench.segments() < segments).await;
    let again = admin
        .trim_partition(TOPIC, partition, Offset::new(10))
        .await;
    assert_eq!(
        again.unwrap().get(),
        2500,
        "a trim never brings anything back"
    );
    let error = admin
        .trim_partition(TOPIC, partition, Offset::new(4001))
        .await
        .unwrap_err();
    assert_eq!(error.wire_kind(), ErrorKind::InvalidArgument);

    let config = ConsumerConfig {
        out_of_range: OutOfRange::Earliest,
        ..ConsumerConfig::default()
    };
    let mut consumer = client.consumer(config);
    let start = StartAt::Offset(Offset::new(7));
    consumer
        .assign(TOPIC, Partitions::All, start, None)
        .await
        .unwrap();
    let first = consumer.next().await.unwrap().unwrap();
    assert_eq!(first.base_offset().get(), 2500);
    agent.stop().await;

    let agent = bench.plan().start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    assert_eq!(start_offset(&client).await, 2500, "also after a restart");
    agent.stop().await;
    assert_intact(&s3_url(&bench.server)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_may_be_trimmed_and_producing_goes_on() {
    let bench = Bench::start().await;
    let agent = bench.plan().start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    publish(&client, 0..1000).await;
    seal(&client, true).await;
    let partition = PartitionId::new(0);
    let trimmed = client
        .admin()
        .trim_partition(TOPIC, partition, Offset::new(1000))
        .await;
    assert_eq!(trimmed.unwrap().get(), 1000);
    assert!(replay(&client).await.places.is_empty());
    publish(&client, 1000..1100).await;
    assert!(agent.drain().await.is_complete);
    let other = TempDir::new().unwrap();
    let agent = bench.plan().on(other.path()).start().await.unwrap();
    let left = replay(&connect(agent.grpc_address()).await).await;
    assert_eq!(
        left.places.keys().copied().collect::<Vec<_>>(),
        (1000..1100).collect::<Vec<_>>()
    );
    agent.stop().await;
    assert_intact(&s3_url(&bench.server)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_topic_leaves_nothing_and_its_name_starts_over() {
    let bench = Bench::start().await;
    let agent = bench.plan().start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 2).await;
    let old = client.admin().describe_topic(TOPIC).await.unwrap();
    let old = old.topic.unwrap().topic_id;
    publish(&client, 0..3000).await;
    seal(&client, false).await;
    assert!(!bench.objects_of(&old).is_empty());

    client.admin().delete_topic(TOPIC).await.unwrap();
    let gone = client.admin().describe_topic(TOPIC).await.unwrap_err();
    assert_eq!(gone.wire_kind(), ErrorKind::UnknownTopic);
    create(&client, 1).await;

    let new = client.admin().describe_topic(TOPIC).await.unwrap();
    assert_ne!(new.topic.unwrap().topic_id, old);
    assert!(
        replay(&client).await.places.is_empty(),
        "none of the old records"
    );
    publish(&client, 0..500).await;
    until("its objects go", async || bench.objects_of(&old).is_empty()).await;
    let log = bench.home.path().join("log").join(&old);
    until("its local logs go", async || !log.exists()).await;
    replay_all(&client, 500).await;
    agent.stop().await;

    let agent = bench.plan().start().await.unwrap();
    replay_all(&connect(agent.grpc_address()).await, 500).await;
    agent.stop().await;
    assert_intact(&s3_url(&bench.server)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_deleted_amid_uploads_and_reads_leaves_nothing() {
    let bench = Bench::start().await;
    let slow = Latency::Fixed(std::time::Duration::from_millis(150));
    let slow = Rule::new(Fault::Delay(slow))
        .verb(Verb::Put)
        .key_contains("/segments/");
    bench.server.add_fault(slow);
    let agent = bench.plan().start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create_with(&client, 2, TopicSettings::default()).await;
    let topic = client
        .admin()
        .describe_topic(TOPIC)
        .await
        .unwrap()
        .topic
        .unwrap();
    publish(&client, 0..6000).await;
    until("uploads are under way", async || {
        !bench.objects_of(&topic.topic_id).is_empty()
    })
    .await;
    let mut consumer = client.consumer(ConsumerConfig::default());
    consumer
        .assign(TOPIC, Partitions::All, StartAt::Earliest, None)
        .await
        .unwrap();
    consumer.next().await.unwrap().unwrap();

    client.admin().delete_topic(TOPIC).await.unwrap();

    // The reader ends with an error, and soon: it does not hang, nor is it told of an end.
    let ended = tokio::time::timeout(std::time::Duration::from_secs(45), async {
        loop {
            match consumer.next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the consumer was told of an end"),
                Err(error) => break error,
            }
        }
    });
    let error = ended.await.unwrap();
    assert_eq!(error.wire_kind(), ErrorKind::UnknownTopic, "{error:?}");
    until("its objects go", async || {
        bench.objects_of(&topic.topic_id).is_empty()
    })
    .await;
    // What was under way when it was deleted does not come in later.
    assert!(agent.drain().await.is_complete);
    assert_eq!(bench.objects_of(&topic.topic_id), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_that_a_stop_interrupted_is_finished_by_the_next_start() {
    let bench = Bench::start().await;
    let agent = bench.plan().start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    let topic = client
        .admin()
        .describe_topic(TOPIC)
        .await
        .unwrap()
        .topic
        .unwrap();
    publish(&client, 0..1000).await;
    seal(&client, false).await;
    let forbidden = bench
        .server
        .add_fault(Rule::new(Fault::Drop).verb(Verb::DeleteMany));
    client.admin().delete_topic(TOPIC).await.unwrap();
    until("the deletion is tried", async || forbidden.fired() > 0).await;
    agent.stop().await;
    bench.server.clear_faults();
    assert!(!bench.objects_of(&topic.topic_id).is_empty());

    let agent = bench.plan().start().await.unwrap();
    until("its objects go", async || {
        bench.objects_of(&topic.topic_id).is_empty()
    })
    .await;
    agent.stop().await;
}
