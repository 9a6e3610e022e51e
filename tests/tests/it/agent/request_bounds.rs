//! What one request can make the agent hold.

use esker_agent::agent::Agent;
use esker_proto::v1::{
    AlterTopicRequest, CreateTopicRequest, ErrorKind, ListOffsetsRequest,
    list_offsets_request::Position,
};
use esker_tests::agent::{Plan, directory_url};
use tempfile::TempDir;
use tonic::Code;

use super::support::{Raw, TOPIC, connect, create, detail};

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
