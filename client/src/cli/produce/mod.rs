//! `esker produce`: lines of a file or of standard input, one record each.
//!
//! What was read from the input is delivered or named, whatever ends the command: the end of the
//! input, a line that makes no record, a failed delivery, or a signal.

mod ending;
mod fates;
mod input;
mod key;
mod line_set;
mod lines;
mod sending;

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
    time::Duration,
};

use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use tokio::time::Instant;

use self::{
    input::Chunks,
    key::KeySource,
    lines::Lines,
    sending::{Sending, Watch},
};
use super::{Common, files, progress::Progress, signals::Signals};
use crate::{Acks, Compression, ProducerConfig};

#[derive(Debug, Args)]
pub(super) struct ProduceArgs {
    topic: String,
    /// File to read; `-` is standard input
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    file: PathBuf,
    /// What a line is
    #[arg(long, value_enum, default_value_t = Format::Lines)]
    format: Format,
    /// Take the key from this field of each line, which is JSON
    ///
    /// `user.id` is the field of this very name, or else the field `id` of the object `user`. The key
    /// is the text of a string, and of anything else exactly what stands there: 1.50 and 1.5 are two
    /// keys. Lines without the field are sent without a key, and counted in the report.
    #[arg(long, value_name = "FIELD", conflicts_with = "key_separator")]
    key_field: Option<String>,
    /// Stop at a line that has no key field, instead of sending it without a key
    #[arg(long, requires = "key_field")]
    key_required: bool,
    /// Take what stands before the first of these as the key, and the rest as the value
    #[arg(long, value_name = "TEXT")]
    key_separator: Option<String>,
    /// Send everything to this partition
    #[arg(long)]
    partition: Option<u32>,
    #[arg(long, value_enum, default_value_t = AcksArg::All)]
    acks: AcksArg,
    /// none, gzip, snappy, lz4 or zstd
    #[arg(long, default_value = "none")]
    compression: Compression,
    /// How long a batch waits for more records
    #[arg(long, default_value = "5ms", value_parser = humantime::parse_duration)]
    linger: Duration,
    /// A batch is sent at this size
    #[arg(long, value_name = "SIZE")]
    batch_bytes: Option<ByteSize>,
    /// How long a record may take until it is acknowledged; then its delivery has failed
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = humantime::parse_duration)]
    delivery_timeout: Duration,
    /// Skip lines that make no record, and continue after failed deliveries
    ///
    /// Each such line is named on standard error at once, and the exit code is 1. Without it the
    /// command stops at the first; what was read before it is delivered.
    #[arg(long)]
    keep_going: bool,
    /// Do not give records the header that lets `replay` restore the order of lines
    #[arg(long)]
    no_line_numbers: bool,
    /// No progress bar
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The line is the value
    Lines,
    /// The line is a JSON object with key, value, headers, timestamp_ms, partition
    Json,
}

/// When a record counts as delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum AcksArg {
    /// Durable at the leader
    Leader,
    /// Durable at every in-sync replica
    All,
}

impl From<AcksArg> for Acks {
    fn from(acks: AcksArg) -> Self {
        match acks {
            AcksArg::Leader => Self::Leader,
            AcksArg::All => Self::All,
        }
    }
}

pub(super) async fn run(common: &Common, args: ProduceArgs) -> anyhow::Result<()> {
    let keys = KeySource::new(args.key_field.as_deref(), args.key_separator.as_deref())?;
    anyhow::ensure!(
        args.format == Format::Lines || keys.is_none(),
        "--key-field and --key-separator are for --format lines; JSON records name their key"
    );
    let (input, size_bytes) = files::input(&args.file)?;
    let client = common.connect().await?;
    let producer = client.producer(&args.topic, config(&args)).await?;
    let (run, _) = client.init_producer().await?;
    let lines = Lines::new(u64::try_from(run.get()).unwrap_or_default());
    // A bar would stand in what a person types.
    let is_typed = args.file == Path::new("-") && std::io::stdin().is_terminal();
    let progress = Progress::bytes(size_bytes, args.quiet || common.json || is_typed);
    let started = Instant::now();
    // From here on a signal does not end the process by itself.
    let signals = Signals::listen()?;
    let (chunks, stopper) = Chunks::read(input)?;
    let watch = Watch::new(signals, stopper, progress, args.keep_going);
    let sending = Sending::new(&args, keys, producer, watch);
    let ended = sending.run(lines, chunks).await;
    ended.report(common, &args, started.elapsed())
}

fn config(args: &ProduceArgs) -> ProducerConfig {
    let default = ProducerConfig::default();
    let batch_bytes = args
        .batch_bytes
        .map(|size| usize::try_from(size.as_u64()).unwrap_or(usize::MAX));
    ProducerConfig {
        acks: args.acks.into(),
        compression: args.compression,
        linger: args.linger,
        batch_bytes: batch_bytes.unwrap_or(default.batch_bytes),
        delivery_timeout: args.delivery_timeout,
        ..default
    }
}
