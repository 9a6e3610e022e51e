//! `esker-agent run`: start, serve until told to stop, drain.

use std::{io, process::ExitCode, time::Duration};

use esker_tiering::env::TaskSet;
use tokio::signal::unix::{SignalKind, signal};

use super::{failed, telemetry};
use crate::{
    agent::{Agent, DrainReport, Surroundings},
    config::{ByteCount, Settings},
    service_manager,
    start_error::StartError,
};

/// The agent ended with data left on disk only.
const EXIT_UNDRAINED: u8 = 76;
/// Another agent has taken over.
const EXIT_FENCED: u8 = 75;
/// The tasks that talk to the service manager end within this time.
const REPORTS_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) async fn run(settings: Settings) -> ExitCode {
    telemetry::init(&settings);
    service_manager::status("starting: reads the bucket and recovers its logs");
    // The first process of a container ignores a signal that nobody listens to.
    let started = tokio::select! {
        started = Agent::start(settings, Surroundings::default()) => started,
        told = told_to_stop() => return stopped_early(told),
    };
    let agent = match started {
        Ok(agent) => agent,
        Err(error) => return failed(&error),
    };
    service_manager::ready();
    let reports = TaskSet::new();
    service_manager::accompany(agent.pulse(), &reports);
    let code = serve(agent).await;
    reports.shutdown(REPORTS_TIMEOUT).await;
    code
}

/// Serves until the end; returns the exit code.
async fn serve(agent: Agent) -> ExitCode {
    let told = tokio::select! {
        told = told_to_stop() => told,
        () = agent.fenced() => {
            agent.stop().await;
            return ExitCode::from(EXIT_FENCED);
        }
    };
    service_manager::stopping();
    if let Err(error) = told {
        agent.stop().await;
        return failed(&StartError::System(error));
    }
    tracing::info!("draining; a second signal ends the agent at once");
    tokio::select! {
        report = agent.drain() => ended(&report),
        _ = told_to_stop() => {
            tracing::warn!("told to stop again: what is not in the bucket stays on this disk");
            ExitCode::from(EXIT_UNDRAINED)
        }
    }
}

/// Waits for SIGTERM or Ctrl-C.
pub(crate) async fn told_to_stop() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
    }
}

/// An earlier process may have left something, and nobody has looked yet.
fn stopped_early(told: io::Result<()>) -> ExitCode {
    if let Err(error) = told {
        return failed(&StartError::System(error));
    }
    tracing::warn!("told to stop before it served: what is on this disk stays there");
    ExitCode::from(EXIT_UNDRAINED)
}

fn ended(report: &DrainReport) -> ExitCode {
    let took: Duration = report.steps.iter().map(|(_, took)| *took).sum();
    let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    if report.is_complete {
        tracing::info!(millis, "drained: everything acknowledged is in the bucket");
        return ExitCode::SUCCESS;
    }
    let left = ByteCount::new(report.unuploaded_bytes);
    tracing::warn!(millis, %left, "not drained: what is not in the bucket stays on this disk");
    ExitCode::from(EXIT_UNDRAINED)
}
