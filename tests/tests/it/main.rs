//! The S3 server's own tests, the store contract on every kind of store, and agents end to end.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(
    clippy::cognitive_complexity,
    clippy::large_futures,
    clippy::too_many_lines,
    reason = "a scenario is told from top to bottom"
)]

mod agent;
mod s3_faults;
mod s3_server;
mod store;
mod support;
