//! Sends records to one topic.

mod accumulator;
mod budget;
mod config;
mod delivery;
mod failures;
mod in_flight;
mod link;
mod links;
mod partitioner;
mod restamp;
mod sender;
mod wire;

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use esker_proto::types::{PartitionId, TimestampMs};
use tokio::{sync::Mutex, task::JoinHandle, time::Instant};

use self::{
    accumulator::{Accumulator, Limits, Push},
    failures::Seen,
    in_flight::InFlight,
    links::Links,
    partitioner::{Choice, Chooser},
    sender::{Heading, Lane, Sender},
};
pub use self::{
    config::{Acks, ProducerConfig},
    delivery::{Delivered, Delivery},
    partitioner::Partitioner,
};
use crate::{
    admin::check_name,
    client::{Client, TopicLayout},
    env,
    error::{Error, ErrorKind, Result},
    retry::after,
};

/// Requests that may wait in one produce stream, besides two windows of each partition.
const REQUESTS_SPARE: usize = 64;

/// A record to send; it is copied into its batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordRef<'a> {
    /// Decides on the partition; records of one key keep their order.
    pub key: Option<&'a [u8]>,
    /// The content.
    pub value: Option<&'a [u8]>,
    /// Names and values.
    pub headers: &'a [(&'a str, Option<&'a [u8]>)],
    /// When it was made; absent: now, which on Linux is up to 10 ms behind the clock that others read.
    pub timestamp: Option<TimestampMs>,
    /// Where it is to go, whatever its key.
    pub partition: Option<PartitionId>,
}

impl<'a> RecordRef<'a> {
    /// A record with a value only.
    pub fn new(value: &'a [u8]) -> Self {
        Self {
            value: Some(value),
            ..Self::default()
        }
    }

    /// A record with a key and a value.
    pub fn keyed(key: &'a [u8], value: &'a [u8]) -> Self {
        Self {
            key: Some(key),
            value: Some(value),
            ..Self::default()
        }
    }
}

/// Sends records to one topic. Cheap to clone; all clones fill the same batches.
///
/// It knows the topic's partitions as they were when it was opened: partitions added later get
/// records from producers opened later.
///
/// When the last clone is dropped what was sent is still delivered, in the background.
/// [`Producer::close`] waits for it.
#[derive(Clone, Debug)]
pub struct Producer {
    shared: Arc<Shared>,
    /// Failures that this handle's flushes have told of.
    seen: Seen,
}

#[derive(Debug)]
struct Shared {
    accumulator: Arc<Accumulator>,
    chooser: Chooser,
    partitions: NonZeroU32,
    delivery_timeout: Duration,
    sender: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.accumulator.close();
    }
}

impl Producer {
    pub(crate) async fn open(client: Client, topic: &str, config: ProducerConfig) -> Result<Self> {
        config.validate()?;
        check_name(topic)?;
        let layout = client.topic_layout(topic).await?;
        let partitions = u32::try_from(layout.leaders.len())
            .ok()
            .and_then(NonZeroU32::new);
        let partitions = partitions.expect("a layout has at least one partition");
        let identity = match config.idempotent {
            true => Some(client.init_producer().await?),
            false => None,
        };
        let accumulator = new_accumulator(&layout, &config);
        let sender = Sender::new(
            Heading {
                topic: topic.to_owned(),
                topic_id: layout.topic_id.to_bytes(),
                acks: config.acks.into(),
            },
            Arc::clone(&accumulator),
            new_lanes(&client, layout, || InFlight::new(config.window(), identity)),
            Links::new(client, requests_max(partitions, config.window())),
        );
        let chooser = Chooser::new(config.partitioner, partitions, rand::random());
        let sender = Mutex::new(Some(env::spawn(sender.run())));
        let delivery_timeout = config.delivery_timeout;
        let shared = Shared {
            accumulator,
            chooser,
            partitions,
            delivery_timeout,
            sender,
        };
        Ok(Self {
            shared: Arc::new(shared),
            seen: Seen::default(),
        })
    }

    /// Puts a record into its batch. Waits only while [`ProducerConfig::buffer_bytes`] are in use.
    ///
    /// Records of one caller, sent one after another, are in their partition in that order. What
    /// becomes of the record, the [`Delivery`] tells; it may be dropped.
    ///
    /// # Errors
    ///
    /// The record is not in any batch, then. [`ErrorKind::Invalid`] if it is too large,
    /// [`ErrorKind::NotFound`] if there is no such partition, [`ErrorKind::Throttled`] if there was
    /// no room within [`ProducerConfig::delivery_timeout`], [`ErrorKind::Closed`].
    #[inline]
    pub async fn send(&self, record: RecordRef<'_>) -> Result<Delivery> {
        let timestamp = record.timestamp.unwrap_or_else(env::now);
        match self.push(&record, timestamp, 0)? {
            Pushed::Added(delivery) => Ok(delivery),
            Pushed::NoRoom(bytes) => self.send_when_room(record, timestamp, bytes).await,
        }
    }

    /// Puts a record into its batch if there is room; `None`: there is none.
    ///
    /// # Errors
    ///
    /// As for [`Producer::send`].
    #[inline]
    pub fn try_send(&self, record: RecordRef<'_>) -> Result<Option<Delivery>> {
        let timestamp = record.timestamp.unwrap_or_else(env::now);
        match self.push(&record, timestamp, 0)? {
            Pushed::Added(delivery) => Ok(Some(delivery)),
            Pushed::NoRoom(_) => Ok(None),
        }
    }

    #[inline]
    fn push(
        &self,
        record: &RecordRef<'_>,
        timestamp: TimestampMs,
        credit: usize,
    ) -> Result<Pushed> {
        let Shared {
            accumulator,
            chooser,
            ..
        } = &*self.shared;
        let mut ended = 0;
        loop {
            let choice = match record.partition {
                None => chooser.choose(record.key),
                Some(partition) => self.check(partition)?,
            };
            match accumulator.push(choice, record, timestamp, credit) {
                Push::Added(delivery) => return Ok(Pushed::Added(delivery)),
                Push::NoRoom(bytes) => return Ok(Pushed::NoRoom(bytes)),
                Push::MoveOn => chooser.move_on(choice.partition),
                // Once round all partitions.
                Push::Ended(_) if choice.is_free && ended < self.partitions() => {
                    ended += 1;
                    chooser.move_on(choice.partition);
                }
                Push::Ended(error) => {
                    accumulator.budget.give_back(credit);
                    return Err(error);
                }
                Push::Refused(error) => return Err(error),
            }
        }
    }

    fn check(&self, partition: PartitionId) -> Result<Choice> {
        if partition.get() < self.shared.partitions.get() {
            return Ok(Choice {
                partition,
                is_free: false,
            });
        }
        let message = format!(
            "there is no such partition. partition=`{partition}` partitions=`{}`",
            self.shared.partitions
        );
        Err(Error::new(ErrorKind::NotFound, message))
    }

    #[cold]
    async fn send_when_room(
        &self,
        record: RecordRef<'_>,
        timestamp: TimestampMs,
        mut bytes: usize,
    ) -> Result<Delivery> {
        let accumulator = &self.shared.accumulator;
        let timeout = self.shared.delivery_timeout;
        let deadline = after(Instant::now(), timeout);
        loop {
            let room = std::pin::pin!(accumulator.budget.take(bytes));
            // What lingers is sent at once, and makes room.
            accumulator.wake.notify_one();
            tokio::time::timeout_at(deadline, room)
                .await
                .map_err(|_| no_room(timeout))?;
            match self.push(&record, timestamp, bytes)? {
                Pushed::Added(delivery) => return Ok(delivery),
                Pushed::NoRoom(more) => bytes = more,
            }
        }
    }

    /// Sends everything at once and waits until its fate is known.
    ///
    /// # Errors
    ///
    /// If any record failed, of this handle or of a clone, since this handle was last flushed; of
    /// several the error of the first (of the last 16 batches). So a caller that drops its deliveries
    /// misses nothing, and no clone's flush takes an error from another's. Each record's [`Delivery`]
    /// has its own, and reading that does not take it from the flush.
    pub async fn flush(&self) -> Result<()> {
        let Shared { accumulator, .. } = &*self.shared;
        let mut failed = Ok(());
        for batch in accumulator.hurry() {
            failed = failed.and(batch.settled().await);
        }
        accumulator.failures.tell(&self.seen).map_or(failed, Err)
    }

    /// Takes no more records, from any clone, and waits until the fate of all is known.
    ///
    /// # Errors
    ///
    /// As for [`Producer::flush`].
    pub async fn close(&self) -> Result<()> {
        self.shared.accumulator.close();
        let result = self.flush().await;
        if let Some(sender) = self.shared.sender.lock().await.take()
            && let Err(error) = sender.await
        {
            tracing::warn!(%error, "sender ended badly");
        }
        result
    }

    /// Returns the number of partitions records are spread over.
    pub fn partitions(&self) -> u32 {
        self.shared.partitions.get()
    }
}

/// What became of an attempt to send a record.
enum Pushed {
    Added(Delivery),
    NoRoom(usize),
}

fn new_accumulator(layout: &TopicLayout, config: &ProducerConfig) -> Arc<Accumulator> {
    let limits = Limits {
        batch_bytes: config.batch_bytes,
        batch_bytes_max: layout.batch_bytes_max,
        linger: config.linger,
        delivery_timeout: config.delivery_timeout,
        compression: config.compression,
    };
    Arc::new(Accumulator::new(
        layout.leaders.len(),
        limits,
        config.buffer_bytes,
    ))
}

fn new_lanes(client: &Client, layout: TopicLayout, in_flight: impl Fn() -> InFlight) -> Vec<Lane> {
    let routes = layout.leaders.into_iter().map(|leader| {
        // Who does not lead it tells who does.
        leader.unwrap_or_else(|| client.any_address())
    });
    routes.map(|route| Lane::new(in_flight(), route)).collect()
}

fn requests_max(partitions: NonZeroU32, window: usize) -> usize {
    (partitions.get() as usize)
        .saturating_mul(2 * window)
        .saturating_add(REQUESTS_SPARE)
}

fn no_room(timeout: Duration) -> Error {
    let message = format!("no room for the record: agents are too slow. waited=`{timeout:?}`");
    Error::new(ErrorKind::Throttled, message)
}
