//! The entry point: knows the agents, and asks any of them about metadata.

use std::{collections::HashMap, future::Future, sync::Arc, time::Duration};

use esker_proto::{
    batch::DECOMPRESSED_BYTES_MAX,
    error::encode_detail,
    types::{Offset, PartitionId, ProducerEpoch, ProducerId, TopicId},
    v1::{self, admin_client::AdminClient, log_client::LogClient},
};
use tokio::sync::Mutex;
use tonic::{Code, Response, Status};

use crate::{
    Admin, ClientConfig, Consumer, ConsumerConfig, Producer, ProducerConfig,
    error::{Error, ErrorKind, Result},
    retry::Backoff,
    silence::Heard,
    transport::{Address, Connection},
};

/// Largest message taken from an agent. Far above what it sends: a batch, and a little.
pub(crate) const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// A connected client. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: ClientConfig,
    bootstrap: Vec<Address>,
    connections: Mutex<HashMap<Address, Connection>>,
}

/// How a call may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It changes nothing: after any failure that may pass.
    Always,
    /// It changes something: only if it surely did not.
    IfUnchanged,
}

/// What a producer or consumer has to know of a topic.
#[derive(Clone, Debug)]
pub(crate) struct TopicLayout {
    pub(crate) topic_id: TopicId,
    /// The leader of each partition; `None`: not known.
    pub(crate) leaders: Vec<Option<Address>>,
    /// Largest batch the topic takes.
    pub(crate) batch_bytes_max: usize,
}

/// What [`Client::list_offsets`] looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OffsetQuery {
    Earliest,
    Latest,
    At(esker_proto::types::TimestampMs),
}

impl Client {
    /// Connects to the first agent that answers of `addresses`: `host:port`, with or without
    /// `http://` before it, and several of them separated by commas.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if none answers, [`ErrorKind::Invalid`] if it is no address.
    pub async fn connect(addresses: impl AsRef<str>) -> Result<Self> {
        Self::connect_with(addresses, ClientConfig::default()).await
    }

    /// Connects with other settings than the defaults.
    ///
    /// # Errors
    ///
    /// As for [`Client::connect`].
    pub async fn connect_with(addresses: impl AsRef<str>, config: ClientConfig) -> Result<Self> {
        let client = Self::new(addresses.as_ref(), config)?;
        client.any_connection(0).await?;
        Ok(client)
    }

    /// A client that has not tried to reach anybody.
    pub(crate) fn new(addresses: &str, config: ClientConfig) -> Result<Self> {
        let bootstrap: Result<Vec<Address>> = addresses.split(',').map(str::parse).collect();
        let inner = Inner {
            config,
            bootstrap: bootstrap?,
            connections: Mutex::default(),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Returns the calls about topics and the cluster.
    pub fn admin(&self) -> Admin {
        Admin::new(self.clone())
    }

    /// Opens a producer for one topic.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is no such topic, [`ErrorKind::Invalid`] if the settings
    /// contradict each other.
    pub async fn producer(&self, topic: &str, config: ProducerConfig) -> Result<Producer> {
        Producer::open(self.clone(), topic, config).await
    }

    /// Opens a consumer; nothing is assigned to it yet.
    pub fn consumer(&self, config: ConsumerConfig) -> Consumer {
        Consumer::new(self.clone(), config)
    }

    pub(crate) fn config(&self) -> &ClientConfig {
        &self.inner.config
    }

    /// Returns an address to try for a partition whose leader is not known.
    pub(crate) fn any_address(&self) -> Address {
        self.address_at(0)
    }

    /// Returns the address to try when an agent cannot be reached: the bootstrap addresses in turn.
    pub(crate) fn address_after(&self, failed: &Address) -> Address {
        self.address_at(self.index_after(failed))
    }

    fn index_after(&self, failed: &Address) -> usize {
        let known = self.inner.bootstrap.iter().position(|at| at == failed);
        known.map_or(0, |index| index + 1)
    }

    fn address_at(&self, index: usize) -> Address {
        let bootstrap = &self.inner.bootstrap;
        bootstrap[index % bootstrap.len()].clone()
    }

    pub(crate) async fn topic_layout(&self, topic: &str) -> Result<TopicLayout> {
        let described = self.describe_topic(topic).await?;
        let summary = described.topic.unwrap_or_default();
        let topic_id = summary.topic_id.parse().map_err(|error| {
            let message = format!("agent names no topic id: {error}. topic=`{topic}`");
            Error::new(ErrorKind::Internal, message)
        })?;
        let settings = summary.settings;
        let batch_bytes_max = settings.and_then(|settings| settings.batch_bytes_max);
        let mut partitions = described.partitions;
        partitions.sort_by_key(|partition| partition.partition);
        if partitions.is_empty() {
            let message = format!("agent names no partition of the topic. topic=`{topic}`");
            return Err(Error::new(ErrorKind::Internal, message));
        }
        // An address that cannot be parsed is as good as none: the agent asked knows better.
        let leaders = partitions
            .iter()
            .map(|partition| partition.leader.parse().ok())
            .collect();
        let batch_bytes_max = batch_bytes_max.and_then(|bytes| usize::try_from(bytes).ok());
        let batch_bytes_max = batch_bytes_max.unwrap_or(usize::MAX);
        Ok(TopicLayout {
            topic_id,
            leaders,
            batch_bytes_max: batch_bytes_max.min(DECOMPRESSED_BYTES_MAX),
        })
    }

    pub(crate) async fn describe_topic(&self, topic: &str) -> Result<v1::DescribeTopicResponse> {
        let name = topic.to_owned();
        self.admin_call(Repeat::Always, |mut agent| {
            let request = v1::DescribeTopicRequest { name: name.clone() };
            async move { agent.describe_topic(request).await }
        })
        .await
    }

    pub(crate) async fn init_producer(&self) -> Result<(ProducerId, ProducerEpoch)> {
        // An id that was given out and lost on the way is never used: no harm in asking again.
        let given = self
            .log_call(Repeat::Always, |mut agent| async move {
                agent.init_producer(v1::InitProducerRequest {}).await
            })
            .await?;
        let epoch = i16::try_from(given.producer_epoch).map_err(|_| {
            let message = "agent gave out a producer epoch beyond 16 bits".to_owned();
            Error::new(ErrorKind::Internal, message)
        })?;
        Ok((
            ProducerId::new(given.producer_id),
            ProducerEpoch::new(epoch),
        ))
    }

    /// Finds one offset per partition; `None`: no record that late. Fails if one cannot tell.
    pub(crate) async fn list_offsets(
        &self,
        topic: &str,
        topic_id: Option<TopicId>,
        partitions: &[PartitionId],
        query: OffsetQuery,
    ) -> Result<HashMap<PartitionId, Option<Offset>>> {
        let found = self.offset_of_each(topic, topic_id, partitions, query);
        let found = found.await?.into_iter();
        found
            .map(|(partition, offset)| Ok((partition, offset?)))
            .collect()
    }

    /// As [`Client::list_offsets`]; what one partition cannot tell keeps no other from it.
    pub(crate) async fn offset_of_each(
        &self,
        topic: &str,
        topic_id: Option<TopicId>,
        partitions: &[PartitionId],
        query: OffsetQuery,
    ) -> Result<HashMap<PartitionId, Result<Option<Offset>>>> {
        use v1::list_offsets_request::Position;
        let position = match query {
            OffsetQuery::Earliest => Position::Earliest(true),
            OffsetQuery::Latest => Position::Latest(true),
            OffsetQuery::At(timestamp) => Position::TimestampMs(timestamp.get()),
        };
        let request = v1::ListOffsetsRequest {
            topic: topic.to_owned(),
            topic_id: topic_id.map(TopicId::to_bytes).unwrap_or_default(),
            partitions: partitions.iter().map(|partition| partition.get()).collect(),
            position: Some(position),
        };
        let partial = parking_lot::Mutex::new(None);
        let listed = self
            .log_call(Repeat::Always, |mut agent| {
                let (request, partial) = (request.clone(), &partial);
                async move {
                    let listed = agent.list_offsets(request).await?;
                    if let Some(error) = passing(listed.get_ref()) {
                        *partial.lock() = Some(listed.into_inner());
                        return Err(error);
                    }
                    Ok(listed)
                }
            })
            .await;
        let listed = match (listed, partial.into_inner()) {
            (Err(error), Some(partial)) if error.is_retryable() => partial,
            (listed, _) => listed?,
        };
        let topic = topic.into();
        let found = listed.offsets.into_iter();
        Ok(found.map(|found| read_offset(&topic, found)).collect())
    }

    pub(crate) async fn admin_call<T, F>(
        &self,
        repeat: Repeat,
        call: impl Fn(AdminClient<Connection>) -> F + Sync,
    ) -> Result<T>
    where
        F: Future<Output = Result<Response<T>, Status>> + Send,
    {
        let timeout = self.inner.config.request_timeout;
        self.call(repeat, timeout, |connection| call(admin_client(connection)))
            .await
    }

    pub(crate) async fn log_call<T, F>(
        &self,
        repeat: Repeat,
        call: impl Fn(LogClient<Connection>) -> F + Sync,
    ) -> Result<T>
    where
        F: Future<Output = Result<Response<T>, Status>> + Send,
    {
        let timeout = self.inner.config.request_timeout;
        self.call(repeat, timeout, |connection| call(log_client(connection)))
            .await
    }

    /// Calls one agent after another until one answers for good.
    pub(crate) async fn call<T, F>(
        &self,
        repeat: Repeat,
        timeout: Duration,
        call: impl Fn(Connection) -> F + Sync,
    ) -> Result<T>
    where
        F: Future<Output = Result<Response<T>, Status>> + Send,
    {
        let mut backoff = Backoff::new(self.inner.config.retry);
        let (mut first, mut redirect) = (0, None);
        loop {
            let asked = match redirect.take() {
                Some(leader) => self.connection_to(&leader).await,
                None => self.any_connection(first).await,
            };
            let answer = match &asked {
                Ok(connection) => call_once(connection.clone(), timeout, &call).await,
                Err(error) => Err(error.clone()),
            };
            let error = match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let may_repeat = repeat == Repeat::Always || error.has_no_side_effects();
            if !error.is_retryable() || !may_repeat {
                return Err(error);
            }
            let Some(delay) = backoff.next_delay(error.retry_after()) else {
                return Err(error);
            };
            tracing::info!(%error, ?delay, "call failed, trying again");
            redirect = error.leader().and_then(|leader| leader.parse().ok());
            // Another agent may be better off.
            first = asked.map_or(0, |connection| self.index_after(connection.address()));
            tokio::time::sleep(delay).await;
        }
    }

    /// Connects to the first bootstrap address that answers, from the given one on.
    async fn any_connection(&self, first: usize) -> Result<Connection> {
        let mut failure = None;
        for index in 0..self.inner.bootstrap.len() {
            match self.connection_to(&self.address_at(first + index)).await {
                Ok(connection) => return Ok(connection),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.expect("there is at least one address, and it failed"))
    }

    async fn connection_to(&self, address: &Address) -> Result<Connection> {
        // Held while connecting: callers that wait for the same agent share its connection.
        let mut connections = self.inner.connections.lock().await;
        if let Some(connection) = connections.get(address).filter(|open| open.is_open()) {
            return Ok(connection.clone());
        }
        let connection = Connection::open(address, self.inner.config.connect_timeout).await?;
        connections.insert(address.clone(), connection.clone());
        Ok(connection)
    }
}

async fn call_once<T, F>(
    connection: Connection,
    timeout: Duration,
    call: &(impl Fn(Connection) -> F + Sync),
) -> Result<T>
where
    F: Future<Output = Result<Response<T>, Status>> + Send,
{
    let answer = tokio::time::timeout(timeout, call(connection)).await;
    let answer = answer.map_err(|_| {
        Error::new(
            ErrorKind::TimedOut,
            format!("agent did not answer. timeout=`{timeout:?}`"),
        )
        .with_side_effects(false)
    })?;
    Ok(answer.map_err(Error::from_status)?.into_inner())
}

pub(crate) fn log_client(connection: Connection) -> LogClient<Connection> {
    let origin = connection.origin();
    LogClient::with_origin(connection, origin).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

/// As [`log_client`], for streams in which an agent must not be silent for longer.
pub(crate) fn fetch_client(connection: Connection, silence_max: Duration) -> LogClient<Heard> {
    let origin = connection.origin();
    let heard = Heard::new(connection, silence_max);
    LogClient::with_origin(heard, origin).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

pub(crate) fn admin_client(connection: Connection) -> AdminClient<Connection> {
    let origin = connection.origin();
    AdminClient::with_origin(connection, origin).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

/// Makes an error of an answer in which a partition cannot tell its offset for the moment, so that
/// the call is tried again.
fn passing(listed: &v1::ListOffsetsResponse) -> Option<Status> {
    let mut offsets = listed.offsets.iter();
    let (partition, mut detail) = offsets.find_map(|found| {
        let error = found.error.as_ref().filter(|error| error.is_retryable)?;
        Some((found.partition, error.clone()))
    })?;
    detail.message = format!("partition {partition}: {}", detail.message);
    let code = Code::Unavailable;
    let encoded = encode_detail(code.into(), &detail);
    Some(Status::with_details(code, detail.message, encoded))
}

fn read_offset(
    topic: &Arc<str>,
    found: v1::PartitionOffset,
) -> (PartitionId, Result<Option<Offset>>) {
    let partition = PartitionId::new(found.partition);
    let offset = match found.error {
        Some(detail) => Err(Error::from_detail(detail).at(topic, partition, None)),
        None => Ok(found.offset.map(Offset::new)),
    };
    (partition, offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bootstrap_address_is_a_fallback_in_turn() {
        let client = Client::new("a,b,c", ClientConfig::default()).unwrap();
        let leader = "leader:1".parse().unwrap();
        let tried =
            std::iter::successors(Some(leader), |failed| Some(client.address_after(failed)));
        let tried: Vec<_> = tried.take(5).map(|address| address.to_string()).collect();
        assert_eq!(tried, ["leader:1", "a:7771", "b:7771", "c:7771", "a:7771"]);
    }
}
