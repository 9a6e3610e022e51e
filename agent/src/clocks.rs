//! What time it is, by this machine and by the store, and which of the two to believe.
//!
//! Nothing is removed on the word of one clock. Retention goes by the earlier of the two, and that time
//! passes at most [`SPEED_MAX`] times as fast as the monotonic clock: a clock that is set a month ahead
//! by mistake removes nothing that was not about to go, and somebody has as long to notice. After a
//! machine has slept, retention catches up in as much time as the sleep took.

use std::{sync::Arc, time::Duration};

use esker_proto::types::TimestampMs;
use esker_tiering::{env::Clock, store::Store};
use parking_lot::Mutex;
use prometheus::{Error, IntGauge, Registry as Metrics};
use tokio::time::Instant;

/// How much faster than real time retention may follow a clock that runs ahead of it.
const SPEED_MAX: u32 = 2;
/// A difference between the clocks that is logged.
const DIFFERENCE_MS_MAX: u64 = 5 * 60_000;

/// This machine's clock and the store's.
#[derive(Clone, Debug)]
pub(crate) struct Clocks {
    local: Arc<dyn Clock>,
    store: Store,
}

impl Clocks {
    pub(crate) fn new(local: Arc<dyn Clock>, store: Store) -> Self {
        Self { local, store }
    }

    /// The time by this machine.
    pub(crate) fn local(&self) -> TimestampMs {
        self.local.now()
    }

    /// The time by the store, if it tells.
    pub(crate) fn store(&self) -> Option<TimestampMs> {
        self.store.time()
    }

    /// The earlier of the two.
    fn earliest(&self) -> TimestampMs {
        let local = self.local();
        self.store.time().map_or(local, |store| store.min(local))
    }

    /// The later of the two.
    fn latest(&self) -> TimestampMs {
        let local = self.local();
        self.store.time().map_or(local, |store| store.max(local))
    }
}

/// The time that retention goes by.
#[derive(Debug)]
pub(crate) struct RetentionClock {
    clocks: Clocks,
    lag_seconds: IntGauge,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    time: Option<(TimestampMs, Instant)>,
    is_behind: bool,
}

impl RetentionClock {
    /// Starts with what the clocks say now.
    ///
    /// # Errors
    ///
    /// If the name of its gauge is taken in this registry.
    pub(crate) fn register(clocks: Clocks, metrics: &Metrics) -> Result<Self, Error> {
        let lag_seconds = IntGauge::new(
            "esker_agent_retention_clock_lag_seconds",
            "how far the time of retention is behind the clocks of this machine and the store",
        )?;
        metrics.register(Box::new(lag_seconds.clone()))?;
        let clock = Self {
            clocks,
            lag_seconds,
            last: Mutex::default(),
        };
        clock.now();
        Ok(clock)
    }

    /// Returns the time that retention goes by.
    pub(crate) fn now(&self) -> TimestampMs {
        let mut last = self.last.lock();
        let seen = self.clocks.earliest();
        let now = match last.time {
            Some((time, at)) => followed(time, at.elapsed(), seen),
            None => seen,
        };
        last.time = Some((now, Instant::now()));
        self.note_lag(&mut last, now);
        now
    }

    fn note_lag(&self, last: &mut Last, now: TimestampMs) {
        let latest = self.clocks.latest();
        let lag_ms = latest.millis_since(now);
        self.lag_seconds
            .set(i64::try_from(lag_ms / 1000).unwrap_or(i64::MAX));
        let is_behind = lag_ms > DIFFERENCE_MS_MAX;
        if is_behind && !last.is_behind {
            tracing::warn!(
                local_ms = %self.clocks.local(), store_ms = ?self.clocks.store.time(), used_ms = %now,
                "a clock jumped, or this machine and the store disagree; retention waits for the \
                 slower one: check the time of this machine and of the store"
            );
        }
        last.is_behind = is_behind;
    }
}

/// Decides what time it is after `elapsed`, when the clocks say `seen`.
fn followed(last: TimestampMs, elapsed: Duration, seen: TimestampMs) -> TimestampMs {
    let step = elapsed.saturating_mul(SPEED_MAX).as_millis();
    let step = i64::try_from(step).unwrap_or(i64::MAX);
    seen.min(TimestampMs::new(last.get().saturating_add(step)))
}

#[cfg(test)]
mod tests {
    use esker_tiering::env::ManualClock;

    use super::*;

    const DAY_MS: i64 = 24 * 3_600_000;

    #[tokio::test(start_paused = true)]
    async fn a_clock_set_a_month_ahead_does_not_move_retention_by_more_than_the_time_that_passed() {
        let local = Arc::new(ManualClock::new(TimestampMs::new(1_000)));
        let clocks = Clocks::new(Arc::clone(&local) as _, Store::in_memory());
        let clock = RetentionClock::register(clocks, &Metrics::new()).unwrap();

        local.advance(30 * DAY_MS);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(clock.now(), TimestampMs::new(11_000));
        assert_eq!(clock.lag_seconds.get(), 30 * 24 * 3600 - 10);

        local.advance(5_000 - 30 * DAY_MS);
        assert_eq!(clock.now(), TimestampMs::new(6_000));
        assert_eq!(clock.lag_seconds.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn retention_catches_up_after_a_sleep() {
        let local = Arc::new(ManualClock::new(TimestampMs::new(0)));
        let clocks = Clocks::new(Arc::clone(&local) as _, Store::in_memory());
        let clock = RetentionClock::register(clocks, &Metrics::new()).unwrap();

        local.advance(DAY_MS);
        for _ in 0..24 {
            local.advance(3_600_000);
            tokio::time::advance(Duration::from_secs(3600)).await;
            clock.now();
        }
        assert_eq!(clock.now(), TimestampMs::new(2 * DAY_MS));
    }
}
