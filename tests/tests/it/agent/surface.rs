//! What an agent offers to callers without Esker's client: plain records, health, reflection, pages.

use std::net::SocketAddr;

use bytes::Bytes;
use esker_agent::agent::Agent;
use esker_proto::v1::{
    AppendRequest, ErrorKind, FetchFormat, FetchRequest, Header, ProduceRequest, Record,
    produce_response::Result as Answer,
};
use esker_tests::agent::{Plan, directory_url, page};
use futures::StreamExt;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
};
use tonic::{Code, Request, client::Grpc, codegen::http::uri::PathAndQuery, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use tonic_prost::ProstCodec;

use super::support::{Raw, TOPIC, batch, connect, create, detail, publish, seal};

async fn start(home: &TempDir) -> Agent {
    let agent = Plan::new(directory_url(home.path()), home.path());
    let agent = agent.start().await.unwrap();
    create(&connect(agent.grpc_address()).await, 2).await;
    agent
}

fn record(key: Option<&str>, value: &str) -> Record {
    Record {
        key: key.map(|key| key.to_owned().into()),
        value: Some(value.to_owned().into()),
        headers: vec![Header {
            key: "trace".to_owned(),
            value: Some("1".into()),
        }],
        timestamp_ms: 1_700_000_000_123,
        offset: 99,
    }
}

async fn fetch_records(raw: &mut Raw, partition: u32, offset: u64, end: u64) -> Vec<Record> {
    let request = FetchRequest {
        topic: TOPIC.to_owned(),
        partition,
        offset,
        end_offset: Some(end),
        format: FetchFormat::Records.into(),
        ..FetchRequest::default()
    };
    let responses = raw.fetch(request).await.unwrap();
    assert!(responses.iter().all(|response| response.batches.is_empty()));
    responses
        .into_iter()
        .flat_map(|response| response.records)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_records_come_back_as_they_were_sent_from_tail_and_bucket() {
    let home = TempDir::new().unwrap();
    let agent = start(&home).await;
    let mut raw = Raw::connect(agent.grpc_address()).await;
    let records = vec![record(None, "a"), record(Some("k"), "b"), record(None, "c")];
    let request = AppendRequest {
        topic: TOPIC.to_owned(),
        partition: Some(1),
        records: records.clone(),
        ..AppendRequest::default()
    };
    let appended = raw.log.append(request).await.unwrap().into_inner().appended;
    let places: Vec<_> = appended
        .iter()
        .map(|at| (at.partition, at.offset))
        .collect();
    assert_eq!(places, [(1, 0), (1, 1), (1, 2)]);

    let sent = records.into_iter().zip(0..);
    let sent: Vec<_> = sent
        .map(|(record, offset)| Record { offset, ..record })
        .collect();
    assert_eq!(fetch_records(&mut raw, 1, 0, 3).await, sent);
    assert_eq!(
        fetch_records(&mut raw, 1, 1, 3).await,
        sent[1..],
        "from within a batch"
    );
    seal(&connect(agent.grpc_address()).await, true).await;
    assert_eq!(fetch_records(&mut raw, 1, 0, 3).await, sent);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_of_plain_records_ends_where_it_was_asked_to() {
    let home = TempDir::new().unwrap();
    let agent = start(&home).await;
    let mut raw = Raw::connect(agent.grpc_address()).await;
    let request = AppendRequest {
        topic: TOPIC.to_owned(),
        partition: Some(0),
        records: (0..10).map(|n| record(None, &n.to_string())).collect(),
        ..AppendRequest::default()
    };
    raw.log.append(request).await.unwrap();
    let offsets: Vec<_> = fetch_records(&mut raw, 0, 2, 5)
        .await
        .iter()
        .map(|r| r.offset)
        .collect();
    assert_eq!(offsets, [2, 3, 4]);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_records_of_one_key_go_to_one_partition_and_a_time_of_0_is_now() {
    let home = TempDir::new().unwrap();
    let agent = start(&home).await;
    let mut raw = Raw::connect(agent.grpc_address()).await;
    let records = (0..40).map(|n| Record {
        timestamp_ms: 0,
        ..record(Some(&format!("key-{}", n % 4)), "v")
    });
    let records: Vec<_> = records.collect();
    let request = AppendRequest {
        topic: TOPIC.to_owned(),
        records,
        ..AppendRequest::default()
    };
    let appended = raw.log.append(request).await.unwrap().into_inner().appended;
    let client_side = |n: u32| {
        let count = std::num::NonZeroU32::new(2).unwrap();
        let key = format!("key-{}", n % 4);
        esker_proto::partitioner::partition_for_key(key.as_bytes(), count).get()
    };
    for (at, n) in appended.iter().zip(0..) {
        assert_eq!(at.partition, client_side(n), "as the client would have it");
    }
    let at = &appended[0];
    let read = fetch_records(&mut raw, at.partition, at.offset, at.offset + 1).await;
    assert!(read[0].timestamp_ms > 1_750_000_000_000, "{read:?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_and_reflection_answer() {
    let home = TempDir::new().unwrap();
    let agent = start(&home).await;
    let url = format!("http://{}", agent.grpc_address());
    let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
    let mut health = HealthClient::new(channel.clone());
    for service in ["", "esker.v1.Log", "esker.v1.Admin"] {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let answer = health.check(request).await.unwrap().into_inner();
        assert_eq!(answer.status, 1, "{service}");
    }
    let mut reflection = ServerReflectionClient::new(channel);
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answers = reflection.server_reflection_info(futures::stream::iter([request]));
    let answer = answers.await.unwrap().into_inner().message().await.unwrap();
    let Some(MessageResponse::ListServicesResponse(listed)) = answer.unwrap().message_response
    else {
        panic!("no list of services")
    };
    let names: Vec<_> = listed
        .service
        .into_iter()
        .map(|service| service.name)
        .collect();
    for name in ["esker.v1.Log", "esker.v1.Admin", "grpc.health.v1.Health"] {
        assert!(names.iter().any(|n| n == name), "{names:?}");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_tell_health_and_the_bill() {
    let home = TempDir::new().unwrap();
    let agent = start(&home).await;
    let http = agent.http_address();
    let client = connect(agent.grpc_address()).await;
    publish(&client, 0..1000).await;
    seal(&client, false).await;
    assert_eq!(page(http, "/healthz").await.unwrap().0, 200);
    assert_eq!(
        page(http, "/readyz").await.unwrap(),
        (200, "serving\n".to_owned())
    );
    assert_eq!(page(http, "/nothing").await.unwrap().0, 404);
    let before = agent.store().requests().total();
    let (code, metrics) = page(http, "/metrics").await.unwrap();
    assert_eq!(code, 200);
    let value = |name: &str| {
        let lines = metrics.lines().filter(|line| line.starts_with(name));
        let values = lines.map(|line| line.rsplit(' ').next().unwrap());
        let values = values.map(|value| value.parse::<u64>().unwrap());
        values.reduce(|sum, value| sum + value)
    };
    assert_eq!(value("esker_agent_produced_records_total "), Some(1000));
    assert_eq!(value("esker_agent_unuploaded_bytes "), Some(0));
    assert_eq!(value("esker_agent_tiered_offset{"), Some(1000));
    assert!(value("esker_agent_produced_bytes_total ") > Some(200_000));
    // The bill: each request of the store, as the store counts them itself.
    let billed = value("esker_tiering_store_requests_total{").unwrap();
    assert!(before > 5 && billed >= before, "{billed} {before}");
    assert!(billed <= agent.store().requests().total(), "{billed}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_a_stop_cuts_off_end_as_unavailable() {
    let home = TempDir::new().unwrap();
    let agent = start(&home).await;
    let mut raw = Raw::connect(agent.grpc_address()).await;
    let endless = FetchRequest {
        topic: TOPIC.to_owned(),
        ..FetchRequest::default()
    };
    let mut bounded = endless.clone();
    bounded.end_offset = Some(1);
    let mut fetches = Vec::new();
    for request in [endless, bounded] {
        let mut fetch = raw.log.fetch(request).await.unwrap().into_inner();
        fetch.message().await.unwrap().unwrap();
        fetches.push(fetch);
    }
    let batch = ProduceRequest {
        topic: TOPIC.to_owned(),
        partition: 1,
        batch: batch(&["a"]),
        ..ProduceRequest::default()
    };
    let requests = futures::stream::iter([batch]).chain(futures::stream::pending());
    let mut answers = raw.log.produce(requests).await.unwrap().into_inner();
    answers.message().await.unwrap().unwrap();

    let (fetched, produced, ()) = tokio::join!(
        futures::future::join_all(fetches.into_iter().map(async |mut fetch| loop {
            match fetch.message().await {
                Ok(response) => assert!(response.is_some(), "ended as if all was read"),
                Err(status) => break status,
            }
        })),
        answers.message(),
        agent.stop(),
    );

    for status in [&fetched[0], &fetched[1], &produced.unwrap_err()] {
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        let detail = detail(status);
        assert_eq!(detail.kind(), ErrorKind::ShuttingDown);
        assert!(detail.is_retryable);
    }
}

/// Connects a client to an agent, and passes on no more than the first bytes of what the client sends.
async fn pass_on(listener: TcpListener, agent: SocketAddr, bytes: u64, all_passed: &Notify) {
    let (client, _) = listener.accept().await.unwrap();
    let agent = TcpStream::connect(agent).await.unwrap();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_agent, mut to_agent) = agent.into_split();
    let there = async {
        _ = tokio::io::copy(&mut (&mut from_client).take(bytes), &mut to_agent).await;
        all_passed.notify_one();
        // A client that cannot write does not read either.
        _ = tokio::io::copy(&mut from_client, &mut tokio::io::sink()).await;
        _ = to_agent.shutdown().await;
    };
    let back = tokio::io::copy(&mut from_agent, &mut to_client);
    _ = tokio::join!(there, back);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_request_that_a_stop_cuts_off_ends_as_unavailable() {
    let home = TempDir::new().unwrap();
    let agent = start(&home).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, is_half_sent) = (listener.local_addr().unwrap(), Notify::new());
    // A frame of 1 MiB, and a part of the next.
    let passing = pass_on(listener, agent.grpc_address(), 3 << 19, &is_half_sent);
    let small = ProduceRequest {
        topic: TOPIC.to_owned(),
        batch: batch(&["a"]),
        ..ProduceRequest::default()
    };
    let large = ProduceRequest {
        batch: vec![0; 3 << 20].into(),
        ..small.clone()
    };
    let produced = async {
        let mut raw = Raw::connect(address).await;
        let requests = futures::stream::iter([small, large]);
        let mut answers = raw.log.produce(requests).await.unwrap().into_inner();
        let first = answers.message().await.unwrap().unwrap();
        assert!(matches!(first.result, Some(Answer::Ack(_))), "{first:?}");
        is_half_sent.notified().await;
        let ended = async {
            let status = answers.message().await.unwrap_err();
            drop((answers, raw));
            status
        };
        tokio::join!(ended, agent.stop()).0
    };
    let (status, ()) = tokio::join!(produced, passing);
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert_eq!(detail(&status).kind(), ErrorKind::ShuttingDown);
    assert!(detail(&status).has_no_side_effects);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_too_large_is_refused_by_name() {
    let home = TempDir::new().unwrap();
    let agent = start(&home).await;
    let mut raw = Raw::connect(agent.grpc_address()).await;
    let fits = ProduceRequest {
        topic: TOPIC.to_owned(),
        batch: batch(&["a"]),
        ..ProduceRequest::default()
    };
    let large = ProduceRequest {
        batch: vec![0; 65 << 20].into(),
        ..fits.clone()
    };
    let requests = futures::stream::iter([fits, large]);
    let mut answers = raw.log.produce(requests).await.unwrap().into_inner();
    let first = answers.message().await.unwrap().unwrap();
    assert!(matches!(first.result, Some(Answer::Ack(_))), "{first:?}");
    let status = answers.message().await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(detail(&status).kind(), ErrorKind::BatchTooLarge);

    let large = AppendRequest {
        topic: TOPIC.to_owned(),
        records: vec![record(None, &"x".repeat(65 << 20))],
        ..AppendRequest::default()
    };
    let status = raw.log.append(large).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(detail(&status).kind(), ErrorKind::BatchTooLarge);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_no_message_is_an_invalid_argument() {
    let home = TempDir::new().unwrap();
    let agent = start(&home).await;
    let url = format!("http://{}", agent.grpc_address());
    let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
    for path in [
        "Log/Append",
        "Log/Fetch",
        "Admin/CreateTopic",
        "Log/Produce",
    ] {
        let mut client = Grpc::new(channel.clone());
        client.ready().await.unwrap();
        let path = PathAndQuery::from_maybe_shared(format!("/esker.v1.{path}")).unwrap();
        // Bytes that are not UTF-8 where each request has a string.
        let nonsense = Record {
            key: Some(Bytes::from_static(&[0xff; 3])),
            value: Some(Bytes::from_static(&[0xff; 3])),
            ..Record::default()
        };
        let codec = ProstCodec::<Record, Record>::default();
        let request = Request::new(futures::stream::iter([nonsense]));
        let refused = client.streaming(request, path.clone(), codec).await;
        let status = match refused {
            Err(status) => status,
            Ok(answers) => answers.into_inner().message().await.unwrap_err(),
        };
        assert_eq!(status.code(), Code::InvalidArgument, "{path} {status:?}");
        assert_eq!(detail(&status).kind(), ErrorKind::InvalidArgument);
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_a_stream_are_acknowledged_in_order_whatever_is_refused_between_them() {
    let home = TempDir::new().unwrap();
    let agent = start(&home).await;
    let mut raw = Raw::connect(agent.grpc_address()).await;
    // Of each five, two go to either partition and one to none.
    let requests = (0..500).map(|request_id| ProduceRequest {
        request_id,
        topic: TOPIC.to_owned(),
        partition: [0, 1, 9, 0, 1][usize::try_from(request_id % 5).unwrap()],
        batch: batch(&["a"]),
        ..ProduceRequest::default()
    });
    let requests: Vec<_> = requests.collect();
    let partitions: Vec<_> = requests.iter().map(|request| request.partition).collect();
    let sent = raw.log.produce(futures::stream::iter(requests)).await;
    let mut answers = sent.unwrap().into_inner();

    let mut acknowledged = [const { Vec::new() }; 2];
    let mut refused = 0;
    while let Some(answer) = answers.message().await.unwrap() {
        let partition = partitions[usize::try_from(answer.request_id).unwrap()];
        match answer.result.unwrap() {
            Answer::Ack(ack) => {
                acknowledged[partition as usize].push((answer.request_id, ack.base_offset));
            }
            Answer::Error(error) => {
                assert_eq!((partition, error.kind()), (9, ErrorKind::UnknownPartition));
                refused += 1;
            }
        }
    }

    assert_eq!(refused, 100);
    for acknowledged in acknowledged {
        assert_eq!(acknowledged.len(), 200);
        assert!(acknowledged.is_sorted(), "{acknowledged:?}");
        let offsets: Vec<_> = acknowledged.iter().map(|(_, offset)| *offset).collect();
        assert!(offsets.is_sorted(), "{offsets:?}");
    }
    agent.stop().await;
}
