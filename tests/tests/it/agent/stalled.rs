//! Readers that stand still, and what reading costs.

use std::net::SocketAddr;

use esker_client::{Client, TimestampMs};
use esker_proto::v1::{ErrorKind, FetchFormat, FetchRequest, FetchResponse, log_client::LogClient};
use esker_tests::{
    agent::{Plan, directory_url, page, until},
    s3::{Fault, Rule, S3Server, Status},
};
use futures::future::join_all;
use tempfile::TempDir;
use tonic::{
    Streaming,
    transport::{Channel, Endpoint},
};

use super::support::{
    Raw, TOPIC, batch, connect, create, describe, detail, publish, replay_all, s3_url, seal,
};
use crate::support::BUCKET;

const MIB: u64 = 1 << 20;
/// Streams of one connection.
const STREAMS: usize = 20;

async fn metric(http: SocketAddr, name: &str) -> u64 {
    let (_, text) = page(http, "/metrics").await.unwrap();
    let lines = text.lines().filter(|line| line.starts_with(name));
    let values = lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
    values.sum()
}

fn request(offset: u64) -> FetchRequest {
    FetchRequest {
        topic: TOPIC.to_owned(),
        offset,
        max_bytes: 1 << 20,
        ..FetchRequest::default()
    }
}

/// A stream that takes its first response and no more.
async fn stalled(channel: Channel, request: FetchRequest) -> Streaming<FetchResponse> {
    let mut log = LogClient::new(channel).max_decoding_message_size(64 << 20);
    let mut stream = log.fetch(request).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().is_some());
    stream
}

/// `count` of them from the bucket, from the tail and of plain records, each over a window of a MiB.
async fn stall(address: SocketAddr, count: usize, tail: u64) -> Vec<Streaming<FetchResponse>> {
    let mut streams = Vec::new();
    for first in (0..count).step_by(STREAMS) {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let endpoint = endpoint
            .initial_stream_window_size(1 << 16)
            .initial_connection_window_size(1 << 26);
        let channel = endpoint.connect().await.unwrap();
        let opened = (first..first + STREAMS).map(|index| {
            let mut request = request(if index % 2 == 0 {
                index as u64 * 397
            } else {
                tail + index as u64 * 197
            });
            if index % 3 == 0 {
                request.format = FetchFormat::Records.into();
            }
            stalled(channel.clone(), request)
        });
        streams.extend(join_all(opened).await);
    }
    streams
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_readers_hold_up_nobody_and_stay_within_the_memory() {
    const RECORDS: u64 = 160_000;
    let home = TempDir::new().unwrap();
    let plan = Plan::new(directory_url(home.path()), home.path())
        .with("cache-memory-bytes", "8MiB")
        .with("read-budget-bytes", "16MiB");
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    publish(&client, 0..RECORDS / 2).await;
    seal(&client, true).await;
    publish(&client, RECORDS / 2..RECORDS).await;

    let streams = stall(agent.grpc_address(), 200, RECORDS / 2).await;
    replay_all(&client, RECORDS).await;

    let http = agent.http_address();
    let held = metric(http, "esker_tiering_chunk_memory_bytes").await
        + metric(http, "esker_tiering_tail_memory_bytes").await;
    assert!(held <= 24 * MIB, "{held}");
    assert_eq!(
        metric(http, "esker_tiering_read_memory_short_total").await,
        0
    );

    // Those who continue get what they would have had.
    let mut continued = join_all(streams.into_iter().take(6).map(rest_of)).await;
    continued.sort_unstable();
    assert_eq!(continued, [RECORDS; 6]);
    until("the memory is free", async || {
        metric(http, "esker_tiering_tail_memory_bytes").await == 0
    })
    .await;
    agent.stop().await;
}

/// Takes the rest of a stream up to the log's end; returns where that is.
async fn rest_of(mut stream: Streaming<FetchResponse>) -> u64 {
    loop {
        let response = stream.message().await.unwrap().unwrap();
        for batch in esker_proto::batch::Batches::new(response.batches.clone()) {
            batch.unwrap().check_records().unwrap();
        }
        if response.next_offset >= response.high_watermark {
            return response.next_offset;
        }
    }
}

/// The times of all records of one topic's partitions, found at once.
async fn find(client: &Client) -> usize {
    let found = client.admin().offsets_at(TOPIC, TimestampMs::new(0)).await;
    found.unwrap().len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_by_time_reads_one_index_entry_of_each_partition() {
    let home = TempDir::new().unwrap();
    let agent = Plan::new(directory_url(home.path()), home.path());
    let agent = agent.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 4).await;
    publish(&client, 0..160_000).await;
    seal(&client, true).await;
    assert!(
        describe(&client)
            .await
            .iter()
            .all(|one| one.bucket_bytes > 2 * MIB)
    );

    assert_eq!(find(&client).await, 4);

    let fetched = metric(agent.http_address(), "esker_tiering_fetched_bytes_total").await;
    assert!(fetched <= 4 * (MIB + MIB / 4), "{fetched}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_is_gone_is_worth_a_retry_to_readers() {
    let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
    let home = TempDir::new().unwrap();
    let agent = Plan::new(s3_url(&server), home.path())
        .start()
        .await
        .unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    let mut raw = Raw::connect(agent.grpc_address()).await;
    raw.produce(TOPIC, 0, batch(&["one"])).await.unwrap();
    seal(&client, true).await;
    server.add_fault(Rule::new(Fault::Answer(Status::NoSuchBucket)).key_contains("/segments/"));

    let status = raw.fetch(request(0)).await.unwrap_err();

    let detail = detail(&status);
    assert_eq!(detail.kind(), ErrorKind::BucketUnavailable);
    assert!(detail.is_retryable && detail.message.contains("no such bucket"));
    server.clear_faults();
    agent.stop().await;
}
