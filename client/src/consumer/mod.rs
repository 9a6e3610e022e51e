//! Reads records from partitions that are assigned to it by name.

mod bounds;
mod config;
mod fetched;
mod fetcher;
mod position;
mod response;

use std::{collections::HashMap, fmt, sync::Arc};

use esker_proto::types::{LeaderEpoch, Offset, PartitionId, TopicId};
use futures::stream::{self, AbortHandle, BoxStream, SelectAll, StreamExt, abortable};

use self::{
    bounds::{Asked, Bounds, resolve, resolve_each, saved_epoch},
    fetched::Origin,
    fetcher::{Fetcher, Plan, SharedConnection},
    position::Watermark,
};
pub use self::{
    config::{ConsumerConfig, End, OnDamage, OutOfRange, Partitions, StartAt},
    fetched::{FetchSource, Fetched, FetchedRecords},
    position::SavedPosition,
};
use crate::{
    admin::check_name,
    client::Client,
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
/// Responses of different partitions come in any order. It waits for its agents, through restarts
/// of minutes, until [`ConsumerConfig::give_up_after`] or until it is dropped. Nothing is remembered
/// beyond the handle's life: [`Consumer::saved_positions`] tells what to remember.
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
    topic_id: TopicId,
    /// Where its leader is said to be.
    route: Address,
    connection: Arc<SharedConnection>,
    /// Where to go on from: one past the last record handed out, or where a seek went; absent: the
    /// start.
    position: Option<Offset>,
    /// Epoch of the record before it, if it was handed out.
    leader_epoch: Option<LeaderEpoch>,
    bounds: Bounds,
    /// Why not all of them were found when it was assigned.
    #[cfg(feature = "cli")]
    unfound: Option<Error>,
    watermark: Watermark,
    /// The running fetch; absent: paused.
    fetch: Option<AbortHandle>,
}

impl Lane {
    fn position(&self) -> Option<Offset> {
        self.position.or_else(|| self.bounds.start())
    }

    fn origin(&self, (topic, partition): &Key) -> Origin {
        Origin {
            topic: Arc::clone(topic),
            topic_id: self.topic_id,
            partition: *partition,
        }
    }

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
    /// A partition that cannot tell its start or end, because it is offline, is assigned all the
    /// same: it is asked again, and [`Consumer::next`] hands its error out.
    pub async fn assign(
        &mut self,
        topic: &str,
        partitions: impl Into<Partitions>,
        start: StartAt,
        until: Option<End>,
    ) -> Result<()> {
        check_name(topic)?;
        let layout = self.client.topic_layout(topic).await?;
        let partitions = choose(topic, partitions.into(), layout.leaders.len())?;
        let topic_id = layout.topic_id;
        let find = |at| {
            let (client, partitions) = (self.client.clone(), &partitions);
            async move { resolve_each(client, topic, topic_id, partitions, &at).await }
        };
        let mut starts = find(start.clone()).await?;
        let mut ends = match until {
            Some(end) => find(end.into()).await?,
            None => HashMap::new(),
        };
        let asked = Arc::new(Asked { start, until });
        let topic: Arc<str> = topic.into();
        let mut assigned = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let key = (Arc::clone(&topic), partition);
            let leader = layout.leaders.get(partition.get() as usize);
            let leader = leader.cloned().flatten();
            let start = starts.remove(&partition).transpose();
            let end = ends.remove(&partition).unwrap_or(Ok(Offset::MAX));
            let lane = Lane {
                topic_id,
                route: leader.unwrap_or_else(|| self.client.any_address()),
                connection: self.connection(self.lanes.len()),
                position: None,
                leader_epoch: saved_epoch(&asked.start, &topic, partition),
                bounds: Bounds::new(
                    Arc::clone(&asked),
                    start.as_ref().ok().copied().flatten(),
                    end.as_ref().ok().copied(),
                ),
                #[cfg(feature = "cli")]
                unfound: start.err().or_else(|| end.err()),
                watermark: Watermark::default(),
                fetch: None,
            };
            self.lanes.insert(key.clone(), lane);
            assigned.push(key);
        }
        // Only now: the buffer is shared by all of them.
        assigned.iter().for_each(|key| self.start(key));
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
    /// What a partition ran into: the error names it ([`Error::topic`], [`Error::partition`]). If
    /// the error may pass ([`Error::is_retryable`]), which is handed out after
    /// [`ConsumerConfig::give_up_after`] only, the next call tries again. If not, the partition is
    /// stopped until a [`Consumer::seek`]; the others continue.
    pub async fn next(&mut self) -> Result<Option<Fetched>> {
        let Some((key, result)) = self.fetches.next().await else {
            return Ok(None);
        };
        let fetched = result?;
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.position = Some(fetched.next_offset());
            lane.leader_epoch = fetched.leader_epoch();
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
        let origin = self.lane(&key)?.origin(&key);
        let offset = resolve(self.client.clone(), &origin, &to).await?;
        let lane = self.lane(&key)?;
        lane.leader_epoch = saved_epoch(&to, topic, partition);
        lane.position = Some(offset);
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
    /// `None` if the partition is not assigned, or is offline and could not tell its start yet.
    pub fn position(&self, topic: &str, partition: PartitionId) -> Option<Offset> {
        self.lanes.get(&(topic.into(), partition))?.position()
    }

    /// Returns the positions of all assigned partitions, to be stored and given to
    /// [`StartAt::Saved`] later. Like [`Consumer::position`] they are behind everything that
    /// [`Consumer::next`] returned: save them once that is dealt with, or save
    /// [`Fetched::saved_position`] of what is. A partition that has no position yet is left out.
    pub fn saved_positions(&self) -> Vec<SavedPosition> {
        let saved = self.lanes.iter().filter_map(|((topic, partition), lane)| {
            Some(SavedPosition {
                topic: topic.to_string(),
                topic_id: lane.topic_id,
                partition: *partition,
                next_offset: lane.position()?,
                leader_epoch: lane.leader_epoch,
            })
        });
        let mut saved: Vec<_> = saved.collect();
        saved.sort_unstable();
        saved
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

    /// Returns every assigned partition with the offset where it ends; `None`: it follows the tail,
    /// or is offline and could not tell its end yet.
    pub fn assignment(&self) -> Vec<(String, PartitionId, Option<Offset>)> {
        let assigned = self.lanes.iter().map(|((topic, partition), lane)| {
            (
                topic.to_string(),
                *partition,
                lane.bounds.end().filter(|end| *end != Offset::MAX),
            )
        });
        let mut assigned: Vec<_> = assigned.collect();
        assigned.sort_unstable();
        assigned
    }

    /// Returns why a partition could not tell its start or end when it was assigned; `None`: all
    /// could.
    #[cfg(feature = "cli")]
    pub(crate) fn unfound(&self) -> Option<&Error> {
        let mut unfound = self.lanes.values().filter_map(|lane| lane.unfound.as_ref());
        unfound.next()
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
        let (wanted, unfound) = match lane.bounds.from(lane.position) {
            Ok(wanted) => (wanted, None),
            Err(unfound) => (Offset::ZERO..Offset::MAX, Some(unfound)),
        };
        let fetcher = Fetcher::new(Plan {
            client: self.client.clone(),
            config: Arc::clone(&self.config),
            connection: Arc::clone(&lane.connection),
            origin: lane.origin(key),
            route: lane.route.clone(),
            wanted,
            unfound,
            leader_epoch: lane.leader_epoch,
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
