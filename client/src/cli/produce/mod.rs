//! `esker produce`: lines of a file or of standard input, one record each.

mod key;
mod lines;

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use serde_json::json;
use tokio::time::Instant;

use self::{
    key::KeySource,
    lines::{Lines, Stamp},
};
use super::{
    Common, files,
    output::{self, grouped, size},
    progress::Progress,
    record_json::RecordJson,
    source,
};
use crate::{Acks, Compression, PartitionId, Producer, ProducerConfig, RecordRef};

#[derive(Debug, Args)]
pub(super) struct ProduceArgs {
    topic: String,
    /// File to read; `-` is standard input
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    file: PathBuf,
    /// What a line is
    #[arg(long, value_enum, default_value_t = Format::Lines)]
    format: Format,
    /// Take the key from this field of each line, which is JSON; `user.id` looks into objects
    #[arg(long, value_name = "FIELD", conflicts_with = "key_separator")]
    key_field: Option<String>,
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
    let progress = Progress::bytes(size_bytes, args.quiet || common.json);
    let started = Instant::now();
    let mut sending = Sending {
        args: &args,
        keys,
        producer,
        progress,
    };
    let sent = sending.send_all(Lines::new(input)).await?;
    sending
        .producer
        .flush()
        .await
        .context("not everything was acknowledged")?;
    sending.producer.close().await?;
    sending.progress.finish();
    report(common, &args.topic, sent, started.elapsed())
}

fn config(args: &ProduceArgs) -> ProducerConfig {
    let default = ProducerConfig::default();
    let batch_bytes = args
        .batch_bytes
        .and_then(|size| usize::try_from(size.as_u64()).ok());
    ProducerConfig {
        acks: args.acks.into(),
        compression: args.compression,
        linger: args.linger,
        batch_bytes: batch_bytes.unwrap_or(default.batch_bytes),
        ..default
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    records: u64,
    bytes: u64,
}

struct Sending<'a> {
    args: &'a ProduceArgs,
    keys: KeySource,
    producer: Producer,
    progress: Progress,
}

impl Sending<'_> {
    async fn send_all(&mut self, mut lines: Lines) -> anyhow::Result<Sent> {
        let mut sent = Sent::default();
        while let Some((line, stamp)) = lines.next()? {
            let sending = match self.args.format {
                Format::Lines => self.send_line(line, stamp).await,
                Format::Json => self.send_json(line).await,
            };
            sending.with_context(|| format!("line {}", stamp.number + 1))?;
            sent.records += 1;
            sent.bytes = lines.bytes_read();
            self.progress.at(sent.bytes);
        }
        Ok(sent)
    }

    async fn send_line(&self, line: &[u8], stamp: Stamp) -> anyhow::Result<()> {
        let keyed = self.keys.split(line)?;
        let place = stamp.encode();
        let header = [(source::HEADER, Some(&place[..]))];
        let record = RecordRef {
            key: keyed.key.as_deref(),
            value: Some(keyed.value),
            headers: if self.args.no_line_numbers {
                &[]
            } else {
                &header
            },
            timestamp: None,
            partition: self.args.partition.map(PartitionId::new),
        };
        // What becomes of it, the flush tells.
        drop(self.producer.send(record).await?);
        Ok(())
    }

    async fn send_json(&self, line: &[u8]) -> anyhow::Result<()> {
        let json: RecordJson = serde_json::from_slice(line).context("no record in JSON")?;
        let (key, value) = (json.key()?, json.value()?);
        let record = RecordRef {
            key: key.as_deref(),
            value: value.as_deref(),
            headers: &json.headers(),
            timestamp: json.timestamp(),
            partition: self.args.partition.or(json.partition).map(PartitionId::new),
        };
        drop(self.producer.send(record).await?);
        Ok(())
    }
}

fn report(common: &Common, topic: &str, sent: Sent, took: Duration) -> anyhow::Result<()> {
    let seconds = took.as_secs_f64();
    if common.json {
        return output::json(&json!({
            "topic": topic, "records": sent.records, "bytes": sent.bytes, "seconds": seconds,
        }));
    }
    eprintln!(
        "{} records, {}, acknowledged in {seconds:.2} s",
        grouped(sent.records),
        size(sent.bytes)
    );
    Ok(())
}
