//! Sees that the bucket still has what was put there.
//!
//! Objects may be deleted under a running owner, by hand or by a rule of the bucket. It then goes on
//! to commit, since the slot after its own is free, and its local copies would go in exchange for
//! nothing. So what is relied on is looked for: before a commit, unless that was done just now, before
//! local copies go, and at the end of an owner's work.
//!
//! The newest manifest alone proves little: it may have been put after all others were deleted. So the
//! one that was newest at the last look is looked for too. Each look ties in with the one before, back
//! to the opening.

use bytes::Bytes;
use esker_index::{Manifest, SegmentMeta};
use esker_proto::types::{ManifestVersion, OffsetRange, SegmentId};
use futures::TryStreamExt;
use std::{collections::HashMap, time::Duration};
use tokio::time::Instant;

use super::Archive;
use crate::{
    chain::ChainName,
    error::Error,
    keys::{Key, Keys},
    scrub::segment::size_bytes_min,
    store::Store,
};

/// How long a look counts for commits: owners that commit often need not look each time.
const SEEN_FOR: Duration = Duration::from_secs(60);

/// The last look at a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// The newest slot then.
    slot: u64,
    at: Instant,
}

impl Seen {
    /// `slot` was put or read just now.
    pub(super) fn now(slot: u64) -> Self {
        Self {
            slot,
            at: Instant::now(),
        }
    }
}

impl Archive {
    /// Makes sure that the bucket has this owner's manifests, and the segments that hold `offsets` as
    /// far as the newest manifest names them in its head. Costs two requests, and one or two for the
    /// segments however many they are.
    ///
    /// # Errors
    ///
    /// `Corrupt` naming what is gone; else those of [`Archive::settle`] and of the store.
    pub async fn see(&mut self, offsets: &OffsetRange) -> Result<(), Error> {
        self.settle().await?;
        self.see_chain().await?;
        see_segments(&self.deps.store, &self.manifest(), offsets).await
    }

    pub(super) async fn see_chain_unless_seen(&mut self) -> Result<(), Error> {
        if self.seen.at.elapsed() < SEEN_FOR {
            return Ok(());
        }
        self.see_chain().await
    }

    async fn see_chain(&mut self) -> Result<(), Error> {
        let (tip, seen) = (self.chain.tip().slot, Seen::now(self.chain.tip().slot));
        // What this owner has collected since is gone by right.
        let before = self.seen.slot.max(self.chain.floor());
        if before < tip {
            let key = ChainName::Manifest(self.keys).slot(before);
            let looked = self.deps.store.head(&key).await.map(drop);
            self.refuse_absence(key, looked).await?;
        }
        let key = ChainName::Manifest(self.keys).slot(tip);
        let read = self.deps.store.get(&key).await;
        if let Ok(bytes) = &read {
            self.refuse_another(&key, bytes.clone())?;
        }
        self.refuse_absence(key, read.map(drop)).await?;
        self.seen = seen;
        Ok(())
    }

    /// A newer owner may have collected it, but it keeps what opened its epoch.
    async fn refuse_absence(
        &mut self,
        key: String,
        looked: Result<(), Error>,
    ) -> Result<(), Error> {
        if looked.as_ref().is_err_and(Error::is_not_found) {
            self.confirm_ownership().await?;
            return Err(gone(&key));
        }
        looked
    }

    /// A repair may have put another manifest in the place of one that was deleted. Bytes that are
    /// damaged are nobody's: the next version takes over from them.
    fn refuse_another(&mut self, key: &str, bytes: Bytes) -> Result<(), Error> {
        let tip = &self.chain.tip().body;
        match Manifest::decode(bytes) {
            Ok(there) if there.header().nonce != tip.header().nonce => {
                let theirs = u64::from(there.header().leader_epoch.get());
                let (key, ours) = (key.to_owned(), u64::from(self.leader_epoch.get()));
                Err(self.note_failure(Error::Fenced { key, ours, theirs }))
            }
            _ => Ok(()),
        }
    }
}

/// Makes sure that the bucket has a manifest, and the segments that hold `offsets` as far as the
/// manifest names them in its head. For whoever has not opened the chain.
///
/// # Errors
///
/// `Corrupt` naming what is gone; else those of the store.
pub async fn see(store: &Store, manifest: &Manifest, offsets: &OffsetRange) -> Result<(), Error> {
    let header = manifest.header();
    if header.version == ManifestVersion::default() {
        return Ok(());
    }
    let key = Keys::new(header.topic_partition).manifest(header.version);
    look_for(store, &key, 0).await?;
    see_segments(store, manifest, offsets).await
}

/// One segment is asked for by name, more are listed. A listing may be old: what it lacks is asked for.
async fn see_segments(
    store: &Store,
    manifest: &Manifest,
    offsets: &OffsetRange,
) -> Result<(), Error> {
    let keys = Keys::new(manifest.header().topic_partition);
    let start = offsets.start.max(manifest.log_start_offset());
    let is_asked = |meta: &&SegmentMeta| meta.next_offset > start && meta.base_offset < offsets.end;
    let named: Vec<SegmentMeta> = (manifest.head().segments().iter())
        .filter(is_asked)
        .copied()
        .collect();
    let listed = match named.as_slice() {
        [] | [_] => HashMap::new(),
        [first, .., last] => list(store, keys, first, last).await?,
    };
    for meta in &named {
        let size_bytes = size_bytes_min(meta);
        let is_listed = listed
            .get(&meta.segment_id)
            .is_some_and(|listed| *listed >= size_bytes);
        if !is_listed {
            look_for(store, &keys.segment(meta.into()), size_bytes).await?;
        }
    }
    Ok(())
}

/// Lists the segments from `first` to `last`, with the lengths of their objects.
async fn list(
    store: &Store,
    keys: Keys,
    first: &SegmentMeta,
    last: &SegmentMeta,
) -> Result<HashMap<SegmentId, u64>, Error> {
    let start_after = keys.segments_before(first.base_offset);
    let mut listing = store.list(&keys.segments(), Some(&start_after));
    let mut listed = HashMap::new();
    while let Some(object) = listing.try_next().await? {
        match Key::parse(&object.key) {
            Some(Key::Segment(_, name)) if name.base_offset > last.base_offset => break,
            Some(Key::Segment(_, name)) => {
                listed.insert(name.segment_id, object.size_bytes);
            }
            _ => {}
        }
    }
    Ok(listed)
}

async fn look_for(store: &Store, key: &str, size_bytes_min: u64) -> Result<(), Error> {
    match store.head(key).await {
        Ok(object) if object.size_bytes < size_bytes_min => {
            let reason = format!(
                "the object was cut short: it has {} of at least {size_bytes_min} bytes",
                object.size_bytes
            );
            Err(Error::corrupt(key, reason))
        }
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => Err(gone(key)),
        Err(error) => Err(error),
    }
}

fn gone(key: &str) -> Error {
    Error::corrupt(key, "the object is gone: it was deleted from the bucket")
}
