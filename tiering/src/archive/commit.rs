//! Commits manifests, and finds out about commits whose outcome is not known.

use std::sync::Arc;

use esker_index::{Manifest, NewPage, Next, Update};
use esker_proto::types::{ClusterId, LeaderEpoch};
use futures::FutureExt;

use super::{
    Archive, ArchiveDeps,
    beyond::Check,
    garbage::Dead,
    plan::{Reason, VERSIONS_KEPT, VERSIONS_PER_COLLECTION},
};
use crate::{
    chain::{Chain, ChainName, Entry, next_nonce, opening_nonce},
    error::{Error, ErrorKind},
    keys::{Keys, PageName},
};

/// What a commit makes garbage.
#[derive(Debug, Default)]
pub(super) struct Fallout {
    /// What it does not name any more.
    pub if_won: Vec<Dead>,
    /// What it alone would have named.
    pub if_lost: Vec<Dead>,
}

impl Archive {
    /// Makes `update` the next version of the manifest, and publishes it when that is certain.
    pub(super) async fn commit(
        &mut self,
        update: Update,
        mut fallout: Fallout,
    ) -> Result<(), Error> {
        if let Err(error) = self.see_chain_unless_seen().await {
            self.garbage.extend(fallout.if_lost);
            return Err(error);
        }
        let next = match self.prepare(update).await {
            Ok(next) => next,
            Err(error) => {
                self.garbage.extend(fallout.if_lost);
                return Err(error);
            }
        };
        let names = next
            .new_pages
            .iter()
            .map(|page| PageName::from(&page.page_ref));
        fallout
            .if_lost
            .extend(names.map(|name| Dead::Page(name, Reason::Orphan)));
        if let Err(error) = self.put_pages(next.new_pages).await {
            self.garbage.extend(fallout.if_lost);
            return Err(error);
        }
        self.append(next.manifest, fallout).await
    }

    async fn prepare(&self, update: Update) -> Result<Next, Error> {
        let (manifest, nonce) = (self.manifest(), next_nonce(&*self.deps.ids));
        // Large pages take tens of milliseconds to merge.
        let applying = self
            .deps
            .tasks
            .spawn_blocking(move || manifest.apply(update, nonce));
        let applied = applying.await.map_err(|_| Error::Cancelled {
            operation: "commit",
        })?;
        applied.map_err(|source| Error::Index {
            key: self.next_key(),
            source,
        })
    }

    fn next_key(&self) -> String {
        ChainName::Manifest(self.keys).slot(self.chain.next_slot())
    }

    async fn put_pages(&self, pages: Vec<NewPage>) -> Result<(), Error> {
        for page in pages {
            let key = self.keys.page((&page.page_ref).into());
            if let Err(error) = self.deps.store.put_object(&key, page.bytes).await {
                self.settle_put(&key, page.page_ref.size_bytes, error)
                    .await?;
            }
        }
        Ok(())
    }

    /// The fallout is remembered first: this may be dropped while the request is on its way.
    async fn append(&mut self, manifest: Manifest, fallout: Fallout) -> Result<(), Error> {
        if let Err(error) = self.forget() {
            self.garbage.extend(fallout.if_lost);
            return Err(error);
        }
        self.pending = Some(fallout);
        match self.chain.append(manifest).await.map(drop) {
            Ok(()) => {
                self.conclude(true);
                Ok(())
            }
            Err(error) if error.has_no_side_effects() && error.kind() != ErrorKind::Fenced => {
                self.conclude(false);
                Err(error)
            }
            Err(error) => Err(self.note_failure(error)),
        }
    }

    pub(super) fn note_failure(&mut self, error: Error) -> Error {
        if error.kind() == ErrorKind::Fenced {
            self.deps.metrics.committed("lost");
            self.fenced = Some(error.clone());
        } else {
            self.deps.metrics.committed("unknown");
        }
        error
    }

    /// Takes note of what is garbage now, and publishes what was committed.
    fn conclude(&mut self, has_won: bool) {
        let Fallout { if_won, if_lost } = self.pending.take().unwrap_or_default();
        self.garbage.extend(if has_won { if_won } else { if_lost });
        if has_won {
            self.deps.metrics.committed("won");
            self.published
                .send_replace(Arc::new(self.chain.tip().body.clone()));
        }
    }

    /// Finds out about a commit whose outcome is not known, if there is one, by sending the same
    /// one again. Every other method that writes does so first.
    ///
    /// # Errors
    ///
    /// `Fenced` if somebody else holds its slot, `Unknown` if still nobody can tell: the next call
    /// tries again.
    pub async fn settle(&mut self) -> Result<(), Error> {
        if let Some(error) = &self.fenced {
            return Err(error.clone());
        }
        match self.chain.settle().await {
            Ok(false) => Ok(()),
            Ok(true) => {
                self.conclude(true);
                Ok(())
            }
            Err(error) => Err(self.note_failure(error)),
        }
    }

    /// Asks once whether the manifest has moved on without this owner.
    pub(super) async fn confirm_ownership(&mut self) -> Result<(), Error> {
        let key = self.next_key();
        match self.deps.store.get(&key).await {
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
            Ok(bytes) => {
                let theirs = Manifest::decode(bytes).map_err(|source| Error::Index {
                    key: key.clone(),
                    source,
                })?;
                let theirs = u64::from(theirs.header().leader_epoch.get());
                let ours = u64::from(self.leader_epoch.get());
                Err(self.note_failure(Error::Fenced { key, ours, theirs }))
            }
        }
    }

    /// Deletes old versions of the manifest, when enough of them have piled up.
    pub(super) async fn collect_versions(&mut self) -> Result<u64, Error> {
        let (floor, tip) = (self.chain.floor(), self.chain.tip().slot);
        let wanted = tip.saturating_sub(VERSIONS_KEPT);
        if wanted < floor + VERSIONS_PER_COLLECTION {
            return Ok(0);
        }
        let wanted = wanted.min(floor + VERSIONS_PER_COLLECTION * 16);
        self.chain.collect(wanted, self.deps.ids.nonce()).await?;
        Ok(wanted - floor)
    }
}

/// Opens an epoch in a partition's manifest chain.
pub(super) async fn open_chain(
    deps: &ArchiveDeps,
    keys: Keys,
    cluster_id: ClusterId,
    leader_epoch: LeaderEpoch,
    check: Check<'_>,
) -> Result<Chain<Manifest>, Error> {
    let check = |newest: Option<Entry<Manifest>>| {
        async move { check.may_continue(&deps.store, keys, newest.as_ref()).await }.boxed()
    };
    let name = ChainName::Manifest(keys);
    let open_with = |tip: Option<&Entry<Manifest>>| {
        let key = name.slot(tip.map_or(1, |tip| tip.slot + 1));
        let empty = || Manifest::create(cluster_id, keys.topic_partition());
        let manifest = tip.map_or_else(empty, |tip| tip.body.clone());
        if manifest.header().cluster_id != cluster_id {
            return Err(Error::corrupt(
                key,
                "the manifest belongs to another cluster",
            ));
        }
        let next = manifest.apply(Update::Open { leader_epoch }, opening_nonce(&*deps.ids));
        Ok(next
            .map_err(|source| Error::Index { key, source })?
            .manifest)
    };
    let epoch = u64::from(leader_epoch.get());
    let (store, policy) = (deps.store.clone(), deps.policy);
    Chain::open_checked(store, name, epoch, policy, &check, open_with).await
}
