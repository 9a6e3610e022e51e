//! The table of keys.

use std::{fmt::Display, str::FromStr};

use esker_proto::{
    topic_limits::{self, Limit},
    types::AgentId,
};

use super::{
    settings::Settings,
    value::{ByteCount, Millis},
};
use crate::log::FlushPolicy;

/// One setting: its name in the file (`data-dir`), as a flag (`--data-dir`) and, in capitals, in
/// the environment (`ESKER_DATA_DIR`).
#[derive(Debug)]
pub struct Key {
    /// Name in the file and of the flag.
    pub name: &'static str,
    /// Heading it stands under in help and reference.
    pub group: &'static str,
    /// The default, as it would be written; empty for none.
    pub default: &'static str,
    /// What it means, in which unit, and when to change it.
    pub doc: &'static str,
    /// Parses a text into the settings.
    pub(super) apply: fn(&mut Settings, &str) -> Result<(), String>,
}

impl Key {
    /// Returns the name of the environment variable.
    pub fn env(&self) -> String {
        format!("ESKER_{}", self.name.replace('-', "_").to_uppercase())
    }
}

fn set<T: FromStr<Err: Display>>(slot: &mut T, text: &str) -> Result<(), String> {
    *slot = text.parse().map_err(|error: T::Err| error.to_string())?;
    Ok(())
}

fn set_some<T: FromStr<Err: Display>>(slot: &mut Option<T>, text: &str) -> Result<(), String> {
    *slot = Some(text.parse().map_err(|error: T::Err| error.to_string())?);
    Ok(())
}

/// `forever`, `unlimited` and the like switch a limit off.
fn set_limit<T: FromStr<Err: Display>>(slot: &mut Option<T>, text: &str) -> Result<(), String> {
    if matches!(text, "forever" | "unlimited" | "none") {
        *slot = None;
        return Ok(());
    }
    set_some(slot, text)
}

fn set_agents(slot: &mut Vec<AgentId>, text: &str) -> Result<(), String> {
    let agents = text.split(',').map(|id| id.trim().parse::<AgentId>());
    *slot = agents
        .collect::<Result<_, _>>()
        .map_err(|_| format!("`{text}` is no list of agent ids"))?;
    Ok(())
}

fn set_size(slot: &mut ByteCount, text: &str, least: u64) -> Result<(), String> {
    set(slot, text)?;
    if slot.get() < least {
        return Err(format!(
            "`{text}` is below the least size {}",
            ByteCount::new(least)
        ));
    }
    Ok(())
}

/// Holds a default of topics to the bounds of their settings.
fn within(limit: Limit, asked: u64) -> Result<(), String> {
    limit.check(asked).map_err(|error| error.to_string())
}

fn set_time(slot: &mut Millis, text: &str, least_ms: u64) -> Result<(), String> {
    set(slot, text)?;
    if slot.get() < least_ms {
        return Err(format!(
            "`{text}` is below the least time {}",
            Millis::new(least_ms)
        ));
    }
    Ok(())
}

fn set_count(slot: &mut u32, text: &str, least: u32, most: u32) -> Result<(), String> {
    set(slot, text)?;
    if !(least..=most).contains(slot) {
        return Err(format!("`{text}` is not between {least} and {most}"));
    }
    Ok(())
}

fn set_flush(slot: &mut FlushPolicy, text: &str) -> Result<(), String> {
    *slot = match text {
        "ack" => FlushPolicy::Ack,
        _ => match text.parse::<Millis>() {
            Ok(interval) if interval.get() > 0 => FlushPolicy::Interval(interval.duration()),
            _ => {
                return Err(format!(
                    "`{text}` is neither ack nor a length of time such as 50ms"
                ));
            }
        },
    };
    Ok(())
}

const MIB: u64 = 1 << 20;

const PLACE: &str = "Where";
const DURABILITY: &str = "Durability";
const TOPICS: &str = "Topic defaults (a topic's own settings come first)";
const LIMITS: &str = "Memory, disk and bucket";
const LOGGING: &str = "Logs";

/// Every setting of an agent.
pub const KEYS: &[Key] = &[
    Key {
        name: "store",
        group: PLACE,
        default: "",
        doc: "The bucket: s3://bucket/prefix?region=..., gs://, az://, file:///directory. \
              Credentials come from the cloud's usual chain, never from here",
        apply: |s, t| set_some(&mut s.store, t),
    },
    Key {
        name: "data-dir",
        group: PLACE,
        default: "/var/lib/esker",
        doc: "Directory of the hot tail and the disk cache. An emptied directory makes a new agent",
        apply: |s, t| set(&mut s.data_dir, t),
    },
    Key {
        name: "listen",
        group: PLACE,
        default: "127.0.0.1:7771",
        doc: "Address of the gRPC service",
        apply: |s, t| set(&mut s.listen, t),
    },
    Key {
        name: "advertise",
        group: PLACE,
        default: "",
        doc: "Address (host:port) that clients are told to use; default: the one of `listen`",
        apply: |s, t| set_some(&mut s.advertise, t),
    },
    Key {
        name: "http-listen",
        group: PLACE,
        default: "127.0.0.1:7772",
        doc: "Address of /metrics, /healthz and /readyz",
        apply: |s, t| set(&mut s.http_listen, t),
    },
    Key {
        name: "zone",
        group: PLACE,
        default: "default",
        doc: "Availability zone of this agent",
        apply: |s, t| set(&mut s.zone, t),
    },
    Key {
        name: "take-over",
        group: PLACE,
        default: "",
        doc: "Ids of agents that are lost for good, separated by commas: their partitions are taken \
              over, and whatever they had acknowledged but not uploaded is given up. The refusal to \
              start names them. Recorded in the metadata log",
        apply: |s, t| set_agents(&mut s.take_over, t),
    },
    Key {
        name: "flush",
        group: DURABILITY,
        default: "ack",
        doc: "`ack`: a batch is acknowledged after its fdatasync. A time such as `50ms`: \
              acknowledged when written, flushed at most this late; a power cut may then lose \
              what was acknowledged within that time",
        apply: |s, t| set_flush(&mut s.flush, t),
    },
    Key {
        name: "drain-timeout",
        group: DURABILITY,
        default: "90s",
        doc: "On SIGTERM, upload the tail for at most this long; what is left stays on disk",
        apply: |s, t| set_time(&mut s.drain_timeout, t, 1000),
    },
    Key {
        name: "partitions",
        group: TOPICS,
        default: "4",
        doc: "Partitions of a topic created without a number",
        apply: |s, t| {
            set(&mut s.partitions, t)?;
            within(topic_limits::PARTITIONS, s.partitions.into())
        },
    },
    Key {
        name: "retention",
        group: TOPICS,
        default: "7d",
        doc: "Records are kept this long after they reached the bucket, or after their own time if that is \
              later; `forever` keeps them. Goes segment by segment",
        apply: |s, t| {
            set_limit(&mut s.retention, t)?;
            s.retention
                .map_or(Ok(()), |age| within(topic_limits::RETENTION_MS, age.get()))
        },
    },
    Key {
        name: "retention-bytes",
        group: TOPICS,
        default: "unlimited",
        doc: "A partition's data in the bucket beyond this is removed, oldest first",
        apply: |s, t| {
            set_limit(&mut s.retention_bytes, t)?;
            s.retention_bytes.map_or(Ok(()), |size| {
                within(topic_limits::RETENTION_BYTES, size.get())
            })
        },
    },
    Key {
        name: "local-retention-bytes",
        group: TOPICS,
        default: "64MiB",
        doc: "How much of what is in the bucket already a partition also keeps on disk",
        apply: |s, t| {
            set(&mut s.local_retention_bytes, t)?;
            within(
                topic_limits::LOCAL_RETENTION_BYTES,
                s.local_retention_bytes.get(),
            )
        },
    },
    Key {
        name: "segment-bytes",
        group: TOPICS,
        default: "64MiB",
        doc: "A segment is sealed and uploaded at this size...",
        apply: |s, t| {
            set(&mut s.segment_bytes, t)?;
            within(topic_limits::SEGMENT_BYTES, s.segment_bytes.get())
        },
    },
    Key {
        name: "segment-age",
        group: TOPICS,
        default: "10m",
        doc: "...or at this age, or that of `retention` if it is shorter; at most a tenth earlier, so that partitions do not upload together. A \
              partition that is written to all the time makes at least two requests to write at each \
              age: 320 a day at 10m, about $0.05 a month and partition on S3; 1h makes that a sixth, and \
              keeps records longer on this disk alone",
        apply: |s, t| {
            set(&mut s.segment_age, t)?;
            within(topic_limits::SEGMENT_MS, s.segment_age.get())
        },
    },
    Key {
        name: "batch-bytes-max",
        group: TOPICS,
        default: "8MiB",
        doc: "Largest record batch accepted",
        apply: |s, t| {
            set(&mut s.batch_bytes_max, t)?;
            within(topic_limits::BATCH_BYTES_MAX, s.batch_bytes_max.get())
        },
    },
    Key {
        name: "timestamps",
        group: TOPICS,
        default: "create",
        doc: "Whose time records carry. `create`: the one that their producer gave them. `append`: \
              that of their append, by the agent's clock; the producer's is lost",
        apply: |s, t| set(&mut s.timestamps, t),
    },
    Key {
        name: "timestamp-before-max",
        group: TOPICS,
        default: "50years",
        doc: "Records whose time is further before their append are refused, which catches times in \
              seconds; `forever` takes any. Not with `timestamps=append`",
        apply: |s, t| set_limit(&mut s.timestamp_before_max, t),
    },
    Key {
        name: "timestamp-after-max",
        group: TOPICS,
        default: "1h",
        doc: "Records whose time is further after their append are refused: they would keep their \
              segment from being removed for as long; `forever` takes any",
        apply: |s, t| set_limit(&mut s.timestamp_after_max, t),
    },
    Key {
        name: "check-compressed",
        group: TOPICS,
        default: "true",
        doc: "Whether batches that are compressed are decompressed to check their records before they \
              are taken, as Kafka does; others always are checked. Without it a faulty producer can \
              append what no consumer can read",
        apply: |s, t| set(&mut s.check_compressed, t),
    },
    Key {
        name: "produce-buffer-bytes",
        group: LIMITS,
        default: "64MiB",
        doc: "Batches that are received or not yet on the disk; beyond it producers wait",
        apply: |s, t| set_size(&mut s.produce_buffer_bytes, t, MIB),
    },
    Key {
        name: "cache-memory-bytes",
        group: LIMITS,
        default: "96MiB",
        doc: "Bucket data cached in memory",
        apply: |s, t| set_size(&mut s.cache_memory_bytes, t, 8 * MIB),
    },
    Key {
        name: "cache-disk-bytes",
        group: LIMITS,
        default: "0B",
        doc: "Bucket data cached on disk, under `data-dir`; 0 for none",
        apply: |s, t| set(&mut s.cache_disk_bytes, t),
    },
    Key {
        name: "read-budget-bytes",
        group: LIMITS,
        default: "96MiB",
        doc: "Memory shared by all readers for what they fetch, read of the local log and have not \
              sent yet",
        apply: |s, t| set_size(&mut s.read_budget_bytes, t, 16 * MIB),
    },
    Key {
        name: "connections-max",
        group: LIMITS,
        default: "4096",
        doc: "Connections of clients at a time, and at most a quarter of the files that the agent may \
              have open; more are closed at once, and the log says so",
        apply: |s, t| set_count(&mut s.connections_max, t, 1, 1_000_000),
    },
    Key {
        name: "unuploaded-bytes-max",
        group: LIMITS,
        default: "8GiB",
        doc: "Local data not yet in the bucket: from three quarters of this producers are slowed, \
              at it they are refused until uploads catch up. Nothing un-uploaded is ever deleted",
        apply: |s, t| set_size(&mut s.unuploaded_bytes_max, t, MIB),
    },
    Key {
        name: "disk-reserve",
        group: LIMITS,
        default: "10%",
        doc: "Space left free on the volume of `data-dir`/log (a share or a size): producers are refused \
              below it",
        apply: |s, t| set(&mut s.disk_reserve, t),
    },
    Key {
        name: "upload-memory-bytes",
        group: LIMITS,
        default: "144MiB",
        doc: "Memory for segments on their way to the bucket; the default takes two at a time",
        apply: |s, t| set_size(&mut s.upload_memory_bytes, t, MIB),
    },
    Key {
        name: "store-requests-max",
        group: LIMITS,
        default: "128",
        doc: "Requests to the bucket in flight at a time, each on a connection of its own. Reads and \
              writes may each take three quarters of them, so that neither waits for all of the other",
        apply: |s, t| set_count(&mut s.store_requests_max, t, 8, 10_000),
    },
    Key {
        name: "store-stall-timeout",
        group: LIMITS,
        default: "30s",
        doc: "A request to the bucket in which no byte moved for this long is given up and tried \
              again; after up to three times as long while it sends, for what the system's buffer \
              holds leaves unseen. How long it takes as a whole does not matter",
        apply: |s, t| set_time(&mut s.store_stall_timeout, t, 1000),
    },
    Key {
        name: "retention-interval",
        group: LIMITS,
        default: "1m",
        doc: "How often retention is looked at; costs requests only when something is removed",
        apply: |s, t| set_time(&mut s.retention_interval, t, 100),
    },
    Key {
        name: "metadata-poll",
        group: LIMITS,
        default: "30s",
        doc: "How often the agent looks, with one GET, whether another agent has taken over",
        apply: |s, t| set_time(&mut s.metadata_poll, t, 100),
    },
    Key {
        name: "log-format",
        group: LOGGING,
        default: "text",
        doc: "`text` or `json`",
        apply: |s, t| set(&mut s.log_format, t),
    },
    Key {
        name: "log-level",
        group: LOGGING,
        default: "info",
        doc: "error, warn, info, debug or trace, or a filter such as `info,esker_agent=debug`",
        apply: |s, t| set(&mut s.log_level, t),
    },
];
