//! The client's promises, against an agent in memory that misbehaves by script.
#![allow(
    clippy::unwrap_used,
    reason = "clippy knows only functions marked as tests to be some"
)]

mod consumer;
mod fake_agent;
mod producer;
