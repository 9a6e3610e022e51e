//! Every object key of the system. No other module formats or parses one.
//!
//! Keys are relative to the store's prefix. Numbers are zero-padded, so that listing order is
//! number order; whatever may be written by more than one owner carries an epoch or a fresh id in
//! its name, so that no put ever lands on an existing object.

pub mod actions;

use std::fmt;

use esker_index::{PageRef, SegmentMeta};
use esker_proto::types::{
    LeaderEpoch, ManifestVersion, Offset, PartitionId, SegmentId, TopicId, TopicPartition,
};
use uuid::Uuid;

/// The name of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Cluster id and format version. Written once, by whoever comes first; never deleted.
    Cluster,
    /// A metadata record. Written once, by the controller; deleted below the boundary.
    MetadataSlot(u64),
    /// How far metadata records may have been deleted. Written once, never deleted.
    MetadataBoundary(u64),
    /// The state after a metadata record. Written by the controller, deleted when two are newer.
    MetadataSnapshot {
        /// Slot of the last record it includes.
        slot: u64,
        /// Digest of its bytes.
        sha256: [u8; 32],
    },
    /// One version of a partition's manifest. Written once, by the partition's leader; deleted
    /// below the boundary unless it opens an epoch.
    Manifest(TopicPartition, ManifestVersion),
    /// How far manifest versions may have been deleted. Written once, never deleted.
    ManifestBoundary(TopicPartition, u64),
    /// An older part of a partition's index. Written once, before the manifest that names it;
    /// deleted when no manifest names it.
    Page(TopicPartition, PageName),
    /// Batches of a partition. Written once, before the manifest that names it; deleted when no
    /// manifest names it.
    Segment(TopicPartition, SegmentName),
    /// Scratch object of the conformance probe, which deletes it again.
    Probe {
        /// The run of the probe.
        run: Uuid,
        /// Number within that run.
        number: u32,
    },
}

/// Names one page of a partition's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageName {
    /// First offset the page covers.
    pub base_offset: Offset,
    /// Epoch of the leader that puts it: says whether it may still be on its way into a manifest.
    pub leader_epoch: LeaderEpoch,
    /// Drawn afresh for each put.
    pub id: Uuid,
}

/// Names one upload attempt of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentName {
    /// Offset of the first record.
    pub base_offset: Offset,
    /// Epoch of the leader that uploads.
    pub leader_epoch: LeaderEpoch,
    /// Drawn afresh for each attempt.
    pub segment_id: SegmentId,
}

impl From<&SegmentMeta> for SegmentName {
    fn from(meta: &SegmentMeta) -> Self {
        let SegmentMeta {
            base_offset,
            leader_epoch,
            segment_id,
            ..
        } = *meta;
        Self {
            base_offset,
            leader_epoch,
            segment_id,
        }
    }
}

impl From<&PageRef> for PageName {
    fn from(page: &PageRef) -> Self {
        let PageRef {
            base_offset,
            leader_epoch,
            id,
            ..
        } = *page;
        Self {
            base_offset,
            leader_epoch,
            id: id.get(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster => f.write_str("cluster.json"),
            Self::MetadataSlot(slot) => write!(f, "meta/log/{slot:020}"),
            Self::MetadataBoundary(number) => write!(f, "meta/boundary/{number:020}"),
            Self::MetadataSnapshot { slot, sha256 } => {
                write!(f, "meta/snapshot/{slot:020}-{}", Hex(sha256))
            }
            Self::Manifest(tp, version) => {
                write!(f, "{}/manifest/{:020}.parquet", Folder(tp), version.get())
            }
            Self::ManifestBoundary(tp, number) => {
                write!(f, "{}/boundary/{number:020}", Folder(tp))
            }
            Self::Page(tp, page) => {
                let (base, epoch) = (page.base_offset.get(), page.leader_epoch.get());
                let id = page.id.simple();
                write!(
                    f,
                    "{}/pages/{base:020}-{epoch:010}-{id}.parquet",
                    Folder(tp)
                )
            }
            Self::Segment(tp, segment) => {
                let (base, epoch) = (segment.base_offset.get(), segment.leader_epoch.get());
                let id = segment.segment_id.get().simple();
                write!(f, "{}/segments/{base:020}-{epoch:010}-{id}.log", Folder(tp))
            }
            Self::Probe { run, number } => write!(f, "probe/{}/{number:06}", run.simple()),
        }
    }
}

impl Key {
    /// Parses a key, or returns `None` if it is not one of ours, letter by letter.
    pub fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split('/').collect();
        let key = match parts.as_slice() {
            ["cluster.json"] => Self::Cluster,
            ["meta", "log", slot] => Self::MetadataSlot(slot.parse().ok()?),
            ["meta", "boundary", number] => Self::MetadataBoundary(number.parse().ok()?),
            ["meta", "snapshot", name] => parse_snapshot(name)?,
            ["topics", topic, partition, kind, name] => {
                parse_partition_key(parse_folder(topic, partition)?, kind, name)?
            }
            ["probe", run, number] => Self::Probe {
                run: run.parse().ok()?,
                number: number.parse().ok()?,
            },
            _ => return None,
        };
        // Whatever parses leniently (a plus sign, missing zeros, other hyphens) is not ours.
        (key.to_string() == text).then_some(key)
    }
}

fn parse_partition_key(tp: TopicPartition, kind: &str, name: &str) -> Option<Key> {
    match kind {
        "manifest" => {
            let version = name.strip_suffix(".parquet")?.parse().ok()?;
            Some(Key::Manifest(tp, ManifestVersion::new(version)))
        }
        "boundary" => Some(Key::ManifestBoundary(tp, name.parse().ok()?)),
        "pages" => {
            let (base_offset, leader_epoch, id) = parse_name(name.strip_suffix(".parquet")?)?;
            Some(Key::Page(
                tp,
                PageName {
                    base_offset,
                    leader_epoch,
                    id,
                },
            ))
        }
        "segments" => Some(Key::Segment(tp, parse_segment(name)?)),
        _ => None,
    }
}

fn parse_segment(name: &str) -> Option<SegmentName> {
    let (base_offset, leader_epoch, id) = parse_name(name.strip_suffix(".log")?)?;
    Some(SegmentName {
        base_offset,
        leader_epoch,
        segment_id: SegmentId::new(id),
    })
}

/// Takes apart `{base}-{epoch}-{id}`.
fn parse_name(name: &str) -> Option<(Offset, LeaderEpoch, Uuid)> {
    let mut parts = name.splitn(3, '-');
    let base_offset = Offset::new(parts.next()?.parse().ok()?);
    let leader_epoch = LeaderEpoch::new(parts.next()?.parse().ok()?);
    Some((base_offset, leader_epoch, parts.next()?.parse().ok()?))
}

fn parse_snapshot(name: &str) -> Option<Key> {
    let (slot, digest) = name.split_once('-')?;
    let mut sha256 = [0; 32];
    for (index, byte) in sha256.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digest.get(index * 2..index * 2 + 2)?, 16).ok()?;
    }
    Some(Key::MetadataSnapshot {
        slot: slot.parse().ok()?,
        sha256,
    })
}

fn parse_folder(topic: &str, partition: &str) -> Option<TopicPartition> {
    let topic_id: TopicId = topic.parse().ok()?;
    Some(TopicPartition {
        topic_id,
        partition: PartitionId::new(partition.parse().ok()?),
    })
}

/// The keys of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    topic_partition: TopicPartition,
}

impl Keys {
    /// Prefix of every topic.
    pub const TOPICS: &'static str = "topics";
    /// Prefix of the metadata records.
    pub const METADATA_LOG: &'static str = "meta/log";
    /// Prefix of the boundary objects of the metadata log.
    pub const METADATA_BOUNDARIES: &'static str = "meta/boundary";

    /// Names the objects of `topic_partition`.
    pub const fn new(topic_partition: TopicPartition) -> Self {
        Self { topic_partition }
    }

    /// The partition in whose folder `key` lies, whether the key is one of ours or not.
    pub fn partition_of(key: &str) -> Option<TopicPartition> {
        let mut parts = key.split('/');
        let is_topic = parts.next() == Some(Self::TOPICS);
        let (topic, partition) = (parts.next()?, parts.next()?);
        let topic_partition = parse_folder(topic, partition).filter(|_| is_topic)?;
        key.starts_with(&Self::new(topic_partition).folder())
            .then_some(topic_partition)
    }

    /// Prefix of all partitions of a topic.
    pub fn topic(topic_id: TopicId) -> String {
        format!("{}/{topic_id}", Self::TOPICS)
    }

    /// The partition these keys belong to.
    pub const fn topic_partition(self) -> TopicPartition {
        self.topic_partition
    }

    /// Prefix of everything the partition has in the bucket.
    pub fn folder(self) -> String {
        Folder(&self.topic_partition).to_string()
    }

    /// Prefix of the manifest's versions.
    pub fn manifests(self) -> String {
        format!("{}/manifest", self.folder())
    }

    /// Prefix of the manifest's boundary objects.
    pub fn boundaries(self) -> String {
        format!("{}/boundary", self.folder())
    }

    /// Prefix of the index's pages.
    pub fn pages(self) -> String {
        format!("{}/pages", self.folder())
    }

    /// Prefix of the segments.
    pub fn segments(self) -> String {
        format!("{}/segments", self.folder())
    }

    /// Sorts before every segment that begins at `base_offset`, and after all that begin below.
    pub fn segments_before(self, base_offset: Offset) -> String {
        format!("{}/{:020}", self.segments(), base_offset.get())
    }

    /// Key of one version of the manifest.
    pub fn manifest(self, version: ManifestVersion) -> String {
        Key::Manifest(self.topic_partition, version).to_string()
    }

    /// Key of one boundary object.
    pub fn boundary(self, number: u64) -> String {
        Key::ManifestBoundary(self.topic_partition, number).to_string()
    }

    /// Key of one page.
    pub fn page(self, page: PageName) -> String {
        Key::Page(self.topic_partition, page).to_string()
    }

    /// Key of one segment.
    pub fn segment(self, segment: SegmentName) -> String {
        Key::Segment(self.topic_partition, segment).to_string()
    }
}

struct Folder<'a>(&'a TopicPartition);

impl fmt::Display for Folder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TopicPartition {
            topic_id,
            partition,
        } = self.0;
        write!(f, "{}/{topic_id}/{:06}", Keys::TOPICS, partition.get())
    }
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests;
