//! Esker's vocabulary: the coordinates of a partitioned log ([`types`]), the wire messages of
//! `esker.v1` ([`v1`]) and the record batch codec ([`batch`]). Nothing here does I/O.
//!
//! The gRPC stubs are behind the features `client` and `server`.
#![warn(missing_docs)]

pub mod batch;
pub mod error;
mod generated;
pub mod types;

pub use generated::{DESCRIPTOR_SET, v1};
