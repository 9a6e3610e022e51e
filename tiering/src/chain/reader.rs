//! Follows a chain without writing to it.

use bytes::Bytes;
use futures::TryStreamExt;

use super::{
    body::{ChainBody, ChainName, Entry, sha256},
    boundary::BoundaryCursor,
    put::RetryPolicy,
    rules::{self, FIRST_SLOT},
};
use crate::{
    error::Error,
    store::{Fault, Store},
};

/// How often a reader starts over because garbage collection overtook it.
const RESTARTS_MAX: u32 = 16;
/// How often a damaged object is read before it counts as damaged.
const READS_MAX: u32 = 4;

/// Reads a chain. Holds no slot, fences nobody.
#[derive(Debug)]
pub struct ChainReader {
    store: Store,
    chain: ChainName,
    pub(super) boundary: BoundaryCursor,
}

/// Slots that follow one another.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Tail<B> {
    /// What stands in the slots asked for. Empty when there are none yet.
    Entries(Vec<Entry<B>>),
    /// Some of them were collected: go on from a snapshot that includes all slots below `floor`.
    Behind {
        /// The first slot that is surely there.
        floor: u64,
    },
}

impl ChainReader {
    /// Starts to follow `chain`.
    pub fn new(store: Store, chain: ChainName) -> Self {
        let boundary = BoundaryCursor::new(store.clone(), chain);
        Self {
            store,
            chain,
            boundary,
        }
    }

    /// Reads the floor: slots below it may have been collected.
    ///
    /// # Errors
    ///
    /// When the store does not answer, or a boundary object is damaged.
    pub async fn floor(&mut self) -> Result<u64, Error> {
        Ok(self.boundary.refresh().await?.floor)
    }

    /// Reads up to `limit` slots from `from` on, for a chain whose every slot counts.
    ///
    /// # Errors
    ///
    /// When the store does not answer, or the chain is damaged.
    pub async fn tail<B: ChainBody>(&mut self, from: u64, limit: usize) -> Result<Tail<B>, Error> {
        let mut entries: Vec<Entry<B>> = Vec::new();
        let mut end = Ok(());
        while entries.len() < limit {
            match self.read_after(entries.last(), from).await {
                Ok(Some(next)) => entries.push(next),
                Ok(None) => break,
                Err(error) => {
                    end = Err(error);
                    break;
                }
            }
        }
        // Before the error: below the floor, what does not fit together is no damage.
        let floor = self.boundary.refresh().await?.floor;
        if !rules::may_apply(from, floor) {
            return Ok(Tail::Behind { floor });
        }
        end.map(|()| Tail::Entries(entries))
    }

    /// Reads the newest slot, for a chain whose every slot holds the whole state. `known` is one
    /// that was read before; with it, nothing older is looked at.
    ///
    /// # Errors
    ///
    /// When the store does not answer, or the chain is damaged. A chain of which slots were
    /// collected is never taken for an empty one.
    pub async fn latest<B: ChainBody + Clone>(
        &mut self,
        known: Option<&Entry<B>>,
    ) -> Result<Option<Entry<B>>, Error> {
        if let Some(known) = known
            && let Some(newest) = self.walk(Some(known.clone()), known.slot + 1).await?
        {
            return Ok(Some(newest));
        }
        for _ in 0..RESTARTS_MAX {
            let floor = self.boundary.refresh().await?.floor;
            let newest_listed = self.newest_listed(floor).await?;
            let from = newest_listed.unwrap_or(floor).max(floor);
            if let Some(newest) = self.walk(None, from).await? {
                return Ok(Some(newest));
            }
            if from == FIRST_SLOT {
                return Ok(None);
            }
            if let Some(newest) = self.walk(None, floor).await? {
                return Ok(Some(newest));
            }
            let floor_now = self.boundary.refresh().await?.floor;
            if floor_now == floor && floor > FIRST_SLOT {
                let reason = "the slot at the boundary is missing";
                return Err(Error::corrupt(self.chain.slot(floor), reason));
            }
        }
        Err(self.overtaken())
    }

    /// Reads from `from` to the end, and returns the last, or `None` if there is nothing or the
    /// boundary says that it may not be applied.
    async fn walk<B: ChainBody>(
        &mut self,
        before: Option<Entry<B>>,
        from: u64,
    ) -> Result<Option<Entry<B>>, Error> {
        let mut last = before;
        let end = loop {
            match self.read_after(last.as_ref(), from).await {
                Ok(Some(next)) => last = Some(next),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        // Before the error: below the floor, what does not fit together is no damage.
        let floor = self.boundary.refresh().await?.floor;
        if !rules::may_apply(from, floor) {
            return Ok(None);
        }
        end.map(|()| last)
    }

    /// Reads the slot after `last`, or `from` if there is no last.
    async fn read_after<B: ChainBody>(
        &self,
        last: Option<&Entry<B>>,
        from: u64,
    ) -> Result<Option<Entry<B>>, Error> {
        let slot = last.map_or(from, |last| last.slot + 1);
        let Some(entry) = self.read::<B>(slot).await? else {
            return Ok(None);
        };
        let Some(last) = last else {
            return Ok(Some(entry));
        };
        let follows = if entry.body.prev_sha256() != last.sha256 {
            Err("the slot does not name the one before it".to_owned())
        } else if entry.body.epoch() < last.body.epoch() {
            Err("the epoch fell".to_owned())
        } else {
            entry.body.check_follows(&last.body)
        };
        match follows {
            Ok(()) => Ok(Some(entry)),
            Err(reason) => Err(Error::corrupt(self.chain.slot(slot), reason)),
        }
    }

    async fn read<B: ChainBody>(&self, slot: u64) -> Result<Option<Entry<B>>, Error> {
        let key = self.chain.slot(slot);
        let decode = |bytes: Bytes| {
            let sha256 = sha256(&bytes);
            let body = B::decode(&key, bytes)?;
            match body.slot() == slot {
                true => Ok(Entry { slot, body, sha256 }),
                false => Err(Error::corrupt(
                    &key,
                    format!("made for slot {}", body.slot()),
                )),
            }
        };
        read_decoded(&self.store, &key, decode).await
    }

    /// Puts a boundary after one that is damaged, so that the chain can be read again. `newest` is
    /// the newest slot.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn replace_damaged_boundary(
        &self,
        newest: u64,
        nonce: u128,
        policy: RetryPolicy,
    ) -> Result<(), Error> {
        self.boundary.replace_damaged(newest, nonce, policy).await
    }

    /// The newest slot a listing shows: where to begin, not where to end.
    async fn newest_listed(&self, floor: u64) -> Result<Option<u64>, Error> {
        let start_after = floor.checked_sub(1).map(|slot| self.chain.slot(slot));
        let mut listed = self.store.list(&self.chain.slots(), start_after.as_deref());
        let mut newest = None;
        while let Some(object) = listed.try_next().await? {
            newest = newest.max(ChainName::number_in(&object.key));
        }
        Ok(newest)
    }

    fn overtaken(&self) -> Error {
        let reason = std::io::Error::other("garbage collection overtook the reader too often");
        Error::Store {
            fault: Fault::Other,
            store: self.store.name().into(),
            key: self.chain.slots(),
            source: object_store::Error::Generic {
                store: "chain",
                source: reason.into(),
            }
            .into(),
        }
    }
}

/// Reads an object that is never changed, and decodes it. What cannot be decoded is read again a few
/// times before it counts as damaged: bytes get flipped on their way too.
pub(super) async fn read_decoded<T>(
    store: &Store,
    key: &str,
    decode: impl Fn(Bytes) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    let mut reads = 0;
    loop {
        let bytes = match store.get(key).await {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        reads += 1;
        match decode(bytes) {
            Ok(decoded) => return Ok(Some(decoded)),
            Err(error) if reads >= READS_MAX => return Err(error),
            Err(error) => tracing::info!(key, reads, %error, "damaged bytes, reading again"),
        }
    }
}
