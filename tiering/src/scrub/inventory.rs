//! Lists what a bucket holds, partition by partition.

use std::{collections::HashMap, fmt};

use esker_proto::types::{ManifestVersion, SegmentId, TopicPartition};
use futures::{StreamExt, stream::BoxStream};

use crate::{
    error::Error,
    keys::{Key, Keys, SegmentName},
    store::{ObjectInfo, Store},
};

/// What a listing shows of one partition. It may be stale: absence is no proof.
#[derive(Clone, Debug)]
pub(super) struct Inventory {
    pub topic_partition: TopicPartition,
    /// The newest manifest version listed.
    pub newest_version: Option<ManifestVersion>,
    /// All versions listed.
    pub versions: Vec<ManifestVersion>,
    /// Pages and segments, in the order of keys.
    pub data: Vec<ObjectInfo>,
    /// Objects whose names are not ours.
    pub strangers: Vec<ObjectInfo>,
}

impl Inventory {
    pub(super) const fn new(topic_partition: TopicPartition) -> Self {
        Self {
            topic_partition,
            newest_version: None,
            versions: Vec::new(),
            data: Vec::new(),
            strangers: Vec::new(),
        }
    }

    fn add(&mut self, object: ObjectInfo, key: Option<Key>) {
        match key {
            Some(Key::Manifest(_, version)) => {
                self.newest_version = self.newest_version.max(Some(version));
                self.versions.push(version);
            }
            Some(Key::ManifestBoundary(..)) => {}
            Some(Key::Page(..) | Key::Segment(..)) => self.data.push(object),
            _ => self.strangers.push(object),
        }
    }

    /// The segments, with the sizes of their objects.
    pub(super) fn segments(&self) -> impl Iterator<Item = (SegmentName, u64)> + '_ {
        self.data
            .iter()
            .filter_map(|object| match Key::parse(&object.key) {
                Some(Key::Segment(_, name)) => Some((name, object.size_bytes)),
                _ => None,
            })
    }

    pub(super) fn segment_sizes(&self) -> HashMap<SegmentId, u64> {
        self.segments()
            .map(|(name, size_bytes)| (name.segment_id, size_bytes))
            .collect()
    }
}

/// The partitions of a bucket, one after the other; memory for one at a time.
pub(super) struct Inventories {
    listing: BoxStream<'static, Result<ObjectInfo, Error>>,
    current: Option<Inventory>,
}

impl Inventories {
    /// Lists all partitions, or one.
    pub(super) fn list(store: &Store, only: Option<TopicPartition>) -> Self {
        let folder = only.map_or_else(|| Keys::TOPICS.to_owned(), |tp| Keys::new(tp).folder());
        Self {
            listing: store.list(&folder, None),
            current: only.map(Inventory::new),
        }
    }

    /// Returns the next partition. A partition that was asked for by name always comes, even if
    /// there is nothing of it.
    pub(super) async fn next(&mut self) -> Result<Option<Inventory>, Error> {
        while let Some(object) = self.listing.next().await {
            let object = object?;
            let Some((topic_partition, key)) = partition_of(&object.key) else {
                continue;
            };
            match &mut self.current {
                Some(current) if current.topic_partition == topic_partition => {
                    current.add(object, key);
                }
                current => {
                    let mut next = Inventory::new(topic_partition);
                    next.add(object, key);
                    if let Some(done) = current.replace(next) {
                        return Ok(Some(done));
                    }
                }
            }
        }
        Ok(self.current.take())
    }
}

impl fmt::Debug for Inventories {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inventories")
            .field("current", &self.current)
            .finish_non_exhaustive()
    }
}

/// The partition in whose folder an object lies, and its key if it is one of ours.
fn partition_of(text: &str) -> Option<(TopicPartition, Option<Key>)> {
    match Key::parse(text) {
        Some(
            key @ (Key::Manifest(tp, _)
            | Key::ManifestBoundary(tp, _)
            | Key::Page(tp, _)
            | Key::Segment(tp, _)),
        ) => Some((tp, Some(key))),
        _ => Keys::partition_of(text).map(|tp| (tp, None)),
    }
}
