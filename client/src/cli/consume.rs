//! `esker consume`: records to standard output or a file, as they come.

use std::{io::Write, path::PathBuf};

use clap::{Args, ValueEnum};

use super::{Common, files, output::write_json, record_json::RecordJson, start::Place};
use crate::{ConsumerConfig, Fetched, OutOfRange, PartitionId, Partitions, Record};

#[derive(Debug, Args)]
pub(super) struct ConsumeArgs {
    topic: String,
    /// Partitions to read [default: all]
    #[arg(long, value_delimiter = ',')]
    partition: Vec<u32>,
    /// beginning, end, an offset, a time (2026-01-31T12:00:00Z) or how long ago (2h)
    #[arg(long, default_value = "end")]
    from: Place,
    /// Where to stop [default: follow the topic]
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
    /// Go on at the log start when records were removed meanwhile
    #[arg(long)]
    skip_removed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The value and a line feed
    Value,
    /// Key, separator, value and a line feed
    KeyValue,
    /// One JSON object a line
    Json,
}

pub(super) async fn run(common: &Common, args: ConsumeArgs) -> anyhow::Result<()> {
    let client = common.connect().await?;
    let out_of_range = if args.skip_removed {
        OutOfRange::Earliest
    } else {
        OutOfRange::Error
    };
    let mut consumer = client.consumer(ConsumerConfig {
        out_of_range,
        ..ConsumerConfig::default()
    });
    let partitions = partitions(&args.partition);
    let until = args.until.map(Place::end);
    consumer
        .assign(&args.topic, partitions, args.from.start(), until)
        .await?;
    let mut printing = Printing {
        out: files::output(&args.output)?,
        format: if common.json {
            Format::Json
        } else {
            args.format
        },
        separator: args.key_separator.into_bytes(),
        left: args.max.unwrap_or(u64::MAX),
    };
    while printing.left > 0 {
        tokio::select! {
            fetched = consumer.next() => match fetched? {
                Some(fetched) => printing.print(&fetched)?,
                None => break,
            },
            interrupted = tokio::signal::ctrl_c() => {
                interrupted?;
                break;
            }
        }
        printing.out.flush()?;
    }
    printing.out.flush()?;
    Ok(())
}

pub(super) fn partitions(numbers: &[u32]) -> Partitions {
    if numbers.is_empty() {
        return Partitions::All;
    }
    Partitions::Only(numbers.iter().copied().map(PartitionId::new).collect())
}

struct Printing {
    out: Box<dyn Write>,
    format: Format,
    separator: Vec<u8>,
    left: u64,
}

impl Printing {
    fn print(&mut self, fetched: &Fetched) -> anyhow::Result<()> {
        for record in fetched {
            if self.left == 0 {
                return Ok(());
            }
            self.print_record(fetched.partition(), &record?)?;
            self.left -= 1;
        }
        Ok(())
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
