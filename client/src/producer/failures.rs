//! Batches that failed, for callers that do not keep their deliveries.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

use crate::error::Error;

/// Failures whose errors are kept for handles that have not flushed since.
const KEPT_MAX: usize = 16;

/// The failures of all records of a producer, whichever handle sent them.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<Noted>);

#[derive(Debug, Default)]
struct Noted {
    count: u64,
    /// The newest, oldest first.
    kept: VecDeque<Error>,
}

/// How many failures one handle has been told of.
#[derive(Debug, Default)]
pub(crate) struct Seen(AtomicU64);

impl Clone for Seen {
    fn clone(&self) -> Self {
        Self(AtomicU64::new(self.0.load(Ordering::Relaxed)))
    }
}

impl Failures {
    pub(crate) fn note(&self, error: &Error) {
        let mut noted = self.0.lock();
        noted.count += 1;
        if noted.kept.len() == KEPT_MAX {
            noted.kept.pop_front();
        }
        noted.kept.push_back(error.clone());
    }

    /// Returns the first failure that a handle has not been told of, as far as it is kept, and
    /// counts all as told.
    pub(crate) fn tell(&self, seen: &Seen) -> Option<Error> {
        let noted = self.0.lock();
        let untold = noted.count - seen.0.swap(noted.count, Ordering::Relaxed);
        let untold = usize::try_from(untold).unwrap_or(usize::MAX);
        let first = noted.kept.len().saturating_sub(untold);
        noted.kept.get(first).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn every_handle_is_told_of_every_failure_once() {
        let failures = Failures::default();
        let [one, two] = [Seen::default(), Seen::default()];
        for number in 0..20 {
            failures.note(&Error::new(ErrorKind::Internal, number.to_string()));
        }
        let oldest_kept = "4";
        assert_eq!(failures.tell(&one).unwrap().to_string(), oldest_kept);
        assert!(failures.tell(&one).is_none());
        failures.note(&Error::new(ErrorKind::Internal, "20"));
        assert_eq!(failures.tell(&one).unwrap().to_string(), "20");
        let late = two.clone();
        assert!(failures.tell(&two).is_some() && failures.tell(&two).is_none());
        assert!(
            failures.tell(&late).is_some(),
            "a clone is a handle of its own"
        );
    }
}
