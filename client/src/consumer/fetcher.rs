//! One partition's records as a stream: opens the fetch, resumes it after a break.
//!
//! # Order and gaps
//!
//! The only state is the offset to go on from. It moves when records are handed out and at no other
//! time, so that whatever breaks, the next try begins exactly there. Responses are checked against
//! it: a record that is missing is an error, one below it is left out.
//!
//! # Retries and limits
//!
//! Errors that may pass are tried again, as often as the policy says since records last came; then
//! the error is handed out, and the next call begins to count afresh. Any other error is handed out
//! and ends the stream.
//!
//! # Back-pressure
//!
//! Nothing is read ahead here. What the application does not take stays in the HTTP/2 window, and
//! the agent stops.

use std::sync::Arc;

use esker_proto::{
    types::{Offset, OffsetRange, PartitionId},
    v1,
};
use tokio::sync::Mutex;
use tonic::Streaming;

use super::{
    config::{ConsumerConfig, OutOfRange},
    fetched::Fetched,
    position::Watermark,
};
use crate::{
    client::{Client, OffsetQuery, log_client},
    error::{Error, ErrorKind, Result},
    retry::Backoff,
    transport::{Address, Connection},
};

/// A connection that several fetchers share, opened again by the first that finds it closed.
#[derive(Debug, Default)]
pub(crate) struct SharedConnection(Mutex<Option<Connection>>);

impl SharedConnection {
    async fn get(&self, address: &Address, client: &Client) -> Result<Connection> {
        let mut shared = self.0.lock().await;
        let is_usable = |open: &&Connection| open.is_open() && open.address() == address;
        if let Some(connection) = shared.as_ref().filter(is_usable) {
            return Ok(connection.clone());
        }
        let connection = Connection::open(address, client.config().connect_timeout).await?;
        *shared = Some(connection.clone());
        Ok(connection)
    }
}

/// What a fetcher needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) client: Client,
    pub(crate) config: Arc<ConsumerConfig>,
    pub(crate) connection: Arc<SharedConnection>,
    pub(crate) topic: Arc<str>,
    pub(crate) partition: PartitionId,
    pub(crate) leader: Option<Address>,
    /// From where to where; up to [`Offset::MAX`]: it follows the tail.
    pub(crate) wanted: OffsetRange,
    pub(crate) response_bytes: u32,
    pub(crate) watermark: Watermark,
}

/// One partition's records.
#[derive(Debug)]
pub(crate) struct Fetcher {
    plan: Plan,
    responses: Option<Streaming<v1::FetchResponse>>,
    backoff: Backoff,
    has_failed: bool,
}

impl Fetcher {
    pub(crate) fn new(plan: Plan) -> Self {
        let backoff = Backoff::new(plan.config.retry);
        Self {
            plan,
            responses: None,
            backoff,
            has_failed: false,
        }
    }

    /// Returns the next records; `None`: the end is reached, or an error has ended it.
    pub(crate) async fn next(mut self) -> Option<(Result<Fetched>, Self)> {
        while !self.has_failed && !self.plan.wanted.is_empty() {
            let error = match self.step().await {
                Ok(None) => continue,
                Ok(Some(fetched)) => {
                    self.plan.wanted.start = fetched.next_offset();
                    self.backoff.reset();
                    return Some((Ok(fetched), self));
                }
                Err(error) => error,
            };
            self.responses = None;
            if let Err(error) = self.recover(error).await {
                return Some((Err(error), self));
            }
        }
        None
    }

    /// Takes one response; `None` if it holds no records that are wanted.
    async fn step(&mut self) -> Result<Option<Fetched>> {
        let responses = match &mut self.responses {
            Some(responses) => responses,
            None => self.responses.insert(open(&self.plan).await?),
        };
        let response = responses.message().await.map_err(Error::from_status)?;
        let Some(response) = response else {
            return Err(ended_early(&self.plan));
        };
        let Plan {
            topic,
            partition,
            wanted,
            watermark,
            ..
        } = &self.plan;
        watermark.set(response.high_watermark);
        let fetched = Fetched::read(topic, *partition, wanted, response)?;
        Ok(fetched)
    }

    /// Gets ready for another try, or hands the error back.
    async fn recover(&mut self, error: Error) -> Result<()> {
        if error.kind() == ErrorKind::OutOfRange {
            return self.reposition(error).await;
        }
        if !error.is_retryable() {
            return Err(self.end(error));
        }
        self.plan.leader = match (error.leader(), error.kind()) {
            (Some(leader), _) => leader.parse().ok(),
            // Whoever it was may lead no more: another one knows.
            (None, ErrorKind::Unavailable) => None,
            (None, _) => self.plan.leader.take(),
        };
        let Some(delay) = self.backoff.next_delay(error.retry_after()) else {
            self.backoff.reset();
            return Err(error.context(self.plan.name()));
        };
        tracing::info!(%error, topic = %self.plan.topic, partition = %self.plan.partition,
            offset = %self.plan.wanted.start, "fetch broke, resuming");
        tokio::time::sleep(delay).await;
        Ok(())
    }

    async fn reposition(&mut self, error: Error) -> Result<()> {
        let query = match self.plan.config.out_of_range {
            OutOfRange::Error => return Err(self.end(error)),
            OutOfRange::Earliest => OffsetQuery::Earliest,
            OutOfRange::Latest => OffsetQuery::Latest,
        };
        // Counted as a failure, so that a log that is never in range does not spin.
        let Some(delay) = self.backoff.next_delay(error.retry_after()) else {
            return Err(self.end(error));
        };
        tokio::time::sleep(delay).await;
        let Plan {
            client,
            topic,
            partition,
            ..
        } = &self.plan;
        let offsets = client.list_offsets(topic, &[*partition], query).await;
        let offsets = offsets.map_err(|error| self.end(error))?;
        let offset = offsets
            .get(&self.plan.partition)
            .copied()
            .flatten()
            .unwrap_or_default();
        tracing::warn!(%error, topic = %self.plan.topic, partition = %self.plan.partition,
            from = %self.plan.wanted.start, to = %offset, "offset out of range, going elsewhere");
        self.plan.wanted.start = offset;
        Ok(())
    }

    fn end(&mut self, error: Error) -> Error {
        self.has_failed = true;
        error.context(self.plan.name())
    }
}

impl Plan {
    fn name(&self) -> String {
        format!("topic {} partition {}", self.topic, self.partition)
    }

    fn request(&self) -> v1::FetchRequest {
        let end = self.wanted.end;
        v1::FetchRequest {
            topic: self.topic.to_string(),
            partition: self.partition.get(),
            offset: self.wanted.start.get(),
            end_offset: (end != Offset::MAX).then_some(end.get()),
            max_bytes: self.response_bytes,
            min_bytes: self.config.wait_bytes_min,
            max_wait_ms: self.config.wait_ms_max,
            format: v1::FetchFormat::Batches.into(),
        }
    }
}

async fn open(plan: &Plan) -> Result<Streaming<v1::FetchResponse>> {
    let address = plan
        .leader
        .clone()
        .unwrap_or_else(|| plan.client.any_address());
    let connection = plan.connection.get(&address, &plan.client).await?;
    let timeout = plan.client.config().request_timeout;
    let opened = tokio::time::timeout(timeout, log_client(connection).fetch(plan.request())).await;
    let opened = opened.map_err(|_| {
        let message = format!("agent did not open the fetch. timeout=`{timeout:?}`");
        Error::new(ErrorKind::TimedOut, message)
    })?;
    Ok(opened.map_err(Error::from_status)?.into_inner())
}

fn ended_early(plan: &Plan) -> Error {
    let message = format!(
        "agent ended the fetch early. offset=`{}`",
        plan.wanted.start
    );
    Error::new(ErrorKind::Unavailable, message)
}
