//! Bounds of a topic's settings: the same in the API, in the command's flags and in the agent's
//! settings. A topic that was created with others is still served.

use std::fmt;

/// What one setting may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The setting, as the API calls it.
    pub name: &'static str,
    /// The least value.
    pub least: u64,
    /// The greatest.
    pub most: u64,
}

/// A setting is out of its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBounds {
    limit: Limit,
    asked: i128,
    /// Whether -1, for no limit, would do.
    may_be_none: bool,
}

const fn limit(name: &'static str, least: u64, most: u64) -> Limit {
    Limit { name, least, most }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const DAY_MS: u64 = 24 * 3_600_000;
const ANY: u64 = i64::MAX.unsigned_abs();

/// Each partition costs files, tasks and requests.
pub const PARTITIONS: Limit = limit("partitions", 1, 10_000);
/// -1: for ever.
pub const RETENTION_MS: Limit = limit("retention_ms", 1000, ANY);
/// 0 would keep nothing. -1: no limit.
pub const RETENTION_BYTES: Limit = limit("retention_bytes", 1, ANY);
/// 0 keeps nothing that is in the bucket.
pub const LOCAL_RETENTION_BYTES: Limit = limit("local_retention_bytes", 0, ANY);
/// A segment is one object, and is read into memory when it is uploaded.
pub const SEGMENT_BYTES: Limit = limit("segment_bytes", 64 * KIB, 1024 * MIB);
/// A sealed segment is a file and a put; one that is not sealed is on one disk only.
pub const SEGMENT_MS: Limit = limit("segment_ms", 100, 30 * DAY_MS);
/// Half of the largest gRPC message.
pub const BATCH_BYTES_MAX: Limit = limit("batch_bytes_max", KIB, 32 * MIB);
/// -1: any time.
pub const TIMESTAMP_BEFORE_MAX_MS: Limit = limit("timestamp_before_max_ms", 0, ANY);
/// -1: any time.
pub const TIMESTAMP_AFTER_MAX_MS: Limit = limit("timestamp_after_max_ms", 0, ANY);

impl Limit {
    /// Checks a value.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`], which names setting and bounds.
    pub fn check(&self, asked: u64) -> Result<(), OutOfBounds> {
        if (self.least..=self.most).contains(&asked) {
            return Ok(());
        }
        Err(OutOfBounds {
            limit: *self,
            asked: asked.into(),
            may_be_none: false,
        })
    }

    /// Checks a value that may be -1, for none.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`], which names setting and bounds.
    pub fn check_or_none(&self, asked: i64) -> Result<(), OutOfBounds> {
        let is_within = u64::try_from(asked).is_ok_and(|asked| self.check(asked).is_ok());
        if is_within || asked == -1 {
            return Ok(());
        }
        Err(OutOfBounds {
            limit: *self,
            asked: asked.into(),
            may_be_none: true,
        })
    }
}

impl std::error::Error for OutOfBounds {}

impl fmt::Display for OutOfBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limit { name, least, most } = self.limit;
        write!(f, "{name} is out of bounds: it must be ")?;
        match most {
            ANY => write!(f, "at least {least}")?,
            most => write!(f, "from {least} to {most}")?,
        }
        if self.may_be_none {
            f.write_str(", or -1 for no limit")?;
        }
        write!(f, ". asked=`{}`", self.asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_at_the_bounds_pass_and_those_beyond_are_named() {
        for asked in [64 << 10, 1 << 30] {
            assert_eq!(SEGMENT_BYTES.check(asked), Ok(()));
        }
        let error = SEGMENT_BYTES.check((1 << 30) + 1).unwrap_err().to_string();
        assert_eq!(
            error,
            "segment_bytes is out of bounds: it must be from 65536 to 1073741824. asked=`1073741825`"
        );
        assert!(SEGMENT_BYTES.check((64 << 10) - 1).is_err());
    }

    #[test]
    fn of_negative_values_only_minus_one_means_none() {
        assert_eq!(RETENTION_MS.check_or_none(-1), Ok(()));
        assert_eq!(RETENTION_MS.check_or_none(1000), Ok(()));
        for asked in [i64::MIN, -2, 0, 999] {
            let error = RETENTION_MS.check_or_none(asked).unwrap_err().to_string();
            assert!(
                error.contains("at least 1000, or -1 for no limit"),
                "{error}"
            );
        }
    }
}
