//! Which request gets which fault. Decides only; [`super::inject`] carries it out.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{
    fault::Fault,
    request::{Asked, Verb},
};

/// A fault and the requests it is meant for. Without conditions: every request, always.
#[derive(Clone, Debug)]
pub struct Rule {
    fault: Fault,
    verbs: Vec<Verb>,
    key_prefix: String,
    key_contains: String,
    access_key: Option<String>,
    skip: u64,
    times: u64,
    probability: f64,
}

impl Rule {
    /// Starts a rule for every request.
    pub const fn new(fault: Fault) -> Self {
        Self {
            fault,
            verbs: Vec::new(),
            key_prefix: String::new(),
            key_contains: String::new(),
            access_key: None,
            skip: 0,
            times: u64::MAX,
            probability: 1.0,
        }
    }

    /// Only requests of this verb; more calls add more verbs.
    #[must_use]
    pub fn verb(mut self, verb: Verb) -> Self {
        self.verbs.push(verb);
        self
    }

    /// Only keys that begin with `prefix`.
    #[must_use]
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.key_prefix = prefix.into();
        self
    }

    /// Only keys with `part` in them.
    #[must_use]
    pub fn key_contains(mut self, part: impl Into<String>) -> Self {
        self.key_contains = part.into();
        self
    }

    /// Only requests signed by this access key: an outage for one agent alone.
    #[must_use]
    pub fn access_key(mut self, access_key: impl Into<String>) -> Self {
        self.access_key = Some(access_key.into());
        self
    }

    /// Lets the first `count` matching requests pass.
    #[must_use]
    pub const fn skip(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }

    /// Fires at most `count` times.
    #[must_use]
    pub const fn times(mut self, count: u64) -> Self {
        self.times = count;
        self
    }

    /// Fires for this share of the matching requests, drawn from the server's seed.
    #[must_use]
    pub const fn probability(mut self, probability: f64) -> Self {
        self.probability = probability;
        self
    }

    fn matches(&self, asked: &Asked) -> bool {
        (self.verbs.is_empty() || self.verbs.contains(&asked.verb))
            && asked.key.starts_with(&self.key_prefix)
            && asked.key.contains(&self.key_contains)
            && (self.access_key.is_none() || self.access_key == asked.access_key)
    }
}

/// A rule in force. Dropping it leaves the rule in force.
#[derive(Clone, Debug, Default)]
pub struct ArmedRule(Arc<State>);

#[derive(Debug, Default)]
struct State {
    fired: AtomicU64,
    is_off: AtomicBool,
}

impl ArmedRule {
    /// Returns how often the rule has fired.
    pub fn fired(&self) -> u64 {
        self.0.fired.load(Ordering::SeqCst)
    }

    /// Takes the rule out of force.
    pub fn disarm(&self) {
        self.0.is_off.store(true, Ordering::SeqCst);
    }

    fn is_off(&self) -> bool {
        self.0.is_off.load(Ordering::SeqCst)
    }
}

#[derive(Debug)]
struct Slot {
    rule: Rule,
    seen: u64,
    handle: ArmedRule,
}

impl Slot {
    fn fires(&mut self, asked: &Asked, rng: &mut StdRng) -> bool {
        if self.handle.is_off() || !self.rule.matches(asked) {
            return false;
        }
        self.seen += 1;
        let due = self.seen > self.rule.skip && self.handle.fired() < self.rule.times;
        let fires = due && (self.rule.probability >= 1.0 || rng.random_bool(self.rule.probability));
        if fires {
            self.handle.0.fired.fetch_add(1, Ordering::SeqCst);
        }
        fires
    }
}

/// What is to happen to one request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Verdict {
    pub(super) delay: Duration,
    pub(super) fault: Option<Fault>,
}

/// The rules in force, the first added first.
#[derive(Debug)]
pub(super) struct Rules {
    slots: Vec<Slot>,
    rng: StdRng,
}

impl Rules {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            slots: Vec::new(),
            rng: StdRng::seed_from_u64(seed),
        }
    }

    pub(super) fn add(&mut self, rule: Rule) -> ArmedRule {
        let handle = ArmedRule::default();
        self.slots.push(Slot {
            rule,
            seen: 0,
            handle: handle.clone(),
        });
        handle
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear();
    }

    /// Adds up the delays, and takes the first other fault that fires.
    pub(super) fn judge(&mut self, asked: &Asked) -> Verdict {
        let mut verdict = Verdict::default();
        for slot in &mut self.slots {
            let is_delay = matches!(slot.rule.fault, Fault::Delay(_));
            if (!is_delay && verdict.fault.is_some()) || !slot.fires(asked, &mut self.rng) {
                continue;
            }
            match slot.rule.fault {
                Fault::Delay(latency) => verdict.delay += latency.draw(&mut self.rng),
                fault => verdict.fault = Some(fault),
            }
        }
        verdict
    }

    pub(super) fn draw_below(&mut self, bound: usize) -> usize {
        self.rng.random_range(0..bound)
    }
}

#[cfg(test)]
mod tests;
