//! Segments at or above the end of the newest manifest that can be found.
//!
//! A manifest that is lost, deleted by hand or by a rule of the bucket, leaves no trace in its chain:
//! the one before looks like the newest. But what it named is still in the bucket, at and above the
//! tiered offset of the older one. An owner that continued there would use offsets a second time.
//!
//! Such segments also come about in good order: a segment is put before the manifest that names it,
//! so a crash in between, or an answer that was lost, leaves one. Whoever has the records can tell:
//!
//! - An owner that crashed still has them in its local log, since nothing is deleted there before a
//!   manifest names it. So a segment whose offsets the local log holds is an orphan, and the owner
//!   uploads them once more.
//! - A segment of an earlier leader, at an offset where the epoch history of the manifest or of the
//!   local log has a later epoch, was overtaken: the log continued without it. A leader notes its
//!   epoch in the local log before it appends, but only after this check; so an owner that was
//!   refused here is refused again at each start, under whatever epoch.
//! - An agent that drained has everything named, so nothing of it is left above.
//!
//! What remains holds records that were acknowledged and are nowhere else: either the newest
//! manifest is lost, or the local log is. Then nothing is written, neither opening nor segment, so
//! that a lost object may still be restored; `esker bucket repair` names the segments again.
//!
//! Where the segments were lost too, or what was lost moved the log start or merged pages, nothing lies
//! above. An owner that left in order therefore notes which manifest was its newest ([`LeftAt`]), and its
//! successor refuses an older one, unless a repair wrote it.
//!
//! Without a local log, as in a verification or a collection of garbage, nobody can tell an upload in
//! progress from a lost manifest. So nothing at or above the tiered offset is ever deleted by name
//! or by absence from a manifest; it is garbage once the tiered offset has passed it.

use std::fmt;

use esker_index::{EpochHistory, Manifest, SegmentTrailer};
use esker_proto::types::{LeaderEpoch, ManifestVersion, Offset};
use futures::{TryStreamExt, future::BoxFuture};

use crate::{
    chain::{Entry, repairs},
    error::Error,
    keys::{Key, Keys, SegmentName},
    scrub::segment::read_trailer,
    store::Store,
};

/// Most segments above a manifest that are read: the first one that nobody else has is enough.
const BEYOND_MAX: usize = 1000;

/// How far an owner's local log reaches.
#[derive(Clone, Debug, Default)]
pub struct LocalExtent {
    /// The offset after its last record. It holds all from the manifest's end to here: one that begins
    /// above that end holds nothing that counts.
    pub log_end_offset: Offset,
    /// Its leader epochs.
    pub epochs: EpochHistory,
}

/// The newest manifest of an owner that left with everything in the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftAt {
    /// Its version.
    pub version: ManifestVersion,
    /// Where it ended.
    pub tiered_offset: Offset,
    /// The epoch of that owner, which may have committed nothing in it.
    pub leader_epoch: LeaderEpoch,
}

impl LeftAt {
    /// Whether `newest` is older. One of a later epoch follows a manifest that was accepted.
    fn is_after(&self, newest: Option<&Manifest>) -> bool {
        let Some(header) = newest.map(Manifest::header) else {
            return self.version > ManifestVersion::default();
        };
        let is_accepted = header.leader_epoch > self.leader_epoch || repairs(header.nonce);
        header.version < self.version && !is_accepted
    }

    fn lost(&self, keys: Keys, tiered_offset: Offset) -> Error {
        let reason = format!(
            "the manifest is gone, which was the newest when the agent that led before was drained; it \
             ended at offset {}, and what is left ends at {tiered_offset}. Where a repair finds the rest \
             intact, --force accepts the loss",
            self.tiered_offset
        );
        Error::corrupt(keys.manifest(self.version), reason)
    }
}

/// Finds out how far the local log of a partition reaches, given its newest manifest.
pub trait LocalLog: Send + Sync + fmt::Debug {
    /// Reads the local log. Asked only when there is something to decide.
    fn extent<'a>(&'a self, newest: Option<&'a Manifest>) -> BoxFuture<'a, LocalExtent>;
}

/// Whether the log, by its epoch history, continued without `leader_epoch` at `offset`.
pub(crate) fn is_overtaken(
    history: &EpochHistory,
    leader_epoch: LeaderEpoch,
    offset: Offset,
) -> bool {
    let there = history.epoch_at(offset);
    there.is_some_and(|epoch| epoch > leader_epoch)
}

/// Lists segments that begin at or above `tiered_offset`, with the lengths of their objects.
pub(crate) async fn list_beyond(
    store: &Store,
    keys: Keys,
    tiered_offset: Offset,
) -> Result<Vec<(SegmentName, u64)>, Error> {
    let start_after = keys.segments_before(tiered_offset);
    let mut listing = store.list(&keys.segments(), Some(&start_after));
    let mut found = Vec::new();
    while let Some(object) = listing.try_next().await? {
        if let Some(Key::Segment(_, name)) = Key::parse(&object.key)
            && name.base_offset >= tiered_offset
        {
            found.push((name, object.size_bytes));
        }
        if found.len() >= BEYOND_MAX {
            break;
        }
    }
    Ok(found)
}

/// Reads the trailer of a segment; `None` if it is not one of this segment.
pub(crate) async fn valid_trailer(
    store: &Store,
    keys: Keys,
    name: &SegmentName,
    size_bytes: u64,
) -> Result<Option<SegmentTrailer>, Error> {
    let trailer = match read_trailer(store, &keys.segment(*name), size_bytes).await {
        Ok(read) => read.ok(),
        Err(error) if super::trim::is_damage(&error) => None,
        Err(error) => return Err(error),
    };
    Ok(trailer.filter(|trailer| {
        SegmentName::from(&trailer.meta) == *name
            && trailer.topic_partition == keys.topic_partition()
    }))
}

impl LocalLog for LocalExtent {
    fn extent<'a>(&'a self, _newest: Option<&'a Manifest>) -> BoxFuture<'a, LocalExtent> {
        Box::pin(async { self.clone() })
    }
}

/// What is known of a partition before its manifest is opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Check<'a> {
    /// The local log, for a partition that was led before.
    pub local: Option<&'a dyn LocalLog>,
    /// The newest manifest that this owner knows; an empty one if it knows none.
    pub known: &'a Manifest,
    /// `known` is what this owner's last run left, and it was the newest then.
    pub is_remembered: bool,
    /// What the last owner that left in order said of its newest.
    pub left: Option<LeftAt>,
}

impl Check<'_> {
    /// Refuses a manifest that cannot be the newest.
    pub(super) async fn may_continue(
        self,
        store: &Store,
        keys: Keys,
        newest: Option<&Entry<Manifest>>,
    ) -> Result<(), Error> {
        let (known, tiered_offset) = (self.known.tiered_offset(), tiered_offset(newest));
        if tiered_offset < known {
            let reason = format!(
                "the newest manifest ends at offset {tiered_offset}, but an earlier one ended at \
                 {known}: manifests were lost"
            );
            return Err(Error::corrupt(keys.manifests(), reason));
        }
        if self.is_remembered && self.is_known(newest) {
            return Ok(());
        }
        if let Some(local) = self.local {
            refuse_beyond(store, keys, newest, local).await?;
        }
        match self.left {
            Some(left) if left.is_after(newest.map(|newest| &newest.body)) => {
                Err(left.lost(keys, tiered_offset))
            }
            _ => Ok(()),
        }
    }

    /// Whether the bucket has nothing newer, and nothing else in its place.
    fn is_known(self, newest: Option<&Entry<Manifest>>) -> bool {
        let known = self.known.header();
        match newest.map(|entry| entry.body.header()) {
            Some(newest) => (newest.version, newest.nonce) == (known.version, known.nonce),
            None => known.version == ManifestVersion::default(),
        }
    }
}

fn tiered_offset(newest: Option<&Entry<Manifest>>) -> Offset {
    newest.map_or(Offset::ZERO, |entry| entry.body.tiered_offset())
}

/// Refuses to continue a manifest above which lies what only a lost one can have named.
async fn refuse_beyond(
    store: &Store,
    keys: Keys,
    newest: Option<&Entry<Manifest>>,
    local: &dyn LocalLog,
) -> Result<(), Error> {
    let tiered_offset = tiered_offset(newest);
    let newest = newest.map(|entry| &entry.body);
    let mut beyond = list_beyond(store, keys, tiered_offset).await?;
    if let Some(newest) = newest {
        beyond.retain(|(name, _)| {
            !is_overtaken(newest.epochs(), name.leader_epoch, name.base_offset)
        });
    }
    if beyond.is_empty() {
        return Ok(());
    }
    let extent = local.extent(newest).await;
    for (name, size_bytes) in beyond {
        if is_overtaken(&extent.epochs, name.leader_epoch, name.base_offset) {
            continue;
        }
        let Some(trailer) = valid_trailer(store, keys, &name, size_bytes).await? else {
            tracing::warn!(
                key = keys.segment(name),
                "segment above the manifest is damaged"
            );
            continue;
        };
        if trailer.meta.next_offset > extent.log_end_offset {
            return Err(lost_manifest(keys, &trailer, tiered_offset));
        }
    }
    Ok(())
}

fn lost_manifest(keys: Keys, trailer: &SegmentTrailer, tiered_offset: Offset) -> Error {
    let meta = &trailer.meta;
    let (base, next) = (meta.base_offset, meta.next_offset);
    let reason = format!(
        "the newest manifest ends at offset {tiered_offset}, but this segment holds offsets {base} to \
         {next}, which the local log lacks: a newer manifest, or the local log, was lost"
    );
    Error::corrupt(keys.segment(meta.into()), reason)
}
