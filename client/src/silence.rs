//! Gives a response up whose agent has fallen silent.
//!
//! The pings of a connection tell that the agent's transport is alive, not that anything behind it
//! is. What arrives counts, be it a part of a message: a slow network is not silence.

use std::{
    error,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use hyper::{
    Request, Response,
    body::{Body as HttpBody, Frame, Incoming, SizeHint},
};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::{
    body::Body,
    codegen::{BoxFuture, Service},
};

use crate::{
    retry::after,
    transport::{Connection, GivenUp},
};

type BoxError = Box<dyn error::Error + Send + Sync>;

/// A connection whose agent must not be silent for longer than this in the middle of a response.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    connection: Connection,
    silence_max: Duration,
}

impl Heard {
    pub(crate) const fn new(connection: Connection, silence_max: Duration) -> Self {
        Self {
            connection,
            silence_max,
        }
    }
}

impl Service<Request<Body>> for Heard {
    type Response = Response<HeardBody<Incoming>>;
    type Error = hyper::Error;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.connection.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (given_up, silence_max) = (self.connection.given_up(), self.silence_max);
        let response = self.connection.call(request);
        Box::pin(async move {
            let heard = |body| HeardBody::new(body, silence_max, given_up);
            Ok(response.await?.map(heard))
        })
    }
}

/// Why a response was given up.
#[derive(Debug, thiserror::Error)]
#[error("agent sent nothing for {0:?}, although it answers pings")]
struct Silent(Duration);

/// A response that fails once nothing of it has come for too long.
#[derive(Debug)]
pub(crate) struct HeardBody<B> {
    body: B,
    silence_max: Duration,
    heard_at: Instant,
    /// Ends at the deadline or before: most parts arrive long before it.
    sleep: Pin<Box<Sleep>>,
    given_up: GivenUp,
}

impl<B> HeardBody<B> {
    fn new(body: B, silence_max: Duration, given_up: GivenUp) -> Self {
        let heard_at = Instant::now();
        Self {
            body,
            silence_max,
            heard_at,
            sleep: Box::pin(sleep_until(after(heard_at, silence_max))),
            given_up,
        }
    }

    fn poll_silent(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = after(self.heard_at, self.silence_max);
        loop {
            ready!(self.sleep.as_mut().poll(cx));
            if self.sleep.deadline() >= deadline {
                return Poll::Ready(());
            }
            self.sleep.as_mut().reset(deadline);
        }
    }
}

impl<B> HttpBody for HeardBody<B>
where
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.heard_at = Instant::now();
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        ready!(self.poll_silent(cx));
        self.given_up.set();
        Poll::Ready(Some(Err(Silent(self.silence_max).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future::poll_fn};

    use tokio::{sync::mpsc, time::sleep};

    use super::*;

    const SILENCE_MAX: Duration = Duration::from_secs(300);

    /// A body of what is sent.
    struct Sent(mpsc::Receiver<Bytes>);

    impl HttpBody for Sent {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let sent = self.0.poll_recv(cx);
            sent.map(|sent| sent.map(|bytes| Ok(Frame::data(bytes))))
        }
    }

    fn body(silence_max: Duration) -> (mpsc::Sender<Bytes>, HeardBody<Sent>) {
        let (sender, receiver) = mpsc::channel(1);
        let body = HeardBody::new(Sent(receiver), silence_max, GivenUp::default());
        (sender, body)
    }

    async fn next<B>(body: &mut HeardBody<B>) -> Option<Result<Bytes, BoxError>>
    where
        HeardBody<B>: HttpBody<Data = Bytes, Error = BoxError> + Unpin,
    {
        let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?;
        Some(frame.map(|frame| frame.into_data().unwrap()))
    }

    #[tokio::test(start_paused = true)]
    async fn whatever_arrives_ends_the_silence() {
        let (sender, mut body) = body(SILENCE_MAX);
        for _ in 0..3 {
            let part = async {
                sleep(SILENCE_MAX - Duration::from_secs(1)).await;
                sender.send(Bytes::from_static(b"part")).await.unwrap();
            };
            let (heard, ()) = tokio::join!(next(&mut body), part);
            assert_eq!(heard.unwrap().unwrap(), "part");
        }
        assert!(!body.given_up.is_set());
        let heard_at = Instant::now();
        let error = next(&mut body).await.unwrap().unwrap_err();
        let (waited, bound) = (heard_at.elapsed(), SILENCE_MAX);
        assert!(waited >= bound && waited < bound + Duration::from_secs(1));
        assert!(error.to_string().contains("sent nothing for 300s"));
        assert!(body.given_up.is_set());
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_while_nobody_read_is_read() {
        let (sender, mut body) = body(SILENCE_MAX);
        sender.send(Bytes::from_static(b"early")).await.unwrap();
        sleep(SILENCE_MAX * 2).await;
        assert_eq!(next(&mut body).await.unwrap().unwrap(), "early");
        drop(sender);
        assert!(next(&mut body).await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn silence_without_a_bound_has_no_end() {
        let (_sender, mut body) = body(Duration::MAX);
        let days = Duration::from_secs(86_400 * 365);
        let heard = tokio::time::timeout(days, next(&mut body)).await;
        assert!(heard.is_err(), "{heard:?}");
    }
}
