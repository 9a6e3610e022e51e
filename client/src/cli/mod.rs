//! The `esker` command: topics, records in and out of a pipe, replays, buckets, benches.
//!
//! Answers go to standard output, as tables for people or with `--json` as JSON for scripts;
//! progress and errors go to standard error. `docs/exit-codes.md` lists the exit codes.

mod bench;
mod bucket;
mod cluster;
mod consume;
mod exit;
mod files;
mod merge;
mod output;
mod positions;
mod produce;
mod progress;
mod reading;
mod record_json;
mod replay;
mod signals;
mod sink;
mod source;
mod start;
mod topic;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::{Client, Result};

/// Where an agent listens unless told otherwise.
const BOOTSTRAP: &str = "127.0.0.1:7771";

/// Talks to an Esker cluster: topics, records, replays, buckets, benches.
#[derive(Debug, Parser)]
#[command(name = "esker", version, max_term_width = 100, after_long_help = exit::help())]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Clone, Debug, clap::Args)]
struct Common {
    /// Address of an agent, host:port [default: 127.0.0.1:7771; benches start an agent of their own]
    #[arg(long, global = true, env = "ESKER_BOOTSTRAP", value_name = "ADDRESS")]
    bootstrap: Option<String>,
    /// Print JSON instead of tables
    #[arg(long, global = true)]
    json: bool,
}

impl Common {
    async fn connect(&self) -> Result<Client> {
        Client::connect(self.bootstrap.as_deref().unwrap_or(BOOTSTRAP)).await
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create, list, describe, alter, trim, seal or delete topics
    #[command(subcommand)]
    Topic(topic::TopicCommand),
    /// Send lines of a file or of standard input
    Produce(produce::ProduceArgs),
    /// Print records as they come
    Consume(consume::ConsumeArgs),
    /// Read a topic back, with a progress bar; a produced file comes back byte for byte
    Replay(replay::ReplayArgs),
    /// Show the agents of the cluster
    Cluster,
    /// Check, repair or clean a bucket; needs no agent
    #[command(subcommand)]
    Bucket(bucket::BucketCommand),
    /// Measure rates and latencies beside what the machine can do
    #[command(subcommand)]
    Bench(bench::BenchCommand),
}

/// Builds the command line.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command line and returns the process's exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return exit::failed(&error.into()),
    };
    let outcome = runtime.block_on(run(cli));
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::failed(&error),
    }
}

async fn run(cli: Cli) -> anyhow::Result<()> {
    let common = cli.common;
    match cli.command {
        Command::Topic(command) => topic::run(&common, command).await,
        Command::Produce(args) => produce::run(&common, args).await,
        Command::Consume(args) => consume::run(&common, args).await,
        Command::Replay(args) => replay::run(&common, args).await,
        Command::Cluster => cluster::run(&common).await,
        Command::Bucket(command) => bucket::run(&common, command).await,
        Command::Bench(command) => bench::run(&common, command).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }
}
