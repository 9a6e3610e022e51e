//! How `produce` ended: what is in the log, what is not, and where to continue.

use std::{fmt, io, time::Duration};

use serde_json::{Value, json};

use super::{
    super::{
        Common, exit,
        output::{self, grouped, note, records, size},
        signals::Stop,
    },
    ProduceArgs,
    line_set::LineSet,
    lines::TooLong,
};

/// What ended the sending before the end of the input.
#[derive(Debug)]
pub(super) enum Cause {
    /// A line makes no record, or the record was refused before it was sent.
    Refused {
        line: u64,
        error: anyhow::Error,
    },
    /// A batch was not acknowledged.
    Undelivered {
        lines: LineSet,
        error: crate::Error,
    },
    Unreadable(io::Error),
    TooLong(TooLong),
    /// A signal; what was read before it is delivered.
    Stopped(Stop),
    /// A second signal.
    Cut(Stop),
    /// What was read could not be delivered in time.
    TimedOut(Duration),
}

impl From<TooLong> for Cause {
    fn from(error: TooLong) -> Self {
        Self::TooLong(error)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { line, error } => write!(f, "line {line} was not sent: {error:#}"),
            Self::Undelivered { lines, error } if error.has_no_side_effects() => {
                write!(f, "{lines} not delivered: {error}")
            }
            Self::Undelivered { lines, error } => {
                write!(
                    f,
                    "{lines} not acknowledged, and may be in the log: {error}"
                )
            }
            Self::Unreadable(error) => write!(f, "cannot read the input: {error}"),
            Self::TooLong(error) => write!(f, "{error}"),
            Self::Stopped(stop) => write!(f, "stopped by {stop}"),
            Self::Cut(stop) => write!(f, "ended at once by a second signal, {stop}"),
            Self::TimedOut(after) => {
                write!(f, "what was read could not be delivered within {after:?}")
            }
        }
    }
}

impl Cause {
    /// This cause, unless what followed it was ended at once.
    pub(super) fn or_cut(self, end: Result<(), Self>) -> Self {
        match end {
            Err(cut @ Self::Cut(_)) => cut,
            _ => self,
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Refused { error, .. } => exit::code(error),
            Self::Undelivered { error, .. } => exit::of_client(error.kind()),
            Self::Unreadable(_) | Self::TooLong(_) => exit::FAILED,
            Self::Stopped(stop) | Self::Cut(stop) => stop.exit_code(),
            Self::TimedOut(_) => exit::OUT_OF_REACH,
        }
    }
}

/// What became of the lines.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// The last line that was sent or skipped; those after it were not sent.
    pub(super) sent: u64,
    pub(super) bytes: u64,
    pub(super) delivered: u64,
    pub(super) without_key: u64,
    /// Lines that make no record.
    pub(super) skipped: LineSet,
    /// Lines that are surely not in the log.
    pub(super) undelivered: LineSet,
    /// Lines that may be in the log.
    pub(super) unknown: LineSet,
    /// Failures were named and survived.
    pub(super) has_kept_going: bool,
    /// Part of a line was read and not sent.
    pub(super) has_part: bool,
}

impl Tally {
    pub(super) fn add_undelivered(&mut self, lines: LineSet, error: &crate::Error) {
        if error.has_no_side_effects() {
            self.undelivered.merge([lines]);
        } else {
            self.unknown.merge([lines]);
        }
    }
}

/// How the command ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) cause: Option<Cause>,
    pub(super) tally: Tally,
}

impl Ended {
    /// Tells what happened.
    pub(super) fn report(
        &self,
        common: &Common,
        args: &ProduceArgs,
        took: Duration,
    ) -> anyhow::Result<()> {
        if common.json {
            output::json(&self.json(&args.topic, took))?;
        }
        self.warn_of_missing_keys(args);
        let Some(failure) = self.failure() else {
            if !common.json {
                note(format_args!("{}", self.success(took)));
            }
            return Ok(());
        };
        let code = self.cause.as_ref().map_or(exit::FAILED, Cause::exit_code);
        Err(exit::Ended {
            text: failure,
            code,
            is_final: false,
        }
        .into())
    }

    fn warn_of_missing_keys(&self, args: &ProduceArgs) {
        let Some(field) = args
            .key_field
            .as_deref()
            .filter(|_| self.tally.without_key > 0)
        else {
            return;
        };
        note(format_args!(
            "esker: warning: {} of {} lines have no field `{field}` and were sent without a key",
            grouped(self.tally.without_key),
            grouped(self.tally.sent - self.tally.skipped.count()),
        ));
    }

    fn success(&self, took: Duration) -> String {
        let Tally {
            delivered, bytes, ..
        } = &self.tally;
        let seconds = took.as_secs_f64();
        let (records, size) = (records(*delivered), size(*bytes));
        format!("{records}, {size}, acknowledged in {seconds:.2} s")
    }

    fn failure(&self) -> Option<String> {
        let tally = &self.tally;
        let mut parts = Vec::new();
        match &self.cause {
            Some(cause) => parts.push(cause.to_string()),
            None if tally.has_kept_going => parts.push("some lines failed, named above".to_owned()),
            None => return None,
        }
        let are = if tally.delivered == 1 { "is" } else { "are" };
        parts.push(format!("{} {are} in the log", records(tally.delivered)));
        if !tally.undelivered.is_empty() {
            parts.push(format!("not in the log: {}", tally.undelivered));
        }
        if !tally.unknown.is_empty() {
            parts.push(format!("may or may not be in the log: {}", tally.unknown));
        }
        if self.cause.is_some() {
            let next = tally.sent + 1;
            if tally.has_part {
                parts.push(format!("line {next} was read in part and not sent"));
            }
            parts.push(format!("continue with line {next}"));
        }
        Some(parts.join("; "))
    }

    fn json(&self, topic: &str, took: Duration) -> Value {
        let tally = &self.tally;
        json!({
            "topic": topic,
            "records": tally.delivered,
            "bytes": tally.bytes,
            "seconds": took.as_secs_f64(),
            "without_key": tally.without_key,
            "skipped": runs(&tally.skipped),
            "undelivered": runs(&tally.undelivered),
            "unknown": runs(&tally.unknown),
            "next_line": tally.sent + 1,
        })
    }
}

/// Lines as a list of first and last lines.
fn runs(lines: &LineSet) -> Vec<[u64; 2]> {
    lines.runs().map(|(first, last)| [first, last]).collect()
}
