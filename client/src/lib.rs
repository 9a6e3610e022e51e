//! Esker's Rust client: produce to and consume from a partitioned log whose history lives in an
//! object store.
//!
//! # Getting started
//!
//! With an agent on this machine (`cargo run --release -p esker-agent -- dev`):
//!
//! ```no_run
//! use esker_client::{Client, ConsumerConfig, End, Partitions, ProducerConfig, RecordRef, StartAt};
//!
//! # async fn run() -> esker_client::Result<()> {
//! let client = Client::connect("127.0.0.1:7771").await?;
//! client.admin().create_topic("orders", 4, Default::default()).await?;
//!
//! let producer = client.producer("orders", ProducerConfig::default()).await?;
//! let delivery = producer.send(RecordRef::keyed(b"order-17", b"paid")).await?;
//! let delivered = delivery.await?;
//! println!("partition {} offset {}", delivered.partition, delivered.offset);
//!
//! let mut consumer = client.consumer(ConsumerConfig::default());
//! consumer.assign("orders", Partitions::All, StartAt::Earliest, Some(End::Latest)).await?;
//! while let Some(fetched) = consumer.next().await? {
//!     for record in fetched.records() {
//!         let record = record?;
//!         println!("{} {:?} {:?}", record.offset, record.key, record.value);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised
//!
//! - A [`Delivery`] that resolves to `Ok` is as durable as [`ProducerConfig::acks`] says.
//! - Records sent one after another to one partition, so those of one key, are in the log in that
//!   order and at most once each, whatever was tried again ([`ProducerConfig::idempotent`], on by
//!   default).
//! - An error says whether it surely changed nothing ([`Error::has_no_side_effects`]). If not, the
//!   outcome is unknown: the record may be in the log.
//! - A [`Consumer`] returns every record from where it starts, in order, each once, across broken
//!   connections and restarts of any length; what it cannot read is an error, or is named if it is
//!   to be skipped ([`OnDamage`]), but never a silent gap.
//! - A topic that was deleted and created again is noticed, also by a position saved before
//!   ([`SavedPosition`], [`ErrorKind::TopicRecreated`]), and so is a log that lost what was read
//!   ([`ErrorKind::Truncated`]).
//!
//! # Runtime
//!
//! Everything runs on the tokio runtime that [`Client::connect`] was called on. Nothing needs more
//! than one of its threads.
#![warn(missing_docs)]

mod admin;
#[cfg(feature = "cli")]
pub mod cli;
mod client;
mod config;
mod consumer;
mod env;
mod error;
mod producer;
mod retry;
mod silence;
mod transport;

pub use admin::Admin;
pub use client::Client;
pub use config::ClientConfig;
pub use consumer::{
    Consumer, ConsumerConfig, End, FetchSource, Fetched, FetchedRecords, OnDamage, OutOfRange,
    Partitions, SavedPosition, StartAt,
};
pub use error::{Error, ErrorKind, Result};
pub use esker_proto::{
    batch::{Compression, Header, Headers, Record},
    types::{LeaderEpoch, Offset, OffsetRange, PartitionId, TimestampMs, TopicId},
    v1::{AlterTopicRequest, TopicSettings},
};
pub use producer::{Acks, Delivered, Delivery, Partitioner, Producer, ProducerConfig, RecordRef};
pub use retry::RetryPolicy;
