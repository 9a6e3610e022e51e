//! `esker bucket repair`: shows what can be repaired, and does it when told to.

use std::io;

use esker_proto::types::{OffsetRange, TopicPartition};
use esker_tiering::{
    env::RandomIds,
    scrub::{Depth, RebuildOptions, RebuildReport, Refusal, Scrubber, verify_command},
    store::StoreUrl,
};
use serde_json::{Value, json};

use super::{COMMIT_PATIENCE, Opened, Target, open};
use crate::cli::{Common, exit::Damaged, output};

pub(super) async fn run(
    common: &Common,
    target: &Target,
    options: RebuildOptions,
) -> anyhow::Result<()> {
    let Opened { scrubber, bar, .. } = open(common, &target.store).await?;
    let scrubber = scrubber.with_patience(COMMIT_PATIENCE);
    let damaged = match target.partition {
        Some(partition) => vec![partition],
        None => damaged(&scrubber).await?,
    };
    let mut repairs = Vec::new();
    for partition in damaged {
        let report = scrubber
            .rebuild_index(partition, &RandomIds, options)
            .await?;
        repairs.push((partition, report));
    }
    bar.finish_and_clear();
    if common.json {
        let repairs = repairs.iter().map(|(at, report)| as_json(*at, report));
        let repairs: Vec<Value> = repairs.collect();
        output::json(&json!({ "dry_run": options.dry_run, "repairs": repairs }))?;
    } else {
        print(&target.store, &repairs, options)?;
    }
    let is_refused =
        |report: &RebuildReport| !matches!(report.refusal, None | Some(Refusal::Intact));
    match repairs.iter().any(|(_, report)| is_refused(report)) {
        true => Err(Damaged("some damage cannot be repaired without a loss".to_owned()).into()),
        false => Ok(()),
    }
}

/// Partitions that lack records, by their manifests and the lengths of objects.
async fn damaged(scrubber: &Scrubber) -> anyhow::Result<Vec<TopicPartition>> {
    let report = scrubber.verify(None, Depth::Sizes).await?;
    let anomalies = report.anomalies.iter();
    let mut damaged: Vec<_> = anomalies
        .filter(|anomaly| anomaly.damage.loses_records())
        .map(|anomaly| anomaly.topic_partition)
        .collect();
    damaged.dedup();
    Ok(damaged)
}

fn print(
    store: &StoreUrl,
    repairs: &[(TopicPartition, RebuildReport)],
    options: RebuildOptions,
) -> io::Result<()> {
    let verify = verify_command(store);
    if repairs.is_empty() {
        output::line(format_args!(
            "nothing to repair; `{verify} --deep` also reads the bytes of segments"
        ))?;
    }
    for (partition, report) in repairs {
        output::line(format_args!("partition {partition}"))?;
        for line in lines(report, options) {
            output::line(format_args!("  {line}"))?;
        }
    }
    let has_plan = repairs.iter().any(|(_, report)| report.manifest.is_some());
    if !has_plan {
        return Ok(());
    }
    if options.dry_run {
        return output::line(format_args!(
            "nothing was written; --apply writes it, and fences the agent of the partition"
        ));
    }
    output::line(format_args!(
        "restart the agent, which was fenced; then run `{verify}`"
    ))
}

fn lines(report: &RebuildReport, options: RebuildOptions) -> Vec<String> {
    let mut lines = Vec::new();
    for anomaly in &report.damaged {
        lines.push(format!("damaged: {}", anomaly.key));
    }
    if let Some(refusal) = &report.refusal {
        lines.extend(refused(refusal));
    }
    if let (Some(_), false) = (&report.manifest, report.lost.is_empty()) {
        let lost = ranges(&report.lost);
        lines.push(format!(
            "LOST: offsets {lost}, which no segment holds, or no manifest can name"
        ));
    }
    if let Some(manifest) = &report.manifest {
        let (start, end) = (manifest.log_start_offset(), manifest.tiered_offset());
        let what = if options.dry_run {
            "the new manifest would name"
        } else {
            "the new manifest names"
        };
        let chosen = output::count(report.chosen.len() as u64, "segment");
        let spare = report.spare.len();
        lines.push(format!(
            "{what} {chosen}, offsets {start} to {end}; {spare} left out"
        ));
    }
    lines
}

fn refused(refusal: &Refusal) -> Vec<String> {
    match refusal {
        Refusal::Intact => vec![
            "its manifest is intact, and so are the lengths of its segments".to_owned(),
            "a segment with wrong bytes can only be restored from a copy of the bucket".to_owned(),
            "where an agent says that there was a newer manifest, an older copy was put back: restore"
                .to_owned(),
            "the newer objects, or accept the loss with --force --apply".to_owned(),
        ],
        Refusal::NoSegments => {
            vec![
                "not repaired: no segment has a trailer that can be read".to_owned(),
                "restore the segments from a copy of the bucket".to_owned(),
            ]
        }
        Refusal::Holes(holes) => {
            vec![
            format!("not repaired: no manifest can name offsets {}", ranges(holes)),
            "restore the missing segments from a copy of the bucket; until then all other offsets"
                .to_owned(),
            "can be read, as long as a manifest names them; or give these up with --force"
                .to_owned(),
        ]
        }
        Refusal::Unreadable { key, base_offset } => vec![
            format!("not repaired: records from offset {base_offset} on would be lost with {key}"),
            "its trailer is damaged, and no manifest that can be read names it: restore it from a"
                .to_owned(),
            "copy of the bucket, or a manifest; or give its records up with --force".to_owned(),
        ],
        _ => vec!["not repaired: segments come from several clusters".to_owned()],
    }
}

fn ranges(holes: &[OffsetRange]) -> String {
    let holes: Vec<_> = holes
        .iter()
        .map(|hole| format!("{} to {}", hole.start, hole.end))
        .collect();
    holes.join(", ")
}

fn as_json(partition: TopicPartition, report: &RebuildReport) -> Value {
    let manifest = report.manifest.as_ref();
    json!({
        "partition": partition.to_string(),
        "refusal": report.refusal.as_ref().map(|refusal| refused(refusal).join(" ")),
        "version": manifest.map(|manifest| manifest.header().version.get()),
        "leader_epoch": manifest.map(|manifest| manifest.header().leader_epoch.get()),
        "log_start_offset": manifest.map(|manifest| manifest.log_start_offset().get()),
        "tiered_offset": manifest.map(|manifest| manifest.tiered_offset().get()),
        "segments": report.chosen.len(),
        "spare": report.spare.len(),
        "lost": report.lost.iter().map(|lost| [lost.start.get(), lost.end.get()]).collect::<Vec<_>>(),
        "damaged": report.damaged.iter().map(|anomaly| &anomaly.key).collect::<Vec<_>>(),
    })
}
