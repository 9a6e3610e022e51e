//! Rules as text, for command lines: `fault[,condition…]`.
//!
//! - faults: `delay=20ms`, `delay=5ms..2s` (heavy tail), `hang`, `drop`, `reply-lost`,
//!   `late-apply=5s`, `applied-twice`, `reset=4096`, `truncate=4096`, `bit-flip`, `ok-with-error`,
//!   `condition=racy|ignored`, and `answer=…` or `applied-then=…` one of `forbidden`, `not-found`,
//!   `conflict`, `precondition`, `internal`, `unavailable`, `slow-down`, `redirect`, `wrong-region`,
//!   `expired-token`, `too-skewed`;
//! - conditions: `verb=put` (may be repeated), `prefix=topics/`, `contains=/manifest/`,
//!   `access-key=ID`, `skip=2`, `times=3`, `p=0.01`.
//!
//! For example `reply-lost,verb=put,contains=/manifest/,p=0.05`.

use std::{str::FromStr, time::Duration};

use super::{
    fault::{Condition, Fault, Latency, Release, Status},
    request::Verb,
    rule::Rule,
};

/// A rule that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleTextError(String);

impl std::fmt::Display for RuleTextError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot read the fault rule. at=`{}`", self.0)
    }
}

impl std::error::Error for RuleTextError {}

impl FromStr for Rule {
    type Err = RuleTextError;

    fn from_str(text: &str) -> Result<Self, RuleTextError> {
        let mut parts = text.split(',').map(str::trim);
        let fault = read(parts.next().unwrap_or_default(), fault)?;
        parts.try_fold(Self::new(fault), |rule, part| {
            read(part, |n, v| condition(rule, n, v))
        })
    }
}

fn read<T>(part: &str, with: impl FnOnce(&str, &str) -> Option<T>) -> Result<T, RuleTextError> {
    let (name, value) = part.split_once('=').unwrap_or((part, ""));
    with(name, value).ok_or_else(|| RuleTextError(part.to_owned()))
}

fn fault(name: &str, value: &str) -> Option<Fault> {
    Some(match (name, value) {
        ("delay", _) => Fault::Delay(latency(value)?),
        ("hang", "") => Fault::Hang,
        ("drop", "") => Fault::Drop,
        ("answer", _) => Fault::Answer(status(value)?),
        ("reply-lost", "") => Fault::ReplyLost,
        ("applied-then", _) => Fault::AppliedThen(status(value)?),
        ("late-apply", _) => Fault::LateApply(Release::After(duration(value)?)),
        ("applied-twice", "") => Fault::AppliedTwice,
        ("reset", _) => Fault::Reset {
            after_bytes: value.parse().ok()?,
        },
        ("truncate", _) => Fault::Truncate {
            to_bytes: value.parse().ok()?,
        },
        ("bit-flip", "") => Fault::BitFlip,
        ("ok-with-error", "") => Fault::OkWithError,
        ("condition", "racy") => Fault::Condition(Condition::Racy),
        ("condition", "ignored") => Fault::Condition(Condition::Ignored),
        _ => return None,
    })
}

fn condition(rule: Rule, name: &str, value: &str) -> Option<Rule> {
    Some(match name {
        "verb" => rule.verb(Verb::from_str(value).ok()?),
        "prefix" => rule.key_prefix(value),
        "contains" => rule.key_contains(value),
        "access-key" => rule.access_key(value),
        "skip" => rule.skip(value.parse().ok()?),
        "times" => rule.times(value.parse().ok()?),
        "p" => rule.probability(value.parse().ok().filter(|p| (0.0..=1.0).contains(p))?),
        _ => return None,
    })
}

fn latency(text: &str) -> Option<Latency> {
    match text.split_once("..") {
        None => duration(text).map(Latency::Fixed),
        Some((min, max)) => {
            let (min, max) = (duration(min)?, duration(max)?);
            (min <= max).then_some(Latency::HeavyTail { min, max })
        }
    }
}

fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let count: u64 = text[..digits].parse().ok()?;
    match &text[digits..] {
        "us" => Some(Duration::from_micros(count)),
        "ms" => Some(Duration::from_millis(count)),
        "s" => Some(Duration::from_secs(count)),
        _ => None,
    }
}

fn status(text: &str) -> Option<Status> {
    Some(match text {
        "forbidden" => Status::Forbidden,
        "redirect" => Status::Redirect,
        "wrong-region" => Status::WrongRegion,
        "expired-token" => Status::ExpiredToken,
        "too-skewed" => Status::TooSkewed,
        "not-found" => Status::NotFound,
        "conflict" => Status::Conflict,
        "precondition" => Status::Precondition,
        "internal" => Status::Internal,
        "unavailable" => Status::Unavailable,
        "slow-down" => Status::SlowDown,
        _ => return None,
    })
}
