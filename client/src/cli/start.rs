//! Where to begin and where to end, as people write it.

use std::{str::FromStr, time::SystemTime};

use crate::{End, Offset, StartAt, TimestampMs};

/// `beginning`, `end`, an offset, a time (RFC 3339), or how long ago (`2h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Beginning,
    End,
    Offset(Offset),
    Time(TimestampMs),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "beginning" | "earliest" => return Ok(Self::Beginning),
            "end" | "latest" => return Ok(Self::End),
            _ => {}
        }
        if let Ok(offset) = text.parse() {
            return Ok(Self::Offset(Offset::new(offset)));
        }
        if let Ok(ago) = humantime::parse_duration(text) {
            let millis = i64::try_from(ago.as_millis()).map_err(|_| "too long ago".to_owned())?;
            return Ok(Self::Time(TimestampMs::new(
                millis_of(now()).saturating_sub(millis),
            )));
        }
        match humantime::parse_rfc3339_weak(text) {
            Ok(time) => Ok(Self::Time(TimestampMs::new(millis_of(time)))),
            Err(_) => Err(format!(
                "`{text}` is none of: beginning, end, an offset, a time such as \
                 2026-01-31T12:00:00Z, or how long ago, such as 2h"
            )),
        }
    }
}

impl Place {
    pub(super) const fn start(self) -> StartAt {
        match self {
            Self::Beginning => StartAt::Earliest,
            Self::End => StartAt::Latest,
            Self::Offset(offset) => StartAt::Offset(offset),
            Self::Time(time) => StartAt::Timestamp(time),
        }
    }

    pub(super) const fn end(self) -> End {
        match self {
            Self::Beginning => End::Offset(Offset::ZERO),
            Self::End => End::Latest,
            Self::Offset(offset) => End::Offset(offset),
            Self::Time(time) => End::Timestamp(time),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "what `ago` is counted from")]
fn now() -> SystemTime {
    SystemTime::now()
}

fn millis_of(time: SystemTime) -> i64 {
    let since_epoch = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_people_write_them() {
        assert_eq!("beginning".parse(), Ok(Place::Beginning));
        assert_eq!("end".parse(), Ok(Place::End));
        assert_eq!("42".parse(), Ok(Place::Offset(Offset::new(42))));
        let time = TimestampMs::new(1_704_067_200_000);
        assert_eq!("2024-01-01T00:00:00Z".parse(), Ok(Place::Time(time)));
        assert!(matches!("2h".parse(), Ok(Place::Time(_))));
        assert!("yesterday".parse::<Place>().is_err());
    }
}
