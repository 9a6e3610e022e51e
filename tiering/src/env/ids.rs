//! Fresh identities.

use std::fmt;

use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use uuid::{Builder, Uuid};

/// A source of identities that nobody else draws.
pub trait IdGenerator: Send + Sync + fmt::Debug + 'static {
    /// Draws 128 random bits: a nonce, or the ground for a UUID.
    fn nonce(&self) -> u128;

    /// Draws a random (version 4) UUID.
    fn uuid(&self) -> Uuid {
        Builder::from_random_bytes(self.nonce().to_be_bytes()).into_uuid()
    }
}

/// Identities from the operating system's randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomIds;

impl IdGenerator for RandomIds {
    fn nonce(&self) -> u128 {
        rand::random()
    }
}

/// The same identities each time, from a seed: for tests and simulation.
#[derive(Debug)]
pub struct SeededIds(Mutex<StdRng>);

impl SeededIds {
    /// Starts the sequence that belongs to `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(StdRng::seed_from_u64(seed)))
    }
}

impl IdGenerator for SeededIds {
    fn nonce(&self) -> u128 {
        self.0.lock().random()
    }
}
