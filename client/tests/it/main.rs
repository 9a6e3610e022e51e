//! The client's promises, against an agent in memory that misbehaves by script.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy knows only functions marked as tests to be some"
)]

mod clock;
#[cfg(feature = "cli")]
mod command;
mod consumer;
mod fake_agent;
mod producer;
