//! Bodies of fetches that go from the cache to the socket without a copy.
//!
//! `tonic` encodes each message into one buffer, and so copies every byte that is served. A fetch
//! therefore answers `tonic` with an empty stream, and hands its true body along in the response's
//! extensions; [`Uncopied`] puts it in place. Requests, errors at the start and headers stay
//! `tonic`'s.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use esker_proto::v1::FetchResponse;
use futures::{Stream, StreamExt, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use parking_lot::Mutex;
use tonic::{
    Code, Response, Status,
    body::Body,
    codegen::{BoxFuture, BoxStream, Service, http},
    server::NamedService,
};

/// Why a body has no more pieces.
#[derive(Debug)]
pub(super) enum End {
    /// Between two messages: the client gets the status.
    Status(Status),
    /// In the middle of one: all that is left is to break the stream.
    Broken(Status),
}

/// A body on its way through `tonic`.
#[derive(Clone)]
struct Parcel(Arc<Mutex<Option<Body>>>);

/// Makes a response of pieces of messages, and of how they end.
pub(super) fn response<S>(pieces: S) -> Response<BoxStream<FetchResponse>>
where
    S: Stream<Item = Result<Bytes, End>> + Send + 'static,
{
    let ended = stream::once(async { Err(End::Status(Status::new(Code::Ok, ""))) });
    // The first status is the last word: trailers end a body, and so does an error.
    let frames = pieces.chain(ended).map(|piece| match piece {
        Ok(bytes) => Ok(Frame::data(bytes)),
        Err(End::Status(status)) => Ok(trailers(&status)),
        Err(End::Broken(status)) => Err(status),
    });
    let body = Body::new(StreamBody::new(frames));
    let parcel = Parcel(Arc::new(Mutex::new(Some(body))));
    let mut response: Response<BoxStream<FetchResponse>> = Response::new(Box::pin(stream::empty()));
    response.extensions_mut().insert(parcel);
    response
}

fn trailers(status: &Status) -> Frame<Bytes> {
    let mut headers = http::HeaderMap::new();
    if status.add_header(&mut headers).is_err() {
        // Its text cannot be sent. The code can.
        headers.clear();
        let bare = Status::new(status.code(), "");
        let _ = bare.add_header(&mut headers);
    }
    Frame::trailers(headers)
}

/// A gRPC service whose responses may have such a body.
#[derive(Clone, Debug)]
pub(super) struct Uncopied<S>(pub(super) S);

impl<S, B> Service<http::Request<B>> for Uncopied<S>
where
    S: Service<http::Request<B>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let answer = self.0.call(request);
        Box::pin(async move {
            let mut response = answer.await?;
            let parcel = response.extensions_mut().remove::<Parcel>();
            if let Some(body) = parcel.and_then(|Parcel(body)| body.lock().take()) {
                *response.body_mut() = body;
            }
            Ok(response)
        })
    }
}

impl<S: NamedService> NamedService for Uncopied<S> {
    const NAME: &'static str = S::NAME;
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    fn body_of<S>(pieces: S) -> Body
    where
        S: Stream<Item = Result<Bytes, End>> + Send + 'static,
    {
        let mut response = response(pieces);
        let parcel: Parcel = response.extensions_mut().remove().expect("a body");
        let body = parcel.0.lock().take();
        body.expect("sent once")
    }

    #[tokio::test]
    async fn pieces_are_sent_as_they_are_and_a_status_follows() {
        let piece = Bytes::from(vec![7; 1 << 20]);
        let mut body = body_of(stream::iter([Ok(piece.clone())]));

        let sent = body.frame().await.expect("a frame").expect("no error");
        assert_eq!(sent.into_data().expect("data").as_ptr(), piece.as_ptr());
        let last = body.frame().await.expect("a frame").expect("no error");
        assert_eq!(last.into_trailers().expect("trailers")["grpc-status"], "0");
    }

    #[tokio::test]
    async fn an_error_ends_the_body() {
        let lost = Status::unavailable("gone\nand \u{e9}");
        let pieces = vec![
            Ok(Bytes::from_static(b"one")),
            Err(End::Status(lost.clone())),
            Ok(Bytes::from_static(b"never")),
        ];
        let mut body = body_of(stream::iter(pieces));
        let mut trailers = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.expect("no error");
            if let Ok(headers) = frame.into_trailers() {
                trailers = Some(headers);
                break;
            }
        }
        let status = Status::from_header_map(&trailers.expect("a status")).expect("a status");
        assert_eq!(
            (status.code(), status.message()),
            (lost.code(), lost.message())
        );
    }

    #[tokio::test]
    async fn a_message_that_cannot_be_ended_breaks_the_body() {
        let broken = End::Broken(Status::unavailable("gone"));
        let mut body = body_of(stream::iter([Err(broken)]));

        assert!(body.frame().await.expect("an end").is_err());
    }
}
