//! What the agent tells its service manager, in systemd's notification protocol.
//!
//! | message | when |
//! |---|---|
//! | `READY=1` | it serves |
//! | `WATCHDOG=1` | twice per `WATCHDOG_USEC`, as long as everybody who owns state answers |
//! | `STOPPING=1` | a drain begins |
//! | `EXTEND_TIMEOUT_USEC=` | while a drain makes progress |
//! | `STATUS=` | every few seconds, for `systemctl status` |
//!
//! Without `NOTIFY_SOCKET` in the environment nothing is sent.

use std::time::Duration;

use esker_tiering::env::TaskSet;
use sd_notify::NotifyState;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::{health::Phase, pulse::Pulse};

/// How often the status line is renewed, and a drain looked at.
const STATUS_INTERVAL: Duration = Duration::from_secs(2);
/// A drain that got nothing into the bucket for this long is no longer given more time. One segment
/// of the usual size takes less at 20 Mbit/s.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);

/// Says that the agent serves.
pub(crate) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// Says that the agent drains and will end.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Says in one line what the agent does.
pub(crate) fn status(line: &str) {
    tell(&[NotifyState::Status(line)]);
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager cannot be told how the agent is");
    }
}

/// Keeps telling the service manager about the agent until `tasks` ends.
pub(crate) fn accompany(pulse: Pulse, tasks: &TaskSet) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    let stopped = tasks.token().clone();
    let reports = report(pulse.clone());
    tasks.spawn("service manager", async move {
        stopped.run_until_cancelled(reports).await;
    });
    let Some(limit) = sd_notify::watchdog_enabled() else {
        return;
    };
    let stopped = tasks.token().clone();
    tasks.spawn("watchdog", async move {
        stopped.run_until_cancelled(watch(pulse, limit)).await;
    });
}

/// Tells the watchdog that the agent is alive, for as long as it is.
async fn watch(pulse: Pulse, limit: Duration) {
    let mut ticks = interval(limit / 2);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match pulse.silent(limit / 8).await {
            None => tell(&[NotifyState::Watchdog]),
            Some(who) => tracing::error!(
                who,
                "nobody answers; unless that ends, the watchdog ends the agent"
            ),
        }
    }
}

/// Renews the status line, and asks for more time while a drain makes progress.
async fn report(pulse: Pulse) {
    let mut ticks = interval(STATUS_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut progress = Progress::new(Instant::now());
    loop {
        ticks.tick().await;
        status(&pulse.status());
        let is_draining = pulse.health().phase() == Phase::Draining;
        if is_draining && progress.goes_on(pulse.unuploaded_bytes(), Instant::now()) {
            let micros = u32::try_from(PROGRESS_TIMEOUT.as_micros()).unwrap_or(u32::MAX);
            tell(&[NotifyState::ExtendTimeoutUsec(micros)]);
        }
    }
}

/// How far a drain has come.
#[derive(Debug)]
struct Progress {
    least_bytes: u64,
    since: Instant,
}

impl Progress {
    const fn new(now: Instant) -> Self {
        Self {
            least_bytes: u64::MAX,
            since: now,
        }
    }

    /// Notes what is left; returns whether there was less than before lately.
    fn goes_on(&mut self, left_bytes: u64, now: Instant) -> bool {
        if left_bytes < self.least_bytes {
            *self = Self {
                least_bytes: left_bytes,
                since: now,
            };
        }
        now.duration_since(self.since) < PROGRESS_TIMEOUT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_that_uploads_nothing_is_given_no_more_time() {
        let begin = Instant::now();
        let at = |secs| begin + Duration::from_secs(secs);
        let mut progress = Progress::new(begin);
        // An agent that served for a long time before it drains.
        assert!(progress.goes_on(100, at(1000)));
        assert!(progress.goes_on(100, at(1029)));
        assert!(!progress.goes_on(100, at(1030)));
        assert!(progress.goes_on(99, at(1031)));
        assert!(progress.goes_on(99, at(1060)));
        assert!(!progress.goes_on(99, at(1061)));
    }
}
