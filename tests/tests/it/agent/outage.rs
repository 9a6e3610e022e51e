//! The bucket is away, or lies about what it did: producers are slowed, then refused, and nothing
//! is lost.

use std::time::Duration;

use esker_client::ProducerConfig;
use esker_proto::v1::{ErrorKind, FetchSource};
use esker_tests::{
    agent::{Plan, until},
    s3::{Fault, Rule, S3Server, Status, Verb},
};
use tempfile::TempDir;

use super::support::{
    Raw, TOPIC, assert_intact, batch, connect, create, describe, publish, replay_all, s3_url, seal,
    send, small_batches,
};
use crate::support::BUCKET;

struct Bench {
    server: S3Server,
    home: TempDir,
}

impl Bench {
    async fn start() -> Self {
        Self {
            server: S3Server::builder()
                .bucket(BUCKET)
                .seed(7)
                .start()
                .await
                .unwrap(),
            home: TempDir::new().unwrap(),
        }
    }

    fn plan(&self) -> Plan {
        Plan::new(s3_url(&self.server), self.home.path()).with("unuploaded-bytes-max", "1MiB")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producers_are_acknowledged_then_slowed_then_refused_while_the_bucket_is_away() {
    let bench = Bench::start().await;
    let agent = bench.plan().start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    let mut raw = Raw::connect(agent.grpc_address()).await;
    bench.server.add_fault(Rule::new(Fault::Drop));

    let filler = "x".repeat(60 << 10);
    let (mut taken, mut is_slowed) = (0, false);
    let refused = loop {
        match raw.produce(TOPIC, 0, batch(&[&filler])).await {
            Err(detail) => break detail,
            Ok(ack) => {
                assert_eq!(ack.base_offset, taken);
                is_slowed |= ack.throttle_ms > 0;
                taken += 1;
            }
        }
        assert!(taken < 100, "what waits for the bucket has no bound");
    };

    assert_eq!(refused.kind(), ErrorKind::Throttled, "{refused:?}");
    assert!(
        refused.has_no_side_effects && refused.is_retryable,
        "{refused:?}"
    );
    assert!(refused.retry_after_ms.is_some());
    assert!(is_slowed, "producers are slowed before they are refused");
    assert!(taken >= 16, "a MiB fits: {taken}");
    let at = describe(&client).await.remove(0);
    assert_eq!((at.local_log_start_offset, at.high_watermark), (0, taken));
    let (bytes, sources) = raw.bytes_of(&at).await;
    assert_eq!(sources, [FetchSource::Tail], "nothing local was deleted");

    bench.server.clear_faults();
    until("producing goes on", async || {
        raw.produce(TOPIC, 0, batch(&["again"])).await.is_ok()
    })
    .await;
    seal(&client, true).await;
    let (from_bucket, sources) = raw.bytes_of(&at).await;
    assert_eq!(sources, [FetchSource::Bucket]);
    assert!(
        from_bucket.starts_with(&bytes),
        "other bytes than from the tail"
    );
    agent.stop().await;
    assert_intact(&s3_url(&bench.server)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_that_was_refused_delivers_all_in_order_once_the_bucket_is_back() {
    let bench = Bench::start().await;
    let agent = bench.plan().start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 2).await;
    // Twice of what may wait for the bucket.
    let config = ProducerConfig {
        batch_bytes: 60 << 10,
        ..small_batches()
    };
    // Its id comes out of the metadata log, in the bucket.
    let producer = client.producer(TOPIC, config).await.unwrap();
    bench
        .server
        .add_fault(Rule::new(Fault::Answer(Status::Unavailable)));

    send(&producer, 0..10_000).await;
    until("batches are refused", async || {
        let waiting = describe(&client).await;
        waiting.iter().map(|at| at.unuploaded_bytes).sum::<u64>() >= 1 << 20
    })
    .await;
    bench.server.clear_faults();

    producer.close().await.unwrap();
    replay_all(&client, 10_000).await;
    assert!(agent.drain().await.is_complete);
    assert_intact(&s3_url(&bench.server)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_lost_or_wrong_leave_no_commit_in_doubt() {
    let bench = Bench::start().await;
    for fault in [
        Fault::ReplyLost,
        Fault::AppliedThen(Status::Internal),
        Fault::AppliedThen(Status::Conflict),
        Fault::Answer(Status::Conflict),
        Fault::Answer(Status::SlowDown),
        Fault::AppliedTwice,
        Fault::Drop,
        Fault::Reset { after_bytes: 100 },
    ] {
        for part in ["/manifest/", "/segments/", "meta/log/"] {
            let rule = Rule::new(fault).verb(Verb::Put).key_contains(part);
            bench.server.add_fault(rule.probability(0.06));
        }
    }
    let agent = bench.plan().start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 2).await;
    publish(&client, 0..8000).await;
    seal(&client, true).await;
    let replay = replay_all(&client, 8000).await;
    assert_eq!(replay.from_bucket, 8000);
    assert!(agent.drain().await.is_complete);

    bench.server.clear_faults();
    let other = TempDir::new().unwrap();
    let agent = bench.plan().on(other.path()).start().await.unwrap();
    replay_all(&connect(agent.grpc_address()).await, 8000).await;
    agent.stop().await;
    assert_intact(&s3_url(&bench.server)).await;
    assert_eq!(bench.server.counts().rewrites, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_that_cannot_reach_the_bucket_says_so_and_keeps_everything() {
    let bench = Bench::start().await;
    let plan = bench.plan().with("drain-timeout", "1s");
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    publish(&client, 0..500).await;
    bench.server.add_fault(Rule::new(Fault::Drop));
    assert!(!agent.drain().await.is_complete);
    bench.server.clear_faults();

    let agent = plan.with("drain-timeout", "60s").start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    replay_all(&client, 500).await;
    assert!(agent.drain().await.is_complete);
    assert_intact(&s3_url(&bench.server)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_the_tail_go_on_while_the_bucket_is_away() {
    let bench = Bench::start().await;
    let agent = bench.plan().start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    publish(&client, 0..1000).await;
    let hung = Rule::new(Fault::Hang);
    bench.server.add_fault(hung);
    let replay = tokio::time::timeout(Duration::from_secs(45), replay_all(&client, 1000));
    assert_eq!(replay.await.unwrap().from_bucket, 0);
    bench.server.clear_faults();
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_failed_is_tried_again_whatever_retention_finds_to_do_meanwhile() {
    let bench = Bench::start().await;
    // Several looks at retention fall between two attempts.
    let plan = bench.plan().with("retention-interval", "100ms");
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    publish(&client, 0..100).await;
    let refused = Rule::new(Fault::Answer(Status::Forbidden)).key_contains("/segments/");
    let refused = bench.server.add_fault(refused);

    // Nothing more is sealed after this: only the retries can bring it up.
    let sealed = seal(&client, true);
    let healed = async {
        until("several attempts", async || refused.fired() >= 3).await;
        refused.disarm();
    };
    tokio::join!(sealed, healed);

    assert_eq!(replay_all(&client, 100).await.from_bucket, 100);
    assert!(agent.drain().await.is_complete);
}
