//! The byte budget of an agent's reads: every chunk in memory, and what is read from the local log,
//! is charged to it from before it is read until its last byte is let go.
//!
//! A chunk that a reader waits for is *demanded*: demands of one side are granted in the order they
//! came, and a reader has at most one outstanding, so none starves. A chunk fetched ahead is
//! *speculative*: it is granted at once or not, never past a lower limit and never before a demand.
//!
//! The two sides, bucket and tail, share the total, and each has a floor that the other cannot take.
//! What readers keep only for convenience ([`Holds`]) makes room for a demand, the longest unused
//! first.

use std::{collections::VecDeque, fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use prometheus::{IntCounter, IntGauge};
use tokio::sync::oneshot;

use super::holds::{Hold, Holds};
use crate::error::Error;

/// Where the bytes of a charge come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Bucket,
    Tail,
}

impl Side {
    const ALL: [Self; 2] = [Self::Bucket, Self::Tail];

    const fn other(self) -> Self {
        match self {
            Self::Bucket => Self::Tail,
            Self::Tail => Self::Bucket,
        }
    }
}

/// Bytes that may be held in all, and by speculation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) total_bytes: u64,
    /// Speculation is refused if it would leave less than the rest for demands.
    pub(super) speculative_bytes: u64,
    /// Most that the cache ever holds.
    pub(super) cached_bytes: u64,
    /// What the tail's readers cannot take.
    pub(super) bucket_floor_bytes: u64,
    /// What the bucket's readers cannot take.
    pub(super) tail_floor_bytes: u64,
}

impl Limits {
    const fn floor(&self, side: Side) -> u64 {
        match side {
            Side::Bucket => self.bucket_floor_bytes,
            Side::Tail => self.tail_floor_bytes,
        }
    }

    /// Most that one side can hold.
    const fn most(&self, side: Side) -> u64 {
        self.total_bytes.saturating_sub(self.floor(side.other()))
    }
}

/// What the budget counts.
#[derive(Clone, Debug)]
pub(super) struct Counts {
    pub(super) held_bytes: IntGauge,
    pub(super) tail_bytes: IntGauge,
    pub(super) shortages: IntCounter,
}

/// A cheap handle to the one budget.
#[derive(Clone)]
pub(super) struct Budget(Arc<Inner>);

struct Inner {
    limits: Limits,
    state: Mutex<State>,
    holds: Holds,
    counts: Counts,
}

#[derive(Default)]
struct State {
    bucket: Account,
    tail: Account,
}

#[derive(Default)]
struct Account {
    held_bytes: u64,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    bytes: u64,
    grant: oneshot::Sender<Charge>,
}

impl Account {
    /// Whether a demand waits whose caller still does.
    fn is_waited_for(&self) -> bool {
        self.waiting.iter().any(|one| !one.grant.is_closed())
    }
}

impl State {
    const fn of(&self, side: Side) -> &Account {
        match side {
            Side::Bucket => &self.bucket,
            Side::Tail => &self.tail,
        }
    }

    const fn of_mut(&mut self, side: Side) -> &mut Account {
        match side {
            Side::Bucket => &mut self.bucket,
            Side::Tail => &mut self.tail,
        }
    }
}

/// Bytes taken from the budget; they go back when this is dropped.
pub struct Charge {
    budget: Budget,
    side: Side,
    bytes: u64,
}

/// Has those behind it served when a demand gives up.
struct Turn<'a>(&'a Budget);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.grant_waiting();
    }
}

impl Budget {
    pub(super) fn new(limits: Limits, counts: Counts) -> Self {
        Self(Arc::new(Inner {
            limits,
            state: Mutex::default(),
            holds: Holds::default(),
            counts,
        }))
    }

    pub(super) fn holds(&self) -> &Holds {
        &self.0.holds
    }

    /// Takes `bytes` for a chunk fetched ahead of need, if there is plenty.
    pub(super) fn try_speculate(&self, bytes: u64) -> Option<Charge> {
        let mut state = self.0.state.lock();
        let is_plenty = !state.bucket.is_waited_for()
            && state.bucket.held_bytes.saturating_add(bytes) <= self.0.limits.speculative_bytes
            && self.has_room(&state, Side::Bucket, bytes);
        is_plenty.then(|| self.charge(&mut state, Side::Bucket, bytes))
    }

    /// Takes `bytes` for what a reader needs, if nobody waits and there is room.
    pub(super) fn try_demand(&self, side: Side, bytes: u64) -> Option<Charge> {
        let bytes = self.capped(side, bytes);
        let mut state = self.0.state.lock();
        (!state.of(side).is_waited_for() && self.has_room(&state, side, bytes))
            .then(|| self.charge(&mut state, side, bytes))
    }

    /// Takes `bytes` for what a reader needs, after all who asked before; what readers keep for
    /// convenience makes room. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`Error::ReadMemory`] if there is no room within `patience`.
    pub(super) async fn demand(
        &self,
        side: Side,
        bytes: u64,
        patience: Duration,
    ) -> Result<Charge, Error> {
        if let Some(charge) = self.try_demand(side, bytes) {
            return Ok(charge);
        }
        self.make_room(side, bytes);
        let granted = tokio::time::timeout(patience, self.wait(side, bytes)).await;
        granted.map_err(|_| self.short(bytes, patience))
    }

    /// Begins a charge for what is in memory already.
    pub(super) fn overdraw(&self, side: Side) -> Charge {
        self.charge(&mut self.0.state.lock(), side, 0)
    }

    /// Names the shortage, and counts it.
    pub(super) fn short(&self, bytes: u64, waited: Duration) -> Error {
        self.0.counts.shortages.inc();
        Error::ReadMemory { bytes, waited }
    }

    async fn wait(&self, side: Side, bytes: u64) -> Charge {
        let bytes = self.capped(side, bytes);
        // Dropped after the receiver, so that a demand that gave up is seen to be gone.
        let _turn = Turn(self);
        let granted = {
            let mut state = self.0.state.lock();
            if !state.of(side).is_waited_for() && self.has_room(&state, side, bytes) {
                return self.charge(&mut state, side, bytes);
            }
            let (grant, granted) = oneshot::channel();
            state
                .of_mut(side)
                .waiting
                .push_back(Waiting { bytes, grant });
            granted
        };
        granted
            .await
            .expect("a waiting demand leaves the queue only with its grant")
    }

    /// Keeps something for a reader's next step, unless others wait for memory.
    pub(super) fn keep<T>(&self, hold: &Hold<T>, content: T) {
        hold.put(content);
        if self.is_short() {
            self.0.holds.release_until(|| !self.is_short());
        }
    }

    fn make_room(&self, side: Side, bytes: u64) {
        let bytes = self.capped(side, bytes);
        self.0
            .holds
            .release_until(|| self.has_room(&self.0.state.lock(), side, bytes));
    }

    /// Whether a chunk fits beside a full cache, which gives way only to the next chunk.
    pub(super) fn has_spare(&self, bytes: u64) -> bool {
        let most = self.0.limits.most(Side::Bucket);
        self.0.limits.cached_bytes.saturating_add(bytes) <= most
    }

    /// Whether a demand is waiting for room.
    pub(super) fn is_short(&self) -> bool {
        let state = self.0.state.lock();
        Side::ALL.iter().any(|side| state.of(*side).is_waited_for())
    }

    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> u64 {
        let state = self.0.state.lock();
        state.bucket.held_bytes + state.tail.held_bytes
    }

    /// What is larger than all a side can have passes when it is alone.
    fn capped(&self, side: Side, bytes: u64) -> u64 {
        bytes.min(self.0.limits.most(side))
    }

    fn has_room(&self, state: &State, side: Side, bytes: u64) -> bool {
        let other = side.other();
        let others = state.of(other).held_bytes.max(self.0.limits.floor(other));
        let held_bytes = state.of(side).held_bytes;
        held_bytes.saturating_add(bytes).saturating_add(others) <= self.0.limits.total_bytes
    }

    fn charge(&self, state: &mut State, side: Side, bytes: u64) -> Charge {
        state.of_mut(side).held_bytes += bytes;
        self.show(state);
        Charge {
            budget: self.clone(),
            side,
            bytes,
        }
    }

    fn show(&self, state: &State) {
        let shown = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let counts = &self.0.counts;
        counts.held_bytes.set(shown(state.bucket.held_bytes));
        counts.tail_bytes.set(shown(state.tail.held_bytes));
    }

    fn release(&self, side: Side, bytes: u64) {
        {
            let mut state = self.0.state.lock();
            state.of_mut(side).held_bytes -= bytes;
            self.show(&state);
        }
        self.grant_waiting();
    }

    fn grant_waiting(&self) {
        let mut grants = Vec::new();
        {
            let mut state = self.0.state.lock();
            for side in Side::ALL {
                while let Some(bytes) = self.next_grant(&mut state, side) {
                    let next = state.of_mut(side).waiting.pop_front();
                    let next = next.expect("the front was seen");
                    grants.push((next.grant, self.charge(&mut state, side, bytes)));
                }
            }
        }
        // Outside the lock: a grant whose demand gave up this moment is released in turn.
        for (grant, charge) in grants {
            drop(grant.send(charge));
        }
    }

    /// The bytes of the first demand that still waits, if there is room for it.
    fn next_grant(&self, state: &mut State, side: Side) -> Option<u64> {
        let waiting = &mut state.of_mut(side).waiting;
        while waiting.front().is_some_and(|one| one.grant.is_closed()) {
            waiting.pop_front();
        }
        let bytes = waiting.front()?.bytes;
        self.has_room(state, side, bytes).then_some(bytes)
    }
}

impl Charge {
    /// Changes the charge to what the bytes turned out to be; more than was granted counts at once.
    pub(super) fn resize(&mut self, bytes: u64) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        if bytes <= before {
            return self.budget.release(self.side, before - bytes);
        }
        {
            let mut state = self.budget.0.state.lock();
            state.of_mut(self.side).held_bytes += bytes - before;
            self.budget.show(&state);
        }
        self.budget.make_room(self.side, 0);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.release(self.side, self.bytes);
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget")
            .field("limits", &self.0.limits)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn budget(total_bytes: u64, speculative_bytes: u64) -> Budget {
        with_floors(total_bytes, speculative_bytes, 0, 0)
    }

    fn with_floors(total_bytes: u64, speculative_bytes: u64, bucket: u64, tail: u64) -> Budget {
        let limits = Limits {
            total_bytes,
            speculative_bytes,
            cached_bytes: 0,
            bucket_floor_bytes: bucket,
            tail_floor_bytes: tail,
        };
        let counts = Counts {
            held_bytes: IntGauge::new("held", "held").expect("a legal name"),
            tail_bytes: IntGauge::new("tail", "tail").expect("a legal name"),
            shortages: IntCounter::new("short", "short").expect("a legal name"),
        };
        Budget::new(limits, counts)
    }

    impl Budget {
        async fn bucket(&self, bytes: u64) -> Charge {
            let charge = self.demand(Side::Bucket, bytes, PATIENCE).await;
            charge.expect("granted in time")
        }
    }

    #[tokio::test]
    async fn demands_are_granted_in_the_order_they_came() {
        let budget = budget(10, 10);
        let held = budget.bucket(10).await;
        let mut large = Box::pin(budget.bucket(8));
        let mut small = Box::pin(budget.bucket(2));
        assert!(large.as_mut().now_or_never().is_none());
        assert!(small.as_mut().now_or_never().is_none());

        drop(held);
        let large = large.await;
        let small = small.await;

        assert_eq!(budget.held_bytes(), 10);
        drop((large, small));
        assert_eq!(budget.held_bytes(), 0);
    }

    #[tokio::test]
    async fn a_later_small_demand_does_not_overtake_a_large_one() {
        let budget = budget(10, 10);
        let held = budget.bucket(6).await;
        let mut large = Box::pin(budget.bucket(8));
        assert!(large.as_mut().now_or_never().is_none());

        assert!(budget.bucket(2).now_or_never().is_none());
        assert!(budget.try_demand(Side::Bucket, 2).is_none());

        drop(held);
        assert!(large.now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_cancelled_demand_gives_its_grant_to_the_next() {
        let budget = budget(10, 10);
        let held = budget.bucket(10).await;
        let mut first = Box::pin(budget.bucket(10));
        let mut second = Box::pin(budget.bucket(10));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());

        drop(first);
        drop(held);

        assert!(second.as_mut().now_or_never().is_some());
        assert_eq!(budget.held_bytes(), 0);
    }

    #[tokio::test]
    async fn speculation_leaves_room_for_demands_and_never_goes_before_them() {
        let budget = budget(10, 6);

        let ahead = budget.try_speculate(6).expect("within its limit");
        assert!(budget.try_speculate(1).is_none());
        let demanded = budget.bucket(4).await;

        let mut waiting = Box::pin(budget.bucket(9));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(ahead);
        assert!(budget.is_short());
        assert!(budget.try_speculate(1).is_none(), "a demand waits");
        drop(demanded);
        assert!(waiting.now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_chunk_larger_than_the_budget_passes_alone() {
        let budget = budget(10, 10);
        let held = budget.bucket(1).await;
        let mut huge = Box::pin(budget.bucket(99));
        assert!(huge.as_mut().now_or_never().is_none());

        drop(held);

        assert!(huge.now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_demand_that_gave_up_holds_nobody_up() {
        let budget = budget(10, 10);
        let held = budget.bucket(6).await;
        let mut large = Box::pin(budget.bucket(8));
        let mut behind = Box::pin(budget.bucket(2));
        assert!(large.as_mut().now_or_never().is_none());
        assert!(behind.as_mut().now_or_never().is_none());

        drop(large);

        assert!(behind.as_mut().now_or_never().is_some());
        assert!(!budget.is_short());
        assert!(budget.try_speculate(1).is_some());
        assert!(budget.bucket(2).now_or_never().is_some());
        drop(held);
    }

    #[tokio::test(start_paused = true)]
    async fn a_shortage_has_an_error_of_its_own() {
        let budget = budget(10, 10);
        let held = budget.bucket(10).await;

        let error = budget.demand(Side::Bucket, 5, PATIENCE).await.unwrap_err();

        assert!(error.is_retryable());
        assert_eq!(error.kind(), crate::error::ErrorKind::Busy);
        assert!(!error.to_string().contains("store"), "{error}");
        assert_eq!(budget.0.counts.shortages.get(), 1);
        drop(held);
    }

    #[tokio::test]
    async fn each_side_has_a_floor_that_the_other_cannot_take() {
        let budget = with_floors(10, 10, 3, 4);
        let bucket = budget.bucket(6).await;
        assert!(budget.try_demand(Side::Bucket, 1).is_none());
        let tail = budget.try_demand(Side::Tail, 4).expect("its floor");
        assert!(budget.try_demand(Side::Tail, 1).is_none());
        drop(bucket);

        let more = budget.try_demand(Side::Tail, 3).expect("what is free");
        assert!(budget.try_demand(Side::Tail, 1).is_none());
        assert!(budget.try_demand(Side::Bucket, 3).is_some());
        drop((tail, more));
    }

    #[tokio::test]
    async fn what_was_unused_for_longest_makes_room_first() {
        let budget = budget(10, 10);
        let (old, new) = (
            budget.holds().add(Side::Bucket),
            budget.holds().add(Side::Tail),
        );
        new.put(budget.bucket(4).await);
        old.put(budget.bucket(4).await);
        let kept = new.take().expect("kept");
        new.put(kept);

        let demanded = budget.bucket(5).now_or_never();

        assert!(demanded.is_some());
        assert!(old.take().is_none());
        assert!(new.take().is_some());
    }
}
