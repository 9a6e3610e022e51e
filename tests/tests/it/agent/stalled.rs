//! Readers that stand still, and what reading costs.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use esker_client::{Client, TimestampMs};
use esker_proto::v1::{ErrorKind, FetchFormat, FetchRequest, FetchResponse, log_client::LogClient};
use esker_tests::{
    agent::{AgentProcess, Plan, directory_url, page, until},
    s3::{Fault, Rule, S3Server, Status},
};
use futures::future::join_all;
use tempfile::TempDir;
use tonic::{
    Code, Streaming,
    transport::{Channel, Endpoint},
};

use super::support::{
    PROGRAM, Raw, TOPIC, batch, connect, create, describe, detail, publish, replay_all, s3_url,
    seal,
};
use crate::support::BUCKET;

const MIB: u64 = 1 << 20;
/// What a stream takes beside the bytes on their way.
const STREAM_BYTES: u64 = 64 << 10;
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
            let at = index as u64 % 100;
            let mut request = request(if index % 2 == 0 {
                at * 397
            } else {
                tail + at * 197
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

const RECORDS: u64 = 80_000;
/// Of one replay.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(60);

/// An agent with half of its records in the bucket alone, and half in the tail.
async fn filled(home: &TempDir) -> (AgentProcess, Client) {
    let plan = Plan::new(directory_url(home.path()), home.path())
        .with("cache-memory-bytes", "8MiB")
        .with("read-budget-bytes", "16MiB");
    let agent = plan.spawn(PROGRAM).await.unwrap();
    let client = connect(agent.grpc).await;
    create(&client, 1).await;
    publish(&client, 0..RECORDS / 2).await;
    seal(&client, true).await;
    publish(&client, RECORDS / 2..RECORDS).await;
    replay_all(&client, RECORDS).await;
    (agent, client)
}

async fn timed(client: &Client) -> Duration {
    let begun = Instant::now();
    let replay = tokio::time::timeout(REPLAY_TIMEOUT, replay_all(client, RECORDS));
    replay.await.expect("a reader is held up");
    begun.elapsed()
}

/// Two agents take turns, so that whatever else this machine does meets both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_readers_leave_another_half_its_speed_and_stay_within_the_memory() {
    const STALLED: usize = 200;
    let (home, other_home) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (agent, client) = filled(&home).await;
    let (_other, other_client) = filled(&other_home).await;
    let (before, _) = agent.memory().unwrap();

    let streams = stall(agent.grpc, STALLED, RECORDS / 2).await;
    let (mut beside, mut alone) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..4 {
        beside += timed(&client).await;
        alone += timed(&other_client).await;
    }

    assert!(
        beside <= 2 * alone,
        "{beside:?} beside stalled readers, {alone:?} alone"
    );
    let http = agent.http;
    let held = metric(http, "esker_tiering_chunk_memory_bytes").await
        + metric(http, "esker_tiering_tail_memory_bytes").await;
    assert!(held <= 24 * MIB, "{held}");
    let short = metric(http, "esker_tiering_read_memory_short_total").await;
    assert_eq!(short, 0);
    // All that readers may hold, and for each stream what it is made of.
    let (_, peak) = agent.memory().unwrap();
    let most = 16 * MIB + STALLED as u64 * STREAM_BYTES;
    assert!(peak - before <= most, "{} MiB more", (peak - before) / MIB);

    // Those who continue get what they would have had.
    let mut continued = join_all(streams.into_iter().take(6).map(rest_of)).await;
    continued.sort_unstable();
    assert_eq!(continued, [RECORDS; 6]);
    until("the memory is free", async || {
        metric(http, "esker_tiering_tail_memory_bytes").await == 0
    })
    .await;
    agent.kill().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_stalled_readers_than_there_is_memory_for_end_with_an_error_worth_a_retry() {
    const STALLED: usize = 480;
    let home = TempDir::new().unwrap();
    // Whose `read-budget-bytes` has room for the pieces of 384 of them.
    let (agent, client) = filled(&home).await;

    let streams = stall(agent.grpc, STALLED, RECORDS / 2).await;
    timed(&client).await;

    let http = agent.http;
    let short = metric(http, "esker_tiering_read_memory_short_total").await;
    assert_eq!(short, 0, "everybody found room in time");
    let ended = join_all(streams.into_iter().map(end_of)).await;
    let ended: Vec<_> = ended.into_iter().flatten().collect();
    assert!(
        !ended.is_empty() && ended.len() < STALLED,
        "{}",
        ended.len()
    );
    for status in ended {
        assert!(is_lost_connection(&status), "{status:?}");
    }
    agent.kill().unwrap();
}

/// Whether clients take it for a connection that was lost, which is worth another one.
fn is_lost_connection(status: &tonic::Status) -> bool {
    let has_cause = std::error::Error::source(status).is_some();
    match status.code() {
        Code::Unavailable => true,
        Code::Unknown | Code::Internal => {
            has_cause || status.message().contains("h2 protocol error")
        }
        _ => false,
    }
}

/// Takes what its window may hold of a stream; returns the error that it ends with.
async fn end_of(mut stream: Streaming<FetchResponse>) -> Option<tonic::Status> {
    for _ in 0..3 {
        match stream.message().await {
            Ok(response) => drop(response.unwrap()),
            Err(status) => return Some(status),
        }
    }
    None
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
