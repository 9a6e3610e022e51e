//! Wall-clock time. Intervals are measured with tokio's clock, which tests can pause.

use std::{
    fmt,
    sync::atomic::{AtomicI64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use esker_proto::types::TimestampMs;

/// A source of wall-clock time. It may jump either way: nothing safe depends on it.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Returns the time now.
    fn now(&self) -> TimestampMs;
}

/// The machine's own clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the wall clock"
    )]
    fn now(&self) -> TimestampMs {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        TimestampMs::new(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
    }
}

/// A clock that only moves when told to.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// Starts at `now`.
    pub const fn new(now: TimestampMs) -> Self {
        Self(AtomicI64::new(now.get()))
    }

    /// Moves the clock forward by `millis`, or back by a negative one.
    pub fn advance(&self, millis: i64) {
        self.0.fetch_add(millis, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> TimestampMs {
        TimestampMs::new(self.0.load(Ordering::SeqCst))
    }
}
