//! `esker bucket`: work on a bucket itself, with no agent.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use esker_proto::types::{PartitionId, TopicId, TopicPartition};
use esker_tiering::{
    MetricsRegistry,
    env::{RandomIds, TaskSet},
    scrub::{Depth, GarbagePlan, RebuildOptions, RebuildReport, Refusal, Scrubber, VerifyReport},
    store::{Store, StoreOptions, StoreUrl},
};
use indicatif::ProgressBar;
use serde_json::json;

use super::{
    Common,
    exit::Damaged,
    output::{self, grouped, size},
};

#[derive(Debug, Subcommand)]
pub(super) enum BucketCommand {
    /// Compare manifests with what is in the bucket
    Verify {
        #[command(flatten)]
        target: Target,
        /// Download everything and compare checksums too
        #[arg(long)]
        deep: bool,
    },
    /// Write a partition's manifest anew, from its segments alone
    ///
    /// The last resort for a damaged manifest. Stop the partition's agent before, start it after.
    RebuildIndex {
        /// Store URL
        #[arg(long, env = "ESKER_STORE")]
        store: StoreUrl,
        /// Which partition: TOPIC_ID/NUMBER
        #[arg(long, value_parser = partition)]
        partition: TopicPartition,
        /// Only say what would be written
        #[arg(long)]
        dry_run: bool,
        /// Rebuild although the manifest is intact, or although offsets would be lost
        #[arg(long)]
        force: bool,
    },
    /// Delete what no manifest names and nobody can name any more
    Gc {
        #[command(flatten)]
        target: Target,
        /// Only say what would be deleted
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Args)]
pub(super) struct Target {
    /// Store URL: s3://bucket/prefix?region=..., gs://, az://, file:///directory
    #[arg(long, env = "ESKER_STORE")]
    store: StoreUrl,
    /// Only this partition: TOPIC_ID/NUMBER [default: all]
    #[arg(long, value_parser = partition)]
    partition: Option<TopicPartition>,
}

fn partition(text: &str) -> Result<TopicPartition, String> {
    let shape = || format!("`{text}` is not of the form TOPIC_ID/NUMBER");
    let (topic_id, number) = text.split_once('/').ok_or_else(shape)?;
    let topic_id: TopicId = topic_id.parse().map_err(|_| shape())?;
    let number = number.parse().map_err(|_| shape())?;
    Ok(TopicPartition {
        topic_id,
        partition: PartitionId::new(number),
    })
}

pub(super) async fn run(common: &Common, command: BucketCommand) -> anyhow::Result<()> {
    match command {
        BucketCommand::Verify { target, deep } => {
            let depth = if deep { Depth::Bytes } else { Depth::Sizes };
            let (scrubber, bar) = open(common, &target.store).await?;
            let report = scrubber.verify(target.partition, depth).await?;
            bar.finish_and_clear();
            verified(common, &report)
        }
        BucketCommand::RebuildIndex {
            store,
            partition,
            dry_run,
            force,
        } => {
            let (scrubber, bar) = open(common, &store).await?;
            let options = RebuildOptions { dry_run, force };
            let report = scrubber
                .rebuild_index(partition, &RandomIds, options)
                .await?;
            bar.finish_and_clear();
            rebuilt(common, &report, dry_run)
        }
        BucketCommand::Gc { target, dry_run } => {
            let (scrubber, bar) = open(common, &target.store).await?;
            let plan = scrubber.plan_garbage(target.partition).await?;
            bar.finish_and_clear();
            if !dry_run {
                scrubber.delete_garbage(&plan).await?;
            }
            collected(common, &plan, dry_run)
        }
    }
}

async fn open(common: &Common, url: &StoreUrl) -> anyhow::Result<(Scrubber, ProgressBar)> {
    let store = Store::open(url, StoreOptions::default(), &MetricsRegistry::new()).await?;
    // A directory that is not there would look like an empty bucket.
    if let Some(directory) = url.directory() {
        let directory = PathBuf::from(directory);
        anyhow::ensure!(
            directory.is_dir(),
            "{} is no directory",
            directory.display()
        );
    }
    let bar = if common.json {
        ProgressBar::hidden()
    } else {
        ProgressBar::new_spinner()
    };
    let shown = bar.clone();
    let scrubber = Scrubber::new(store, TaskSet::new()).with_progress(move |progress| {
        shown.set_message(format!(
            "{} partitions, {} of {} segments, {} read",
            progress.partitions,
            progress.segments,
            progress.segments_total,
            size(progress.bytes_read)
        ));
        shown.tick();
    });
    Ok((scrubber, bar))
}

fn verified(common: &Common, report: &VerifyReport) -> anyhow::Result<()> {
    if common.json {
        let anomalies = report.anomalies.iter().map(|anomaly| {
            json!({
                "partition": anomaly.topic_partition.to_string(),
                "key": anomaly.key,
                "damage": anomaly.damage.to_string(),
                "loses_records": anomaly.damage.loses_records(),
                "offsets": anomaly.offsets.as_ref().map(|o| [o.start.get(), o.end.get()]),
            })
        });
        output::json(&json!({
            "partitions": report.partitions,
            "segments": report.segments,
            "segment_bytes": report.segment_bytes,
            "pages": report.pages,
            "orphans": report.orphans,
            "orphan_bytes": report.orphan_bytes,
            "is_intact": report.is_intact(),
            "anomalies": anomalies.collect::<Vec<_>>(),
        }))?;
    } else {
        print_report(report)?;
    }
    match report.is_intact() {
        true => Ok(()),
        false => Err(Damaged("the bucket lacks records that its manifests name".to_owned()).into()),
    }
}

fn print_report(report: &VerifyReport) -> anyhow::Result<()> {
    println!(
        "{} partitions, {} segments, {}, {} index pages; {} orphans, {}",
        grouped(report.partitions),
        grouped(report.segments),
        size(report.segment_bytes),
        grouped(report.pages),
        grouped(report.orphans),
        size(report.orphan_bytes),
    );
    if report.anomalies.is_empty() {
        println!("every object that a manifest names is there and whole");
        return Ok(());
    }
    let mut table = output::table(&["DAMAGE", "OFFSETS", "OBJECT"], &[]);
    for anomaly in &report.anomalies {
        let offsets = anomaly.offsets.as_ref();
        let offsets = offsets.map_or_else(String::new, |o| format!("{} to {}", o.start, o.end));
        table.add_row([anomaly.damage.to_string(), offsets, anomaly.key.clone()]);
    }
    Ok(output::print(&table)?)
}

fn rebuilt(common: &Common, report: &RebuildReport, dry_run: bool) -> anyhow::Result<()> {
    if let Some(refusal) = &report.refusal {
        let reason = match refusal {
            Refusal::Intact => {
                "the manifest is intact; --force rebuilds it all the same".to_owned()
            }
            Refusal::NoSegments => "there is no segment whose trailer can be read".to_owned(),
            Refusal::Holes(holes) => {
                let holes: Vec<_> = holes
                    .iter()
                    .map(|hole| format!("{} to {}", hole.start, hole.end))
                    .collect();
                format!(
                    "offsets would be lost: {}; --force gives them up",
                    holes.join(", ")
                )
            }
            _ => "segments come from several clusters".to_owned(),
        };
        anyhow::bail!("nothing was rebuilt: {reason}");
    }
    let manifest = report
        .manifest
        .as_ref()
        .context("a rebuild without a manifest")?;
    let (start, end) = (manifest.log_start_offset(), manifest.tiered_offset());
    if common.json {
        return output::json(&json!({
            "dry_run": dry_run,
            "version": manifest.header().version.get(),
            "leader_epoch": manifest.header().leader_epoch.get(),
            "log_start_offset": start.get(),
            "tiered_offset": end.get(),
            "segments": report.chosen.len(),
            "spare": report.spare.len(),
            "damaged": report.damaged.len(),
        }));
    }
    let what = if dry_run { "would name" } else { "names" };
    println!(
        "the manifest {what} {} segments, offsets {start} to {end}; {} left out, {} damaged",
        report.chosen.len(),
        report.spare.len(),
        report.damaged.len()
    );
    Ok(())
}

fn collected(common: &Common, plan: &GarbagePlan, dry_run: bool) -> anyhow::Result<()> {
    let totals = plan.totals();
    if common.json {
        let by_reason = totals.iter().map(|(reason, (objects, bytes))| {
            json!({ "reason": reason.name(), "objects": objects, "bytes": bytes })
        });
        return output::json(&json!({
            "dry_run": dry_run,
            "garbage": by_reason.collect::<Vec<_>>(),
            "unjudged": plan.unjudged.iter().map(|unjudged| json!({
                "partition": unjudged.topic_partition.to_string(),
                "reason": unjudged.reason,
            })).collect::<Vec<_>>(),
        }));
    }
    if dry_run && !plan.objects.is_empty() {
        let mut table = output::table(&["REASON", "SIZE", "OBJECT"], &[1]);
        for object in &plan.objects {
            let bytes = size(object.size_bytes);
            table.add_row([object.reason.name().to_owned(), bytes, object.key.clone()]);
        }
        output::print(&table)?;
        println!();
    }
    let what = if dry_run {
        "would be deleted"
    } else {
        "deleted"
    };
    if totals.is_empty() {
        println!("no garbage");
    }
    for (reason, (objects, bytes)) in totals {
        println!(
            "{}: {} objects, {} {what}",
            reason.name(),
            grouped(objects),
            size(bytes)
        );
    }
    for unjudged in &plan.unjudged {
        let (partition, reason) = (unjudged.topic_partition, &unjudged.reason);
        println!("{partition}: kept what cannot be judged: {reason}");
    }
    Ok(())
}
