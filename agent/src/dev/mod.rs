//! `esker-agent dev`: Esker on one machine with nothing else: start, prove the main job, serve.

mod job;
mod report;
mod workload;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::ArgMatches;
use esker_client::Client;

use crate::{
    agent::{Agent, Surroundings},
    cli::told_to_stop,
    config::Settings,
    start_error::StartError,
};

/// Where `dev` keeps its bucket and its tail, unless told otherwise.
const HOME: &str = "esker-dev";

/// What `dev` was asked for besides settings.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Exit after the report.
    pub once: bool,
    /// Records to publish and replay.
    pub records: u64,
}

impl From<&ArgMatches> for Options {
    fn from(given: &ArgMatches) -> Self {
        Self {
            once: given.get_flag("once"),
            records: given.get_one("records").copied().unwrap_or(1_000_000),
        }
    }
}

/// Runs `dev` and returns its exit code.
pub async fn run(mut settings: Settings, options: Options) -> ExitCode {
    settle(&mut settings);
    println!("esker-agent {} dev", env!("CARGO_PKG_VERSION"));
    let agent = match Box::pin(start(settings)).await {
        Ok(agent) => agent,
        Err(error) => {
            eprintln!("esker-agent: {error}");
            return ExitCode::from(error.exit_code());
        }
    };
    let outcome = prove(&agent, options.records).await;
    let is_proved = match outcome {
        Ok(report) => {
            print!("{report}");
            report.is_ok()
        }
        Err(error) => {
            eprintln!("esker-agent: the main job failed: {error:#}");
            false
        }
    };
    let is_stopped = options.once || serve(&agent).await;
    let is_drained = agent.drain().await.is_complete;
    match is_proved && is_drained && is_stopped {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Fills in what a first try should not have to say.
fn settle(settings: &mut Settings) {
    let home = std::env::current_dir().unwrap_or_default().join(HOME);
    if settings.store.is_none() {
        let url = format!("file://{}", home.join("bucket").display());
        settings.store = url.parse().ok();
    }
    if settings.data_dir == Path::new("/var/lib/esker") {
        settings.data_dir = home.join("agent");
    }
}

async fn start(settings: Settings) -> Result<Agent, StartError> {
    if let Some(directory) = settings.store.as_ref().and_then(|store| store.directory()) {
        let directory = PathBuf::from(directory);
        std::fs::create_dir_all(directory)?;
    }
    println!(
        "  bucket     {}",
        settings
            .store
            .as_ref()
            .map_or_else(String::new, ToString::to_string)
    );
    println!("  hot tail   {}", settings.data_dir.display());
    let agent = Agent::start(settings, Surroundings::default()).await?;
    println!("  grpc       {}", agent.grpc_address());
    println!("  http       http://{}/metrics\n", agent.http_address());
    Ok(agent)
}

async fn prove(agent: &Agent, records: u64) -> anyhow::Result<report::Report> {
    let client = Client::connect(agent.grpc_address().to_string()).await?;
    job::run(agent, &client, records).await
}

/// Says what to try, and serves until told to stop.
async fn serve(agent: &Agent) -> bool {
    print!("{}", report::next_steps(agent.grpc_address()));
    told_to_stop().await.is_ok()
}
