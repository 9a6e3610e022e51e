//! `esker topic`.

use std::time::Duration;

use bytesize::ByteSize;
use clap::Subcommand;
use esker_proto::{
    topic_limits::{self, Limit},
    v1::{PartitionDescription, TimestampKind, TopicSummary},
};
use serde_json::{Value, json};

use super::{
    Common,
    output::{self, count, grouped, limit, size},
};
use crate::{AlterTopicRequest, Offset, PartitionId, TopicSettings};

#[derive(Debug, Subcommand)]
pub(super) enum TopicCommand {
    /// Create a topic
    Create {
        name: String,
        /// Number of partitions [default: the agent's]
        #[arg(long, short, value_parser = partitions)]
        partitions: Option<u32>,
        #[command(flatten)]
        settings: SettingsArgs,
    },
    /// List topics
    List,
    /// Show a topic's settings and partitions
    Describe { name: String },
    /// Change a topic's settings, or add partitions
    ///
    /// Adding partitions changes where new records of a key go: from then on the order of a key's
    /// records is kept among the new ones and among the old ones, not between the two.
    Alter {
        name: String,
        /// New number of partitions; never fewer than now
        #[arg(long, short, value_parser = partitions)]
        partitions: Option<u32>,
        #[command(flatten)]
        settings: SettingsArgs,
        /// Setting to give back to the agent's default, by the name of its option, e.g. retention
        #[arg(long, value_name = "SETTING")]
        reset: Vec<String>,
    },
    /// Delete a topic and everything in it
    Delete { name: String },
    /// Remove a partition's records below an offset
    Trim {
        name: String,
        #[arg(long)]
        partition: u32,
        /// First offset to keep; at most the tiered offset
        #[arg(long)]
        before: u64,
    },
    /// Upload everything that was appended so far, now
    Seal {
        name: String,
        /// Also drop the local copies
        #[arg(long)]
        drop_local: bool,
        #[arg(long, default_value = "2m", value_parser = humantime::parse_duration)]
        timeout: Duration,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct SettingsArgs {
    /// Keep records this long after they reached the bucket, or after their own time if that is later,
    /// e.g. 7d; `forever` keeps them
    #[arg(long, value_name = "TIME", value_parser = retention)]
    retention: Option<i64>,
    /// Remove the oldest data of a partition beyond this size; `unlimited` for none
    #[arg(long, value_name = "SIZE", value_parser = retention_bytes)]
    retention_bytes: Option<i64>,
    /// Also keep so much of what is in the bucket on local disk
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| bytes(text, &topic_limits::LOCAL_RETENTION_BYTES))]
    local_retention_bytes: Option<u64>,
    /// Seal a segment at this size
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| bytes(text, &topic_limits::SEGMENT_BYTES))]
    segment_bytes: Option<u64>,
    /// Seal a segment at this age, or at that of the retention if it is shorter
    #[arg(long, value_name = "TIME", value_parser = segment_age)]
    segment_age: Option<u64>,
    /// Largest batch accepted
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| bytes(text, &topic_limits::BATCH_BYTES_MAX))]
    batch_bytes_max: Option<u64>,
    /// Whose time records carry: `create`, their producer's, or `append`, the agent's
    #[arg(long, value_name = "KIND", value_parser = timestamps)]
    timestamps: Option<TimestampKind>,
    /// Refuse records whose time is further before their append; `forever` takes any
    #[arg(long, value_name = "TIME", value_parser = time_limit)]
    timestamp_before_max: Option<i64>,
    /// Refuse records whose time is further after their append; `forever` takes any
    #[arg(long, value_name = "TIME", value_parser = time_limit)]
    timestamp_after_max: Option<i64>,
    /// Decompress batches when they are produced, to check their records
    #[arg(long, value_name = "true|false")]
    check_compressed: Option<bool>,
}

impl SettingsArgs {
    fn to_wire(&self) -> TopicSettings {
        TopicSettings {
            retention_ms: self.retention,
            retention_bytes: self.retention_bytes,
            local_retention_bytes: self.local_retention_bytes,
            segment_bytes: self.segment_bytes,
            segment_ms: self.segment_age,
            batch_bytes_max: self
                .batch_bytes_max
                .and_then(|size| u32::try_from(size).ok()),
            timestamps: self.timestamps.map(Into::into),
            timestamp_before_max_ms: self.timestamp_before_max,
            timestamp_after_max_ms: self.timestamp_after_max,
            check_compressed: self.check_compressed,
        }
    }
}

fn timestamps(text: &str) -> Result<TimestampKind, String> {
    match text {
        "create" => Ok(TimestampKind::Create),
        "append" => Ok(TimestampKind::Append),
        _ => Err("expected create or append".to_owned()),
    }
}

fn partitions(text: &str) -> Result<u32, String> {
    let count: u32 = text.parse().map_err(|_| "expected a number".to_owned())?;
    within(&topic_limits::PARTITIONS, count.into())?;
    Ok(count)
}

fn within(limit: &Limit, asked: u64) -> Result<u64, String> {
    limit.check(asked).map_err(|error| error.to_string())?;
    Ok(asked)
}

fn bytes(text: &str, limit: &Limit) -> Result<u64, String> {
    let size: ByteSize = text.parse()?;
    within(limit, size.as_u64())
}

fn segment_age(text: &str) -> Result<u64, String> {
    let age = time_limit(text)?;
    let age = u64::try_from(age).map_err(|_| "a segment cannot grow for ever".to_owned())?;
    within(&topic_limits::SEGMENT_MS, age)
}

fn retention(text: &str) -> Result<i64, String> {
    let age = time_limit(text)?;
    let checked = topic_limits::RETENTION_MS.check_or_none(age);
    checked.map_err(|error| error.to_string())?;
    Ok(age)
}

fn time_limit(text: &str) -> Result<i64, String> {
    if text == "forever" {
        return Ok(-1);
    }
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    i64::try_from(time.as_millis()).map_err(|_| "too long".to_owned())
}

fn retention_bytes(text: &str) -> Result<i64, String> {
    if text == "unlimited" {
        return Ok(-1);
    }
    let size = bytes(text, &topic_limits::RETENTION_BYTES)?;
    i64::try_from(size).map_err(|_| "too large".to_owned())
}

pub(super) async fn run(common: &Common, command: TopicCommand) -> anyhow::Result<()> {
    let admin = common.connect().await?.admin();
    match command {
        TopicCommand::Create {
            name,
            partitions,
            settings,
        } => {
            let topic = admin
                .create_topic(&name, partitions.unwrap_or(0), settings.to_wire())
                .await?;
            said(common, &topic, "created")
        }
        TopicCommand::List => list(common, &admin.list_topics().await?),
        TopicCommand::Describe { name } => {
            let described = admin.describe_topic(&name).await?;
            let topic = described.topic.unwrap_or_default();
            describe(common, &topic, &described.partitions)
        }
        TopicCommand::Alter {
            name,
            partitions,
            settings,
            reset,
        } => {
            let request = AlterTopicRequest {
                name,
                partitions: partitions.unwrap_or(0),
                settings: Some(settings.to_wire()),
                reset,
            };
            check_change(&request)?;
            said(common, &admin.alter_topic(request).await?, "altered")
        }
        TopicCommand::Delete { name } => {
            admin.delete_topic(&name).await?;
            done(
                common,
                &json!({ "deleted": name }),
                &format!("topic {name} deleted"),
            )
        }
        TopicCommand::Trim {
            name,
            partition,
            before,
        } => {
            let start = admin
                .trim_partition(&name, PartitionId::new(partition), Offset::new(before))
                .await?;
            trimmed(common, &name, partition, start)
        }
        TopicCommand::Seal {
            name,
            drop_local,
            timeout,
        } => {
            admin.seal_topic(&name, drop_local, timeout).await?;
            done(
                common,
                &json!({ "sealed": name }),
                &format!("topic {name} is in the bucket"),
            )
        }
    }
}

fn check_change(request: &AlterTopicRequest) -> anyhow::Result<()> {
    let is_change = request.partitions > 0
        || request.settings != Some(TopicSettings::default())
        || !request.reset.is_empty();
    anyhow::ensure!(
        is_change,
        "nothing to alter: name a setting, --partitions or --reset"
    );
    Ok(())
}

fn done(common: &Common, value: &Value, text: &str) -> anyhow::Result<()> {
    if common.json {
        return output::json(value);
    }
    Ok(output::line(format_args!("{text}"))?)
}

fn trimmed(common: &Common, name: &str, partition: u32, start: Offset) -> anyhow::Result<()> {
    let value = json!({ "topic": name, "partition": partition, "log_start_offset": start });
    let text = format!("topic {name}, partition {partition} begins at {start}");
    done(common, &value, &text)
}

fn said(common: &Common, topic: &TopicSummary, what: &str) -> anyhow::Result<()> {
    let partitions = count(topic.partitions.into(), "partition");
    let text = format!("topic {} {what}, {partitions}", topic.name);
    done(common, &topic_json(topic), &text)
}

fn list(common: &Common, topics: &[TopicSummary]) -> anyhow::Result<()> {
    if common.json {
        return output::json(&topics.iter().map(topic_json).collect::<Vec<_>>());
    }
    let mut table = output::table(&["TOPIC", "PARTITIONS", "RETENTION", "ID"], &[1]);
    for topic in topics {
        let settings = topic.settings.unwrap_or_default();
        let retention = limit(settings.retention_ms.unwrap_or(-1), shown_millis);
        let partitions = topic.partitions.to_string();
        table.add_row([
            topic.name.clone(),
            partitions,
            retention,
            topic.topic_id.clone(),
        ]);
    }
    Ok(output::print(&table)?)
}

fn describe(
    common: &Common,
    topic: &TopicSummary,
    partitions: &[PartitionDescription],
) -> anyhow::Result<()> {
    if common.json {
        let mut value = topic_json(topic);
        value["partitions"] = partitions.iter().map(partition_json).collect();
        return output::json(&value);
    }
    let settings = settings_lines(&topic.settings.unwrap_or_default());
    output::line(format_args!(
        "topic {}   id {}\n{settings}\n",
        topic.name, topic.topic_id
    ))?;
    let headings = [
        "PARTITION",
        "EPOCH",
        "START",
        "TIERED",
        "END",
        "LOCAL",
        "BUCKET",
        "SEGMENTS",
        "STATE",
    ];
    let mut table = output::table(&headings, &[0, 1, 2, 3, 4, 5, 6, 7]);
    for p in partitions {
        table.add_row(row(p));
    }
    output::print(&table)?;
    for p in partitions.iter().filter(|p| !p.offline_reason.is_empty()) {
        output::line(format_args!(
            "\npartition {}: {}",
            p.partition, p.offline_reason
        ))?;
    }
    Ok(())
}

/// A partition's line. One that could not be opened has no known offsets and sizes: zeros would look
/// like a loss.
fn row(p: &PartitionDescription) -> [String; 9] {
    let is_offline = !p.offline_reason.is_empty();
    let is_known = !is_offline || p.log_end_offset > 0 || p.bucket_segments > 0;
    let known = |text: String| if is_known { text } else { "?".to_owned() };
    [
        p.partition.to_string(),
        p.leader_epoch.to_string(),
        known(grouped(p.log_start_offset)),
        known(grouped(p.tiered_offset)),
        known(grouped(p.high_watermark)),
        known(size(p.local_bytes)),
        known(size(p.bucket_bytes)),
        known(grouped(p.bucket_segments)),
        if is_offline { "offline" } else { "ok" }.to_owned(),
    ]
}

fn settings_lines(settings: &TopicSettings) -> String {
    let bound = |millis: Option<i64>| match millis.and_then(|millis| u64::try_from(millis).ok()) {
        Some(millis) => format!("at most {}", shown_millis(millis)),
        None => "any time".to_owned(),
    };
    let times = match settings.timestamps() {
        TimestampKind::Append => "of their append".to_owned(),
        TimestampKind::Create | TimestampKind::Unspecified => format!(
            "of their producer, {} before their append, {} after it",
            bound(settings.timestamp_before_max_ms),
            bound(settings.timestamp_after_max_ms),
        ),
    };
    let checked = match settings.check_compressed {
        Some(false) => "not checked",
        _ => "checked",
    };
    format!(
        "retention   {}, {}\n\
         segments    sealed at {} or {}; {} of those in the bucket kept locally\n\
         batches     up to {}, compressed ones {checked}\n\
         timestamps  {times}",
        kept(settings.retention_ms, "for ever", |age| {
            format!("for {}", shown_millis(age))
        }),
        kept(settings.retention_bytes, "of any size", |bytes| {
            format!("up to {} a partition", size(bytes))
        }),
        size(settings.segment_bytes.unwrap_or_default()),
        shown_millis(settings.segment_ms.unwrap_or_default()),
        size(settings.local_retention_bytes.unwrap_or_default()),
        size(settings.batch_bytes_max.unwrap_or_default().into()),
    )
}

fn kept(limit: Option<i64>, without: &str, with: impl Fn(u64) -> String) -> String {
    let limit = limit.and_then(|limit| u64::try_from(limit).ok());
    limit.map_or_else(|| without.to_owned(), with)
}

const fn kind_name(kind: TimestampKind) -> &'static str {
    match kind {
        TimestampKind::Append => "append",
        TimestampKind::Create | TimestampKind::Unspecified => "create",
    }
}

fn shown_millis(millis: u64) -> String {
    humantime::format_duration(Duration::from_millis(millis)).to_string()
}

fn topic_json(topic: &TopicSummary) -> Value {
    let settings = topic.settings.unwrap_or_default();
    json!({
        "name": topic.name,
        "topic_id": topic.topic_id,
        "partition_count": topic.partitions,
        "settings": {
            "retention_ms": settings.retention_ms,
            "retention_bytes": settings.retention_bytes,
            "local_retention_bytes": settings.local_retention_bytes,
            "segment_bytes": settings.segment_bytes,
            "segment_ms": settings.segment_ms,
            "batch_bytes_max": settings.batch_bytes_max,
            "timestamps": kind_name(settings.timestamps()),
            "timestamp_before_max_ms": settings.timestamp_before_max_ms,
            "timestamp_after_max_ms": settings.timestamp_after_max_ms,
            "check_compressed": settings.check_compressed,
        },
    })
}

fn partition_json(p: &PartitionDescription) -> Value {
    json!({
        "partition": p.partition,
        "leader": p.leader,
        "leader_epoch": p.leader_epoch,
        "log_start_offset": p.log_start_offset,
        "local_log_start_offset": p.local_log_start_offset,
        "tiered_offset": p.tiered_offset,
        "high_watermark": p.high_watermark,
        "log_end_offset": p.log_end_offset,
        "local_bytes": p.local_bytes,
        "bucket_bytes": p.bucket_bytes,
        "bucket_segments": p.bucket_segments,
        "unuploaded_bytes": p.unuploaded_bytes,
        "offline_reason": p.offline_reason,
    })
}

#[cfg(test)]
mod tests {
    use clap::{Parser, error::ErrorKind};

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn command_line_refuses_options_out_of_bounds() {
        for option in [
            ["--partitions", "0"],
            ["--batch-bytes-max", "5GiB"],
            ["--batch-bytes-max", "10B"],
            ["--segment-bytes", "0"],
            ["--segment-age", "1ms"],
            ["--retention", "1ms"],
        ] {
            for command in ["create", "alter"] {
                let args = [&["esker", "topic", command, "t"], &option[..]].concat();
                let error = Cli::try_parse_from(&args).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ValueValidation, "{args:?} {error}");
            }
        }
    }

    #[test]
    fn options_out_of_bounds_are_refused_before_anything_is_sent() {
        assert!(partitions("0").is_err());
        assert_eq!(partitions("10000"), Ok(10_000));
        assert!(bytes("0", &topic_limits::BATCH_BYTES_MAX).is_err());
        assert!(bytes("5GiB", &topic_limits::BATCH_BYTES_MAX).is_err());
        assert_eq!(bytes("8MiB", &topic_limits::BATCH_BYTES_MAX), Ok(8 << 20));
        assert!(segment_age("1ms").is_err());
        assert!(segment_age("forever").is_err());
        assert_eq!(segment_age("10m"), Ok(600_000));
        assert_eq!(retention("forever"), Ok(-1));
        assert!(retention("1ms").is_err());
    }

    #[test]
    fn a_change_of_nothing_is_refused() {
        let settings = Some(TopicSettings::default());
        let mut request = AlterTopicRequest {
            settings,
            ..AlterTopicRequest::default()
        };
        assert!(check_change(&request).is_err());
        request.reset.push("retention".to_owned());
        assert!(check_change(&request).is_ok());
    }

    #[test]
    fn offsets_of_a_partition_that_was_not_opened_are_unknown_not_zero() {
        let mut p = PartitionDescription {
            offline_reason: "damaged".to_owned(),
            ..PartitionDescription::default()
        };
        assert_eq!(row(&p)[2..], ["?", "?", "?", "?", "?", "?", "offline"]);
        p.log_end_offset = 7;
        assert_eq!(row(&p)[2..5], ["0", "0", "0"]);
        p.offline_reason.clear();
        assert_eq!(row(&p)[8], "ok");
    }

    #[test]
    fn settings_are_described_in_words() {
        let settings = TopicSettings {
            retention_ms: Some(7 * 24 * 3_600_000),
            retention_bytes: Some(-1),
            timestamp_before_max_ms: Some(-1),
            timestamp_after_max_ms: Some(3_600_000),
            ..TopicSettings::default()
        };
        let lines = settings_lines(&settings);
        assert!(lines.contains("for 7days, of any size"), "{lines}");
        assert!(
            lines.contains("of their producer, any time before their append, at most 1h after it"),
            "{lines}"
        );
    }
}
