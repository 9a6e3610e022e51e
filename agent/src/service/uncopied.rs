//! Bodies of fetches that go from the cache to the socket without a copy.
//!
//! `tonic` encodes each message into one buffer, and so copies every byte that is served. A fetch
//! therefore answers `tonic` with an empty stream, and hands its true body along in the response's
//! extensions; [`Uncopied`] puts it in place. Requests, errors at the start and headers stay
//! `tonic`'s.

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{BufMut, Bytes, BytesMut};
use esker_proto::v1::FetchResponse;
use futures::{Stream, StreamExt, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use parking_lot::Mutex;
use prost::{
    Message,
    encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len},
};
use tonic::{
    Code, Response, Status,
    body::Body,
    codegen::{BoxFuture, BoxStream, Service, http},
    server::NamedService,
};

/// Number of `FetchResponse.batches`.
const BATCHES_FIELD: u32 = 1;
/// A flag for compression and a length come before each message.
const PREFIX_BYTES: usize = 5;

/// A response to a fetch, its batches in as many slices as they were found.
#[derive(Debug)]
pub(super) struct FetchMessage {
    /// All fields but the batches.
    pub(super) envelope: FetchResponse,
    /// Whole batches, back to back.
    pub(super) batches: Vec<Bytes>,
}

impl FetchMessage {
    /// Encodes it as gRPC sends it: its own fields first, then the slices as they are. The order of
    /// fields is free in protobuf.
    fn encode(self) -> Vec<Bytes> {
        let batches_bytes: usize = self.batches.iter().map(Bytes::len).sum();
        let mut length = self.envelope.encoded_len();
        if batches_bytes > 0 {
            length += key_len(BATCHES_FIELD);
            length += encoded_len_varint(batches_bytes as u64) + batches_bytes;
        }
        let mut head = BytesMut::with_capacity(PREFIX_BYTES + length - batches_bytes);
        head.put_u8(0);
        head.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
        self.envelope.encode_raw(&mut head);
        if batches_bytes > 0 {
            encode_key(BATCHES_FIELD, WireType::LengthDelimited, &mut head);
            encode_varint(batches_bytes as u64, &mut head);
        }
        let mut parts = Vec::with_capacity(1 + self.batches.len());
        parts.push(head.freeze());
        parts.extend(self.batches);
        parts
    }
}

/// A body on its way through `tonic`.
#[derive(Clone)]
struct Parcel(Arc<Mutex<Option<Body>>>);

/// Makes a response of messages, and of how they end.
pub(super) fn response<S>(messages: S) -> Response<BoxStream<FetchResponse>>
where
    S: Stream<Item = Result<FetchMessage, Status>> + Send + 'static,
{
    let ended = stream::once(async { Err(Status::new(Code::Ok, "")) });
    // The first status is the last word: trailers end a body.
    let frames = messages.chain(ended).flat_map(|message| {
        stream::iter(match message {
            Ok(message) => message.encode().into_iter().map(Frame::data).collect(),
            Err(status) => vec![trailers(&status)],
        })
    });
    let body = Body::new(StreamBody::new(frames.map(Ok::<_, Infallible>)));
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

    fn message(batches: &[&'static [u8]]) -> FetchMessage {
        FetchMessage {
            envelope: FetchResponse {
                next_offset: 7,
                high_watermark: 300,
                ..FetchResponse::default()
            },
            batches: batches
                .iter()
                .map(|batch| Bytes::from_static(batch))
                .collect(),
        }
    }

    async fn sent(messages: Vec<Result<FetchMessage, Status>>) -> (Bytes, http::HeaderMap) {
        let mut response = response(stream::iter(messages));
        let parcel: Parcel = response.extensions_mut().remove().expect("a body");
        let body = parcel.0.lock().take().expect("sent once");
        let collected = body.collect().await.expect("no error");
        let trailers = collected.trailers().cloned().expect("a status");
        (collected.to_bytes(), trailers)
    }

    #[tokio::test]
    async fn slices_are_decoded_as_one_field() {
        for batches in [
            &[] as &[&[u8]],
            &[b"one"],
            &[b"one", b"and", b"another"],
            &[&[7; 200]],
        ] {
            let (bytes, trailers) = sent(vec![Ok(message(batches))]).await;
            assert_eq!(trailers["grpc-status"], "0");
            let (prefix, body) = bytes.split_first_chunk::<5>().expect("a prefix");
            let length = u32::try_from(body.len()).expect("small").to_be_bytes();
            assert_eq!(prefix[..], [&[0], &length[..]].concat());
            let decoded = FetchResponse::decode(body).expect("a message");
            let expected = FetchResponse {
                batches: batches.concat().into(),
                ..message(&[]).envelope
            };
            assert_eq!(decoded, expected);
        }
    }

    #[tokio::test]
    async fn slices_are_sent_as_they_are() {
        let slice = Bytes::from(vec![7; 1 << 20]);
        let message = FetchMessage {
            batches: vec![slice.clone()],
            ..message(&[])
        };
        let parts = message.encode();
        assert_eq!(parts[1].as_ptr(), slice.as_ptr());
    }

    #[tokio::test]
    async fn an_error_ends_the_body() {
        let lost = Status::unavailable("gone\nand \u{e9}");
        let messages = vec![
            Ok(message(&[b"one"])),
            Err(lost.clone()),
            Ok(message(&[b"never"])),
        ];
        let mut response = response(stream::iter(messages));
        let parcel: Parcel = response.extensions_mut().remove().expect("a body");
        let mut body = parcel.0.lock().take().expect("sent once");
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
}
