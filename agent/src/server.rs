//! The gRPC server: its socket and its transport settings.

use std::{io, net::SocketAddr, time::Duration};

use esker_tiering::env::TaskSet;
use tokio::net::TcpListener;
use tonic::{service::Routes, transport::Server};

use crate::{connections::Connections, start_error::StartError};

/// HTTP/2 windows and frames. With frames of 1 MiB a stream of batches costs half the processor
/// time it costs with the usual 16 KiB; a window above 1 MiB is slower, since what is in flight no
/// longer fits the processor's cache.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
const FRAME_BYTES_MAX: u32 = 1 << 20;

/// Streams of one connection; a client with more partitions to fetch opens another.
const STREAMS_PER_CONNECTION_MAX: u32 = 256;
/// A client that went away without a word is found out after these two.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Binds a listening socket.
pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| StartError::Listen { address, source })
}

/// Returns the address a socket was bound to: the port may have been 0.
pub(crate) fn local_address(
    listener: &TcpListener,
    address: SocketAddr,
) -> Result<SocketAddr, StartError> {
    listener
        .local_addr()
        .map_err(|source| StartError::Listen { address, source })
}

/// Serves until the tasks are cancelled.
pub(crate) fn serve(connections: Connections, routes: Routes, tasks: &TaskSet) {
    let stopped = tasks.token().clone();
    let server = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
        .add_routes(routes);
    let sockets = futures::stream::unfold(connections, async |connections| {
        let (connection, _) = connections.next().await;
        Some((Ok::<_, io::Error>(connection), connections))
    });
    tasks.spawn("grpc server", async move {
        let served = server
            .serve_with_incoming_shutdown(sockets, stopped.cancelled_owned())
            .await;
        if let Err(error) = served {
            tracing::error!(%error, "grpc server failed");
        }
    });
}
