//! The S3 server's own tests, and the store contract on every kind of store.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod s3_faults;
mod s3_server;
mod store;
mod support;
