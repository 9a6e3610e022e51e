//! What one request can make the agent hold.

use std::net::SocketAddr;

use bytes::{Buf, BufMut, Bytes};
use esker_agent::agent::Agent;
use esker_proto::v1::{
    AlterTopicRequest, AppendResponse, CreateTopicRequest, ErrorKind, ListOffsetsRequest,
    list_offsets_request::Position,
};
use esker_tests::agent::{Plan, directory_url};
use futures::future::join_all;
use tempfile::TempDir;
use tonic::{
    Code, Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
    transport::Channel,
};
use tonic_prost::ProstCodec;

use super::support::{PROGRAM, Raw, TOPIC, connect, create, describe, detail};

const MIB: u64 = 1 << 20;

/// What an error may echo of a request.
const MESSAGE_BYTES_MAX: usize = 1200;

async fn start(home: &TempDir) -> (Agent, Raw) {
    let agent = Plan::new(directory_url(home.path()), home.path());
    let agent = agent.start().await.unwrap();
    create(&connect(agent.grpc_address()).await, 3).await;
    let raw = Raw::connect(agent.grpc_address()).await;
    (agent, raw)
}

fn latest(partitions: Vec<u32>) -> ListOffsetsRequest {
    ListOffsetsRequest {
        topic: TOPIC.to_owned(),
        partitions,
        position: Some(Position::Latest(true)),
        ..ListOffsetsRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_is_named_many_times_is_answered_once() {
    let home = TempDir::new().unwrap();
    let (agent, mut raw) = start(&home).await;

    let numbers = [2, 0].into_iter().cycle().take(9000).collect();
    let listed = raw.log.list_offsets(latest(numbers)).await.unwrap();
    let offsets = listed.into_inner().offsets;
    let answered: Vec<_> = offsets.iter().map(|offset| offset.partition).collect();
    assert_eq!(answered, [2, 0]);

    let status = raw.log.list_offsets(latest((0..10_001).collect())).await;
    let status = status.map(drop).unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    assert_eq!(detail(&status).kind(), ErrorKind::InvalidArgument);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_larger_than_any_of_its_kind_is_refused_unread() {
    let home = TempDir::new().unwrap();
    let (agent, mut raw) = start(&home).await;

    let listed = raw.log.list_offsets(latest(vec![0; 3 << 20])).await;
    let status = listed.map(drop).unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(detail(&status).kind(), ErrorKind::InvalidArgument);
    let created = raw.admin.create_topic(CreateTopicRequest {
        name: "x".repeat(3 << 20),
        ..CreateTopicRequest::default()
    });
    let status = created.await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(detail(&status).kind(), ErrorKind::InvalidArgument);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_echoes_little_of_its_request() {
    let home = TempDir::new().unwrap();
    let (agent, mut raw) = start(&home).await;

    let altered = raw.admin.alter_topic(AlterTopicRequest {
        name: TOPIC.to_owned(),
        reset: vec!["\u{e9}".repeat(30_000)],
        ..AlterTopicRequest::default()
    });
    let status = altered.await.unwrap_err();

    assert_eq!(detail(&status).kind(), ErrorKind::InvalidArgument);
    assert!(status.message().starts_with("unknown topic setting"));
    assert!(status.message().len() <= MESSAGE_BYTES_MAX);
    assert!(detail(&status).message.len() <= MESSAGE_BYTES_MAX);
    agent.stop().await;
}

/// Sends requests as the bytes they are.
#[derive(Default)]
struct Encoded(<ProstCodec<AppendResponse, AppendResponse> as Codec>::Decoder);

impl Codec for Encoded {
    type Encode = Bytes;
    type Decode = AppendResponse;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

impl Encoder for Encoded {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(item);
        Ok(())
    }
}

impl Decoder for Encoded {
    type Item = AppendResponse;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<AppendResponse>, Status> {
        if from.has_remaining() {
            self.0.decode(from)
        } else {
            Ok(None)
        }
    }
}

/// Appends `request` as it is, on a connection of its own.
async fn append(address: SocketAddr, request: Bytes) -> Result<AppendResponse, Status> {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    let mut client = Grpc::new(channel.connect().await.unwrap());
    client.ready().await.unwrap();
    let path = PathAndQuery::from_static("/esker.v1.Log/Append");
    let appended = client.unary(Request::new(request), path, Encoded::default());
    appended.await.map(tonic::Response::into_inner)
}

/// A field of a message, as it is encoded.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut length = content.len();
    let mut field = vec![number << 3 | 2];
    while length >= 0x80 {
        field.push(length.to_le_bytes()[0] | 0x80);
        length >>= 7;
    }
    field.push(length.to_le_bytes()[0]);
    field.extend(content);
    field
}

/// An `AppendRequest` of so many records that say nothing.
fn records(count: usize) -> Bytes {
    let records = field(4, &[]).repeat(count);
    [field(1, TOPIC.as_bytes()), records].concat().into()
}

/// One record of so many headers that say nothing.
fn headers(count: usize) -> Bytes {
    let record = field(3, &[]).repeat(count);
    [field(1, TOPIC.as_bytes()), field(4, &record)]
        .concat()
        .into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_of_millions_is_refused_before_it_is_decoded() {
    let home = TempDir::new().unwrap();
    let plan = Plan::new(directory_url(home.path()), home.path());
    let agent = plan.spawn(PROGRAM).await.unwrap();
    let client = connect(agent.grpc).await;
    create(&client, 1).await;
    append(agent.grpc, headers(1000)).await.unwrap();
    let (before, _) = agent.memory().unwrap();

    for request in [records(2_000_000), headers(2_000_000)] {
        let all = (0..4).map(|_| append(agent.grpc, request.clone()));
        for refused in join_all(all).await {
            let status = refused.map(drop).unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
            assert!(
                status.message().contains("records and headers"),
                "{status:?}"
            );
        }
    }

    let (_, peak) = agent.memory().unwrap();
    assert!(peak - before <= 64 * MIB, "{} MiB", (peak - before) / MIB);
    assert_eq!(describe(&client).await[0].log_end_offset, 1);
    agent.kill().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_of_many_records_take_room_for_what_decoding_makes_of_them() {
    const RECORDS: usize = 90_000;
    let home = TempDir::new().unwrap();
    let plan = Plan::new(directory_url(home.path()), home.path());
    let plan = plan
        .with("segment-bytes", "4MiB")
        .with("batch-bytes-max", "2MiB");
    let agent = plan.spawn(PROGRAM).await.unwrap();
    let client = connect(agent.grpc).await;
    create(&client, 1).await;
    append(agent.grpc, records(1000)).await.unwrap();
    let (before, _) = agent.memory().unwrap();

    let request = records(RECORDS);
    let all = (0..16).map(|_| append(agent.grpc, request.clone()));
    for appended in join_all(all).await {
        assert_eq!(appended.unwrap().appended.len(), RECORDS);
    }

    let (_, peak) = agent.memory().unwrap();
    assert!(peak - before <= 64 * MIB, "{} MiB", (peak - before) / MIB);
    agent.kill().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_resets_more_than_there_is_is_refused() {
    let home = TempDir::new().unwrap();
    let (agent, mut raw) = start(&home).await;
    let altered = raw.admin.alter_topic(AlterTopicRequest {
        name: TOPIC.to_owned(),
        reset: vec!["retention_ms".to_owned(); 1000],
        ..AlterTopicRequest::default()
    });
    let status = altered.await.unwrap_err();
    assert_eq!(detail(&status).kind(), ErrorKind::InvalidArgument);
    assert!(status.message().contains("settings"), "{status:?}");
    agent.stop().await;
}
