//! Producers that begin messages and do not end them.

use std::{
    convert::Infallible,
    future::poll_fn,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use esker_tests::agent::{Plan, directory_url};
use futures::future::join_all;
use hyper::body::{Body, Frame};
use tempfile::TempDir;
use tonic::{
    codegen::{Service, http},
    transport::Channel,
};

use super::support::{PROGRAM, Raw, TOPIC, batch, connect, create};

const MESSAGE_BYTES: u32 = 1 << 20;
/// Streams of one connection.
const STREAMS: usize = 50;
const CONNECTIONS: usize = 4;
const MIB: u64 = 1 << 20;

/// The beginning of a message, and nothing more.
struct Half(Option<Bytes>);

impl Body for Half {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.0.take() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None => Poll::Pending,
        }
    }
}

/// Begins a message on a stream of its own; the stream lasts as long as what is returned.
async fn begin(mut channel: Channel) -> impl Sized {
    let announced = MESSAGE_BYTES.to_be_bytes();
    let half = [&[0], &announced[..], &[7; 4000]].concat();
    let request = http::Request::post("/esker.v1.Log/Produce")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(tonic::body::Body::new(Half(Some(half.into()))))
        .unwrap();
    poll_fn(|context| channel.poll_ready(context))
        .await
        .unwrap();
    channel.call(request).await.unwrap()
}

async fn begin_many(address: SocketAddr) -> Vec<impl Sized> {
    let mut begun = Vec::new();
    for _ in 0..CONNECTIONS {
        let channel = Channel::from_shared(format!("http://{address}")).unwrap();
        let channel = channel.connect().await.unwrap();
        begun.extend(join_all((0..STREAMS).map(|_| begin(channel.clone()))).await);
    }
    begun
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_do_not_arrive_take_no_room_that_another_producer_waits_for() {
    let home = TempDir::new().unwrap();
    let plan = Plan::new(directory_url(home.path()), home.path());
    let agent = plan.spawn(PROGRAM).await.unwrap();
    create(&connect(agent.grpc).await, 1).await;
    let mut raw = Raw::connect(agent.grpc).await;
    raw.produce(TOPIC, 0, batch(&["before"])).await.unwrap();
    let (before, _) = agent.memory().unwrap();

    // Three times as much as there is room for.
    let begun = begin_many(agent.grpc).await;
    let produced = raw.produce(TOPIC, 0, batch(&["beside"]));
    let produced = tokio::time::timeout(Duration::from_secs(20), produced).await;
    produced.expect("there is room in time").unwrap();

    let (_, peak) = agent.memory().unwrap();
    assert!(peak - before <= 32 * MIB, "{} MiB", (peak - before) / MIB);
    drop(begun);
    agent.kill().unwrap();
}
