//! How often and how fast a failed call is tried again.

use std::time::Duration;

use rand::Rng;
use tokio::time::Instant;

/// Stands for "never": longer durations are cut to this, since no clock can add them.
const NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Longest pause an agent may ask for: a wrong one must not stop a client for weeks.
pub(crate) const ASKED_MAX: Duration = Duration::from_secs(60);

/// Returns the time `wait` after another, however long that is.
pub(crate) fn after(from: Instant, wait: Duration) -> Instant {
    from + wait.min(NEVER)
}

/// Bounded tries with a delay that doubles and is jittered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Tries in all, the first one included, until the error is handed to the caller.
    pub attempts_max: u32,
    /// Delay before the second try.
    pub delay_first: Duration,
    /// Longest delay.
    pub delay_max: Duration,
}

impl Default for RetryPolicy {
    /// 8 tries: 50 ms, 100 ms, and so on up to 2 s between them, about 5 s in all.
    fn default() -> Self {
        Self {
            attempts_max: 8,
            delay_first: Duration::from_millis(50),
            delay_max: Duration::from_secs(2),
        }
    }
}

/// Counts the failures since the last success.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    policy: RetryPolicy,
    failures: u32,
}

impl Backoff {
    pub(crate) const fn new(policy: RetryPolicy) -> Self {
        Self {
            policy,
            failures: 0,
        }
    }

    /// Forgets the failures: something worked.
    pub(crate) const fn reset(&mut self) {
        self.failures = 0;
    }

    /// Counts a failure; returns how long to wait, or `None` if that was the last try allowed.
    pub(crate) fn next_delay(&mut self, at_least: Option<Duration>) -> Option<Duration> {
        if self.failures + 1 >= self.policy.attempts_max {
            return None;
        }
        Some(self.delay(at_least))
    }

    /// Counts a failure and returns how long to wait; for retries that something else bounds.
    pub(crate) fn delay(&mut self, at_least: Option<Duration>) -> Duration {
        let doublings = self.failures.min(16);
        self.failures = self.failures.saturating_add(1);
        let full = self.policy.delay_first.saturating_mul(1 << doublings);
        let full = full.min(self.policy.delay_max).min(NEVER);
        // Half fixed, half random: callers that failed together do not come back together.
        let jittered = full.mul_f64(rand::rng().random_range(0.5..=1.0));
        jittered.max(at_least.unwrap_or_default().min(ASKED_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RetryPolicy = RetryPolicy {
        attempts_max: 4,
        delay_first: Duration::from_millis(100),
        delay_max: Duration::from_millis(300),
    };

    #[test]
    fn delays_grow_to_the_limit_and_tries_end() {
        let mut backoff = Backoff::new(POLICY);
        for full_ms in [100, 200, 300] {
            let delay = backoff.next_delay(None).unwrap();
            assert!(delay >= Duration::from_millis(full_ms / 2), "{delay:?}");
            assert!(delay <= Duration::from_millis(full_ms), "{delay:?}");
        }
        assert_eq!(backoff.next_delay(None), None);
        backoff.reset();
        assert!(backoff.next_delay(None).is_some());
    }

    #[test]
    fn durations_that_stand_for_never_overflow_nothing() {
        let now = Instant::now();
        assert!(after(now, Duration::MAX) > after(now, Duration::from_secs(1 << 26)));
        let mut backoff = Backoff::new(RetryPolicy {
            attempts_max: u32::MAX,
            delay_first: Duration::MAX,
            delay_max: Duration::MAX,
        });
        assert!(backoff.delay(None) > Duration::from_secs(1 << 26));
    }

    #[test]
    fn wait_asked_for_by_the_agent_is_kept_within_reason() {
        let asked = Duration::from_secs(5);
        assert!(Backoff::new(POLICY).delay(Some(asked)) >= asked);
        let weeks = Duration::from_millis(u32::MAX.into());
        assert_eq!(Backoff::new(POLICY).delay(Some(weeks)), ASKED_MAX);
    }
}
