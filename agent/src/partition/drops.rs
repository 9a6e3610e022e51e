//! When local copies of what is in the bucket go: after a look at the bucket that was made since they
//! became superfluous, one look for all of a partition's.
//!
//! The manifest says what was put there. Whether it still is there only the bucket can say, and
//! objects may be deleted by hand or by a rule of the bucket. A bucket that does not answer lets
//! nothing go.

use std::time::Duration;

use esker_proto::types::{Offset, OffsetRange};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// The least time between two looks for one partition.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// The same where somebody waits, or the disk is short.
const URGENT_INTERVAL: Duration = Duration::from_secs(1);

/// Local copies that the actor would let go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Superfluous {
    /// What they hold; empty if there are none.
    pub(super) offsets: OffsetRange,
    /// Somebody waits for it, or the disk is short.
    pub(super) is_urgent: bool,
}

/// The drops of one partition, as far as their time is concerned.
#[derive(Debug)]
pub(super) struct Drops {
    superfluous: watch::Receiver<Superfluous>,
    /// Everything below was let go.
    seen_below: Offset,
    last_look: Option<Instant>,
}

impl Drops {
    pub(super) const fn new(superfluous: watch::Receiver<Superfluous>) -> Self {
        Self {
            superfluous,
            seen_below: Offset::ZERO,
            last_look: None,
        }
    }

    /// Waits until a look is due; `false` once there is nobody left to let go. Cancel-safe.
    pub(super) async fn due(&mut self) -> bool {
        loop {
            let due_at = self.due_at();
            let look = async {
                match due_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                changed = self.superfluous.changed() => if changed.is_err() { return false },
                () = look => return true,
            }
        }
    }

    fn due_at(&mut self) -> Option<Instant> {
        let superfluous = self.superfluous.borrow_and_update();
        let offsets = &superfluous.offsets;
        let is_due = offsets.end > self.seen_below.max(offsets.start);
        let interval = match superfluous.is_urgent {
            true => URGENT_INTERVAL,
            false => LOOK_INTERVAL,
        };
        let next = self
            .last_look
            .map_or_else(Instant::now, |last| last + interval);
        is_due.then_some(next)
    }

    /// Begins a look, and returns at what.
    pub(super) fn begin(&mut self) -> OffsetRange {
        self.last_look = Some(Instant::now());
        self.superfluous.borrow_and_update().offsets.clone()
    }

    /// The bucket has what lies below.
    pub(super) const fn seen(&mut self, below: Offset) {
        self.seen_below = below;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superfluous(end: u64, is_urgent: bool) -> Superfluous {
        Superfluous {
            offsets: Offset::ZERO..Offset::new(end),
            is_urgent,
        }
    }

    /// How many seconds pass before a look is due.
    async fn wait(drops: &mut Drops) -> u64 {
        let start = Instant::now();
        assert!(drops.due().await);
        start.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn looks_come_at_intervals_however_often_something_becomes_superfluous() {
        let (sender, receiver) = watch::channel(superfluous(10, false));
        let mut drops = Drops::new(receiver);
        assert_eq!(wait(&mut drops).await, 0);
        assert_eq!(drops.begin().end, Offset::new(10));
        drops.seen(Offset::new(10));
        sender.send_replace(superfluous(20, false));
        assert_eq!(wait(&mut drops).await, 5);
        drops.begin();
        // It failed, and somebody waits.
        sender.send_replace(superfluous(20, true));
        assert_eq!(wait(&mut drops).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_asked_while_nothing_is_superfluous() {
        let (sender, receiver) = watch::channel(Superfluous::default());
        let mut drops = Drops::new(receiver);
        let idle = tokio::time::timeout(Duration::from_secs(3600), drops.due());
        idle.await.unwrap_err();
        sender.send_replace(superfluous(20, false));
        assert_eq!(wait(&mut drops).await, 0);
        drops.begin();
        drops.seen(Offset::new(20));
        let idle = tokio::time::timeout(Duration::from_secs(3600), drops.due());
        idle.await.unwrap_err();
        drop(sender);
        assert!(!drops.due().await);
    }
}
