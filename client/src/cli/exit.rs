//! Exit codes that scripts can act on, and the one line a person reads.

use std::{io, process::ExitCode};

use esker_tiering::ErrorKind as StoreKind;

use crate::{Error, ErrorKind};

const FAILED: u8 = 1;
const NOT_FOUND: u8 = 3;
const OUT_OF_REACH: u8 = 4;
const DAMAGED: u8 = 5;
const EXISTS: u8 = 6;

/// Data is not what it should be: what a verification found.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Damaged(pub(super) String);

/// Prints an error and returns its exit code. A pipe that was closed by its reader is no error.
pub(super) fn failed(error: &anyhow::Error) -> ExitCode {
    if is_closed_pipe(error) {
        return ExitCode::SUCCESS;
    }
    eprintln!("esker: {error:#}");
    ExitCode::from(code(error))
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let cause = cause.downcast_ref::<io::Error>();
        cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
    })
}

fn code(error: &anyhow::Error) -> u8 {
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

const fn of_client(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::NotFound => NOT_FOUND,
        ErrorKind::Unavailable | ErrorKind::Throttled | ErrorKind::TimedOut => OUT_OF_REACH,
        ErrorKind::Corrupt => DAMAGED,
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
