//! Offsets, byte positions and timestamps.

use std::{fmt, ops::Range};

use serde::{Deserialize, Serialize};

/// Place of a record in its partition's log: zero-based, never reused.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Offset(u64);

impl Offset {
    /// The first offset of every partition.
    pub const ZERO: Self = Self(0);
    /// The largest offset: the wire format holds offsets as signed 64-bit integers.
    pub const MAX: Self = Self(i64::MAX as u64);

    /// Wraps a raw offset.
    pub const fn new(offset: u64) -> Self {
        Self(offset)
    }

    /// Returns the raw offset.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the offset `count` records later.
    ///
    /// # Panics
    ///
    /// On overflow: a log that long is a corrupt offset, not an input.
    #[must_use]
    pub fn advance(self, count: u32) -> Self {
        Self(
            self.0
                .checked_add(u64::from(count))
                .expect("an offset never comes near 2^64"),
        )
    }

    /// Returns how many offsets lie in `[earlier, self)`, or 0 if `earlier` is not earlier.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Half-open `[base, next)`.
pub type OffsetRange = Range<Offset>;

/// Byte place in one segment file or object.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Position(u64);

impl Position {
    /// The first byte.
    pub const ZERO: Self = Self(0);

    /// Wraps a raw position, in bytes.
    pub const fn new(position: u64) -> Self {
        Self(position)
    }

    /// Returns the raw position, in bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the position `bytes` further on.
    ///
    /// # Panics
    ///
    /// On overflow: no file is that long.
    #[must_use]
    pub fn advance(self, bytes: u64) -> Self {
        Self(
            self.0
                .checked_add(bytes)
                .expect("a position never comes near 2^64"),
        )
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Wall-clock time in milliseconds since the Unix epoch.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct TimestampMs(i64);

impl TimestampMs {
    /// Wraps milliseconds since the Unix epoch.
    pub const fn new(timestamp_ms: i64) -> Self {
        Self(timestamp_ms)
    }

    /// Returns milliseconds since the Unix epoch.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// Returns the milliseconds from `earlier` to this time, or 0 if it is not earlier.
    pub fn millis_since(self, earlier: Self) -> u64 {
        u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0)
    }
}

impl fmt::Display for TimestampMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
