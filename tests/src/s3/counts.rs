//! Requests served, by verb: the bill.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use super::request::Verb;

/// Requests received so far, by verb, whatever became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    by_verb: [u64; Verb::ALL.len()],
    /// Requests refused for want of a permission.
    pub refused: u64,
    /// Writes over an existing object with other bytes. Esker never does that.
    pub rewrites: u64,
}

impl Counts {
    /// Returns the requests of one verb.
    pub const fn of(&self, verb: Verb) -> u64 {
        self.by_verb[verb as usize]
    }

    /// Returns all requests.
    pub fn total(&self) -> u64 {
        self.by_verb.iter().sum()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "total={}", self.total())?;
        for verb in Verb::ALL.into_iter().filter(|verb| self.of(*verb) > 0) {
            write!(f, " {verb}={}", self.of(verb))?;
        }
        write!(f, " refused={} rewrites={}", self.refused, self.rewrites)
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    by_verb: [AtomicU64; Verb::ALL.len()],
    refused: AtomicU64,
}

impl Counters {
    pub(super) fn received(&self, verb: Verb) {
        self.by_verb[verb as usize].fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn snapshot(&self, rewrites: u64) -> Counts {
        Counts {
            by_verb: std::array::from_fn(|verb| self.by_verb[verb].load(Ordering::SeqCst)),
            refused: self.refused.load(Ordering::SeqCst),
            rewrites,
        }
    }
}
