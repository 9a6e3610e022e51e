//! Writes a chain: one owner, one put in flight.

use std::mem;

use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture, stream};

use super::{
    body::{ChainBody, ChainName, Entry, may_open, sha256},
    boundary::{Boundary, BoundaryCursor},
    put::{Put, RetryPolicy, put_definite},
    reader::ChainReader,
    rules,
};
use crate::{error::Error, store::Store};

/// How often an opening is tried again after others took the slot.
const OPEN_TRIES_MAX: u32 = 16;
/// Slots looked at or deleted at a time.
const SWEEP_SLOTS: usize = 1000;
/// Slots of earlier owners looked at side by side.
const SWEEP_READS: usize = 16;

/// The owner's handle on a chain, from the opening of its epoch until it is fenced.
///
/// An error of kind `Fenced` ends the handle: every later call fails. After one of kind `Unknown`
/// call [`Chain::settle`] until it knows, or drop the handle.
#[derive(Debug)]
pub struct Chain<B> {
    store: Store,
    chain: ChainName,
    policy: RetryPolicy,
    boundary: BoundaryCursor,
    epoch: u64,
    opened_at: u64,
    tip: Entry<B>,
    state: State<B>,
}

/// Decides, before an epoch is opened, whether the newest entry may be continued.
pub type OpeningCheck<'a, B> =
    dyn Fn(Option<Entry<B>>) -> BoxFuture<'a, Result<(), Error>> + Send + Sync + 'a;

#[derive(Debug)]
enum State<B> {
    /// The slot after the tip has not been tried.
    Ready,
    /// This may be in the slot after the tip, or get there yet. Nothing else may be put there.
    /// Entered before the put, so that a dropped call leaves the handle here too.
    InDoubt(Entry<B>, Bytes),
    /// The slot after the tip is somebody else's.
    Fenced,
}

impl<B: ChainBody + Clone> Chain<B> {
    /// Opens `epoch`: puts what `open_with` makes of the newest entry into the next slot. After
    /// that, no writer of an earlier opening can put anything any more. `open_with` is called again
    /// when somebody else was faster; its body's nonce is drawn by [`super::opening_nonce`].
    ///
    /// # Errors
    ///
    /// `Fenced` if a higher epoch is open already; `Unknown` if the opening may yet appear.
    ///
    /// # Panics
    ///
    /// If the body is made for another slot or epoch, or is none that opens.
    pub async fn open(
        store: Store,
        chain: ChainName,
        epoch: u64,
        policy: RetryPolicy,
        open_with: impl FnMut(Option<&Entry<B>>) -> Result<B, Error> + Send,
    ) -> Result<Self, Error> {
        let anything = |_| futures::future::ready(Ok(())).boxed();
        Self::open_checked(store, chain, epoch, policy, &anything, open_with).await
    }

    /// As [`Chain::open`], but asks `check` about the newest entry before anything is written.
    ///
    /// # Errors
    ///
    /// Those of `check` and of [`Chain::open`].
    ///
    /// # Panics
    ///
    /// Where [`Chain::open`] does.
    pub async fn open_checked<'a>(
        store: Store,
        chain: ChainName,
        epoch: u64,
        policy: RetryPolicy,
        check: &'a OpeningCheck<'a, B>,
        mut open_with: impl FnMut(Option<&Entry<B>>) -> Result<B, Error> + Send,
    ) -> Result<Self, Error> {
        let mut reader = ChainReader::new(store.clone(), chain);
        let mut known = None;
        for _ in 0..OPEN_TRIES_MAX {
            let tip: Option<Entry<B>> = reader.latest(known.as_ref()).await?;
            refuse_newer(chain, tip.as_ref(), epoch)?;
            check(tip.clone()).await?;
            let body = open_with(tip.as_ref())?;
            let slot = rules::next_slot(tip.as_ref().map(|tip| tip.slot));
            assert!(
                body.slot() == slot && body.epoch() == epoch,
                "made for this slot and epoch"
            );
            assert!(
                rules::opens(body.nonce()),
                "the nonce says that the body opens an epoch"
            );
            let bytes = body.encode(tip.as_ref().map_or([0; 32], |tip| tip.sha256));
            let opening = Entry {
                slot,
                body,
                sha256: sha256(&bytes),
            };
            let key = chain.slot(slot);
            match put_definite(&store, &key, bytes, B::nonce_of, policy).await {
                Put::Won => {
                    let floor = reader.boundary.refresh().await?.floor;
                    if rules::opening_stands(slot, floor) {
                        let boundary = reader.boundary;
                        return Ok(Self::opened(store, chain, policy, boundary, opening));
                    }
                    tracing::info!(key, floor, "opening came too late, starting over");
                }
                Put::Lost(_) => tracing::info!(key, "somebody else took the slot, reading on"),
                Put::Refused(error) => return Err(error),
                Put::Unknown(error) => return Err(unknown(key, error)),
            }
            known = tip;
        }
        let (key, source) = (chain.slots(), None);
        Err(Error::OutcomeUnknown { key, source })
    }

    fn opened(
        store: Store,
        chain: ChainName,
        policy: RetryPolicy,
        boundary: BoundaryCursor,
        opening: Entry<B>,
    ) -> Self {
        let (opened_at, epoch) = (opening.slot, opening.body.epoch());
        tracing::info!(key = chain.slot(opened_at), epoch, "chain opened");
        Self {
            store,
            chain,
            policy,
            boundary,
            epoch,
            opened_at,
            tip: opening,
            state: State::Ready,
        }
    }

    /// The newest entry, which is this handle's own.
    pub const fn tip(&self) -> &Entry<B> {
        &self.tip
    }

    /// The epoch this handle opened.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The slot that opened it.
    pub const fn opened_at(&self) -> u64 {
        self.opened_at
    }

    /// The slot [`Chain::append`] writes to.
    pub const fn next_slot(&self) -> u64 {
        rules::next_slot(Some(self.tip.slot))
    }

    /// The floor below which slots may have been collected, as last read.
    pub const fn floor(&self) -> u64 {
        self.boundary.last().floor
    }

    /// Whether a put is in doubt, which [`Chain::settle`] clears up.
    pub const fn is_in_doubt(&self) -> bool {
        matches!(self.state, State::InDoubt(..))
    }

    /// Puts `body` into the next slot; its nonce is drawn by [`super::next_nonce`]. On success it
    /// is the tip, durable, and never again contested.
    ///
    /// A call that is dropped halfway leaves the put in doubt.
    ///
    /// # Errors
    ///
    /// `Fenced` if somebody else holds the slot. `Unknown` if nobody can tell, or an earlier put is
    /// in doubt. After any other error nothing was written and the handle goes on.
    ///
    /// # Panics
    ///
    /// If the body is made for another slot or epoch, or one that opens.
    pub async fn append(&mut self, body: B) -> Result<&Entry<B>, Error> {
        let slot = self.next_slot();
        self.refuse_unless_ready()?;
        assert!(
            body.slot() == slot && body.epoch() == self.epoch,
            "made for this slot and epoch"
        );
        assert!(
            !rules::opens(body.nonce()),
            "the nonce says that the body opens no epoch"
        );
        let bytes = body.encode(self.tip.sha256);
        let entry = Entry {
            slot,
            body,
            sha256: sha256(&bytes),
        };
        self.state = State::InDoubt(entry, bytes);
        let result = self.put_doubtful().await;
        if result.as_ref().is_err_and(Error::has_no_side_effects) && self.is_in_doubt() {
            self.state = State::Ready;
        }
        result.map(|()| &self.tip)
    }

    /// Finds out about a put that is in doubt, by putting the same body again. Returns whether it
    /// became the tip; `false` if none was in doubt.
    ///
    /// # Errors
    ///
    /// `Fenced` if somebody else holds the slot; `Unknown` if still nobody can tell.
    pub async fn settle(&mut self) -> Result<bool, Error> {
        match self.state {
            State::Ready => Ok(false),
            State::InDoubt(..) => self.put_doubtful().await.map(|()| true),
            State::Fenced => Err(self.given_up()),
        }
    }

    async fn put_doubtful(&mut self) -> Result<(), Error> {
        let State::InDoubt(entry, bytes) = &self.state else {
            return Ok(());
        };
        let key = self.chain.slot(entry.slot);
        let put = put_definite(&self.store, &key, bytes.clone(), B::nonce_of, self.policy);
        match put.await {
            Put::Won => {
                if let State::InDoubt(entry, _) = mem::replace(&mut self.state, State::Ready) {
                    self.tip = entry;
                }
                Ok(())
            }
            Put::Lost(bytes) => {
                self.state = State::Fenced;
                let theirs = B::decode(&key, bytes)?.epoch();
                tracing::warn!(key, ours = self.epoch, theirs, "fenced");
                Err(Error::Fenced {
                    key,
                    ours: self.epoch,
                    theirs,
                })
            }
            Put::Refused(error) => Err(error),
            Put::Unknown(error) => Err(unknown(key, error)),
        }
    }

    fn refuse_unless_ready(&self) -> Result<(), Error> {
        match self.state {
            State::Ready => Ok(()),
            State::InDoubt(..) => Err(Error::OutcomeUnknown {
                key: self.chain.slot(self.next_slot()),
                source: None,
            }),
            State::Fenced => Err(self.given_up()),
        }
    }

    fn given_up(&self) -> Error {
        Error::GivenUp {
            key: self.chain.slot(self.next_slot()),
        }
    }

    /// Deletes slots below `floor`, which is capped at the tip, and keeps those that opened an
    /// epoch. May be called again after an error, and by several owners at once.
    ///
    /// # Errors
    ///
    /// When the boundary could not be raised, in which case nothing was deleted, or when the store
    /// refused to delete. The handle goes on.
    pub async fn collect(&mut self, floor: u64, nonce: u128) -> Result<(), Error> {
        if matches!(self.state, State::Fenced) {
            return Err(self.given_up());
        }
        let floor = floor.min(self.tip.slot);
        let swept_below = self.boundary.last().swept_below;
        let raised = Boundary { floor, swept_below };
        let boundary = self.boundary.raise(raised, nonce, self.policy).await?;
        let floor = floor.min(boundary.floor);
        for from in (boundary.swept_below..floor).step_by(SWEEP_SLOTS) {
            let until = floor.min(from + SWEEP_SLOTS as u64);
            self.sweep(from, until, boundary.floor).await?;
        }
        self.boundary.note_swept(floor);
        Ok(())
    }

    async fn sweep(&self, from: u64, until: u64, floor: u64) -> Result<(), Error> {
        let looked_at = stream::iter(from..until)
            .map(|slot| async move { Ok::<_, Error>((slot, self.may_open(slot).await?)) })
            .buffered(SWEEP_READS);
        let deletable = looked_at.try_filter_map(|(slot, opens)| async move {
            Ok(rules::may_delete(slot, floor, opens).then(|| self.chain.slot(slot)))
        });
        let keys: Vec<String> = deletable.try_collect().await?;
        self.store.delete(&keys).await
    }

    /// Whether a slot may hold an opening. Those this handle wrote itself it need not read.
    async fn may_open(&self, slot: u64) -> Result<bool, Error> {
        if slot >= self.opened_at {
            return Ok(slot == self.opened_at);
        }
        match self.store.get(&self.chain.slot(slot)).await {
            Ok(bytes) => Ok(may_open::<B>(&bytes)),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn refuse_newer<B: ChainBody>(
    chain: ChainName,
    tip: Option<&Entry<B>>,
    epoch: u64,
) -> Result<(), Error> {
    match tip {
        Some(tip) if tip.body.epoch() > epoch => {
            let (key, theirs) = (chain.slot(tip.slot), tip.body.epoch());
            Err(Error::Fenced {
                key,
                ours: epoch,
                theirs,
            })
        }
        _ => Ok(()),
    }
}

fn unknown(key: String, error: Error) -> Error {
    Error::OutcomeUnknown {
        key,
        source: Some(error.into()),
    }
}
