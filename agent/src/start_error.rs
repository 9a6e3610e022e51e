//! Why an agent did not start, and the exit code that says so to scripts and service managers.

use std::{io, net::SocketAddr};

use esker_tiering::{ErrorKind, probe::Report, store::Fault};

use crate::{
    config::ConfigError, control::ControlError, data_dir::DataDirError, partition::OpenError,
};

/// Anything that keeps an agent from starting.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Settings are wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No bucket was named.
    #[error("no store is set; give --store s3://bucket/prefix?region=... or file:///directory")]
    NoStore,
    /// The bucket cannot be used or reached.
    #[error("store cannot be used: {0}")]
    Store(#[from] esker_tiering::Error),
    /// The bucket does not keep the promises that safety rests on.
    #[error("{}", first_failure(.0))]
    Unfit(Report),
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The metadata does not let this agent lead.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A partition cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The data directory does not take logs.
    #[error("logs cannot be written: {0}")]
    Log(#[from] crate::log::Error),
    /// A port cannot be had.
    #[error("cannot listen; is another process on this port? address=`{address}`: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A thread or another resource of the system was refused.
    #[error("system resource refused: {0}")]
    System(#[from] io::Error),
    /// Metrics with names that are taken: a fault of the program.
    #[error("metrics cannot be registered: {0}")]
    Metrics(#[from] prometheus::Error),
    /// Descriptors that cannot be read: a fault of the program.
    #[error("grpc reflection cannot be built: {0}")]
    Reflection(tonic_reflection::server::Error),
}

impl StartError {
    /// The process's exit code. `docs/exit-codes.md` lists them; they never change.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::NoStore => 78,
            Self::Store(error) => store_code(error),
            Self::Unfit(report) if report.is_unfit() => 65,
            Self::Unfit(report) => report.fault.as_ref().map_or(69, fault_code),
            Self::Open(error) => open_code(error),
            Self::DataDir(_) | Self::Log(_) => 74,
            Self::Control(error) => control_code(error),
            Self::Listen { .. } => 71,
            Self::System(_) | Self::Metrics(_) | Self::Reflection(_) => 70,
        }
    }
}

/// A damaged partition is set aside; what is left concerns the whole agent.
fn open_code(error: &OpenError) -> u8 {
    match error {
        OpenError::Bucket { source, .. } => store_code(source),
        OpenError::Log { .. } => 74,
        OpenError::ShuttingDown => 70,
    }
}

fn control_code(error: &ControlError) -> u8 {
    match error {
        ControlError::DataDir(_) => 74,
        ControlError::Store(source) if source.kind() != ErrorKind::Corrupt => store_code(source),
        _ => 75,
    }
}

fn store_code(error: &esker_tiering::Error) -> u8 {
    match error {
        esker_tiering::Error::Settings { .. } | esker_tiering::Error::StoreUrl(_) => 78,
        esker_tiering::Error::MetricsTaken => 70,
        esker_tiering::Error::Store { fault, .. } => fault_code(fault),
        error => match error.kind() {
            ErrorKind::Fenced => 75,
            ErrorKind::Corrupt => 65,
            _ => 69,
        },
    }
}

/// Nearly all a store refuses an agent for may pass without anybody touching the agent: permissions
/// and roles take a while to spread, clocks get set, sessions are renewed, buckets are made.
const fn fault_code(fault: &Fault) -> u8 {
    match fault {
        Fault::WrongRegion(_) | Fault::BadCredentials => 77,
        _ => 69,
    }
}

fn first_failure(report: &Report) -> String {
    report.first_fault().unwrap_or_default()
}
