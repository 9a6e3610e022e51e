//! How settings are written: sizes as `64MiB`, times as `10m`.

use std::{fmt, str::FromStr, time::Duration};

use bytesize::ByteSize;

/// A number of bytes, written as `512MiB`, `10GB` or a plain number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteCount(u64);

impl ByteCount {
    /// Wraps a number of bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Returns the number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl FromStr for ByteCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse::<ByteSize>()
            .map(|size| Self(size.as_u64()))
            .map_err(|_| format!("`{text}` is no size: write for example 64MiB"))
    }
}

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ByteSize(self.0).fmt(f)
    }
}

/// A length of time, written as `250ms`, `10m` or `7d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(u64);

impl Millis {
    /// Wraps a number of milliseconds.
    pub const fn new(millis: u64) -> Self {
        Self(millis)
    }

    /// Returns the number of milliseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the length of time.
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl FromStr for Millis {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let duration = humantime::parse_duration(text)
            .map_err(|_| format!("`{text}` is no length of time: write for example 10m"))?;
        u64::try_from(duration.as_millis())
            .map(Self)
            .map_err(|_| format!("`{text}` is too long a time"))
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.duration()).fmt(f)
    }
}

/// Disk space that stays free: `15%` of the volume, or a size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DiskReserve {
    /// A share of the volume, from 0 to 1.
    Share(f64),
    /// A size.
    Bytes(ByteCount),
}

impl DiskReserve {
    /// Returns the reserve in bytes on a volume of `volume_bytes`.
    pub fn bytes_of(self, volume_bytes: u64) -> u64 {
        match self {
            Self::Bytes(count) => count.get(),
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "a share of a size, which need not be exact and is never negative"
            )]
            Self::Share(share) => (volume_bytes as f64 * share) as u64,
        }
    }
}

impl FromStr for DiskReserve {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(percent) = text.strip_suffix('%') else {
            return text.parse().map(Self::Bytes);
        };
        match percent.trim().parse::<f64>() {
            Ok(percent) if (0.0..=90.0).contains(&percent) => Ok(Self::Share(percent / 100.0)),
            _ => Err(format!("`{text}` is no share from 0% to 90%")),
        }
    }
}
