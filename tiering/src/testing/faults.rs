//! Which trouble befalls which call. Seeded, and one set per store, never per process.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};

/// A call to an object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// Read an object or a range.
    Get,
    /// Look an object up.
    Head,
    /// Put, whatever is there.
    Put,
    /// Put if absent.
    Create,
    /// List.
    List,
    /// Delete one object.
    Delete,
    /// Anything else.
    Other,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Trouble {
    /// Fails with a server error; nothing was done.
    FailBefore,
    /// Done, and then fails with a server error: the reply got lost.
    FailAfter,
    /// Asks for fewer requests; nothing was done.
    SlowDown,
    /// Refuses for lack of permission; nothing was done.
    Forbid,
    /// Refuses because the clocks differ; nothing was done.
    Skew,
    /// A create is told that there is something, though nothing was done: a conflict.
    ConflictWithoutEffect,
    /// Answers this much later.
    Delay(Duration),
    /// Never answers; nothing was done.
    Hang,
    /// Done, and never answers.
    HangAfter,
    /// A write fails at once and is done by [`Faults::land`]: it was still under way.
    FailThenLand,
    /// A write is done, and once more by [`Faults::land`]: it was sent twice.
    LandTwice,
    /// A create overwrites what is there: the condition is ignored.
    IgnoreCondition,
    /// An object that is there is not found.
    StaleNotFound,
    /// A listing lacks its last keys, this many.
    StaleList(usize),
    /// The connection breaks: a listing ends in an error after its first key.
    BreakOff,
    /// The reply's body ends early.
    ShortRead,
    /// One bit of the reply's body is wrong.
    FlipBit,
}

/// Which calls a trouble befalls. Each condition narrows it.
#[derive(Clone, Debug)]
pub struct When {
    op: Option<Op>,
    key: Option<String>,
    skip: u32,
    times: u32,
    probability: f64,
}

impl When {
    /// Every call.
    pub const fn any() -> Self {
        Self {
            op: None,
            key: None,
            skip: 0,
            times: u32::MAX,
            probability: 1.0,
        }
    }

    /// Every call of one kind.
    pub const fn on(op: Op) -> Self {
        Self {
            op: Some(op),
            key: None,
            skip: 0,
            times: u32::MAX,
            probability: 1.0,
        }
    }

    /// Only keys with this in them.
    #[must_use]
    pub fn key(self, part: impl Into<String>) -> Self {
        Self {
            key: Some(part.into()),
            ..self
        }
    }

    /// Not the first `calls` that match.
    #[must_use]
    pub fn skip(self, calls: u32) -> Self {
        Self {
            skip: calls,
            ..self
        }
    }

    /// At most this often.
    #[must_use]
    pub fn times(self, times: u32) -> Self {
        Self { times, ..self }
    }

    /// Each matching call with this probability.
    #[must_use]
    pub fn probability(self, probability: f64) -> Self {
        Self {
            probability,
            ..self
        }
    }

    fn matches(&self, op: Op, key: &str) -> bool {
        self.op.is_none_or(|wanted| wanted == op)
            && self
                .key
                .as_ref()
                .is_none_or(|part| key.contains(part.as_str()))
    }
}

/// The troubles of one store. Cheap to clone; all clones share them.
#[derive(Clone, Debug)]
pub struct Faults(Arc<Mutex<State>>);

struct State {
    rules: Vec<(When, Trouble)>,
    rng: StdRng,
    under_way: Vec<BoxFuture<'static, ()>>,
    hits: BTreeMap<Op, u64>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

impl Faults {
    pub(super) fn seeded(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            rules: Vec::new(),
            rng: StdRng::seed_from_u64(seed),
            under_way: Vec::new(),
            hits: BTreeMap::new(),
        })))
    }

    /// Adds a trouble. Where several match a call, the one added first befalls it.
    pub fn inject(&self, when: When, trouble: Trouble) {
        self.0.lock().rules.push((when, trouble));
    }

    /// Takes all troubles away.
    pub fn heal(&self) {
        self.0.lock().rules.clear();
    }

    /// How many calls of `op` met a trouble.
    pub fn hits(&self, op: Op) -> u64 {
        self.0.lock().hits.get(&op).copied().unwrap_or(0)
    }

    /// Does the writes that are still under way, and returns how many there were.
    pub async fn land(&self) -> usize {
        let writes = std::mem::take(&mut self.0.lock().under_way);
        let count = writes.len();
        for write in writes {
            write.await;
        }
        count
    }

    pub(super) fn hold(&self, write: BoxFuture<'static, ()>) {
        self.0.lock().under_way.push(write);
    }

    pub(super) fn random_below(&self, bound: usize) -> usize {
        self.0.lock().rng.random_range(0..bound.max(1))
    }

    pub(super) fn befalling(&self, op: Op, key: &str) -> Option<Trouble> {
        let State {
            rules, rng, hits, ..
        } = &mut *self.0.lock();
        for (when, trouble) in rules {
            if !when.matches(op, key) || when.times == 0 {
                continue;
            }
            if when.skip > 0 {
                when.skip -= 1;
                continue;
            }
            if rng.random_bool(when.probability) {
                when.times -= 1;
                *hits.entry(op).or_default() += 1;
                return Some(*trouble);
            }
        }
        None
    }
}
