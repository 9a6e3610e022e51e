//! From where to where a partition is read, found when it is assigned. One that cannot tell then,
//! since it is offline, keeps no other from being read: its fetch asks again.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use esker_proto::types::{LeaderEpoch, Offset, OffsetRange, PartitionId, TopicId};

use super::{
    config::{End, StartAt},
    fetched::Origin,
    position::SavedPosition,
};
use crate::{
    client::{Client, OffsetQuery},
    error::{Error, ErrorKind, Result},
};

/// What was asked for, of all partitions that are assigned together.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) start: StartAt,
    pub(crate) until: Option<End>,
}

/// The bounds of one partition, as far as they are known. Cheap to clone: all clones see the same.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    asked: Arc<Asked>,
    found: Arc<Found>,
}

#[derive(Debug, Default)]
struct Found {
    start: OnceLock<Offset>,
    end: OnceLock<Offset>,
}

impl Bounds {
    pub(crate) fn new(asked: Arc<Asked>, start: Option<Offset>, end: Option<Offset>) -> Self {
        let cell = |offset: Option<Offset>| offset.map_or_else(OnceLock::new, OnceLock::from);
        let found = Found {
            start: cell(start),
            end: cell(end),
        };
        Self {
            asked,
            found: Arc::new(found),
        }
    }

    pub(crate) fn start(&self) -> Option<Offset> {
        self.found.start.get().copied()
    }

    /// [`Offset::MAX`]: there is no end, the tail is followed.
    pub(crate) fn end(&self) -> Option<Offset> {
        self.found.end.get().copied()
    }

    /// From where to where to read: from `position` on, if there is one, else from the start.
    pub(crate) fn from(&self, position: Option<Offset>) -> Result<OffsetRange, Unfound> {
        let start = position.or_else(|| self.start());
        match (start, self.end()) {
            (Some(start), Some(end)) => Ok(start..end),
            (start, _) => Err(Unfound {
                bounds: self.clone(),
                start,
            }),
        }
    }
}

/// Bounds of which one is not known.
#[derive(Clone, Debug)]
pub(crate) struct Unfound {
    bounds: Bounds,
    start: Option<Offset>,
}

impl Unfound {
    /// Asks the partition for what is not known.
    pub(crate) async fn find(&self, client: &Client, origin: &Origin) -> Result<OffsetRange> {
        let Bounds { asked, found } = &self.bounds;
        let start = match self.start {
            Some(start) => start,
            None => resolve(client.clone(), origin, &asked.start).await?,
        };
        let end = match (found.end.get(), asked.until) {
            (Some(end), _) => *end,
            (None, None) => Offset::MAX,
            (None, Some(until)) => resolve(client.clone(), origin, &until.into()).await?,
        };
        found.start.get_or_init(|| start);
        found.end.get_or_init(|| end);
        Ok(start..end)
    }
}

/// Finds the offset that `at` means in each of some partitions. What one cannot tell is its own
/// error.
///
/// Borrows no consumer: its streams are not `Sync`, and its calls shall be possible from any task.
pub(super) async fn resolve_each(
    client: Client,
    topic: &str,
    topic_id: TopicId,
    partitions: &[PartitionId],
    at: &StartAt,
) -> Result<HashMap<PartitionId, Result<Offset>>> {
    let list = |query| client.offset_of_each(topic, Some(topic_id), partitions, query);
    let mut found = match at {
        StartAt::Offset(offset) => partitions
            .iter()
            .map(|at| (*at, Ok(Some(*offset))))
            .collect(),
        StartAt::Earliest => list(OffsetQuery::Earliest).await?,
        StartAt::Latest => list(OffsetQuery::Latest).await?,
        StartAt::Timestamp(timestamp) => {
            // Asked in this order: what is appended in between lies behind the first answer.
            let mut found = list(OffsetQuery::Latest).await?;
            let later = list(OffsetQuery::At(*timestamp)).await?;
            found.extend(
                later
                    .into_iter()
                    .filter(|(_, offset)| !matches!(offset, Ok(None))),
            );
            found
        }
        StartAt::Saved(positions) => {
            let saved = of_topic(topic, topic_id, positions)?;
            let mut found = match partitions.iter().all(|at| saved.contains_key(at)) {
                true => HashMap::new(),
                false => list(OffsetQuery::Earliest).await?,
            };
            found.extend(saved.into_iter().map(|(at, offset)| (at, Ok(Some(offset)))));
            found
        }
    };
    let mut offset_of = |partition: &PartitionId| {
        let offset = found.remove(partition).unwrap_or(Ok(None));
        let offset = offset.and_then(|offset| offset.ok_or_else(|| no_offset(topic, *partition)));
        (*partition, offset)
    };
    Ok(partitions.iter().map(&mut offset_of).collect())
}

/// Finds the offset that `at` means in one partition.
pub(super) async fn resolve(client: Client, origin: &Origin, at: &StartAt) -> Result<Offset> {
    let partition = origin.partition;
    let found = resolve_each(client, &origin.topic, origin.topic_id, &[partition], at).await?;
    let mut found = found.into_values();
    let offset = found.next();
    offset.unwrap_or_else(|| Err(no_offset(&origin.topic, partition)))
}

/// Returns the saved positions in a topic, which must be the one they were saved for.
fn of_topic(
    topic: &str,
    topic_id: TopicId,
    positions: &[SavedPosition],
) -> Result<HashMap<PartitionId, Offset>> {
    let of_name = positions.iter().filter(|saved| saved.topic == topic);
    let found = of_name.map(|saved| match saved.topic_id == topic_id {
        true => Ok((saved.partition, saved.next_offset)),
        false => Err(Error::recreated(topic)),
    });
    found.collect()
}

/// Returns the epoch that was saved with a position.
pub(super) fn saved_epoch(
    at: &StartAt,
    topic: &str,
    partition: PartitionId,
) -> Option<LeaderEpoch> {
    let StartAt::Saved(positions) = at else {
        return None;
    };
    let mut saved = positions.iter();
    saved
        .find(|saved| saved.topic == topic && saved.partition == partition)?
        .leader_epoch
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

fn no_offset(topic: &str, partition: PartitionId) -> Error {
    let message = format!("agent named no offset. topic=`{topic}` partition=`{partition}`");
    Error::new(ErrorKind::Internal, message)
}
