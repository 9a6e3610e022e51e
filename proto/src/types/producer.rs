//! Coordinates of idempotent producers (KIP-98).

use std::fmt;

use serde::{Deserialize, Serialize};

/// Identity of one idempotent producer; `-1` on the wire means none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProducerId(i64);

impl ProducerId {
    /// The batch was not sent by an idempotent producer.
    pub const NONE: Self = Self(-1);

    /// Wraps a raw producer id.
    pub const fn new(producer_id: i64) -> Self {
        Self(producer_id)
    }

    /// Returns the raw producer id.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// Whether the batch was sent by an idempotent producer.
    pub const fn is_some(self) -> bool {
        self.0 >= 0
    }
}

impl fmt::Display for ProducerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Rises when a producer starts its sequences over; an older one is fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProducerEpoch(i16);

impl ProducerEpoch {
    /// The batch was not sent by an idempotent producer.
    pub const NONE: Self = Self(-1);

    /// Wraps a raw producer epoch.
    pub const fn new(producer_epoch: i16) -> Self {
        Self(producer_epoch)
    }

    /// Returns the raw producer epoch.
    pub const fn get(self) -> i16 {
        self.0
    }
}

impl fmt::Display for ProducerEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of a record within one producer's records to one partition. After `i32::MAX` comes 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sequence(i32);

impl Sequence {
    /// The batch was not sent by an idempotent producer.
    pub const NONE: Self = Self(-1);
    /// The first sequence of a producer epoch.
    pub const ZERO: Self = Self(0);

    /// Wraps a raw sequence.
    pub const fn new(sequence: i32) -> Self {
        Self(sequence)
    }

    /// Returns the raw sequence.
    pub const fn get(self) -> i32 {
        self.0
    }

    /// Returns the sequence `count` records later, going round from `i32::MAX` to 0.
    #[must_use]
    pub fn advance(self, count: u32) -> Self {
        let sum = i64::from(self.0) + i64::from(count);
        let wrapped = sum.rem_euclid(i64::from(i32::MAX) + 1);
        Self(i32::try_from(wrapped).expect("a remainder of 2^31 fits i32"))
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_goes_round_to_zero() {
        assert_eq!(Sequence::new(i32::MAX).advance(1), Sequence::ZERO);
        assert_eq!(Sequence::new(i32::MAX - 1).advance(3), Sequence::new(1));
        assert_eq!(Sequence::ZERO.advance(5), Sequence::new(5));
    }
}
