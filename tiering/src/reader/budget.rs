//! The byte budget of an agent's cold reads: every chunk in memory, whoever holds it, is charged
//! to it from before its fetch until its last byte is let go.
//!
//! A chunk that a reader waits for is *demanded*: demands are granted in the order they came, and
//! a reader has at most one outstanding, so none starves. A chunk fetched ahead is *speculative*:
//! it is granted at once or not at all, never past a lower limit and never before a demand.

use std::{collections::VecDeque, fmt, sync::Arc};

use parking_lot::Mutex;
use prometheus::IntGauge;
use tokio::sync::oneshot;

/// Bytes that may be held in all, and by speculation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) total_bytes: u64,
    /// Speculation is refused if it would leave less than the rest for demands.
    pub(super) speculative_bytes: u64,
    /// Most that the cache ever holds.
    pub(super) cached_bytes: u64,
}

/// A cheap handle to the one budget.
#[derive(Clone)]
pub(super) struct Budget(Arc<Inner>);

struct Inner {
    limits: Limits,
    state: Mutex<State>,
    held_bytes: IntGauge,
}

#[derive(Default)]
struct State {
    held_bytes: u64,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    bytes: u64,
    grant: oneshot::Sender<Charge>,
}

/// Bytes taken from the budget; they go back when this is dropped.
pub(super) struct Charge {
    budget: Budget,
    bytes: u64,
}

impl Budget {
    pub(super) fn new(limits: Limits, held_bytes: IntGauge) -> Self {
        Self(Arc::new(Inner {
            limits,
            state: Mutex::default(),
            held_bytes,
        }))
    }

    /// Takes `bytes` for a chunk fetched ahead of need, if there is plenty.
    pub(super) fn try_speculate(&self, bytes: u64) -> Option<Charge> {
        let mut state = self.0.state.lock();
        let is_plenty = state.waiting.is_empty()
            && state.held_bytes.saturating_add(bytes) <= self.0.limits.speculative_bytes;
        is_plenty.then(|| self.charge(&mut state, bytes))
    }

    /// Takes `bytes` for a chunk that a reader needs, if nobody waits and there is room.
    pub(super) fn try_demand(&self, bytes: u64) -> Option<Charge> {
        let bytes = self.capped(bytes);
        let mut state = self.0.state.lock();
        (state.waiting.is_empty() && self.has_room(&state, bytes))
            .then(|| self.charge(&mut state, bytes))
    }

    /// Takes `bytes` for a chunk that a reader needs, after all who asked before. Cancel safe; the
    /// caller bounds the wait.
    pub(super) async fn demand(&self, bytes: u64) -> Charge {
        let bytes = self.capped(bytes);
        let granted = {
            let mut state = self.0.state.lock();
            if state.waiting.is_empty() && self.has_room(&state, bytes) {
                return self.charge(&mut state, bytes);
            }
            let (grant, granted) = oneshot::channel();
            state.waiting.push_back(Waiting { bytes, grant });
            granted
        };
        granted
            .await
            .expect("a waiting demand leaves the queue only with its grant")
    }

    /// Whether a chunk fits beside a full cache, which gives way only to the next chunk.
    pub(super) fn has_spare(&self, bytes: u64) -> bool {
        self.0.limits.cached_bytes.saturating_add(bytes) <= self.0.limits.total_bytes
    }

    /// Whether a demand is waiting for room.
    pub(super) fn is_short(&self) -> bool {
        !self.0.state.lock().waiting.is_empty()
    }

    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> u64 {
        self.0.state.lock().held_bytes
    }

    /// A single chunk larger than the whole budget passes when it is alone.
    fn capped(&self, bytes: u64) -> u64 {
        bytes.min(self.0.limits.total_bytes)
    }

    fn has_room(&self, state: &State, bytes: u64) -> bool {
        state.held_bytes + bytes <= self.0.limits.total_bytes
    }

    fn charge(&self, state: &mut State, bytes: u64) -> Charge {
        state.held_bytes += bytes;
        self.0
            .held_bytes
            .set(i64::try_from(state.held_bytes).unwrap_or(i64::MAX));
        Charge {
            budget: self.clone(),
            bytes,
        }
    }

    fn release(&self, bytes: u64) {
        let mut grants = Vec::new();
        {
            let mut state = self.0.state.lock();
            state.held_bytes -= bytes;
            while let Some(first) = state.waiting.front()
                && self.has_room(&state, first.bytes)
            {
                let first = state.waiting.pop_front().expect("the front is there");
                grants.push((first.grant, self.charge(&mut state, first.bytes)));
            }
            self.0
                .held_bytes
                .set(i64::try_from(state.held_bytes).unwrap_or(i64::MAX));
        }
        // Outside the lock: the grant of a cancelled demand comes back and is released in turn.
        for (grant, charge) in grants {
            drop(grant.send(charge));
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.release(self.bytes);
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

    fn budget(total_bytes: u64, speculative_bytes: u64) -> Budget {
        let gauge = IntGauge::new("held", "held").expect("a legal name");
        Budget::new(
            Limits {
                total_bytes,
                speculative_bytes,
                cached_bytes: 0,
            },
            gauge,
        )
    }

    #[tokio::test]
    async fn demands_are_granted_in_the_order_they_came() {
        let budget = budget(10, 10);
        let held = budget.demand(10).await;
        let mut large = Box::pin(budget.demand(8));
        let mut small = Box::pin(budget.demand(2));
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
        let held = budget.demand(6).await;
        let mut large = Box::pin(budget.demand(8));
        assert!(large.as_mut().now_or_never().is_none());

        assert!(budget.demand(2).now_or_never().is_none());
        assert!(budget.try_demand(2).is_none());

        drop(held);
        assert!(large.now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_cancelled_demand_gives_its_grant_to_the_next() {
        let budget = budget(10, 10);
        let held = budget.demand(10).await;
        let mut first = Box::pin(budget.demand(10));
        let mut second = Box::pin(budget.demand(10));
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
        let demanded = budget.demand(4).await;

        let mut waiting = Box::pin(budget.demand(9));
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
        let held = budget.demand(1).await;
        let mut huge = Box::pin(budget.demand(99));
        assert!(huge.as_mut().now_or_never().is_none());

        drop(held);

        assert!(huge.now_or_never().is_some());
    }
}
