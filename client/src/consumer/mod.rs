//! Reads records from partitions that are assigned to it by name.

mod config;
mod fetched;
mod fetcher;
mod position;

use std::{collections::HashMap, fmt, sync::Arc};

use esker_proto::types::{Offset, PartitionId};
use futures::stream::{self, AbortHandle, BoxStream, SelectAll, StreamExt, abortable};

pub use self::{
    config::{ConsumerConfig, End, OutOfRange, Partitions, StartAt},
    fetched::{FetchSource, Fetched, FetchedRecords},
};
use self::{
    fetcher::{Fetcher, Plan, SharedConnection},
    position::Watermark,
};
use crate::{
    admin::check_name,
    client::{Client, OffsetQuery},
    error::{Error, ErrorKind, Result},
    transport::Address,
};

/// Fetches that share a connection: well below what servers allow.
const FETCHES_PER_CONNECTION: usize = 64;
/// Smallest response asked for, however many partitions share the buffer.
const RESPONSE_BYTES_MIN: usize = 16 << 10;

/// Topic and partition.
type Key = (Arc<str>, PartitionId);
/// What comes of the fetches, each with the partition it belongs to.
type Fetches = SelectAll<BoxStream<'static, (Key, Result<Fetched>)>>;

/// Reads the partitions assigned to it, each from its own offset, in order and without gaps.
///
/// Responses of different partitions come in any order. Nothing is remembered beyond the handle's
/// life: [`Consumer::position`] tells what to remember.
pub struct Consumer {
    client: Client,
    config: Arc<ConsumerConfig>,
    lanes: HashMap<Key, Lane>,
    fetches: Fetches,
    connections: Vec<Arc<SharedConnection>>,
}

/// One assigned partition.
#[derive(Debug)]
struct Lane {
    leader: Option<Address>,
    connection: Arc<SharedConnection>,
    /// Where to go on from: one past the last record handed out.
    position: Offset,
    end: Offset,
    watermark: Watermark,
    /// The running fetch; absent: paused.
    fetch: Option<AbortHandle>,
}

impl Lane {
    fn stop(&mut self) {
        if let Some(fetch) = self.fetch.take() {
            fetch.abort();
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("lanes", &self.lanes)
            .finish_non_exhaustive()
    }
}

impl Consumer {
    pub(crate) fn new(client: Client, config: ConsumerConfig) -> Self {
        Self {
            client,
            config: Arc::new(config),
            lanes: HashMap::new(),
            fetches: SelectAll::new(),
            connections: Vec::new(),
        }
    }

    /// Adds partitions of a topic to those it reads; one it has already starts over.
    ///
    /// With `until` a partition ends there, and [`Consumer::next`] returns `None` once all have;
    /// without it the tail is followed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if the topic or a partition does not exist. Nothing is assigned then.
    pub async fn assign(
        &mut self,
        topic: &str,
        partitions: impl Into<Partitions>,
        start: StartAt,
        until: Option<End>,
    ) -> Result<()> {
        check_name(topic)?;
        let leaders = self.client.topic_layout(topic).await?.leaders;
        let partitions = choose(topic, partitions.into(), leaders.len())?;
        let starts = resolve(self.client.clone(), topic, &partitions, start).await?;
        let ends = match until {
            Some(end) => Some(resolve(self.client.clone(), topic, &partitions, end.into()).await?),
            None => None,
        };
        let topic: Arc<str> = topic.into();
        for partition in partitions {
            let key = (Arc::clone(&topic), partition);
            let leader = leaders.get(partition.get() as usize).cloned().flatten();
            let connection = self.connection(self.lanes.len());
            let end = ends.as_ref().map_or(Offset::MAX, |ends| ends[&partition]);
            let (position, watermark) = (starts[&partition], Watermark::default());
            let lane = Lane {
                leader,
                connection,
                position,
                end,
                watermark,
                fetch: None,
            };
            self.lanes.insert(key.clone(), lane);
            self.start(&key);
        }
        Ok(())
    }

    /// Stops reading a topic's partitions.
    pub fn unassign(&mut self, topic: &str) {
        self.lanes.retain(|(assigned, _), _| &**assigned != topic);
    }

    /// Returns the next records of some partition; `None`: every partition has reached its end, is
    /// paused, or was ended by an error.
    ///
    /// May be dropped before it returns: nothing is lost.
    ///
    /// # Errors
    ///
    /// What a partition ran into, after the tries that the settings allow; the text names it. If
    /// the error may pass ([`Error::is_retryable`]), the next call tries again. If not, the
    /// partition is stopped until a [`Consumer::seek`]; the others go on.
    pub async fn next(&mut self) -> Result<Option<Fetched>> {
        let Some((key, result)) = self.fetches.next().await else {
            return Ok(None);
        };
        let fetched = result?;
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.position = fetched.next_offset();
        }
        Ok(Some(fetched))
    }

    /// Moves to another place in a partition, also beyond its end, and reads on from there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the partition is not assigned.
    pub async fn seek(&mut self, topic: &str, partition: PartitionId, to: StartAt) -> Result<()> {
        let key = self.key(topic, partition)?;
        let offset = resolve(self.client.clone(), topic, &[partition], to).await?[&partition];
        let lane = self.lane(&key)?;
        lane.position = offset;
        if lane.fetch.is_some() {
            self.start(&key);
        }
        Ok(())
    }

    /// Stops reading a partition, which stays assigned.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the partition is not assigned.
    pub fn pause(&mut self, topic: &str, partition: PartitionId) -> Result<()> {
        // The fetch is given up, not just left unread: it would take room from the others.
        let key = self.key(topic, partition)?;
        self.lane(&key)?.stop();
        Ok(())
    }

    /// Goes on reading a paused partition where it was.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the partition is not assigned.
    pub fn resume(&mut self, topic: &str, partition: PartitionId) -> Result<()> {
        let key = self.key(topic, partition)?;
        if self.lane(&key)?.fetch.is_none() {
            self.start(&key);
        }
        Ok(())
    }

    /// Returns the offset to go on from: one past the last record that [`Consumer::next`] returned;
    /// `None` if the partition is not assigned.
    pub fn position(&self, topic: &str, partition: PartitionId) -> Option<Offset> {
        Some(self.lanes.get(&(topic.into(), partition))?.position)
    }

    /// Returns the partition's high watermark as an agent last told it, 0 before that; `None` if the
    /// partition is not assigned.
    pub fn high_watermark(&self, topic: &str, partition: PartitionId) -> Option<Offset> {
        Some(
            self.lanes
                .get(&(topic.into(), partition))?
                .watermark
                .offset(),
        )
    }

    /// Returns every assigned partition with the offset where it ends; `None`: it follows the tail.
    pub fn assignment(&self) -> Vec<(String, PartitionId, Option<Offset>)> {
        let assigned = self.lanes.iter().map(|((topic, partition), lane)| {
            (
                topic.to_string(),
                *partition,
                (lane.end != Offset::MAX).then_some(lane.end),
            )
        });
        let mut assigned: Vec<_> = assigned.collect();
        assigned.sort_unstable();
        assigned
    }

    fn key(&self, topic: &str, partition: PartitionId) -> Result<Key> {
        let key = (Arc::from(topic), partition);
        match self.lanes.contains_key(&key) {
            true => Ok(key),
            false => Err(not_assigned(&key)),
        }
    }

    fn lane(&mut self, key: &Key) -> Result<&mut Lane> {
        self.lanes.get_mut(key).ok_or_else(|| not_assigned(key))
    }

    /// Starts the fetch of a partition at its position, in place of one that may be running.
    fn start(&mut self, key: &Key) {
        let response_bytes = self.response_bytes();
        let Some(lane) = self.lanes.get_mut(key) else {
            return;
        };
        lane.stop();
        let fetcher = Fetcher::new(Plan {
            client: self.client.clone(),
            config: Arc::clone(&self.config),
            connection: Arc::clone(&lane.connection),
            topic: Arc::clone(&key.0),
            partition: key.1,
            leader: lane.leader.clone(),
            wanted: lane.position..lane.end,
            response_bytes,
            watermark: lane.watermark.clone(),
        });
        let key = key.clone();
        let fetches = stream::unfold(fetcher, Fetcher::next).map(move |item| (key.clone(), item));
        let (fetches, abort) = abortable(fetches);
        lane.fetch = Some(abort);
        self.fetches.push(fetches.boxed());
    }

    fn response_bytes(&self) -> u32 {
        let share = self.config.buffer_bytes / self.lanes.len().max(1);
        let share = u32::try_from(share.max(RESPONSE_BYTES_MIN)).unwrap_or(u32::MAX);
        share.min(self.config.response_bytes)
    }

    fn connection(&mut self, lane: usize) -> Arc<SharedConnection> {
        let index = lane / FETCHES_PER_CONNECTION;
        if index >= self.connections.len() {
            self.connections.resize_with(index + 1, Arc::default);
        }
        Arc::clone(&self.connections[index])
    }
}

/// Finds the offsets that `at` means. Borrows no consumer: its streams are not `Sync`, and its calls
/// shall be possible from any task.
async fn resolve(
    client: Client,
    topic: &str,
    partitions: &[PartitionId],
    at: StartAt,
) -> Result<HashMap<PartitionId, Offset>> {
    let query = match at {
        StartAt::Offset(offset) => {
            return Ok(partitions.iter().map(|p| (*p, offset)).collect());
        }
        StartAt::Earliest => OffsetQuery::Earliest,
        StartAt::Latest => OffsetQuery::Latest,
        StartAt::Timestamp(timestamp) => OffsetQuery::At(timestamp),
    };
    let mut found = client.list_offsets(topic, partitions, query).await?;
    if found.values().any(Option::is_none) {
        // Nothing that late: whatever comes next.
        let latest = client
            .list_offsets(topic, partitions, OffsetQuery::Latest)
            .await?;
        for (partition, offset) in &mut found {
            *offset = offset.or_else(|| latest.get(partition).copied().flatten());
        }
    }
    let offset_of = |partition: &PartitionId| {
        let offset = found.get(partition).copied().flatten();
        Ok((
            *partition,
            offset.ok_or_else(|| no_offset(topic, *partition))?,
        ))
    };
    partitions.iter().map(offset_of).collect()
}

impl From<End> for StartAt {
    fn from(end: End) -> Self {
        match end {
            End::Latest => Self::Latest,
            End::Offset(offset) => Self::Offset(offset),
            End::Timestamp(timestamp) => Self::Timestamp(timestamp),
        }
    }
}

fn choose(topic: &str, partitions: Partitions, count: usize) -> Result<Vec<PartitionId>> {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let mut chosen = match partitions {
        Partitions::All => (0..count).map(PartitionId::new).collect(),
        Partitions::Only(partitions) => partitions,
    };
    chosen.sort_unstable();
    chosen.dedup();
    match chosen.last().filter(|last| last.get() >= count) {
        None => Ok(chosen),
        Some(unknown) => {
            let message = format!(
                "there is no such partition. topic=`{topic}` partition=`{unknown}` \
                 partitions=`{count}`"
            );
            Err(Error::new(ErrorKind::NotFound, message))
        }
    }
}

fn not_assigned((topic, partition): &Key) -> Error {
    let message = format!("partition is not assigned. topic=`{topic}` partition=`{partition}`");
    Error::invalid(message)
}

fn no_offset(topic: &str, partition: PartitionId) -> Error {
    let message = format!("agent named no offset. topic=`{topic}` partition=`{partition}`");
    Error::new(ErrorKind::Internal, message)
}
