//! The bytes a producer may hold: what makes a fast caller wait for a slow agent.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Semaphore;

/// Room for records. Taken in steps as a batch grows, given back when the batch is settled.
#[derive(Debug)]
pub(crate) struct Budget {
    room: Semaphore,
    bytes_max: usize,
    waiting: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(bytes_max: usize) -> Self {
        let bytes_max = bytes_max.min(u32::MAX as usize).min(Semaphore::MAX_PERMITS);
        Self {
            room: Semaphore::new(bytes_max),
            bytes_max,
            waiting: AtomicUsize::new(0),
        }
    }

    pub(crate) const fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Takes room if there is, and nobody waits for it already.
    pub(crate) fn try_take(&self, bytes: usize) -> bool {
        self.room
            .try_acquire_many(permits(bytes))
            .map(|taken| taken.forget())
            .is_ok()
    }

    /// Waits for room, in the order of asking. Dropping the future gives up the place.
    pub(crate) fn take(&self, bytes: usize) -> impl Future<Output = ()> {
        // Counted from here on, not from the first poll: the sender looks before that.
        let waiting = Waiting::new(&self.waiting);
        async move {
            let _waiting = waiting;
            let taken = self.room.acquire_many(permits(bytes)).await;
            taken.expect("the semaphore is never closed").forget();
        }
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.room.add_permits(bytes);
    }

    /// Whether somebody waits for room: what is held should be sent rather than wait for more.
    pub(crate) fn is_short(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Counts somebody as waiting for as long as it lives.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn room_is_waited_for_and_a_dropped_wait_takes_none() {
        let budget = Budget::new(100);
        assert!(budget.try_take(80));
        assert!(!budget.try_take(30));
        {
            let mut given_up = std::pin::pin!(budget.take(30));
            assert!(given_up.as_mut().now_or_never().is_none());
            assert!(budget.is_short());
        }
        assert!(!budget.is_short());
        budget.give_back(80);
        assert!(budget.try_take(100));
    }
}
