//! The Esker agent: serves topics out of a bucket, keeping only their hot tail on local disk.
//!
//! [`agent::Agent`] is the process as a value: `start` it, `drain` it. Under it, one task owns each
//! partition ([`partition`]), its local log is written by a pool of threads ([`log`]), and the
//! cluster's metadata is a log of its own in the bucket ([`control`]).

pub mod agent;
mod backoff;
pub mod cli;
mod clocks;
mod cluster;
pub mod config;
mod connections;
pub mod control;
mod data_dir;
mod descriptors;
pub mod dev;
mod health;
mod http;
mod limits;
pub mod log;
mod memory;
mod metrics;
pub mod partition;
mod pulse;
mod registry;
mod reopen;
mod run_note;
mod server;
mod service;
mod service_manager;
mod shared;
mod spare;
mod start_error;
mod starts;
mod topics;
mod watchers;

pub use start_error::StartError;
