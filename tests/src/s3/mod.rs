//! An S3 server inside the process, for tests and benches.
//!
//! Objects live in memory and are served without a copy. Conditional writes are atomic, which is
//! what sets it apart from the off-the-shelf `s3s-fs`. What a real bucket does on a bad day is put
//! in by rule: see [`Rule`] and [`Fault`].
//!
//! ```no_run
//! # async fn doc() -> std::io::Result<()> {
//! use esker_tests::s3::{Fault, Rule, S3Server, Verb};
//!
//! let server = S3Server::builder().bucket("logs").start().await?;
//! // The next two PUTs of a manifest are applied, and their replies are lost.
//! let lost = server.add_fault(
//!     Rule::new(Fault::ReplyLost).verb(Verb::Put).key_contains("/manifest/").times(2),
//! );
//! println!("{} {}", server.url(), lost.fired());
//! # Ok(())
//! # }
//! ```

mod auth;
mod backend;
mod body;
mod counts;
mod fault;
mod http;
mod inject;
mod multipart;
mod permission;
mod request;
mod rule;
mod rule_text;
mod server;
mod service;

pub use self::{
    counts::Counts,
    fault::{Condition, Fault, Latency, Release, Status},
    http::serve,
    permission::Permission,
    request::Verb,
    rule::{ArmedRule, Rule},
    rule_text::RuleTextError,
    server::{ACCESS_KEY, Builder, S3Server, SECRET_KEY},
};
