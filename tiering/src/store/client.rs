//! The HTTP client below the store's clients: how many requests are in flight, and when one that
//! moves nothing is given up.
//!
//! A whole request has no time limit here, since a large put over a slow link takes as long as it
//! takes. What is limited is the time in which not a byte moves, in either direction.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use object_store::{
    ClientConfigKey, ClientOptions,
    client::{
        HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
    },
};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep_until},
};

use super::requests::Verb;

/// What the system may hold of a request that it has taken: Linux's default for the largest buffer of a
/// socket (`tcp_wmem`).
const BUFFERED_BYTES_MAX: u64 = 4 << 20;
/// The slowest link on which what the system holds does not count as stalled.
const SLOWEST_BYTES_PER_SECOND: u64 = 64 << 10;

/// Requests in flight to a store. Reads and writes may each take three quarters of the places, so
/// that neither keeps the other waiting. Cheap to clone; all clones share the places.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    all: Arc<Semaphore>,
    reads: Arc<Semaphore>,
    writes: Arc<Semaphore>,
}

/// A request's place. It is free again when the reply's last byte was read.
#[derive(Debug)]
pub(crate) struct Place {
    _of_kind: Option<OwnedSemaphorePermit>,
    _of_all: Option<OwnedSemaphorePermit>,
}

impl Places {
    pub(crate) fn new(requests_max: usize) -> Self {
        let share = (requests_max * 3 / 4).max(1);
        Self {
            all: Arc::new(Semaphore::new(requests_max.max(1))),
            reads: Arc::new(Semaphore::new(share)),
            writes: Arc::new(Semaphore::new(share)),
        }
    }

    /// Waits for a place, first come first served. Cancel-safe.
    pub(crate) async fn take(&self, verb: Verb) -> Place {
        let of_kind = match verb {
            Verb::Get | Verb::Head => &self.reads,
            Verb::Put | Verb::Create | Verb::List | Verb::Delete | Verb::Other => &self.writes,
        };
        // The semaphores are never closed.
        Place {
            _of_kind: Arc::clone(of_kind).acquire_owned().await.ok(),
            _of_all: Arc::clone(&self.all).acquire_owned().await.ok(),
        }
    }
}

/// Sends requests, and gives up those that stall.
#[derive(Debug)]
pub(crate) struct Client {
    client: reqwest::Client,
    stall_timeout: Duration,
}

impl Client {
    /// Opens a client as the store's client would from `options`, but for the time-outs.
    pub(crate) fn open(
        options: &ClientOptions,
        connect_timeout: Duration,
        stall_timeout: Duration,
    ) -> object_store::Result<Self> {
        let allows_http = options.get_config_value(&ClientConfigKey::AllowHttp);
        let client = reqwest::Client::builder()
            .user_agent(concat!("esker/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(connect_timeout)
            .https_only(allows_http.as_deref() != Some("true"))
            .http1_only()
            // Lengths of replies are those of objects.
            .no_gzip()
            .no_brotli()
            .no_zstd()
            .no_deflate()
            .build()
            .map_err(|error| object_store::Error::Generic {
                store: "HTTP client",
                source: Box::new(error),
            })?;
        Ok(Self {
            client,
            stall_timeout,
        })
    }

    /// Sends a request; its place is kept until the reply was read.
    pub(crate) async fn execute(
        &self,
        request: HttpRequest,
        place: Place,
    ) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let url = parts.uri.to_string().parse();
        let url =
            url.map_err(|error: url::ParseError| HttpError::new(HttpErrorKind::Unknown, error))?;
        let moved = Moved::new();
        let mut request = reqwest::Request::new(parts.method, url);
        *request.headers_mut() = parts.headers;
        *request.body_mut() = Some(match body.as_bytes() {
            Some(bytes) => {
                moved.note(bytes.len());
                bytes.clone().into()
            }
            None => reqwest::Body::wrap(Sending {
                body,
                moved: moved.clone(),
            }),
        });
        let sending = self.client.execute(request);
        let reply = tokio::select! {
            reply = sending => reply.map_err(http_error)?,
            () = moved.stalled(self.stall_timeout) => return Err(self.stalled()),
        };
        let (parts, body) = http::Response::<reqwest::Body>::from(reply).into_parts();
        let body = Receiving {
            body,
            stall_timeout: self.stall_timeout,
            stalls_at: Box::pin(sleep_until(Instant::now() + self.stall_timeout)),
            _place: place,
        };
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
    }

    fn stalled(&self) -> HttpError {
        HttpError::new(HttpErrorKind::Timeout, Stalled(self.stall_timeout))
    }
}

/// Nothing moved for too long.
#[derive(Debug, thiserror::Error)]
#[error("no byte moved for {0:?}")]
struct Stalled(Duration);

/// How much of a request the system has taken to send, and when the last of it.
#[derive(Clone, Debug)]
struct Moved(Arc<Mutex<Taken>>);

#[derive(Clone, Copy, Debug)]
struct Taken {
    at: Instant,
    bytes: u64,
}

impl Taken {
    /// When the request counts as stalled: after up to three times the time-out, since what was taken
    /// may still lie in the system's buffer, and nobody tells how it leaves.
    fn stalls_at(self, timeout: Duration) -> Instant {
        let buffered = self.bytes.min(BUFFERED_BYTES_MAX);
        let leaving = Duration::from_millis(buffered * 1000 / SLOWEST_BYTES_PER_SECOND);
        self.at + timeout + leaving.min(timeout * 2)
    }
}

impl Moved {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Taken {
            at: Instant::now(),
            bytes: 0,
        })))
    }

    fn note(&self, bytes: usize) {
        let mut taken = self.0.lock();
        taken.at = Instant::now();
        taken.bytes += bytes as u64;
    }

    /// Returns once nothing was noted for so long.
    async fn stalled(&self, timeout: Duration) {
        loop {
            let stalls_at = self.0.lock().stalls_at(timeout);
            if stalls_at <= Instant::now() {
                return;
            }
            sleep_until(stalls_at).await;
        }
    }
}

/// The body of a request. The connection takes the next piece of it when the last one has left.
#[derive(Debug)]
struct Sending {
    body: HttpRequestBody,
    moved: Moved,
}

impl Body for Sending {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let data = frame
            .as_ref()
            .and_then(|frame| frame.as_ref().ok()?.data_ref());
        self.moved.note(data.map_or(0, Bytes::len));
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a reply.
#[derive(Debug)]
struct Receiving {
    body: reqwest::Body,
    stall_timeout: Duration,
    stalls_at: Pin<Box<Sleep>>,
    _place: Place,
}

impl Body for Receiving {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            let next = Instant::now() + self.stall_timeout;
            self.stalls_at.as_mut().reset(next);
            return Poll::Ready(frame.map(|frame| frame.map_err(http_error)));
        }
        ready!(self.stalls_at.as_mut().poll(cx));
        let stalled = Stalled(self.stall_timeout);
        Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Timeout, stalled))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Sorts errors as the store's own client does, which decides by it what to try again.
fn http_error(error: reqwest::Error) -> HttpError {
    let kind = if error.is_timeout() {
        HttpErrorKind::Timeout
    } else if error.is_connect() {
        HttpErrorKind::Connect
    } else if error.is_decode() {
        HttpErrorKind::Decode
    } else {
        let causes =
            std::iter::successors(std::error::Error::source(&error), |error| error.source());
        causes
            .filter_map(kind_of)
            .next()
            .unwrap_or(HttpErrorKind::Unknown)
    };
    HttpError::new(kind, error.without_url())
}

fn kind_of(cause: &(dyn std::error::Error + 'static)) -> Option<HttpErrorKind> {
    use std::io::ErrorKind;
    if let Some(error) = cause.downcast_ref::<hyper::Error>() {
        let is_cut =
            error.is_closed() || error.is_incomplete_message() || error.is_body_write_aborted();
        return match is_cut {
            true => Some(HttpErrorKind::Request),
            false => error.is_timeout().then_some(HttpErrorKind::Timeout),
        };
    }
    match cause.downcast_ref::<std::io::Error>()?.kind() {
        ErrorKind::TimedOut => Some(HttpErrorKind::Timeout),
        ErrorKind::ConnectionAborted
        | ErrorKind::ConnectionReset
        | ErrorKind::BrokenPipe
        | ErrorKind::UnexpectedEof => Some(HttpErrorKind::Interrupted),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use futures::FutureExt;
    use object_store::PutPayload;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    const STALL: Duration = Duration::from_secs(1);
    const TIMEOUT: Duration = Duration::from_secs(30);
    /// Many times what the sockets of both ends hold: that leaves no trace while it is on its way.
    const PIECES: usize = 64;
    const PIECE_BYTES: usize = 1 << 20;

    async fn server() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    async fn put(address: SocketAddr) -> Result<HttpResponse, HttpError> {
        let options = ClientOptions::new().with_allow_http(true);
        let client = Client::open(&options, Duration::from_secs(5), STALL).unwrap();
        let piece = Bytes::from(vec![7; PIECE_BYTES]);
        let pieces = std::iter::repeat_n(piece, PIECES);
        let body: HttpRequestBody = pieces.collect::<PutPayload>().into();
        let request = http::Request::put(format!("http://{address}/key")).body(body);
        let place = Places::new(4).take(Verb::Put).await;
        client.execute(request.unwrap(), place).await
    }

    /// Reads the request slowly: in all it takes longer than may pass without progress.
    async fn read_slowly(stream: &mut TcpStream) {
        let mut left = PIECES * PIECE_BYTES;
        let mut buffer = vec![0; PIECE_BYTES];
        while left > 0 {
            tokio::time::sleep(STALL / 32).await;
            let wanted = left.min(PIECE_BYTES);
            left -= stream.read_exact(&mut buffer[..wanted]).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_put_that_moves_slowly_is_not_given_up_and_one_that_stalls_is() {
        let (listener, address) = server().await;
        let serving = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_slowly(&mut stream).await;
            let reply = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(reply).await.unwrap();
            stream
        };
        let (reply, _stream) = tokio::join!(put(address), serving);
        assert_eq!(reply.unwrap().status(), 200);

        let (reply, _stream) = tokio::join!(put(address), listener.accept());
        assert_eq!(reply.unwrap_err().kind(), HttpErrorKind::Timeout);
    }

    #[tokio::test]
    async fn writes_leave_places_for_reads_and_reads_for_writes() {
        for (greedy, other) in [(Verb::Put, Verb::Get), (Verb::Get, Verb::Delete)] {
            let places = Places::new(8);
            let mut taken = Vec::new();
            while let Some(place) = places.take(greedy).now_or_never() {
                taken.push(place);
            }
            assert_eq!(taken.len(), 6);
            let two: Vec<_> = (0..3)
                .map_while(|_| places.take(other).now_or_never())
                .collect();
            assert_eq!(two.len(), 2, "eight in all");
            taken.pop();
            assert!(places.take(greedy).now_or_never().is_some());
        }
    }

    async fn stalls_after(pieces: &[usize]) -> u64 {
        let (moved, start) = (Moved::new(), Instant::now());
        pieces.iter().for_each(|bytes| moved.note(*bytes));
        moved.stalled(TIMEOUT).await;
        start.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_system_holds_of_a_request_may_leave_slowly() {
        assert_eq!(stalls_after(&[]).await, 30);
        assert_eq!(stalls_after(&[64 << 10]).await, 31);
        assert_eq!(stalls_after(&[1 << 20, 1 << 20]).await, 30 + 32);
        assert_eq!(stalls_after(&[64 << 20]).await, 30 + 60);
    }
}
