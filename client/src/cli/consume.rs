//! `esker consume`: records to standard output or a file, as they come.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use clap::{Args, ValueEnum};
use tokio::select;

use super::{
    Common, exit, files,
    output::{note, records, write_json},
    positions::Positions,
    reading::{Outage, Reader, ReadingArgs, advised},
    record_json::RecordJson,
    signals::{Stop, Stopping},
    start::Place,
};
use crate::{Fetched, LeaderEpoch, Offset, PartitionId, Record};

#[derive(Debug, Args)]
pub(super) struct ConsumeArgs {
    topic: String,
    #[command(flatten)]
    reading: ReadingArgs,
    /// beginning, end, an offset, a time (2026-01-31T12:00:00Z) or how long ago (2h)
    #[arg(long, default_value = "end")]
    from: Place,
    /// Where to stop; beyond the end of a partition: at its end [default: follow the topic]
    #[arg(long)]
    until: Option<Place>,
    /// Stop after so many records
    #[arg(long, short = 'n')]
    max: Option<u64>,
    #[arg(long, value_enum, default_value_t = Format::Value)]
    format: Format,
    /// What stands between key and value with `--format key-value`
    #[arg(long, default_value = "\t")]
    key_separator: String,
    /// File to write; `-` is standard output
    #[arg(long, short, default_value = "-")]
    output: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The value and a line feed
    Value,
    /// Key, separator, value and a line feed
    KeyValue,
    /// One JSON object a line; `produce --format json` takes it back unchanged
    Json,
}

pub(super) async fn run(common: &Common, args: ConsumeArgs) -> anyhow::Result<()> {
    let client = common.connect().await?;
    let reading = &args.reading;
    let start = reading.start(&client, &args.topic, args.from).await?;
    let consumer = reading
        .assign(&client, &args.topic, start, args.until)
        .await?;
    let mut reader = Reader::new(consumer, Outage::default());
    let mut printing = Printing {
        out: files::output(&args.output)?,
        format: if common.json {
            Format::Json
        } else {
            args.format
        },
        separator: args.key_separator.into_bytes(),
        left: args.max.unwrap_or(u64::MAX),
        printed: 0,
        unflushed: None,
        positions: reader.positions().clone(),
    };
    let mut stopping = Stopping::listen()?;
    let read = printing.print_all(&mut reader, &mut stopping).await;
    let flushed = printing.flush();
    let stop = match read {
        Ok(None) => return Ok(flushed?),
        Ok(Some(stop)) => stop,
        Err(error) if exit::is_closed_pipe(&error) => return Err(error),
        Err(error) => {
            let told = printing.told(exit::is_final(&error));
            note(format_args!("esker: {told}"));
            return Err(match error.is::<io::Error>() {
                true => error.context("cannot write the output"),
                false => error,
            });
        }
    };
    flushed?;
    let text = format!("stopped by {stop}; {}", printing.told(false));
    if args.until.is_none() && args.max.is_none() {
        // Nothing else ends what follows a topic.
        note(format_args!("esker: {text}"));
        return Ok(());
    }
    Err(exit::Ended {
        text,
        code: stop.exit_code(),
        is_final: false,
    }
    .into())
}

/// What an output's buffer may still hold.
struct Unflushed {
    records: u64,
    partition: PartitionId,
    next_offset: Offset,
    leader_epoch: Option<LeaderEpoch>,
}

struct Printing {
    out: Box<dyn Write>,
    format: Format,
    separator: Vec<u8>,
    left: u64,
    /// What the output has taken.
    printed: u64,
    unflushed: Option<Unflushed>,
    /// Behind what the output has taken.
    positions: Positions,
}

impl Printing {
    /// Prints until the end, or until a signal.
    async fn print_all(
        &mut self,
        reader: &mut Reader,
        stopping: &mut Stopping,
    ) -> anyhow::Result<Option<Stop>> {
        while self.left > 0 {
            select! {
                biased;
                stop = stopping.stopped() => return Ok(Some(stop)),
                fetched = reader.next() => match fetched? {
                    Some(fetched) => self.print(&fetched)?,
                    None => break,
                },
            }
            self.flush()?;
        }
        Ok(None)
    }

    /// Only what was written counts as printed: a full disk is noticed no earlier.
    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()?;
        if let Some(unflushed) = self.unflushed.take() {
            let Unflushed {
                records,
                partition,
                next_offset,
                leader_epoch,
            } = unflushed;
            self.printed += records;
            self.positions.advance(partition, next_offset, leader_epoch);
        }
        Ok(())
    }

    fn print(&mut self, fetched: &Fetched) -> anyhow::Result<()> {
        let (mut printed, partition) = (0, fetched.partition());
        for record in fetched {
            if self.left == 0 {
                return Ok(());
            }
            let record = record.map_err(advised)?;
            self.print_record(partition, &record)?;
            self.left -= 1;
            printed += 1;
            self.unflushed = Some(Unflushed {
                records: printed,
                partition,
                next_offset: record.offset.advance(1),
                leader_epoch: fetched.leader_epoch_at(record.offset),
            });
        }
        // Also behind what was skipped.
        self.unflushed = Some(Unflushed {
            records: printed,
            partition,
            next_offset: fetched.next_offset(),
            leader_epoch: fetched.leader_epoch(),
        });
        Ok(())
    }

    /// How far it came, and how to continue.
    fn told(&self, is_final: bool) -> String {
        let printed = records(self.printed);
        match is_final {
            true => format!("{printed} printed"),
            false => format!(
                "{printed} printed; continue with --from-offsets {}",
                self.positions
            ),
        }
    }

    fn print_record(&mut self, partition: PartitionId, record: &Record<'_>) -> anyhow::Result<()> {
        match self.format {
            Format::Json => {
                write_json(&mut self.out, &RecordJson::of(partition, record)?)?;
            }
            Format::KeyValue => {
                self.out.write_all(record.key.unwrap_or_default())?;
                self.out.write_all(&self.separator)?;
                self.out.write_all(record.value.unwrap_or_default())?;
            }
            Format::Value => self.out.write_all(record.value.unwrap_or_default())?,
        }
        Ok(self.out.write_all(b"\n")?)
    }
}
