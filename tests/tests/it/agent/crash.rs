//! Kill -9 at any moment loses nothing that was acknowledged, and doubles nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use esker_client::{Client, Delivered, ProducerConfig, RecordRef, TopicSettings};
use esker_proto::v1::FetchSource;
use esker_tests::{
    agent::{Plan, directory_url, until},
    s3::S3Server,
};
use esker_tiering::env::TaskSet;
use tempfile::TempDir;

use super::support::{
    PROGRAM, Raw, TOPIC, assert_intact, connect, create_with, describe, key, replay, s3_url, seal,
    value,
};
use crate::support::BUCKET;

/// Sends numbered records until told to stop; returns what was acknowledged.
async fn produce_on(
    client: Client,
    acknowledged: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> Vec<(u64, Delivered)> {
    let config = ProducerConfig {
        batch_bytes: 16 << 10,
        linger: Duration::from_millis(1),
        delivery_timeout: Duration::from_secs(60),
        ..ProducerConfig::default()
    };
    let producer = client.producer(TOPIC, config).await.unwrap();
    let (mut number, mut delivered) = (0, Vec::new());
    while !stop.load(Ordering::SeqCst) {
        let mut under_way = Vec::new();
        for _ in 0..200 {
            let (key, value) = (key(number), value(number));
            let record = RecordRef::keyed(key.as_bytes(), value.as_bytes());
            under_way.push((number, producer.send(record).await.unwrap()));
            number += 1;
        }
        for (number, delivery) in under_way {
            let place = delivery
                .await
                .unwrap_or_else(|error| panic!("{number}: {error:?}"));
            delivered.push((number, place));
        }
        acknowledged.store(number, Ordering::SeqCst);
    }
    producer.close().await.unwrap();
    delivered
}

/// A producer that goes on in the background.
struct Running {
    acknowledged: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Vec<(u64, Delivered)>>,
}

impl Running {
    fn start(client: Client, tasks: &TaskSet) -> Self {
        let (acknowledged, stop) = (Arc::default(), Arc::default());
        let produce = produce_on(client, Arc::clone(&acknowledged), Arc::clone(&stop));
        Self {
            acknowledged,
            stop,
            task: tasks.spawn("produce", produce),
        }
    }

    async fn reaches(&self, count: u64) {
        until("the producer goes on", async || {
            assert!(!self.task.is_finished(), "the producer has failed");
            self.acknowledged.load(Ordering::SeqCst) >= count
        })
        .await;
    }

    async fn finish(self) -> Vec<(u64, Delivered)> {
        self.stop.store(true, Ordering::SeqCst);
        self.task.await.unwrap()
    }
}

fn keep_everything_local() -> TopicSettings {
    TopicSettings {
        local_retention_bytes: Some(1 << 30),
        ..TopicSettings::default()
    }
}

async fn survives_kills(store: &str, rounds: u64) {
    let (first, second) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let plan = Plan::new(store, first.path());
    let mut agent = plan.spawn(PROGRAM).await.unwrap();
    let address = agent.grpc;
    let plan = plan.with("listen", address.to_string());
    let client = connect(address).await;
    create_with(&client, 2, keep_everything_local()).await;
    let tasks = TaskSet::new();
    let producer = Running::start(client.clone(), &tasks);

    for round in 0..rounds {
        // Anywhere between batches, seals, uploads and commits.
        let acknowledged = producer.acknowledged.load(Ordering::SeqCst);
        producer
            .reaches(acknowledged + 200 + 700 * (round % 4))
            .await;
        agent.kill().unwrap();
        agent = plan.spawn(PROGRAM).await.unwrap();
    }
    let delivered = producer.finish().await;

    let found = replay(&client).await;
    for (number, place) in &delivered {
        let expected = (place.partition.get(), place.offset.get());
        assert_eq!(found.places.get(number), Some(&expected), "record {number}");
    }
    assert_eq!(found.places.len(), delivered.len(), "nothing else is there");

    let mut raw = Raw::connect(address).await;
    let mut from_tail = Vec::new();
    for at in describe(&client).await {
        assert!(at.bucket_segments > 0, "uploads went on between the kills");
        let (bytes, sources) = raw.bytes_of(&at).await;
        assert_eq!(sources, [FetchSource::Tail]);
        from_tail.push(bytes);
    }
    seal(&client, true).await;
    for (at, from_tail) in describe(&client).await.iter().zip(&from_tail) {
        let (bytes, sources) = raw.bytes_of(at).await;
        assert_eq!(sources, [FetchSource::Bucket]);
        assert!(
            bytes == *from_tail,
            "other bytes from the bucket than from the tail"
        );
    }

    agent.terminate().unwrap();
    assert_eq!(agent.ended().await.unwrap().code, Some(0));
    let agent = plan.on(second.path()).spawn(PROGRAM).await.unwrap();
    let again = replay(&connect(agent.grpc).await).await;
    assert_eq!(again.places, found.places, "from the bucket alone");
    assert_eq!(again.from_bucket, delivered.len() as u64);
    assert_intact(store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_acknowledged_record_survives_kill_9_exactly_once_in_a_directory() {
    let home = TempDir::new().unwrap();
    survives_kills(&directory_url(home.path()), 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_acknowledged_record_survives_kill_9_exactly_once_in_s3() {
    let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
    let store = s3_url(&server);
    survives_kills(&store, 5).await;
    assert_eq!(server.counts().rewrites, 0, "no object is ever replaced");
}
