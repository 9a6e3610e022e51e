//! Append is served with its request as bytes: what decoding makes of a request may be a hundred times
//! as large, and takes room of its own first (see `append`).

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use esker_proto::v1::AppendResponse;
use prost::Message;
use tonic::{
    Request, Response, Status,
    body::Body,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::{BoxFuture, Service, http},
    server::{Grpc, NamedService, UnaryService},
};

use super::{MESSAGE_BYTES_MAX, append, intake::Rooms};
use crate::shared::Shared;

const APPEND_PATH: &str = "/esker.v1.Log/Append";

/// Serves Append by itself, and everything else as the service inside does.
#[derive(Clone, Debug)]
pub(super) struct Undecoded<S> {
    pub(super) service: S,
    pub(super) shared: Arc<Shared>,
}

impl<S> Service<http::Request<Body>> for Undecoded<S>
where
    S: Service<
            http::Request<Body>,
            Response = http::Response<Body>,
            Error = Infallible,
            Future = BoxFuture<http::Response<Body>, Infallible>,
        >,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != APPEND_PATH {
            return self.service.call(request);
        }
        let most = usize::try_from(self.shared.message_bytes_max()).unwrap_or(usize::MAX);
        let method = Append(Arc::clone(&self.shared));
        Box::pin(async move {
            let mut grpc = Grpc::new(Undecoding)
                .max_decoding_message_size(most)
                .max_encoding_message_size(MESSAGE_BYTES_MAX);
            Ok(grpc.unary(method, request).await)
        })
    }
}

impl<S: NamedService> NamedService for Undecoded<S> {
    const NAME: &'static str = S::NAME;
}

struct Append(Arc<Shared>);

impl UnaryService<Bytes> for Append {
    type Response = AppendResponse;
    type Future = BoxFuture<Response<AppendResponse>, Status>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            let room = Rooms::of(&request).take();
            let room = room.ok_or_else(|| Status::internal("a request came without its room"))?;
            append::serve(&shared, request.into_inner(), room)
                .await
                .map(Response::new)
        })
    }
}

/// Leaves requests as they are, and encodes answers.
struct Undecoding;

impl Codec for Undecoding {
    type Encode = AppendResponse;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Undecoding {
    type Item = AppendResponse;
    type Error = Status;

    fn encode(&mut self, item: AppendResponse, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(into)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for Undecoding {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
