//! `esker-agent log verify` and `log repair`: the local logs of an agent that is stopped.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Arg, ArgAction, ArgMatches, Command};
use esker_proto::types::{LeaderEpoch, PartitionId, TopicPartition};

use super::failed;
use crate::{
    config::Settings,
    data_dir::{DataDirError, LockedDir},
    log::{self, Examined, OffsetCheckpoint},
    start_error::StartError,
};

/// Damage was found.
const EXIT_DAMAGED: u8 = 1;
/// Directories that one partition's repairs may fill.
const ASIDE_MAX: u32 = 10_000;

/// Builds `verify`.
pub(super) fn verify_command() -> Command {
    Command::new("verify")
        .about(
            "Read every batch on disk and name what is damaged; changes nothing; exit 1 if any is",
        )
        .arg(partition_arg().help("Only this partition, as <topic id>/<number>"))
}

/// Builds `repair`.
pub(super) fn repair_command() -> Command {
    Command::new("repair")
        .about("Cut a damaged log where the damage begins; a dry run without --execute")
        .long_about(
            "Cut a damaged log where the damage begins, and accept what is lost.\n\nWhat is cut is moved \
             to `aside/` in the data directory, never deleted. Records from the cut on that are not in \
             the bucket are lost, and the next start gives their offsets out again. The agent must be \
             stopped. Without --execute this says what it would do.",
        )
        .arg(
            partition_arg()
                .required(true)
                .help("The partition, as <topic id>/<number>: the offline reason names it"),
        )
        .arg(
            Arg::new("discard")
                .long("discard")
                .action(ArgAction::SetTrue)
                .help("Move the whole local log aside: the partition continues where the bucket ends"),
        )
        .arg(
            Arg::new("execute")
                .long("execute")
                .action(ArgAction::SetTrue)
                .help("Do it"),
        )
}

fn partition_arg() -> Arg {
    Arg::new("partition")
        .long("partition")
        .value_name("PARTITION")
        .value_parser(parse_partition)
}

fn parse_partition(text: &str) -> Result<TopicPartition, String> {
    let parsed = text.split_once('/').and_then(|(topic_id, partition)| {
        Some(TopicPartition {
            topic_id: topic_id.parse().ok()?,
            partition: PartitionId::new(partition.parse().ok()?),
        })
    });
    parsed.ok_or_else(|| "expected <topic id>/<number>".to_owned())
}

/// Runs `verify`.
pub(super) fn verify(settings: &Settings, given: &ArgMatches) -> ExitCode {
    let only = given.get_one::<TopicPartition>("partition");
    match Logs::open(&settings.data_dir).and_then(|logs| logs.verify(only)) {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::from(EXIT_DAMAGED),
        Err(error) => failed(&error),
    }
}

/// Runs `repair`.
pub(super) fn repair(settings: &Settings, given: &ArgMatches) -> ExitCode {
    let Some(at) = given.get_one::<TopicPartition>("partition") else {
        return ExitCode::from(2);
    };
    let order = Order {
        discards: given.get_flag("discard"),
        executes: given.get_flag("execute"),
    };
    match Logs::open(&settings.data_dir).and_then(|logs| logs.repair(*at, order)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

#[derive(Clone, Copy)]
struct Order {
    discards: bool,
    executes: bool,
}

/// The logs of a data directory that no agent runs on.
struct Logs {
    dir: LockedDir,
    checkpoint: OffsetCheckpoint,
}

impl Logs {
    fn open(data_dir: &Path) -> Result<Self, StartError> {
        if !data_dir.join("log").is_dir() {
            let source = io::Error::new(io::ErrorKind::NotFound, "it holds no logs");
            let path = data_dir.to_owned();
            return Err(DataDirError::Io { path, source }.into());
        }
        let dir = LockedDir::take(data_dir)?;
        let (checkpoint, found) = OffsetCheckpoint::open_at_rest(data_dir)?;
        match found {
            log::Found::Whole => {}
            log::Found::Nothing => println!(
                "offset checkpoint is missing: how far logs were acknowledged is not known"
            ),
            log::Found::Damaged(aside) => println!(
                "offset checkpoint is damaged: how far logs were acknowledged is not known; kept as {}",
                aside.display()
            ),
        }
        Ok(Self { dir, checkpoint })
    }

    /// Examines each log; whether any is damaged.
    fn verify(&self, only: Option<&TopicPartition>) -> Result<bool, StartError> {
        let on_disk = self.dir.partitions().map_err(|source| self.io(source))?;
        let mut all: BTreeSet<_> = on_disk.into_iter().chain(self.checkpoint.logs()).collect();
        if let Some(only) = only {
            self.refuse_unknown(*only)?;
            all = BTreeSet::from([*only]);
        }
        let mut is_any_damaged = false;
        for at in all {
            match self.examine(at) {
                Ok(examined) => {
                    is_any_damaged |= examined.is_damaged();
                    println!("{at}: {}", describe(&examined));
                }
                Err(error) => {
                    is_any_damaged = true;
                    println!("{at}: CANNOT BE READ: {error}");
                }
            }
        }
        Ok(is_any_damaged)
    }

    /// Refuses a partition without a log here: most likely its name is misspelt.
    fn refuse_unknown(&self, at: TopicPartition) -> Result<(), StartError> {
        if self.dir.partition(at).exists() || self.checkpoint.logs().contains(&at) {
            return Ok(());
        }
        let path = self.dir.root().to_owned();
        Err(DataDirError::NoLog { path, at }.into())
    }

    fn examine(&self, at: TopicPartition) -> Result<Examined, StartError> {
        let known = self.checkpoint.known(at, LeaderEpoch::new(0));
        let tiered_offset = self.dir.tiered_offset(at);
        Ok(log::examine(&self.dir.partition(at), known, tiered_offset)?)
    }

    fn repair(&self, at: TopicPartition, order: Order) -> Result<(), StartError> {
        self.refuse_unknown(at)?;
        let examined = self.examine(at)?;
        println!("{at}: {}", describe(&examined));
        let aside = self.aside(at);
        let plan = match order.discards {
            true => format!("move the whole local log to {}", aside.display()),
            false if !examined.is_damaged() => {
                println!("nothing to repair");
                return Ok(());
            }
            false => plan(&examined, &aside),
        };
        let accepted = format!(
            "accept the loss of what was acknowledged up to offset {} and is neither on disk nor in \
             the bucket",
            examined.flushed_offset
        );
        if self.dir.tiered_offset(at).is_none() {
            println!(
                "the data directory does not know what was uploaded: damage in uploaded segments counts too"
            );
        }
        if !order.executes {
            println!("dry run: --execute would {plan}, and {accepted}");
            return Ok(());
        }
        fs::create_dir_all(&aside).map_err(|source| self.io(source))?;
        self.write_loss(at, order, &examined, &aside)
            .map_err(|source| self.io(source))?;
        let dir = self.dir.partition(at);
        let kept_offset = if order.discards {
            log::discard(&dir, &aside.join("log"), &examined)?;
            examined.tiered_offset
        } else {
            log::repair(&dir, &aside, &examined)?;
            examined.kept_offset()
        };
        self.checkpoint.lower(at, kept_offset)?;
        println!("done: {plan}, and {accepted}");
        Ok(())
    }

    /// Where the parts of this repair go: a directory that does not exist yet.
    fn aside(&self, at: TopicPartition) -> PathBuf {
        let dir = self.dir.root().join("aside").join(at.topic_id.to_string());
        let name = |number: u32| dir.join(format!("{:06}-{number}", at.partition.get()));
        let mut names = (1..ASIDE_MAX).map(name);
        let free = names.find(|path| !path.exists());
        free.unwrap_or_else(|| name(ASIDE_MAX))
    }

    fn write_loss(
        &self,
        at: TopicPartition,
        order: Order,
        examined: &Examined,
        aside: &Path,
    ) -> io::Result<()> {
        let reason = examined.damage.as_ref().map(ToString::to_string);
        let kept_to = match order.discards {
            true => examined.tiered_offset,
            false => examined.kept_offset(),
        };
        let (moved_files, moved_bytes) = match order.discards {
            true => (
                examined.segments + examined.beyond.0,
                examined.bytes + examined.torn_bytes + examined.beyond.1,
            ),
            false => examined.beyond,
        };
        let loss = serde_json::json!({
            "partition": at.to_string(),
            "is_discarded": order.discards,
            "local_log_start_offset": examined.start_offset.get(),
            "kept_below_offset": kept_to.get(),
            "acknowledged_below_offset": examined.flushed_offset.get(),
            "moved_files": moved_files,
            "moved_bytes": moved_bytes,
            "reason": reason,
        });
        fs::write(aside.join("loss.json"), serde_json::to_vec_pretty(&loss)?)
    }

    fn io(&self, source: io::Error) -> StartError {
        let path = self.dir.root().to_owned();
        DataDirError::Io { path, source }.into()
    }
}

/// Says what a repair does.
fn plan(examined: &Examined, aside: &Path) -> String {
    let mut steps = Vec::new();
    if !examined.trailing.is_empty() {
        let files = examined.trailing.len();
        steps.push(format!(
            "move what follows the last record of {files} segments to {}",
            aside.display()
        ));
    }
    match &examined.damage {
        Some(log::Error::Corrupt { .. }) => steps.push(format!(
            "cut at offset {}, and move {} bytes in {} files to {}",
            examined.end_offset,
            examined.beyond.1,
            examined.beyond.0,
            aside.display()
        )),
        Some(_) => steps.push("keep the files as they are".to_owned()),
        None => {}
    }
    steps.join(", and ")
}

fn describe(examined: &Examined) -> String {
    let Examined {
        segments,
        batches,
        records,
        bytes,
        start_offset,
        end_offset,
        tiered_offset,
        torn_bytes,
        damage,
        copies,
        trailing,
        beyond,
        flushed_offset,
    } = examined;
    let whole = format!(
        "segments={segments}, batches={batches}, records={records}, bytes={bytes}, \
         offsets=[{start_offset}, {end_offset}), acknowledged_below={flushed_offset}, \
         tiered_below={tiered_offset}"
    );
    let copies = copies
        .iter()
        .map(|copy| format!("; the bucket has what this copy held, no repair is needed: {copy}"));
    let copies: String = copies.collect();
    let whole = whole + &copies;
    if let (Some((path, position)), None) = (trailing.first(), damage) {
        return format!(
            "DAMAGED: bytes follow the last record of a sealed segment. path=`{}`, \
             position=`{position}`, files={}; else: {whole}",
            path.display(),
            trailing.len()
        );
    }
    match damage {
        Some(damage) => format!(
            "DAMAGED: {damage}; before it: {whole}; from it on: bytes={}, files={}",
            beyond.1, beyond.0
        ),
        None if *torn_bytes > 0 => format!(
            "ok, {whole}; the next start cuts a torn tail of {torn_bytes} bytes, which nothing shows \
             was acknowledged"
        ),
        None => format!("ok, {whole}"),
    }
}
