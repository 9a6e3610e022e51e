//! A plain HTTP/1.1 front for any S3 service: accepts connections until told to stop.

use std::{error::Error, future::Future, time::Duration};

use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use s3s::{Body, service::S3Service};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How long to wait after a failed accept: it fails for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Serves `service` on `listener` until `stop` is cancelled, and then drops every connection.
pub async fn serve(listener: TcpListener, service: S3Service, stop: CancellationToken) {
    accept(
        listener,
        TaskTracker::new(),
        stop,
        move |request: Request<Incoming>| {
            let service = service.clone();
            async move { service.call(request.map(Body::from)).await }
        },
    )
    .await;
}

pub(super) async fn accept<A, F, E>(
    listener: TcpListener,
    tasks: TaskTracker,
    stop: CancellationToken,
    answer: A,
) where
    A: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Response<Body>, E>> + Send + 'static,
    E: Into<Box<dyn Error + Send + Sync>> + 'static,
{
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, _)) => {
                tasks.spawn(converse(socket, stop.clone(), answer.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn converse<A, F, E>(socket: TcpStream, stop: CancellationToken, answer: A)
where
    A: Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Response<Body>, E>> + Send + 'static,
    E: Into<Box<dyn Error + Send + Sync>> + 'static,
{
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let connection =
        http1::Builder::new().serve_connection(TokioIo::new(socket), service_fn(answer));
    tokio::select! {
        () = stop.cancelled() => {}
        // An error here is a client that left, or a fault that was asked for.
        ended = connection => if let Err(error) = ended {
            tracing::debug!(%error, "connection ended");
        },
    }
}
