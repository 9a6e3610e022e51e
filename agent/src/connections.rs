//! Clients' connections: so many at a time, so that sockets leave the logs their files.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use crate::backoff::Backoff;

/// Waits after an error of `accept`, such as too many open files: it would fail again at once.
const ACCEPT_WAIT: Duration = Duration::from_millis(50);
const ACCEPT_WAIT_MAX: Duration = Duration::from_secs(2);
/// A full house is logged this often.
const FULL_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Accepts connections, up to a number at a time.
#[derive(Debug)]
pub(crate) struct Connections {
    listener: TcpListener,
    places: Arc<Semaphore>,
    max: usize,
    full_logged_at: Mutex<Option<Instant>>,
}

impl Connections {
    pub(crate) fn new(listener: TcpListener, max: usize) -> Self {
        let max = max.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            listener,
            places: Arc::new(Semaphore::new(max)),
            max,
            full_logged_at: Mutex::default(),
        }
    }

    /// Returns the next connection. One too many is closed at once, so that its client learns of it.
    ///
    /// Cancel-safe.
    pub(crate) async fn next(&self) -> (Connection, SocketAddr) {
        let mut backoff = Backoff::new(ACCEPT_WAIT, ACCEPT_WAIT_MAX);
        loop {
            match self.listener.accept().await {
                Ok((socket, peer)) => match Arc::clone(&self.places).try_acquire_owned() {
                    Ok(place) => return (Connection::new(socket, peer, place), peer),
                    Err(_) => self.note_full(peer),
                },
                // The client has gone already.
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    let wait = backoff.next();
                    tracing::warn!(%error, ?wait, "cannot accept connections, waiting");
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    fn note_full(&self, peer: SocketAddr) {
        let mut logged_at = self.full_logged_at.lock();
        if logged_at.is_some_and(|at| at.elapsed() < FULL_LOG_INTERVAL) {
            return;
        }
        *logged_at = Some(Instant::now());
        tracing::warn!(
            %peer, max = self.max,
            "closing connections beyond the limit; raise connections-max and the limit of open files"
        );
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
}

/// A client's connection. Its place is free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: TcpStream,
    peer: Peer,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
    _place: OwnedSemaphorePermit,
}

/// The client at the other end of a connection. Each request carries it as an extension.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    address: SocketAddr,
    closer: CancellationToken,
}

impl Peer {
    /// Closes the connection, and so ends all that goes over it, because others need what it holds.
    pub(crate) fn close(&self) {
        if !self.closer.is_cancelled() {
            let peer = self.address;
            tracing::warn!(%peer, "closing a connection whose reader stands still: others need the memory");
            self.closer.cancel();
        }
    }
}

impl Connection {
    fn new(socket: TcpStream, address: SocketAddr, place: OwnedSemaphorePermit) -> Self {
        // Accepted sockets do not wait to fill packets: acknowledgements are small and wanted at once.
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let closer = CancellationToken::new();
        Self {
            socket,
            closed: Box::pin(closer.clone().cancelled_owned()),
            peer: Peer { address, closer },
            _place: place,
        }
    }

    /// The socket, unless [`Peer::close`] closed it. Closing wakes the task that polls it.
    fn open(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> io::Result<Pin<&mut TcpStream>> {
        if self.closed.as_mut().poll(context).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(Pin::new(&mut self.get_mut().socket))
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.open(context)?.poll_read(context, into)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.open(context)?.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.open(context)?.poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.open(context)?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

impl axum::serve::Listener for Connections {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        self.next().await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn a_connection_too_many_is_closed_and_there_is_a_place_again_when_one_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Connections::new(listener, 1);
        let _first = TcpStream::connect(address).await.unwrap();
        let (held, _) = connections.next().await;
        let mut second = TcpStream::connect(address).await.unwrap();
        let mut nothing = Vec::new();
        tokio::select! {
            _ = connections.next() => panic!("a second connection has a place"),
            // Closed, in whichever way.
            _ = second.read_to_end(&mut nothing) => {}
        }

        drop(held);
        let third = TcpStream::connect(address).await.unwrap();
        let (_, peer) = connections.next().await;
        assert_eq!(peer, third.local_addr().unwrap());
    }

    #[tokio::test]
    async fn a_connection_that_is_closed_from_this_side_wakes_whoever_reads_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let connections = Connections::new(listener, 1);
        let (_client, (mut held, _)) = tokio::join!(client, connections.next());
        let peer = held.connect_info();

        let mut byte = [0];
        let (read, ()) = tokio::join!(held.read(&mut byte), async {
            tokio::task::yield_now().await;
            peer.close();
        });
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    }
}
