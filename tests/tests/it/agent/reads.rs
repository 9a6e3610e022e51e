//! A reader gets every record once and in order, whether it is in the bucket, in the tail, or on
//! its way from one to the other.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use esker_client::{
    Client, ConsumerConfig, FetchSource, Offset, PartitionId, Partitions, RecordRef, StartAt,
    TimestampMs, TopicSettings,
};
use esker_tests::agent::{Plan, directory_url};
use esker_tiering::env::TaskSet;
use tempfile::TempDir;
use tokio::sync::watch;

use super::support::{
    TOPIC, connect, create, create_with, describe, publish, seal, small_batches, value,
};

/// Seals and drops local copies without a pause until told to stop.
#[derive(Clone, Default)]
struct Sealing {
    stop: Arc<AtomicBool>,
    seals: Arc<watch::Sender<u64>>,
}

impl Sealing {
    async fn run(self, client: Client) {
        while !self.stop.load(Ordering::SeqCst) {
            seal(&client, true).await;
            self.seals.send_modify(|seals| *seals += 1);
        }
    }

    /// Waits until so many were done.
    async fn reached(&self, seals: u64) {
        let mut done = self.seals.subscribe();
        let reached = done.wait_for(|done| *done >= seals);
        let reached = tokio::time::timeout(Duration::from_secs(60), reached).await;
        drop(reached.expect("nothing is sealed").unwrap());
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_runs_from_the_bucket_into_the_tail_while_local_data_goes() {
    const RECORDS: u64 = 12_000;
    let home = TempDir::new().unwrap();
    let agent = Plan::new(directory_url(home.path()), home.path());
    let agent = agent.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    let drop_at_once = TopicSettings {
        local_retention_bytes: Some(0),
        ..TopicSettings::default()
    };
    create_with(&client, 1, drop_at_once).await;
    publish(&client, 0..2000).await;
    seal(&client, true).await;
    let tasks = TaskSet::new();
    let sealing = Sealing::default();
    let sealed = tasks.spawn("seal", sealing.clone().run(client.clone()));
    let (publishing, seen) = (client.clone(), sealing.clone());
    let publishing = tasks.spawn("publish", async move {
        for (runs, start) in (2000..RECORDS).step_by(500).enumerate() {
            publish(&publishing, start..start + 500).await;
            // However slow seals are here, some come between.
            seen.reached(runs as u64 / 4).await;
        }
    });

    let mut consumer = client.consumer(ConsumerConfig::default());
    consumer
        .assign(TOPIC, Partitions::All, StartAt::Earliest, None)
        .await
        .unwrap();
    let (mut next, mut from_bucket, mut from_tail) = (0, 0, 0);
    while next < RECORDS {
        let fetched = consumer.next().await.unwrap().unwrap();
        match fetched.source() {
            FetchSource::Bucket => from_bucket += 1,
            _ => from_tail += 1,
        }
        for record in &fetched {
            let record = record.unwrap();
            assert_eq!(record.offset.get(), next, "a gap, or a record twice");
            assert_eq!(record.value, Some(value(next).as_bytes()));
            next += 1;
        }
    }

    publishing.await.unwrap();
    sealing.stop();
    sealed.await.unwrap();
    assert!(*sealing.seals.borrow() > 3);
    assert!(
        from_bucket > 0 && from_tail > 0,
        "{from_bucket} {from_tail}"
    );
    agent.stop().await;
}

const HOUR: i64 = 3_600_000;

/// The time of record `number`: ten seconds apart, all in the past.
fn time_of(number: u64) -> TimestampMs {
    TimestampMs::new(1_700_000_000_000 + 10_000 * i64::try_from(number).unwrap())
}

async fn publish_timed(client: &Client, numbers: std::ops::Range<u64>) {
    let producer = client.producer(TOPIC, small_batches()).await.unwrap();
    for number in numbers {
        let value = value(number);
        let record = RecordRef {
            timestamp: Some(time_of(number)),
            ..RecordRef::new(value.as_bytes())
        };
        drop(producer.send(record).await.unwrap());
    }
    producer.close().await.unwrap();
}

async fn offset_at(client: &Client, at: i64) -> Option<u64> {
    let found = client
        .admin()
        .offsets_at(TOPIC, TimestampMs::new(at))
        .await
        .unwrap();
    found.first().map(|(_, offset)| offset.get())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_is_found_in_the_bucket_the_tail_and_between() {
    let home = TempDir::new().unwrap();
    let agent = Plan::new(directory_url(home.path()), home.path());
    let agent = agent.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    publish_timed(&client, 0..3000).await;
    seal(&client, true).await;
    publish_timed(&client, 3000..4000).await;
    let at = describe(&client).await.remove(0);
    assert_eq!((at.local_log_start_offset, at.tiered_offset), (3000, 3000));

    for number in [0, 1, 777, 2998, 2999, 3000, 3001, 3500, 3999] {
        let time = time_of(number).get();
        assert_eq!(offset_at(&client, time).await, Some(number), "exactly");
        assert_eq!(
            offset_at(&client, time - 9_999).await,
            Some(number),
            "just after the last"
        );
    }
    assert_eq!(offset_at(&client, time_of(3999).get() + 1).await, None);
    assert_eq!(offset_at(&client, time_of(0).get() - HOUR).await, Some(0));
    let earliest = client.admin().earliest_offsets(TOPIC).await.unwrap();
    assert_eq!(earliest, [(PartitionId::new(0), Offset::ZERO)]);
    let latest = client.admin().latest_offsets(TOPIC).await.unwrap();
    assert_eq!(latest, [(PartitionId::new(0), Offset::new(4000))]);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_is_found_while_what_lies_there_goes_from_the_tail_to_the_bucket() {
    let home = TempDir::new().unwrap();
    let agent = Plan::new(directory_url(home.path()), home.path());
    let agent = agent.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    let tasks = TaskSet::new();
    let sealing = Sealing::default();
    let sealed = tasks.spawn("seal", sealing.clone().run(client.clone()));
    for start in (0..4000).step_by(100) {
        publish_timed(&client, start..start + 100).await;
        for number in [start, start + 50, start + 99] {
            assert_eq!(
                offset_at(&client, time_of(number).get()).await,
                Some(number)
            );
        }
    }
    sealing.stop();
    sealed.await.unwrap();
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_was_trimmed_is_not_found_by_its_time() {
    let home = TempDir::new().unwrap();
    let agent = Plan::new(directory_url(home.path()), home.path());
    let agent = agent.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    // A clock that went back: the latest time comes first.
    publish_timed(&client, 5000..5001).await;
    publish_timed(&client, 0..10).await;
    seal(&client, false).await;
    assert_eq!(offset_at(&client, time_of(4000).get()).await, Some(0));
    let partition = PartitionId::new(0);
    client
        .admin()
        .trim_partition(TOPIC, partition, Offset::new(1))
        .await
        .unwrap();
    assert_eq!(offset_at(&client, time_of(4000).get()).await, None);
    assert_eq!(offset_at(&client, time_of(0).get()).await, Some(1));
    agent.stop().await;
}
