//! One HTTP/2 connection to one agent.
//!
//! Stands in for `tonic`'s channel, which does not let a client raise the size of the frames it
//! receives: at the default of 16 KiB a fetch costs twice the CPU. It does not reconnect: who holds
//! it knows better when, and what to send again.

use std::{
    fmt,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use hyper::{
    Request, Response, Uri,
    body::Incoming,
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tonic::{body::Body, codegen::Service};

use crate::{
    env,
    error::{Error, ErrorKind, Result},
};

/// Largest HTTP/2 frame an agent may send.
const FRAME_BYTES_MAX: u32 = 1 << 20;
/// Bytes of one stream an agent may send ahead of the application. Larger ones fall out of the
/// CPU's cache and are slower.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// Bytes of all streams an agent may send ahead of the application.
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
/// Bytes of one stream that wait to be written to the socket.
const SEND_BUFFER_BYTES: usize = 1 << 20;
/// A silent connection is probed this often...
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// ...and given up if no answer comes for so long.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// The port agents listen on unless told otherwise.
const DEFAULT_PORT: u16 = 7771;

/// Where an agent listens: host and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    authority: String,
}

impl Address {
    fn origin(&self) -> Uri {
        let origin = format!("http://{}", self.authority);
        origin
            .parse()
            .expect("the authority was parsed as part of such a URI")
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.authority)
    }
}

impl FromStr for Address {
    type Err = Error;

    /// Takes `host:port`, `host`, or either after `http://`.
    fn from_str(text: &str) -> Result<Self> {
        let illegal = || {
            Error::invalid(format!(
                "address is not of the form host:port. address=`{text}`"
            ))
        };
        let text = text.trim();
        if text.starts_with("https://") {
            let message = format!("tls is not supported: use http://. address=`{text}`");
            return Err(Error::invalid(message));
        }
        let bare = text
            .strip_prefix("http://")
            .unwrap_or(text)
            .trim_end_matches('/');
        let uri: Uri = format!("http://{bare}").parse().map_err(|_| illegal())?;
        let is_bare = uri.path() == "/" && uri.query().is_none();
        let authority = uri.authority().filter(|authority| {
            is_bare && !authority.host().is_empty() && !authority.as_str().contains('@')
        });
        let authority = authority.ok_or_else(illegal)?;
        let has_port = authority.as_str().len() > authority.host().len();
        if has_port && authority.port_u16().is_none() {
            return Err(illegal());
        }
        let port = authority.port_u16().unwrap_or(DEFAULT_PORT);
        Ok(Self {
            authority: format!("{}:{port}", authority.host()),
        })
    }
}

/// An open connection. Cheap to clone; requests of all clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    address: Address,
    requests: SendRequest<Body>,
    given_up: GivenUp,
}

/// Whether a connection shall take no new requests. Cheap to clone: all clones see the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct GivenUp(Arc<AtomicBool>);

impl GivenUp {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Connection {
    /// Connects to an agent.
    pub(crate) async fn open(address: &Address, connect_timeout: Duration) -> Result<Self> {
        let connect = async {
            let socket = TcpStream::connect(&address.authority).await?;
            socket.set_nodelay(true)?;
            Self::handshake(socket).await.map_err(std::io::Error::other)
        };
        let requests = match tokio::time::timeout(connect_timeout, connect).await {
            Ok(connected) => connected.map_err(|error| unreachable_agent(address, error))?,
            Err(elapsed) => return Err(unreachable_agent(address, elapsed.into())),
        };
        Ok(Self {
            address: address.clone(),
            requests,
            given_up: GivenUp::default(),
        })
    }

    async fn handshake(socket: TcpStream) -> Result<SendRequest<Body>, hyper::Error> {
        let (requests, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .adaptive_window(false)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES_MAX)
            .max_send_buf_size(SEND_BUFFER_BYTES)
            .keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .handshake(TokioIo::new(socket))
            .await?;
        env::spawn(async move {
            // Whoever has a request on it sees the same error.
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended");
            }
        });
        Ok(requests)
    }

    /// Returns the agent's address.
    pub(crate) const fn address(&self) -> &Address {
        &self.address
    }

    /// Returns what request paths are appended to.
    pub(crate) fn origin(&self) -> Uri {
        self.address.origin()
    }

    /// Whether requests can still be sent.
    pub(crate) fn is_open(&self) -> bool {
        !self.requests.is_closed() && !self.given_up.is_set()
    }

    /// Returns what gives this connection up: those who share it open another for new requests.
    pub(crate) fn given_up(&self) -> GivenUp {
        self.given_up.clone()
    }
}

impl Service<Request<Body>> for Connection {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = tonic::codegen::BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.requests.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.requests.send_request(request))
    }
}

fn unreachable_agent(address: &Address, source: std::io::Error) -> Error {
    let message = format!(
        "cannot reach the agent: {source}; check that esker-agent runs there and that this is its \
         grpc port. address=`{address}`"
    );
    Error::new(ErrorKind::Unavailable, message).with_source(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hosts_and_ports() {
        let cases = [
            ("http://127.0.0.1:7771", Some("127.0.0.1:7771")),
            ("http://127.0.0.1:7771/", Some("127.0.0.1:7771")),
            ("agent.example:9", Some("agent.example:9")),
            (" localhost ", Some("localhost:7771")),
            ("[::1]:7771", Some("[::1]:7771")),
            ("[::1]", Some("[::1]:7771")),
            ("", None),
            ("host:port", None),
            ("host:99999", None),
            ("host:1/path", None),
            ("user@host:1", None),
            ("https://host:1", None),
        ];
        for (text, expected) in cases {
            let address = text
                .parse::<Address>()
                .ok()
                .map(|address| address.to_string());
            assert_eq!(address.as_deref(), expected, "{text}");
        }
    }
}
