//! What a verification found, for people and for scripts.

use std::io;

use esker_tiering::{
    keys::Keys,
    scrub::{Anomaly, Damage, VerifyReport, repair_command},
    store::StoreUrl,
};
use serde_json::json;

use crate::cli::{
    Common,
    exit::Damaged,
    output::{self, count, size},
};

/// Columns of the longest line, names of objects aside.
const WIDTH: usize = 96;

pub(super) fn verified(
    common: &Common,
    store: &StoreUrl,
    report: &VerifyReport,
    has_cluster: bool,
) -> anyhow::Result<()> {
    if common.json {
        let anomalies = report.anomalies.iter().map(|anomaly| {
            json!({
                "partition": anomaly.topic_partition.to_string(),
                "key": anomaly.key,
                "damage": anomaly.damage.to_string(),
                "loses_records": anomaly.damage.loses_records(),
                "offsets": anomaly.offsets.as_ref().map(|o| [o.start.get(), o.end.get()]),
                "repair": is_repairable(anomaly).then(|| repair_command(store, anomaly.topic_partition)),
            })
        });
        output::json(&json!({
            "partitions": report.partitions,
            "segments": report.segments,
            "segment_bytes": report.segment_bytes,
            "pages": report.pages,
            "orphans": report.orphans,
            "orphan_bytes": report.orphan_bytes,
            "unfinished": report.unfinished,
            "unfinished_bytes": report.unfinished_bytes,
            "is_deep": report.is_deep,
            "has_cluster": has_cluster,
            "is_intact": report.is_intact() && has_cluster,
            "anomalies": anomalies.collect::<Vec<_>>(),
        }))?;
    } else {
        print(store, report, has_cluster)?;
    }
    match (report.is_intact(), has_cluster) {
        (true, true) => Ok(()),
        (false, _) => Err(Damaged("the bucket is damaged; see above".to_owned()).into()),
        (true, false) => {
            Err(Damaged("the bucket has topics but no cluster.json".to_owned()).into())
        }
    }
}

fn print(store: &StoreUrl, report: &VerifyReport, has_cluster: bool) -> io::Result<()> {
    output::line(format_args!(
        "{}, {}, {}, {}; {}, {}",
        count(report.partitions, "partition"),
        count(report.segments, "segment"),
        size(report.segment_bytes),
        count(report.pages, "index page"),
        count(report.orphans, "orphan"),
        size(report.orphan_bytes),
    ))?;
    if report.unfinished > 0 {
        output::line(format_args!(
            "{}, {}: `esker bucket gc` deletes those that are a day old",
            count(report.unfinished, "unfinished put"),
            size(report.unfinished_bytes),
        ))?;
    }
    if !has_cluster {
        output::line(format_args!(
            "cluster.json is missing: an agent refuses to start here until it is restored"
        ))?;
    }
    if !report.anomalies.is_empty() {
        return report
            .anomalies
            .chunk_by(|a, b| a.topic_partition == b.topic_partition)
            .try_for_each(|anomalies| print_partition(store, anomalies));
    }
    output::line(match report.is_deep {
        true => format_args!(
            "every object that a manifest names exists, and all its bytes were read and are right"
        ),
        false => format_args!(
            "every object that a manifest names exists and is long enough\n\
             the bytes of segments were not read; --deep reads them"
        ),
    })
}

fn print_partition(store: &StoreUrl, anomalies: &[Anomaly]) -> io::Result<()> {
    let Some(first) = anomalies.first() else {
        return Ok(());
    };
    output::line(format_args!("\npartition {}", first.topic_partition))?;
    let folder = Keys::new(first.topic_partition).folder();
    for anomaly in anomalies {
        let name = anomaly.key.strip_prefix(&folder).unwrap_or(&anomaly.key);
        output::line(format_args!("  {}", name.trim_start_matches('/')))?;
        if let Some(offsets) = &anomaly.offsets {
            output::line(format_args!(
                "      offsets {} to {}",
                offsets.start, offsets.end
            ))?;
        }
        for line in wrapped(&anomaly.damage.to_string(), WIDTH - 6) {
            output::line(format_args!("      {line}"))?;
        }
    }
    if anomalies.iter().any(is_repairable) {
        let command = repair_command(store, first.topic_partition);
        output::line(format_args!("  repair: {command}"))
    } else if anomalies.iter().any(|a| a.damage.loses_records()) {
        let text = "  repair: restore these segments from a copy of the bucket, nothing else has their records";
        output::line(format_args!("{text}"))
    } else {
        Ok(())
    }
}

/// Whether a repair can do something. Where the bytes of a segment are wrong, only a copy helps.
fn is_repairable(anomaly: &Anomaly) -> bool {
    let is_segment = anomaly
        .key
        .starts_with(&Keys::new(anomaly.topic_partition).segments());
    let is_wrong_bytes = is_segment && matches!(anomaly.damage, Damage::Corrupt { .. });
    anomaly.damage.loses_records() && !is_wrong_bytes
}

/// Breaks a text at blanks. A word that is longer stays whole.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_broken_at_blanks() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(
            wrapped("a incomprehensible b", 4),
            ["a", "incomprehensible", "b"]
        );
    }
}
