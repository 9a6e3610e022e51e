//! The record batch codec against its promises, against golden bytes and against an independent
//! implementation.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that panics has failed, helpers included"
)]

mod golden;
mod hostile;
mod peer;
mod round_trip;
mod samples;
