//! `esker replay`: a topic's past, as it was produced.

use std::{io::Write, path::PathBuf, time::Duration};

use anyhow::Context;
use clap::Args;
use serde_json::json;
use tokio::time::Instant;

use super::{
    Common, consume, files,
    merge::Merge,
    output::{self, grouped, size},
    progress::Progress,
    start::Place,
};
use crate::{
    Client, Consumer, ConsumerConfig, End, FetchSource, Fetched, Offset, PartitionId, StartAt,
};

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    topic: String,
    /// Partitions to read [default: all]
    #[arg(long, value_delimiter = ',')]
    partition: Vec<u32>,
    /// beginning, end, an offset, a time (2026-01-31T12:00:00Z) or how long ago (2h)
    #[arg(long, default_value = "beginning")]
    from: Place,
    /// Where to stop
    #[arg(long, default_value = "end")]
    until: Place,
    /// File to write the values to; `-` is standard output [default: read, check, write nothing]
    #[arg(long, short)]
    output: Option<PathBuf>,
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
    let mut consumers = Consumers::open(&client, &args).await?;
    let started = Instant::now();
    let quiet = args.quiet || common.json;
    let progress = Progress::records(consumers.records(), quiet);
    let replayed = match &args.output {
        Some(path) => {
            let mut out = files::output(path)?;
            let replayed = if args.unordered {
                consumers.copy(&mut out, &progress).await?
            } else {
                consumers.merge(&mut out, &progress).await?
            };
            out.flush()
                .with_context(|| format!("{} cannot be written", path.display()))?;
            replayed
        }
        None => consumers.read(&progress).await?,
    };
    progress.finish();
    report(common, &args.topic, replayed, started.elapsed())
}

/// One consumer for each partition, so that a merge can wait for one of them.
struct Consumers(Vec<(PartitionId, u64, Consumer)>);

impl Consumers {
    async fn open(client: &Client, args: &ReplayArgs) -> anyhow::Result<Self> {
        let mut all = client.consumer(ConsumerConfig::default());
        let partitions = consume::partitions(&args.partition);
        all.assign(
            &args.topic,
            partitions,
            args.from.start(),
            Some(args.until.end()),
        )
        .await?;
        let assigned = all.assignment();
        let share = ConsumerConfig::default().buffer_bytes / assigned.len().max(1);
        let mut consumers = Vec::new();
        for (topic, partition, end) in assigned {
            let start = all.position(&topic, partition).unwrap_or(Offset::ZERO);
            let end = end.unwrap_or(start);
            let config = ConsumerConfig {
                buffer_bytes: share,
                ..ConsumerConfig::default()
            };
            let mut consumer = client.consumer(config);
            consumer
                .assign(
                    &topic,
                    partition,
                    StartAt::Offset(start),
                    Some(End::Offset(end)),
                )
                .await?;
            consumers.push((partition, end.since(start), consumer));
        }
        Ok(Self(consumers))
    }

    /// How many records there are to read.
    fn records(&self) -> u64 {
        self.0.iter().map(|(_, records, _)| records).sum()
    }

    /// Reads everything, in any order.
    async fn read(&mut self, progress: &Progress) -> anyhow::Result<Replayed> {
        self.each(progress, |_| Ok(())).await
    }

    /// Writes values in the order they come.
    async fn copy(&mut self, out: &mut dyn Write, progress: &Progress) -> anyhow::Result<Replayed> {
        self.each(progress, |fetched| {
            for record in fetched {
                out.write_all(record?.value.unwrap_or_default())?;
                out.write_all(b"\n")?;
            }
            Ok(())
        })
        .await
    }

    async fn each(
        &mut self,
        progress: &Progress,
        mut then: impl FnMut(&Fetched) -> anyhow::Result<()>,
    ) -> anyhow::Result<Replayed> {
        let mut replayed = Replayed::default();
        let streams = self.0.iter_mut().map(|(_, _, consumer)| {
            Box::pin(futures::stream::unfold(consumer, |consumer| async {
                let next = consumer.next().await.transpose()?;
                Some((next, consumer))
            }))
        });
        let mut all = futures::stream::select_all(streams);
        while let Some(fetched) = futures::StreamExt::next(&mut all).await {
            let fetched = fetched?;
            then(&fetched)?;
            replayed.add(&fetched);
            progress.at(replayed.records);
        }
        Ok(replayed)
    }

    /// Writes values in the order of the lines they were produced from.
    async fn merge(
        &mut self,
        out: &mut dyn Write,
        progress: &Progress,
    ) -> anyhow::Result<Replayed> {
        let mut replayed = Replayed::default();
        let mut merge = Merge::of(self.0.iter().map(|(partition, _, _)| *partition));
        loop {
            while let Some(lacking) = merge.lacking() {
                let found = self
                    .0
                    .iter_mut()
                    .find(|(partition, _, _)| *partition == lacking);
                let (_, _, consumer) =
                    found.context("a partition that was not opened is lacking")?;
                match consumer.next().await? {
                    None => merge.end(lacking),
                    Some(fetched) => {
                        merge.push(&fetched)?;
                        replayed.add(&fetched);
                        progress.at(replayed.records);
                    }
                }
            }
            let Some(next) = merge.pop() else {
                return Ok(replayed);
            };
            out.write_all(&next.value)?;
            if next.is_terminated {
                out.write_all(b"\n")?;
            }
        }
    }
}

fn report(common: &Common, topic: &str, replayed: Replayed, took: Duration) -> anyhow::Result<()> {
    let seconds = took.as_secs_f64();
    if common.json {
        return output::json(&json!({
            "topic": topic,
            "records": replayed.records,
            "bytes": replayed.bytes,
            "bucket_bytes": replayed.bucket_bytes,
            "seconds": seconds,
        }));
    }
    eprintln!(
        "{} records, {}, {} of it from the bucket, in {seconds:.2} s",
        grouped(replayed.records),
        size(replayed.bytes),
        size(replayed.bucket_bytes),
    );
    Ok(())
}
