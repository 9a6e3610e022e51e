//! Growing waits between attempts, with jitter so that many do not come at once.

use std::time::Duration;

use rand::Rng;

/// Waits that double from a first to a longest, each drawn from its upper half.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    attempts: u32,
}

impl Backoff {
    /// Starts at `first`; no wait exceeds `longest`.
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            attempts: 0,
        }
    }

    /// Returns how long to wait before the next attempt.
    pub(crate) fn next(&mut self) -> Duration {
        let doubled = self
            .first
            .saturating_mul(1u32.checked_shl(self.attempts).unwrap_or(u32::MAX));
        self.attempts = self.attempts.saturating_add(1);
        let share = rand::rng().random_range(0.5..=1.0);
        doubled.min(self.longest).mul_f64(share)
    }

    /// Returns the attempts since the last success.
    pub(crate) const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Starts over after a success.
    pub(crate) const fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_the_longest() {
        let (first, longest) = (Duration::from_millis(100), Duration::from_secs(1));
        let mut backoff = Backoff::new(first, longest);
        for expected in [100, 200, 400, 800, 1000, 1000] {
            let wait = backoff.next().as_millis();
            assert!(
                (expected / 2..=expected).contains(&wait),
                "{wait} of {expected}"
            );
        }
        (0..100).for_each(|_| assert!(backoff.next() <= longest));
        backoff.reset();
        assert!(backoff.next() <= first);
    }
}
