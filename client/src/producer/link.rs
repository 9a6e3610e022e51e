//! One produce stream to one agent: what goes in is sent, what comes out is an event.

use std::time::Duration;

use esker_proto::v1;
use futures::stream::{self, BoxStream, StreamExt};
use hyper::{Request, Response, body::Incoming};
use tokio::sync::mpsc;
use tonic::{
    Status, Streaming,
    body::Body,
    codec::Codec,
    codegen::{BoxFuture, Service, http::Uri},
};
use tonic_prost::ProstCodec;

use super::wire::{Outgoing, ProduceBody};
use crate::{
    error::{Error, ErrorKind, Result},
    transport::{Address, Connection},
};

const PRODUCE_PATH: &str = "/esker.v1.Log/Produce";

/// Names one stream; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LinkId(pub(crate) u64);

/// What happens to a stream, in this order: at most one `Opened`, any number of `Answered`, one
/// `Broken`.
#[derive(Debug)]
pub(crate) enum Event {
    /// The agent is there; requests sent before would not have left.
    Opened,
    Answered(v1::ProduceResponse),
    Broken(Error),
}

/// Events of one or more streams, each with the name of its stream.
pub(crate) type Events = BoxStream<'static, (LinkId, Event)>;

/// Opens a stream to an agent. Requests put into the sender before [`Event::Opened`] wait.
pub(crate) fn open(
    id: LinkId,
    address: Address,
    connect_timeout: Duration,
    requests_max: usize,
) -> (mpsc::Sender<Outgoing>, Events) {
    let (sender, requests) = mpsc::channel(requests_max);
    let start = Phase::Connecting {
        address,
        connect_timeout,
        requests,
    };
    let events = stream::unfold(start, |phase| async move { phase.next().await });
    (sender, events.map(move |event| (id, event)).boxed())
}

enum Phase {
    Connecting {
        address: Address,
        connect_timeout: Duration,
        requests: mpsc::Receiver<Outgoing>,
    },
    Calling {
        address: Address,
        call: BoxFuture<Response<Incoming>, hyper::Error>,
    },
    Answering {
        address: Address,
        answers: Box<Streaming<v1::ProduceResponse>>,
    },
    Broken,
}

impl Phase {
    async fn next(self) -> Option<(Event, Self)> {
        match self {
            Self::Connecting {
                address,
                connect_timeout,
                requests,
            } => Some(connect(address, connect_timeout, requests).await),
            Self::Calling { address, call } => match call.await {
                Ok(response) => match read_head(response) {
                    Ok(answers) => Some(answer(address, Box::new(answers)).await),
                    Err(error) => Some((Event::Broken(error), Self::Broken)),
                },
                Err(error) => Some((Event::Broken(Error::broken(address, error)), Self::Broken)),
            },
            Self::Answering { address, answers } => Some(answer(address, answers).await),
            Self::Broken => None,
        }
    }
}

async fn connect(
    address: Address,
    connect_timeout: Duration,
    requests: mpsc::Receiver<Outgoing>,
) -> (Event, Phase) {
    let mut connection = match Connection::open(&address, connect_timeout).await {
        Ok(connection) => connection,
        Err(error) => return (Event::Broken(error), Phase::Broken),
    };
    let request = produce_request(&connection.origin(), requests);
    // The agent may well wait for the first batch before it answers anything: do not wait for it.
    let call = connection.call(request);
    (Event::Opened, Phase::Calling { address, call })
}

async fn answer(
    address: Address,
    mut answers: Box<Streaming<v1::ProduceResponse>>,
) -> (Event, Phase) {
    match answers.message().await {
        Ok(Some(answer)) => (
            Event::Answered(answer),
            Phase::Answering { address, answers },
        ),
        Ok(None) => {
            let message = format!("agent ended the stream. address=`{address}`");
            let error = Error::new(ErrorKind::Unavailable, message).with_side_effects(false);
            (Event::Broken(error), Phase::Broken)
        }
        Err(status) => {
            let error = Error::from_status(status).with_side_effects(false);
            (Event::Broken(error), Phase::Broken)
        }
    }
}

fn produce_request(origin: &Uri, requests: mpsc::Receiver<Outgoing>) -> Request<Body> {
    let mut parts = origin.clone().into_parts();
    parts.path_and_query = Some(tonic::codegen::http::uri::PathAndQuery::from_static(
        PRODUCE_PATH,
    ));
    let uri = Uri::from_parts(parts).expect("an origin with a path is a URI");
    let mut request = Request::new(Body::new(ProduceBody::new(requests)));
    *request.method_mut() = hyper::Method::POST;
    *request.version_mut() = hyper::Version::HTTP_2;
    *request.uri_mut() = uri;
    let headers = request.headers_mut();
    headers.insert("te", hyper::header::HeaderValue::from_static("trailers"));
    headers.insert(
        hyper::header::CONTENT_TYPE,
        hyper::header::HeaderValue::from_static("application/grpc"),
    );
    request
}

/// Takes the answers out of a response, unless its head is an error already.
fn read_head(response: Response<Incoming>) -> Result<Streaming<v1::ProduceResponse>> {
    if let Some(status) = Status::from_header_map(response.headers()) {
        return Err(Error::from_status(status).with_side_effects(false));
    }
    let (head, body) = response.into_parts();
    let decoder = ProstCodec::<v1::ProduceRequest, v1::ProduceResponse>::default().decoder();
    Ok(Streaming::new_response(
        decoder,
        body,
        head.status,
        None,
        None,
    ))
}
