//! What times the records of a topic may carry. Pure.

use std::{fmt, str::FromStr, time::Duration};

use esker_proto::{batch::RecordTimes, types::TimestampMs};
use serde::{Deserialize, Serialize};

/// Timestamps of other units are told by what they would mean: a time between 1990 and a year from now.
const YEAR_1990_MS: i64 = 631_152_000_000;
const YEAR_MS: i64 = 31_557_600_000;

/// Whose time records carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimestampKind {
    /// The one their producer gave them.
    #[default]
    Create,
    /// That of the append, by the agent's clock.
    Append,
}

/// A text that names neither.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown kind of timestamps; expected create or append. timestamps=`{0}`")]
pub struct UnknownTimestampKind(String);

impl FromStr for TimestampKind {
    type Err = UnknownTimestampKind;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "create" => Ok(Self::Create),
            "append" => Ok(Self::Append),
            _ => Err(UnknownTimestampKind(text.to_owned())),
        }
    }
}

/// A topic's rule for the times of its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimestampPolicy {
    /// Whose time they carry.
    pub kind: TimestampKind,
    /// How far before its append a record's time may be; `None` for any.
    pub before_max_ms: Option<u64>,
    /// How far after it.
    pub after_max_ms: Option<u64>,
}

/// A record's time is out of the topic's bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimestampError {
    timestamp: TimestampMs,
    now: TimestampMs,
    bound: Bound,
    max_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    Before,
    After,
}

impl TimestampPolicy {
    /// Checks the times of a batch's records against `now`.
    ///
    /// # Errors
    ///
    /// [`TimestampError`] about the record that is furthest away.
    pub fn check(&self, times: RecordTimes, now: TimestampMs) -> Result<(), TimestampError> {
        if self.kind == TimestampKind::Append {
            return Ok(());
        }
        let error = |timestamp, bound, max_ms| TimestampError {
            timestamp,
            now,
            bound,
            max_ms,
        };
        match (self.after_max_ms, self.before_max_ms) {
            (Some(max_ms), _) if times.latest.millis_since(now) > max_ms => {
                Err(error(times.latest, Bound::After, max_ms))
            }
            (_, Some(max_ms)) if now.millis_since(times.earliest) > max_ms => {
                Err(error(times.earliest, Bound::Before, max_ms))
            }
            _ => Ok(()),
        }
    }
}

impl std::error::Error for TimestampError {}

impl fmt::Display for TimestampError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (side, setting) = match self.bound {
            Bound::Before => ("old", "timestamp_before_max_ms"),
            Bound::After => ("far in the future", "timestamp_after_max_ms"),
        };
        let max = humantime::format_duration(Duration::from_millis(self.max_ms));
        let fix = match unit_of(self.timestamp, self.now) {
            Some((unit, fix)) => format!("it looks like {unit}, {fix}: milliseconds are expected"),
            None => format!("the topic's {setting} allows {max}: change it if the time is right"),
        };
        let (timestamp, now) = (self.timestamp, self.now);
        write!(
            f,
            "record timestamp is too {side}; {fix}. timestamp_ms=`{timestamp}`, now_ms=`{now}`"
        )
    }
}

/// Tells in which unit a number would be a likely time, and how to make milliseconds of it.
fn unit_of(timestamp: TimestampMs, now: TimestampMs) -> Option<(&'static str, &'static str)> {
    let likely = YEAR_1990_MS..now.get().saturating_add(YEAR_MS);
    let units = [
        (
            timestamp.get().checked_mul(1000),
            "seconds",
            "multiply it by 1000",
        ),
        (
            Some(timestamp.get() / 1000),
            "microseconds",
            "divide it by 1000",
        ),
        (
            Some(timestamp.get() / 1_000_000),
            "nanoseconds",
            "divide it by 1000000",
        ),
    ];
    units
        .into_iter()
        .find(|(millis, ..)| millis.is_some_and(|millis| likely.contains(&millis)))
        .map(|(_, unit, fix)| (unit, fix))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_760_000_000_000;
    const HOUR_MS: i64 = 3_600_000;

    fn check(earliest: i64, latest: i64) -> Result<(), String> {
        let policy = TimestampPolicy {
            kind: TimestampKind::Create,
            before_max_ms: Some(50 * YEAR_MS.unsigned_abs()),
            after_max_ms: Some(HOUR_MS.unsigned_abs()),
        };
        let times = RecordTimes {
            earliest: TimestampMs::new(earliest),
            latest: TimestampMs::new(latest),
        };
        policy
            .check(times, TimestampMs::new(NOW))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn times_within_both_bounds_pass_to_the_millisecond() {
        assert_eq!(check(NOW - 50 * YEAR_MS, NOW + HOUR_MS), Ok(()));
        assert!(check(NOW, NOW + HOUR_MS + 1).is_err());
        assert!(check(NOW - 50 * YEAR_MS - 1, NOW).is_err());
        assert!(check(i64::MIN, NOW).is_err());
        assert!(check(NOW, i64::MAX).is_err());
    }

    #[test]
    fn an_error_names_the_unit_the_timestamp_seems_to_be_in() {
        for (timestamp, unit) in [
            (NOW / 1000, "seconds, multiply it by 1000"),
            (1_357_776_000, "seconds, multiply it by 1000"),
            (NOW * 1000, "microseconds, divide it by 1000"),
            (NOW * 1_000_000, "nanoseconds, divide it by 1000000"),
        ] {
            let error = check(timestamp, timestamp).unwrap_err();
            assert!(error.contains(unit), "{error}");
        }
        let error = check(1000, NOW).unwrap_err();
        assert!(
            error.contains("timestamp_before_max_ms allows 50years"),
            "{error}"
        );
        let error = check(NOW, NOW + 2 * HOUR_MS).unwrap_err();
        assert!(
            error.contains("timestamp_after_max_ms allows 1h"),
            "{error}"
        );
    }

    #[test]
    fn any_time_passes_without_bounds_or_where_the_agent_sets_it() {
        let times = RecordTimes {
            earliest: TimestampMs::new(i64::MIN),
            latest: TimestampMs::new(i64::MAX),
        };
        let append = TimestampPolicy {
            kind: TimestampKind::Append,
            before_max_ms: Some(0),
            after_max_ms: Some(0),
        };
        for policy in [TimestampPolicy::default(), append] {
            assert_eq!(policy.check(times, TimestampMs::new(NOW)), Ok(()));
        }
    }
}
