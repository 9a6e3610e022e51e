//! How the records of a batch are compressed.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// How the records of a batch are compressed, as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Compression {
    /// Not at all. Persisted as 0.
    #[default]
    None = 0,
    /// Gzip (RFC 1952). Persisted as 1.
    Gzip = 1,
    /// Snappy in xerial's framing, as Kafka's Java client writes it. Persisted as 2.
    Snappy = 2,
    /// LZ4 frame. Persisted as 3.
    Lz4 = 3,
    /// Zstandard. Persisted as 4.
    Zstd = 4,
}

/// A text that names no compression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("compression is none of none, gzip, snappy, lz4, zstd. compression=`{0}`")]
pub struct UnknownCompression(String);

impl Compression {
    /// Every compression, in the order of their bits.
    pub const ALL: [Self; 5] = [Self::None, Self::Gzip, Self::Snappy, Self::Lz4, Self::Zstd];

    /// Returns the attribute bits.
    pub const fn bits(self) -> u16 {
        self as u16
    }

    /// Finds the compression by its attribute bits.
    pub const fn from_bits(bits: u16) -> Option<Self> {
        match bits {
            0 => Some(Self::None),
            1 => Some(Self::Gzip),
            2 => Some(Self::Snappy),
            3 => Some(Self::Lz4),
            4 => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Returns the name, as in settings and flags.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Compression {
    type Err = UnknownCompression;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL
            .into_iter()
            .find(|compression| compression.as_str() == name);
        found.ok_or_else(|| UnknownCompression(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_bits_lead_back_to_the_compression() {
        for compression in Compression::ALL {
            assert_eq!(compression.to_string().parse(), Ok(compression));
            assert_eq!(
                Compression::from_bits(compression.bits()),
                Some(compression)
            );
        }
        assert_eq!(
            "LZ4".parse::<Compression>(),
            Err(UnknownCompression("LZ4".to_owned()))
        );
        assert_eq!(Compression::from_bits(5), None);
    }
}
