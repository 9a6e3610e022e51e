//! Request bodies read whole, and answers that break off.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use s3s::StdError;

/// More than any test sends; a request that claims more is cut off.
const REQUEST_BYTES_MAX: usize = 1 << 30;

/// Reads a request's body, at most `limit` bytes of it.
pub(super) async fn read_request(body: Incoming, limit: Option<usize>) -> io::Result<Bytes> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let most = limit.unwrap_or(REQUEST_BYTES_MAX);
    let mut whole = BytesMut::with_capacity(announced.min(most));
    let mut frames = std::pin::pin!(Frames(body));
    while let Some(frame) = frames.next().await {
        whole.extend_from_slice(&frame.map_err(io::Error::other)?);
        match limit {
            Some(limit) if whole.len() >= limit => break,
            None if whole.len() > REQUEST_BYTES_MAX => return Err(too_large()),
            _ => {}
        }
    }
    Ok(whole.freeze())
}

/// Reads a stream whole; one that is a single chunk already is not copied.
pub(super) async fn read_stream<S>(mut chunks: S) -> Result<Bytes, StdError>
where
    S: Stream<Item = Result<Bytes, StdError>> + Unpin,
{
    let Some(first) = chunks.next().await.transpose()? else {
        return Ok(Bytes::new());
    };
    let Some(second) = chunks.next().await.transpose()? else {
        return Ok(first);
    };
    let mut whole = BytesMut::from(&first[..]);
    whole.extend_from_slice(&second);
    while let Some(chunk) = chunks.next().await.transpose()? {
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.freeze())
}

fn too_large() -> io::Error {
    io::Error::other(format!(
        "request body is too large. bytes_max=`{REQUEST_BYTES_MAX}`"
    ))
}

struct Frames(Incoming);

impl Stream for Frames {
    type Item = Result<Bytes, hyper::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.0)
            .poll_frame(cx)
            .map_ok(|frame| frame.into_data().unwrap_or_default())
    }
}

/// A body that announces its length and ends with an error before it is reached.
#[derive(Debug)]
pub(super) struct BrokenBody {
    sent: Option<Bytes>,
    has_paused: bool,
    announced_bytes: u64,
}

impl BrokenBody {
    pub(super) fn new(whole: &Bytes, after_bytes: usize) -> Self {
        let sent = whole.slice(..after_bytes.min(whole.len().saturating_sub(1)));
        Self {
            sent: Some(sent),
            has_paused: false,
            announced_bytes: whole.len() as u64,
        }
    }
}

impl Body for BrokenBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(sent) = self.sent.take().filter(|sent| !sent.is_empty()) {
            return Poll::Ready(Some(Ok(Frame::data(sent))));
        }
        // hyper writes out what it has when a body is not ready, and throws it away on an error.
        if !self.has_paused {
            self.has_paused = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Some(Err(io::Error::other("reset by rule"))))
    }

    fn is_end_stream(&self) -> bool {
        false
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.announced_bytes)
    }
}
