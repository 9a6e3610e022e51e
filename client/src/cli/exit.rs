//! Exit codes that scripts can act on, and the one line a person reads.

use std::{fmt::Write, io, process::ExitCode};

use esker_tiering::ErrorKind as StoreKind;

use super::output::note;
use crate::{Error, ErrorKind};

pub(super) const FAILED: u8 = 1;
const NOT_FOUND: u8 = 3;
pub(super) const OUT_OF_REACH: u8 = 4;
const DAMAGED: u8 = 5;
const EXISTS: u8 = 6;
/// The reader of standard output closed it: what a shell reports after SIGPIPE.
const CLOSED_PIPE: u8 = 141;

/// Each exit code and what it says. `docs/exit-codes.md` has the same; they never change.
const MEANINGS: [(&str, &str); 8] = [
    (
        "0",
        "done; also a follower of a topic that a signal stopped",
    ),
    ("1", "failed, and no other code fits; the message says why"),
    ("2", "wrong usage: unknown or missing arguments"),
    (
        "3",
        "no such topic, partition or object, or the topic was deleted and created again",
    ),
    (
        "4",
        "no agent or bucket answers, it refuses for the moment, or time ran out",
    ),
    ("5", "data is damaged, or records that were read are gone"),
    ("6", "exists already"),
    (
        "128+n",
        "signal n stopped it: 129 SIGHUP, 130 SIGINT, 143 SIGTERM; 141: the reader of its output is gone",
    ),
];

/// The exit codes, as the long help lists them.
pub(super) fn help() -> String {
    let mut text = "Exit codes:".to_owned();
    for (code, meaning) in MEANINGS {
        _ = write!(text, "\n  {code:<7} {meaning}");
    }
    text
}

/// Data is not what it should be: what a verification found.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Damaged(pub(super) String);

/// An end that decided on its exit code itself.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(super) struct Ended {
    pub(super) text: String,
    pub(super) code: u8,
    /// What was read is gone: nothing can be continued.
    pub(super) is_final: bool,
}

/// Prints an error and returns its exit code. After a pipe that its reader closed there is nobody to
/// tell.
pub(super) fn failed(error: &anyhow::Error) -> ExitCode {
    if is_closed_pipe(error) {
        return ExitCode::from(CLOSED_PIPE);
    }
    note(format_args!("esker: {}", told(error)));
    ExitCode::from(code(error))
}

/// An error and its causes, each once: some messages name their cause themselves.
pub(super) fn told(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Whether standard output was closed. A connection to an agent that broke is another matter.
pub(super) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let ours = error
        .chain()
        .take_while(|cause| !cause.is::<Error>() && !cause.is::<esker_tiering::Error>());
    ours.filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// The exit code of an error.
pub(super) fn code(error: &anyhow::Error) -> u8 {
    if let Some(ended) = error.downcast_ref::<Ended>() {
        return ended.code;
    }
    if error.downcast_ref::<Damaged>().is_some() {
        return DAMAGED;
    }
    for cause in error.chain() {
        if let Some(error) = cause.downcast_ref::<Error>() {
            return of_client(error.kind());
        }
        if let Some(error) = cause.downcast_ref::<esker_tiering::Error>() {
            return of_store(error.kind());
        }
    }
    FAILED
}

/// Whether nothing can be continued after this error: what was read is gone.
pub(super) fn is_final(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<Ended>() {
        Some(ended) => ended.is_final,
        None => code(error) == NOT_FOUND,
    }
}

/// Whether what was read is gone.
pub(super) const fn is_final_kind(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NotFound | ErrorKind::TopicRecreated | ErrorKind::Truncated
    )
}

/// The exit code of an error of the client library.
pub(super) const fn of_client(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::NotFound | ErrorKind::TopicRecreated => NOT_FOUND,
        ErrorKind::Unavailable | ErrorKind::Throttled | ErrorKind::TimedOut => OUT_OF_REACH,
        ErrorKind::Corrupt | ErrorKind::Truncated => DAMAGED,
        ErrorKind::AlreadyExists => EXISTS,
        _ => FAILED,
    }
}

const fn of_store(kind: StoreKind) -> u8 {
    match kind {
        StoreKind::NotFound => NOT_FOUND,
        StoreKind::Unavailable | StoreKind::Unknown => OUT_OF_REACH,
        StoreKind::Corrupt => DAMAGED,
        _ => FAILED,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn documentation_lists_each_exit_code() {
        let docs = include_str!("../../../docs/exit-codes.md");
        let (_, section) = docs.split_once("# Exit codes of esker\n").unwrap();
        let rows = section.lines().filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            Some((cells.next()?, cells.next()?))
        });
        let rows: Vec<_> = rows.skip(2).collect();
        assert_eq!(rows, MEANINGS);
        assert!(MEANINGS.iter().all(|(code, _)| help().contains(code)));
    }

    #[test]
    fn each_error_has_a_code_that_is_documented() {
        let codes = [
            (ErrorKind::NotFound, "3"),
            (ErrorKind::TopicRecreated, "3"),
            (ErrorKind::Unavailable, "4"),
            (ErrorKind::Throttled, "4"),
            (ErrorKind::TimedOut, "4"),
            (ErrorKind::Corrupt, "5"),
            (ErrorKind::Truncated, "5"),
            (ErrorKind::AlreadyExists, "6"),
            (ErrorKind::Invalid, "1"),
            (ErrorKind::OutOfRange, "1"),
            (ErrorKind::Internal, "1"),
        ];
        for (kind, expected) in codes {
            let error = Error::new(kind, "what went wrong");
            let error = Err::<(), _>(error).context("what was done").unwrap_err();
            assert_eq!(code(&error).to_string(), expected, "{kind:?}");
            assert!(MEANINGS.iter().any(|(code, _)| *code == expected));
        }
    }

    #[test]
    fn each_cause_is_told_once() {
        let refused = || io::Error::other("refused");
        let named = Error::new(ErrorKind::Unavailable, "no agent: refused; start it");
        let error = anyhow::Error::from(named.with_source(refused()));
        assert_eq!(told(&error), "no agent: refused; start it");
        let error = Err::<(), _>(refused()).context("no agent").unwrap_err();
        assert_eq!(told(&error), "no agent: refused");
    }
}
