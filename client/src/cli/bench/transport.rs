//! What the transport does by itself: the same bytes over the same gRPC streams, with nobody who
//! stores, checks or decodes them. Client and server share the cores, as in the bench.

use std::{pin::Pin, time::Duration};

use bytes::Bytes;
use esker_proto::v1::{
    AppendRequest, AppendResponse, FetchRequest, FetchResponse, InitProducerRequest,
    InitProducerResponse, ListOffsetsRequest, ListOffsetsResponse, ProduceAck, ProduceRequest,
    ProduceResponse,
    log_server::{Log, LogServer},
    produce_response,
};
use futures::{Stream, StreamExt, stream};
use tokio::{net::TcpListener, time::Instant};
use tonic::{Request, Response, Status, Streaming, transport::server::TcpIncoming};

use crate::{client::log_client, env, transport::Connection};

const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Responses that differ: of 1 MiB each, more than a processor caches.
const RESPONSES: u8 = 128;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes a second that a stream of batches reaches to a server that only counts them.
pub(super) async fn produce_rate(batch: Bytes, total_bytes: u64) -> anyhow::Result<f64> {
    let connection = serve(Vec::new(), 0).await?;
    let count = total_bytes / u64::try_from(batch.len())?.max(1) + 1;
    let requests = stream::iter(0..count).map(move |request_id| ProduceRequest {
        request_id,
        topic: "bench".to_owned(),
        batch: batch.clone(),
        ..ProduceRequest::default()
    });
    let started = Instant::now();
    let mut answers = log_client(connection).produce(requests).await?.into_inner();
    while answers.next().await.transpose()?.is_some() {}
    Ok(rate(total_bytes, started))
}

/// Bytes a second that a stream of responses reaches to a client that only counts them. The responses
/// differ, so that they come from memory, as batches do, and not from the processor's cache.
pub(super) async fn fetch_rate(response_bytes: usize, total_bytes: u64) -> anyhow::Result<f64> {
    let count = total_bytes / u64::try_from(response_bytes)?.max(1) + 1;
    let responses = (0..RESPONSES).map(|byte| vec![byte; response_bytes].into());
    let connection = serve(responses.collect(), count).await?;
    let started = Instant::now();
    let request = FetchRequest::default();
    let mut responses = log_client(connection).fetch(request).await?.into_inner();
    let mut bytes = 0;
    while let Some(response) = responses.next().await.transpose()? {
        bytes += u64::try_from(response.batches.len())?;
    }
    Ok(rate(bytes, started))
}

#[expect(clippy::cast_precision_loss, reason = "a rate")]
fn rate(bytes: u64, started: Instant) -> f64 {
    bytes as f64 / started.elapsed().as_secs_f64().max(1e-9)
}

/// Starts a server that answers each fetch with `count` responses, taken in turn, and connects to it.
async fn serve(responses: Vec<Bytes>, count: u64) -> anyhow::Result<Connection> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let service = LogServer::new(Bare { responses, count })
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let server = tonic::transport::Server::builder()
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .max_frame_size(1 << 20)
        .add_service(service)
        .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)));
    env::spawn(server);
    Ok(Connection::open(&address.to_string().parse()?, CONNECT_TIMEOUT).await?)
}

/// A log that keeps nothing.
struct Bare {
    responses: Vec<Bytes>,
    count: u64,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Log for Bare {
    type ProduceStream = Answers<ProduceResponse>;
    type FetchStream = Answers<FetchResponse>;

    async fn produce(
        &self,
        requests: Request<Streaming<ProduceRequest>>,
    ) -> Result<Response<Self::ProduceStream>, Status> {
        let answers = requests.into_inner().map(|request| {
            let request_id = request?.request_id;
            let result = Some(produce_response::Result::Ack(ProduceAck::default()));
            Ok(ProduceResponse { request_id, result })
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn fetch(
        &self,
        _request: Request<FetchRequest>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        let in_turn = self.responses.clone().into_iter().cycle();
        let numbered = stream::iter((0..self.count).zip(in_turn));
        let responses = numbered.map(|(next_offset, batches)| {
            Ok(FetchResponse {
                batches,
                next_offset,
                ..FetchResponse::default()
            })
        });
        Ok(Response::new(Box::pin(responses)))
    }

    async fn list_offsets(
        &self,
        _request: Request<ListOffsetsRequest>,
    ) -> Result<Response<ListOffsetsResponse>, Status> {
        Err(Status::unimplemented("a bare transport"))
    }

    async fn init_producer(
        &self,
        _request: Request<InitProducerRequest>,
    ) -> Result<Response<InitProducerResponse>, Status> {
        Err(Status::unimplemented("a bare transport"))
    }

    async fn append(
        &self,
        _request: Request<AppendRequest>,
    ) -> Result<Response<AppendResponse>, Status> {
        Err(Status::unimplemented("a bare transport"))
    }
}
