//! The S3 server's own tests, the store contract on every kind of store, and agents end to end.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod agent;
mod s3_faults;
mod s3_server;
mod store;
mod support;
