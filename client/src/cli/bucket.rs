//! `esker bucket`: work on a bucket itself, with no agent.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use esker_proto::types::{PartitionId, TopicId, TopicPartition};
use esker_tiering::{
    MetricsRegistry,
    env::TaskSet,
    keys::{Key, Keys},
    scrub::{Depth, GarbagePlan, RebuildOptions, Scrubber},
    store::{Store, StoreOptions, StoreUrl},
};
use futures::StreamExt;
use indicatif::ProgressBar;
use serde_json::json;

use super::{
    Common,
    output::{self, count, grouped, size},
};

mod repair;
mod report;

/// How long a verification waits for an agent to commit what it has uploaded.
const COMMIT_PATIENCE: Duration = Duration::from_secs(20);

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
    /// Show what can be repaired in damaged partitions; with --apply, repair it
    ///
    /// Writes a partition's manifest anew, from its segments and what is left of the manifest. That
    /// fences the agent that leads the partition: restart it afterwards. docs/damage.md lists each
    /// damage and its repair.
    Repair {
        #[command(flatten)]
        target: Target,
        /// Write the repair; without it, only show it
        #[arg(long)]
        apply: bool,
        /// Repair although offsets are lost, or although the manifest is intact. Deletes segments
        /// above the new end that it cannot name
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
            let Opened {
                scrubber,
                bar,
                has_cluster,
            } = open(common, &target.store).await?;
            let scrubber = scrubber.with_patience(COMMIT_PATIENCE);
            let report = scrubber.verify(target.partition, depth).await?;
            bar.finish_and_clear();
            report::verified(common, &target.store, &report, has_cluster)
        }
        BucketCommand::Repair {
            target,
            apply,
            force,
        } => {
            let options = RebuildOptions {
                dry_run: !apply,
                force,
            };
            repair::run(common, &target, options).await
        }
        BucketCommand::Gc { target, dry_run } => {
            let Opened { scrubber, bar, .. } = open(common, &target.store).await?;
            let plan = scrubber.plan_garbage(target.partition).await?;
            bar.finish_and_clear();
            if !dry_run {
                scrubber.delete_garbage(&plan).await?;
            }
            collected(common, &plan, dry_run)
        }
    }
}

/// A bucket about to be worked on.
struct Opened {
    scrubber: Scrubber,
    bar: ProgressBar,
    /// Whether `cluster.json` exists.
    has_cluster: bool,
}

async fn open(common: &Common, url: &StoreUrl) -> anyhow::Result<Opened> {
    // Opening the store would create the directory, which would then look like an empty bucket.
    if let Some(directory) = url.directory() {
        let directory = PathBuf::from(directory);
        anyhow::ensure!(
            directory.is_dir(),
            "{} is not a directory",
            directory.display()
        );
    }
    let store = Store::open(url, StoreOptions::default(), &MetricsRegistry::new()).await?;
    let has_cluster = has_cluster(&store).await?;
    let bar = if common.json {
        ProgressBar::hidden()
    } else {
        ProgressBar::new_spinner()
    };
    let shown = bar.clone();
    let scrubber = Scrubber::new(store, TaskSet::new()).with_progress(move |progress| {
        shown.set_message(format!(
            "{}, {} of {}, {} read",
            count(progress.partitions, "partition"),
            grouped(progress.segments),
            count(progress.segments_total, "segment"),
            size(progress.bytes_read)
        ));
        shown.tick();
    });
    Ok(Opened {
        scrubber,
        bar,
        has_cluster,
    })
}

/// Whether `cluster.json` exists. Refuses a place that has nothing of ours.
async fn has_cluster(store: &Store) -> anyhow::Result<bool> {
    match store.head(&Key::Cluster.to_string()).await {
        Ok(_) => return Ok(true),
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error.into()),
    }
    let first = store.list(Keys::TOPICS, None).next().await.transpose()?;
    anyhow::ensure!(
        first.is_some(),
        "no cluster.json and no topics in {}; is its prefix right?",
        store.name()
    );
    Ok(false)
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
        output::line(format_args!(""))?;
    }
    let what = if dry_run {
        "would be deleted"
    } else {
        "deleted"
    };
    if totals.is_empty() {
        output::line(format_args!("no garbage"))?;
    }
    for (reason, (objects, bytes)) in totals {
        output::line(format_args!(
            "{}: {}, {} {what}",
            reason.name(),
            count(objects, "object"),
            size(bytes)
        ))?;
    }
    for unjudged in &plan.unjudged {
        let (partition, reason) = (unjudged.topic_partition, &unjudged.reason);
        output::line(format_args!(
            "{partition}: kept what cannot be judged: {reason}"
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use esker_tiering::scrub::{repair_command, verify_command};

    use super::*;
    use crate::cli::{Cli, Command};

    fn parsed(command: &str) -> BucketCommand {
        match Cli::try_parse_from(command.split(' ')).unwrap().command {
            Command::Bucket(command) => command,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn printed_commands_are_complete() {
        let store: StoreUrl = "s3://bucket/prefix".parse().unwrap();
        let at = partition("07070707-0707-0707-0707-070707070707/3").unwrap();
        let BucketCommand::Repair { target, apply, .. } = parsed(&repair_command(&store, at))
        else {
            panic!("another command");
        };
        assert_eq!((&target.store, target.partition), (&store, Some(at)));
        assert!(!apply, "it only shows what can be done");
        let BucketCommand::Verify { target, .. } = parsed(&verify_command(&store)) else {
            panic!("another command");
        };
        assert_eq!((&target.store, target.partition), (&store, None));
    }
}
