//! Topic names, checked once where they enter.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Longest topic name, in bytes; Kafka's limit.
pub const TOPIC_NAME_BYTES_MAX: usize = 249;

/// A legal topic name: 1 to 249 of `a-z A-Z 0-9 . _ -`, and neither `.` nor `..`.
///
/// These are Kafka's rules, so that names survive a move between the two.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TopicName(String);

/// Why a text is no topic name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTopicName {
    /// No character at all.
    #[error("topic name is empty")]
    Empty,
    /// More than [`TOPIC_NAME_BYTES_MAX`] bytes.
    #[error("topic name is longer than {TOPIC_NAME_BYTES_MAX} bytes. bytes=`{0}`")]
    TooLong(usize),
    /// A character outside the legal set.
    #[error("topic name holds a character outside a-z A-Z 0-9 . _ -. character=`{0:?}`")]
    IllegalCharacter(char),
    /// `.` or `..`.
    #[error("topic name must not be `.` or `..`")]
    Dots,
}

impl TopicName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TopicName {
    type Err = InvalidTopicName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let is_legal = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if name.is_empty() {
            return Err(InvalidTopicName::Empty);
        }
        if name.len() > TOPIC_NAME_BYTES_MAX {
            return Err(InvalidTopicName::TooLong(name.len()));
        }
        if let Some(character) = name.chars().find(|c| !is_legal(c)) {
            return Err(InvalidTopicName::IllegalCharacter(character));
        }
        if name == "." || name == ".." {
            return Err(InvalidTopicName::Dots);
        }
        Ok(Self(name.to_owned()))
    }
}

impl TryFrom<String> for TopicName {
    type Error = InvalidTopicName;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        name.parse()
    }
}

impl From<TopicName> for String {
    fn from(name: TopicName) -> Self {
        name.0
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_to_the_rules_of_kafka() {
        let cases = [
            ("orders.v1_eu-west", Ok(())),
            ("", Err(InvalidTopicName::Empty)),
            (".", Err(InvalidTopicName::Dots)),
            ("..", Err(InvalidTopicName::Dots)),
            ("a/b", Err(InvalidTopicName::IllegalCharacter('/'))),
            ("naïve", Err(InvalidTopicName::IllegalCharacter('ï'))),
        ];
        for (name, expected) in cases {
            assert_eq!(name.parse::<TopicName>().map(|_| ()), expected, "{name}");
        }
        let longest = "a".repeat(TOPIC_NAME_BYTES_MAX);
        assert!(longest.parse::<TopicName>().is_ok());
        assert!(format!("{longest}a").parse::<TopicName>().is_err());
    }
}
