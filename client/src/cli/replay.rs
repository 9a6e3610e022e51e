//! `esker replay`: a topic's past, as it was produced.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use clap::Args;
use serde_json::json;
use tokio::{select, time::Instant};

use super::{
    Common, exit,
    merge::Merge,
    output::{self, note, records, size},
    positions::{Checkpoint, Positions},
    progress::Progress,
    reading::{Outage, Reader, ReadingArgs, advised},
    signals::{Stop, Stopping},
    sink::Sink,
    start::Place,
};
use crate::{Client, End, FetchSource, Fetched, Offset, PartitionId, StartAt};

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    topic: String,
    #[command(flatten)]
    reading: ReadingArgs,
    /// beginning, end, an offset, a time (2026-01-31T12:00:00Z) or how long ago (2h)
    #[arg(long, default_value = "beginning")]
    from: Place,
    /// Where to stop: what is appended meanwhile is not read
    #[arg(long, default_value = "end")]
    until: Place,
    /// File to write the values to; `-` is standard output [default: read, check, write nothing]
    ///
    /// A file has the suffix `.partial` until it is complete.
    #[arg(long, short)]
    output: Option<PathBuf>,
    /// Keep in this file how far the output reaches, and continue from there if it exists
    ///
    /// Whatever ended the replay before, the output is continued exactly, and extended when more was
    /// appended since.
    #[arg(
        long,
        value_name = "FILE",
        requires = "output",
        conflicts_with = "from_offsets"
    )]
    resume: Option<PathBuf>,
    /// Write values as they come, not in the order of the lines they were produced from
    #[arg(long)]
    unordered: bool,
    /// No progress bar
    #[arg(long, short)]
    quiet: bool,
}

/// What was replayed.
#[derive(Clone, Copy, Debug, Default)]
struct Replayed {
    records: u64,
    bytes: u64,
    bucket_bytes: u64,
}

impl Replayed {
    fn add(&mut self, fetched: &Fetched) {
        let bytes = u64::try_from(fetched.size_bytes()).unwrap_or(u64::MAX);
        self.records += fetched.record_count();
        self.bytes += bytes;
        if fetched.source() == FetchSource::Bucket {
            self.bucket_bytes += bytes;
        }
    }
}

pub(super) async fn run(common: &Common, args: ReplayArgs) -> anyhow::Result<()> {
    let client = common.connect().await?;
    let (start, mut sink) = begin(&client, &args).await?;
    let readers = open(&client, &args, start).await?;
    let started = Instant::now();
    let to_read = readers.iter().map(|reader| reader.records).sum();
    let mut replay = Replay {
        written: Positions::new(
            readers
                .iter()
                .flat_map(|r| r.reader.positions().saved())
                .collect(),
        ),
        readers,
        progress: Progress::records(to_read, args.quiet || common.json),
        replayed: Replayed::default(),
    };
    if let Some(sink) = &mut sink {
        sink.note(&replay.written)?;
    }
    let stopping = Stopping::listen()?;
    let end = replay.run(sink.as_mut(), args.unordered, stopping).await;
    replay.progress.finish();
    let Err(error) = end else {
        if let Some(sink) = sink {
            sink.complete(&replay.written)?;
        }
        return replay.report(common, &args.topic, started.elapsed());
    };
    if !exit::is_closed_pipe(&error)
        && let Some(sink) = sink
    {
        let left = sink.abandon(&replay.written, exit::is_final(&error))?;
        note(format_args!("esker: {left}"));
    }
    Err(error)
}

/// Finds out where to start, and opens the output.
async fn begin(client: &Client, args: &ReplayArgs) -> anyhow::Result<(StartAt, Option<Sink>)> {
    let Some(notes) = &args.resume else {
        let start = args.reading.start(client, &args.topic, args.from).await?;
        let sink = args.output.as_deref().map(Sink::open).transpose()?;
        return Ok((start, sink));
    };
    let output = args.output.as_deref().unwrap_or_else(|| Path::new("-"));
    anyhow::ensure!(
        output != Path::new("-"),
        "--resume needs a file as --output: what went to a pipe cannot be continued"
    );
    let reached = Checkpoint::read(notes)?;
    let sink = Sink::resume(output, notes, reached.as_ref())?;
    let start = match reached {
        Some(reached) => reached.start(notes, &args.topic)?,
        None => args.from.start(),
    };
    Ok((start, Some(sink)))
}

/// One consumer for each partition, so that a merge can wait for one of them.
async fn open(
    client: &Client,
    args: &ReplayArgs,
    start: StartAt,
) -> anyhow::Result<Vec<PartitionReader>> {
    let reading = &args.reading;
    let all = reading
        .assign(client, &args.topic, start, Some(args.until))
        .await?;
    let (positions, ends) = (all.saved_positions(), all.assignment());
    let outage = Outage::default();
    let mut readers = Vec::new();
    for (position, (_, partition, end)) in positions.into_iter().zip(ends) {
        let start = position.next_offset;
        let end = end.unwrap_or(start).max(start);
        let mut consumer = client.consumer(reading.config(all.assignment().len()));
        let start_at = StartAt::Saved(vec![position]);
        consumer
            .assign(&args.topic, partition, start_at, Some(End::Offset(end)))
            .await?;
        readers.push(PartitionReader {
            partition,
            records: end.since(start),
            reader: Reader::new(consumer, outage.clone()),
        });
    }
    Ok(readers)
}

struct PartitionReader {
    partition: PartitionId,
    /// How many records there are to read.
    records: u64,
    reader: Reader,
}

struct Replay {
    readers: Vec<PartitionReader>,
    /// Behind what was written.
    written: Positions,
    progress: Progress,
    replayed: Replayed,
}

impl Replay {
    async fn run(
        &mut self,
        sink: Option<&mut Sink>,
        unordered: bool,
        mut stopping: Stopping,
    ) -> anyhow::Result<()> {
        let stopped = stopping.stopped();
        let read = async {
            match sink {
                Some(sink) if unordered => self.copy(sink).await,
                Some(sink) => self.merge(sink).await,
                None => self.check().await,
            }
        };
        let stop = select! {
            biased;
            stop = stopped => stop,
            read = read => return read,
        };
        Err(self.stopped_by(stop).into())
    }

    fn stopped_by(&self, stop: Stop) -> exit::Ended {
        let text = format!("stopped by {stop}; {} read", records(self.replayed.records));
        exit::Ended {
            text,
            code: stop.exit_code(),
            is_final: false,
        }
    }

    /// Reads everything, in any order, and checks that it can be read.
    async fn check(&mut self) -> anyhow::Result<()> {
        self.each(|fetched, _| {
            fetched
                .records()
                .try_for_each(|record| record.map(drop).map_err(advised))
        })
        .await
    }

    /// Writes values in the order they come.
    async fn copy(&mut self, sink: &mut Sink) -> anyhow::Result<()> {
        self.each(|fetched, written| {
            for record in fetched {
                let record = record.map_err(advised)?;
                sink.write(record.value.unwrap_or_default(), true)?;
                let epoch = fetched.leader_epoch_at(record.offset);
                written.advance(fetched.partition(), record.offset.advance(1), epoch);
            }
            let epoch = fetched.leader_epoch();
            written.advance(fetched.partition(), fetched.next_offset(), epoch);
            sink.reached(written)
        })
        .await
    }

    async fn each(
        &mut self,
        mut then: impl FnMut(&Fetched, &mut Positions) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let streams = self.readers.iter_mut().map(|reader| {
            Box::pin(futures::stream::unfold(reader, |reader| async {
                let next = reader.reader.next().await.transpose()?;
                Some((next, reader))
            }))
        });
        let mut all = futures::stream::select_all(streams);
        while let Some(fetched) = futures::StreamExt::next(&mut all).await {
            let fetched = fetched?;
            then(&fetched, &mut self.written)?;
            self.replayed.add(&fetched);
            self.progress.at(self.replayed.records);
            // A signal is taken note of in between, however fast records come.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Writes values in the order of the lines they were produced from.
    async fn merge(&mut self, sink: &mut Sink) -> anyhow::Result<()> {
        let partitions = self.readers.iter().map(|reader| reader.partition);
        let mut merge = Merge::of(partitions);
        // What precedes an error is written before it is told.
        let mut failed: Option<(PartitionId, anyhow::Error)> = None;
        loop {
            while let Some(lacking) = merge.lacking() {
                if let Some((_, error)) = failed.take_if(|(partition, _)| *partition == lacking) {
                    return Err(error);
                }
                let mut readers = self.readers.iter_mut();
                let found = readers.find(|reader| reader.partition == lacking);
                let reader = found.context("a partition that was not opened is lacking")?;
                match reader.reader.next().await? {
                    None => merge.end(lacking),
                    Some(fetched) => {
                        if let Err(error) = merge.push(&fetched) {
                            failed = Some((lacking, advised(error)));
                        }
                        self.replayed.add(&fetched);
                        self.progress.at(self.replayed.records);
                        tokio::task::yield_now().await;
                    }
                }
            }
            let Some(next) = merge.pop() else {
                return self.written_all();
            };
            sink.write(&next.value, next.is_terminated)?;
            self.written
                .advance(next.partition, next.offset.advance(1), next.leader_epoch);
            sink.reached(&self.written)?;
        }
    }

    /// Also what was skipped at the ends is dealt with.
    fn written_all(&mut self) -> anyhow::Result<()> {
        for reader in &self.readers {
            let end = reader.reader.positions().next_offset(reader.partition);
            self.written
                .advance_to_end(reader.partition, end.unwrap_or(Offset::ZERO));
        }
        Ok(())
    }

    fn report(&self, common: &Common, topic: &str, took: Duration) -> anyhow::Result<()> {
        let (replayed, seconds) = (self.replayed, took.as_secs_f64());
        let skipped: u64 = self.readers.iter().map(|r| r.reader.skipped()).sum();
        if common.json {
            return output::json(&json!({
                "topic": topic,
                "records": replayed.records,
                "bytes": replayed.bytes,
                "bucket_bytes": replayed.bucket_bytes,
                "skipped_records": skipped,
                "seconds": seconds,
            }));
        }
        let skipped = match skipped {
            0 => String::new(),
            skipped => format!(", {} skipped", records(skipped)),
        };
        note(format_args!(
            "{}, {}, {} of it from the bucket, in {seconds:.2} s{skipped}",
            records(replayed.records),
            size(replayed.bytes),
            size(replayed.bucket_bytes),
        ));
        Ok(())
    }
}
