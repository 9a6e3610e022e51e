//! The main job, once: publish, seal, upload, drop the local copies, replay from the bucket, check.

use std::time::Duration;

use anyhow::Context;
use esker_client::{
    Client, ConsumerConfig, End, ErrorKind, FetchSource, Partitions, ProducerConfig, RecordRef,
    StartAt,
};
use esker_proto::v1::TopicSettings;
use futures::TryStreamExt;
use tokio::time::Instant;

use super::{
    report::{Bucket, Report, Step},
    workload::{self, Checker, Faults},
};
use crate::agent::Agent;

/// Partitions of the topic.
const PARTITIONS: u32 = 4;
/// Sealing and uploading a million records takes a second or two on a directory.
const SEAL_TIMEOUT: Duration = Duration::from_secs(300);
/// Earlier runs leave topics behind; so many names are tried.
const TOPICS_MAX: u32 = 10_000;

pub(super) async fn run(agent: &Agent, client: &Client, records: u64) -> anyhow::Result<Report> {
    let requests = agent.store().requests();
    let topic = create_topic(client).await?;
    let mut steps = Vec::new();

    let started = Instant::now();
    publish(client, &topic, records)
        .await
        .context("publishing failed")?;
    steps.push(Step::of_records(
        "publish, each batch flushed to disk",
        records,
        started.elapsed(),
    ));

    let started = Instant::now();
    client
        .admin()
        .seal_topic(&topic, true, SEAL_TIMEOUT)
        .await
        .context("sealing failed")?;
    steps.push(Step::new(
        "seal, upload the rest, drop local copies",
        started.elapsed(),
    ));

    let started = Instant::now();
    let replayed = replay(client, &topic, records)
        .await
        .context("the replay failed")?;
    steps.push(Step::of_records(
        "replay from the bucket, checked",
        records,
        started.elapsed(),
    ));

    let described = client.admin().describe_topic(&topic).await?;
    let local_bytes = described
        .partitions
        .iter()
        .map(|partition| partition.local_bytes)
        .sum();
    Ok(Report {
        topic,
        records,
        steps,
        faults: replayed.faults,
        from_bucket: replayed.from_bucket,
        replayed: replayed.records,
        local_bytes,
        bucket: bucket(agent).await?,
        requests: agent.store().requests().since(&requests),
    })
}

/// Creates the first of `dev-1`, `dev-2`, … that is free.
async fn create_topic(client: &Client) -> anyhow::Result<String> {
    for number in 1..=TOPICS_MAX {
        let topic = format!("dev-{number}");
        match client
            .admin()
            .create_topic(&topic, PARTITIONS, TopicSettings::default())
            .await
        {
            Ok(_) => return Ok(topic),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).context("the topic could not be created"),
        }
    }
    anyhow::bail!("{TOPICS_MAX} topics of earlier runs are there; delete some")
}

async fn publish(client: &Client, topic: &str, records: u64) -> anyhow::Result<()> {
    let producer = client.producer(topic, ProducerConfig::default()).await?;
    let (mut key, mut value) = (Vec::new(), Vec::new());
    for number in 0..records {
        workload::key(number, &mut key);
        workload::value(number, &mut value);
        // Failures show in the flush.
        drop(producer.send(RecordRef::keyed(&key, &value)).await?);
    }
    producer.flush().await?;
    producer.close().await?;
    Ok(())
}

struct Replayed {
    records: u64,
    from_bucket: u64,
    faults: Faults,
}

async fn replay(client: &Client, topic: &str, records: u64) -> anyhow::Result<Replayed> {
    let mut consumer = client.consumer(ConsumerConfig::default());
    consumer
        .assign(topic, Partitions::All, StartAt::Earliest, Some(End::Latest))
        .await?;
    let mut checker = Checker::new(records);
    let (mut count, mut from_bucket) = (0, 0);
    while let Some(fetched) = consumer.next().await? {
        count += fetched.record_count();
        if fetched.source() == FetchSource::Bucket {
            from_bucket += fetched.record_count();
        }
        for record in &fetched {
            let record = record?;
            checker.check(record.key, record.value);
        }
    }
    Ok(Replayed {
        records: count,
        from_bucket,
        faults: checker.finish(),
    })
}

async fn bucket(agent: &Agent) -> anyhow::Result<Bucket> {
    let mut bucket = Bucket::default();
    let mut listed = agent.store().list("", None);
    while let Some(object) = listed.try_next().await? {
        bucket.objects += 1;
        bucket.bytes += object.size_bytes;
    }
    Ok(bucket)
}
