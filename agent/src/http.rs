//! The HTTP side: `/metrics`, `/healthz`, `/readyz`.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::get,
};
use esker_tiering::env::TaskSet;
use prometheus::{Registry, TextEncoder};

use crate::{
    connections::Connections,
    health::{Health, Phase},
    metrics::Gauges,
    server,
    shared::Shared,
    start_error::StartError,
};

/// Probes and scrapers at a time.
const CONNECTIONS_MAX: usize = 64;

/// What the pages are made from.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    pub(crate) health: Health,
    pub(crate) metrics: Registry,
    pub(crate) gauges: Gauges,
    /// Absent until the agent has recovered.
    pub(crate) shared: Arc<OnceLock<Arc<Shared>>>,
}

/// Binds `address` and serves the pages until the tasks are cancelled. Returns the bound address.
pub(crate) async fn serve(
    address: SocketAddr,
    pages: Pages,
    tasks: &TaskSet,
) -> Result<SocketAddr, StartError> {
    let listener = server::bind(address).await?;
    let bound = server::local_address(&listener, address)?;
    let listener = Connections::new(listener, CONNECTIONS_MAX);
    let stopped = tasks.token().clone();
    tasks.spawn("http server", async move {
        let served = axum::serve(listener, router(pages));
        if let Err(error) = served
            .with_graceful_shutdown(stopped.cancelled_owned())
            .await
        {
            tracing::error!(%error, "http server failed");
        }
    });
    Ok(bound)
}

fn router(pages: Pages) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .route("/metrics", get(render_metrics))
        .with_state(pages)
}

async fn index() -> &'static str {
    concat!(
        "esker-agent ",
        env!("CARGO_PKG_VERSION"),
        "\n\n/metrics\n/healthz\n/readyz\n"
    )
}

async fn alive(State(pages): State<Pages>) -> impl IntoResponse {
    answer(pages.health.phase() != Phase::Fenced, pages.health.phase())
}

async fn ready(State(pages): State<Pages>) -> impl IntoResponse {
    answer(pages.health.phase() == Phase::Serving, pages.health.phase())
}

fn answer(is_ok: bool, phase: Phase) -> (StatusCode, String) {
    let code = if is_ok {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (code, format!("{}\n", phase.as_str()))
}

async fn render_metrics(State(pages): State<Pages>) -> impl IntoResponse {
    if let Some(shared) = pages.shared.get() {
        pages
            .gauges
            .refresh(&shared.registry, &shared.limits, &shared.produce_memory);
    }
    match TextEncoder::new().encode_to_string(&pages.metrics.gather()) {
        Ok(text) => (
            StatusCode::OK,
            [(CONTENT_TYPE, prometheus::TEXT_FORMAT)],
            text,
        ),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            [(CONTENT_TYPE, "text/plain")],
            format!("metrics cannot be encoded: {error}\n"),
        ),
    }
}
