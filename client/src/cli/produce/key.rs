//! Takes the key out of a line.

use std::borrow::Cow;

use anyhow::Context;
use serde_json::Value;

/// Where a line's key is.
#[derive(Debug)]
pub(super) enum KeySource {
    None,
    /// A field of the JSON object that the line is, by the names on the way to it.
    Field(Vec<String>),
    /// What stands before the first of these bytes.
    Separator(Vec<u8>),
}

/// A line and its key.
#[derive(Debug)]
pub(super) struct Keyed<'a> {
    pub(super) key: Option<Cow<'a, [u8]>>,
    pub(super) value: &'a [u8],
}

impl KeySource {
    pub(super) fn new(field: Option<&str>, separator: Option<&str>) -> anyhow::Result<Self> {
        match (field, separator) {
            (Some(field), _) => {
                let path: Vec<_> = field.split('.').map(str::to_owned).collect();
                anyhow::ensure!(
                    path.iter().all(|name| !name.is_empty()),
                    "empty name in {field}"
                );
                Ok(Self::Field(path))
            }
            (None, Some("")) => anyhow::bail!("the key separator is empty"),
            (None, Some(separator)) => Ok(Self::Separator(separator.as_bytes().to_vec())),
            (None, None) => Ok(Self::None),
        }
    }

    pub(super) const fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Finds the key of a line. A field that is missing or null means no key.
    pub(super) fn split<'a>(&self, line: &'a [u8]) -> anyhow::Result<Keyed<'a>> {
        match self {
            Self::None => Ok(Keyed {
                key: None,
                value: line,
            }),
            Self::Field(path) => {
                let mut value: Value = serde_json::from_slice(line).context("no JSON")?;
                for name in path {
                    value = value.get_mut(name).map_or(Value::Null, Value::take);
                }
                let key = match value {
                    Value::Null => None,
                    Value::String(text) => Some(Cow::Owned(text.into_bytes())),
                    other => Some(Cow::Owned(other.to_string().into_bytes())),
                };
                Ok(Keyed { key, value: line })
            }
            Self::Separator(separator) => {
                let found = line
                    .windows(separator.len())
                    .position(|part| part == separator);
                let at = found.context("the key separator is missing")?;
                let value = &line[at + separator.len()..];
                Ok(Keyed {
                    key: Some(Cow::Borrowed(&line[..at])),
                    value,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(source: &KeySource, line: &str) -> Option<String> {
        let keyed = source.split(line.as_bytes()).unwrap();
        keyed
            .key
            .map(|key| String::from_utf8(key.into_owned()).unwrap())
    }

    #[test]
    fn a_key_comes_from_a_field_of_the_line() {
        let id = KeySource::new(Some("user.id"), None).unwrap();
        assert_eq!(
            key(&id, r#"{"user":{"id":"u1"},"n":1}"#).as_deref(),
            Some("u1")
        );
        assert_eq!(key(&id, r#"{"user":{"id":7}}"#).as_deref(), Some("7"));
        assert_eq!(key(&id, r#"{"user":{}}"#), None);
        assert!(id.split(b"not json").is_err());
    }

    #[test]
    fn a_separator_takes_the_key_off_the_value() {
        let source = KeySource::new(None, Some("::")).unwrap();
        let keyed = source.split(b"k::v::w").unwrap();
        assert_eq!(
            (keyed.key.as_deref(), keyed.value),
            (Some(&b"k"[..]), &b"v::w"[..])
        );
        assert!(source.split(b"no key").is_err());
    }
}
