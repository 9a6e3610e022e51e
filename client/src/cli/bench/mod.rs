//! `esker bench`: rates and latencies, each beside a limit measured on the same machine in the same
//! run. Machines differ and are noisy; the ratio is what tells.

mod agent;
mod idle;
mod index;
mod latency;
mod limits;
mod load;
mod outcome;
mod produce;
mod replay;
mod s3;
mod transport;

use bytesize::ByteSize;
use clap::{Args, Subcommand};

use super::Common;

#[derive(Debug, Subcommand)]
pub(super) enum BenchCommand {
    /// Publish as fast as it goes
    Produce(produce::ProduceBench),
    /// Replay sealed data cold and warm, and catch up from the tail
    Replay(replay::ReplayBench),
    /// Acknowledgement and end-to-end latency at a steady rate
    Latency(latency::LatencyBench),
    /// What idle partitions cost
    Idle(idle::IdleBench),
    /// The offset index of a very long partition
    Index(index::IndexBench),
}

/// What all loads are made of.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Shape {
    /// Bytes of a record's value
    #[arg(long, default_value_t = 100)]
    record_bytes: usize,
    /// Bytes of a record's key; 0 for none
    #[arg(long, default_value_t = 8)]
    key_bytes: usize,
    #[arg(long, default_value_t = 4)]
    partitions: u32,
    /// A batch is sent at this size
    #[arg(long, value_name = "SIZE", default_value = "512KiB")]
    batch_bytes: ByteSize,
}

pub(super) async fn run(common: &Common, command: BenchCommand) -> anyhow::Result<()> {
    let outcomes = match command {
        BenchCommand::Produce(bench) => bench.run(common).await?,
        BenchCommand::Replay(bench) => bench.run(common).await?,
        BenchCommand::Latency(bench) => bench.run(common).await?,
        BenchCommand::Idle(bench) => bench.run(common).await?,
        BenchCommand::Index(bench) => bench.run()?,
    };
    outcomes
        .iter()
        .try_for_each(|outcome| outcome.print(common.json))
}
