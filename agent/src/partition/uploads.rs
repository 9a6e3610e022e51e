//! When a partition's next upload is due: at once, after a failure's back-off, or not before more is
//! sealed.

use std::time::Duration;

use esker_tiering::{Error, ErrorKind};
use rand::Rng;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::archiver::Sealed;
use crate::backoff::Backoff;

const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// While a drain or an operator waits, or since another partition's upload succeeded, the next try
/// is at most this far away.
const SHORT_WAIT: Duration = Duration::from_secs(1);

/// The uploads of one partition, as far as their time is concerned.
#[derive(Debug)]
pub(super) struct Uploads {
    backoff: Backoff,
    state: State,
    /// Successes of all partitions.
    others: watch::Receiver<u64>,
    /// The last turn went to a trim.
    pub(super) was_passed_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Nothing is due until more is sealed.
    Idle,
    /// More may be due.
    Ready,
    /// The last try failed.
    Waiting {
        until: Instant,
        /// Whether another partition's success makes this wait shorter: the bucket failed, not
        /// something of this partition's own, and no success did so before.
        is_shortened_by_others: bool,
    },
}

impl Uploads {
    pub(super) fn new(others: watch::Receiver<u64>) -> Self {
        Self {
            backoff: Backoff::new(FIRST_WAIT, LONGEST_WAIT),
            state: State::Idle,
            others,
            was_passed_over: false,
        }
    }

    /// Whether an upload may begin now.
    pub(super) fn is_ready(&self) -> bool {
        match self.state {
            State::Idle => false,
            State::Ready => true,
            State::Waiting { until, .. } => until <= Instant::now(),
        }
    }

    /// Waits until an upload is due; `false` once nothing will be sealed any more. Cancel-safe.
    pub(super) async fn due(&mut self, sealed: &mut watch::Receiver<Sealed>) -> bool {
        loop {
            match self.state {
                State::Ready => return true,
                State::Idle => {
                    if sealed.changed().await.is_err() {
                        return false;
                    }
                    self.state = State::Ready;
                }
                State::Waiting {
                    until,
                    is_shortened_by_others,
                } => tokio::select! {
                    biased;
                    changed = sealed.changed() => {
                        if changed.is_err() {
                            return false;
                        }
                        if sealed.borrow_and_update().is_awaited {
                            self.shorten(until, true);
                        }
                    }
                    // The sender is never dropped before the archivers are.
                    _ = self.others.changed(), if is_shortened_by_others => {
                        self.shorten(until, false);
                    }
                    () = sleep_until(until) => return true,
                },
            }
        }
    }

    /// Brings the next try forward, spread a little: the others of the agent do the same.
    fn shorten(&mut self, until: Instant, is_shortened_by_others: bool) {
        let spread = SHORT_WAIT.mul_f64(rand::rng().random_range(0.0..=1.0));
        self.state = State::Waiting {
            until: until.min(Instant::now() + spread),
            is_shortened_by_others,
        };
    }

    /// Nothing is due any more.
    pub(super) const fn done(&mut self) {
        self.state = State::Idle;
    }

    /// There may be more to upload.
    pub(super) const fn succeeded(&mut self) {
        self.backoff.reset();
        self.state = State::Ready;
    }

    /// Returns how long to wait before the next try.
    pub(super) fn failed(&mut self, error: &Error, is_awaited: bool) -> Duration {
        let wait = self.backoff.next();
        let wait = if is_awaited {
            wait.min(SHORT_WAIT)
        } else {
            wait
        };
        // Only what comes from now on says that the bucket answers again.
        self.others.mark_unchanged();
        self.state = State::Waiting {
            until: Instant::now() + wait,
            is_shortened_by_others: matches!(
                error.kind(),
                ErrorKind::Unavailable | ErrorKind::Unknown
            ),
        };
        wait
    }

    pub(super) const fn attempts(&self) -> u32 {
        self.backoff.attempts()
    }
}

#[cfg(test)]
mod tests;
