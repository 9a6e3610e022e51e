//! `esker-agent run`: start, serve until told to stop, drain.

use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

use super::{failed, telemetry};
use crate::{
    agent::{Agent, DrainReport, Surroundings},
    config::Settings,
    start_error::StartError,
};

/// The drain ended with data left on disk only.
const EXIT_UNDRAINED: u8 = 76;
/// Another agent has taken over.
const EXIT_FENCED: u8 = 75;

pub(super) async fn run(settings: Settings) -> ExitCode {
    telemetry::init(&settings);
    let agent = match Agent::start(settings, Surroundings::default()).await {
        Ok(agent) => agent,
        Err(error) => return failed(&error),
    };
    let stopped = tokio::select! {
        stopped = told_to_stop() => stopped,
        () = agent.fenced() => {
            agent.stop().await;
            return ExitCode::from(EXIT_FENCED);
        }
    };
    if let Err(error) = stopped {
        agent.stop().await;
        return failed(&StartError::System(error));
    }
    tracing::info!("draining; a second signal ends the agent at once");
    tokio::select! {
        report = agent.drain() => ended(&report),
        _ = told_to_stop() => ExitCode::from(EXIT_UNDRAINED),
    }
}

/// Waits for SIGTERM or Ctrl-C.
pub(crate) async fn told_to_stop() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
    }
}

fn ended(report: &DrainReport) -> ExitCode {
    for (step, took) in &report.steps {
        let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        tracing::info!(step, millis, "drain step done");
    }
    if report.is_complete {
        tracing::info!("drained: everything acknowledged is in the bucket");
        return ExitCode::SUCCESS;
    }
    tracing::warn!("not drained: what is not in the bucket stays on this disk");
    ExitCode::from(EXIT_UNDRAINED)
}
