//! Esker's vocabulary: the coordinates of a partitioned log ([`types`]), the wire messages of
//! `esker.v1` ([`v1`]), the record batch codec ([`batch`]) and the partitioner of keyed records
//! ([`partitioner`]). Nothing here does I/O.
//!
//! The gRPC stubs are behind the features `client` and `server`.
#![warn(missing_docs)]

pub mod batch;
pub mod convert;
pub mod error;
mod generated;
pub mod partitioner;
pub mod topic_limits;
pub mod types;

pub use generated::{DESCRIPTOR_SET, v1};
