//! Takes the key out of a line.

use std::{borrow::Cow, fmt};

use anyhow::Context;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Where a line's key is.
#[derive(Debug)]
pub(super) enum KeySource {
    None,
    /// A field of the JSON object that the line is.
    Field(Field),
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
            (Some(field), _) => Ok(Self::Field(Field::new(field)?)),
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
            Self::Field(field) => Ok(Keyed {
                key: field.key(line)?,
                value: line,
            }),
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

/// A field of a JSON object: one of this very name, or else by the names between its dots.
#[derive(Debug)]
pub(super) struct Field {
    name: String,
    path: Vec<String>,
}

impl Field {
    fn new(name: &str) -> anyhow::Result<Self> {
        anyhow::ensure!(!name.is_empty(), "the name of the key field is empty");
        Ok(Self {
            name: name.to_owned(),
            path: name.split('.').map(str::to_owned).collect(),
        })
    }

    /// The text of a string; of anything else the very text that stands there, so that no two
    /// numbers become one.
    fn key<'a>(&self, line: &'a [u8]) -> anyhow::Result<Option<Cow<'a, [u8]>>> {
        let value: &RawValue =
            serde_json::from_slice(line).map_err(|error| of_line(&error).context("not JSON"))?;
        match self.find(value)?.map(RawValue::get) {
            None | Some("null") => Ok(None),
            Some(text) if text.starts_with('"') => {
                let text: Text<'a> = serde_json::from_str(text)?;
                Ok(Some(text.into_bytes()))
            }
            Some(text) => Ok(Some(Cow::Borrowed(text.as_bytes()))),
        }
    }

    fn find<'a>(&self, value: &'a RawValue) -> serde_json::Result<Option<&'a RawValue>> {
        if let Some(found) = member(value, &self.name)? {
            return Ok(Some(found));
        }
        let mut found = value;
        for name in &self.path {
            match member(found, name)? {
                Some(value) => found = value,
                None => return Ok(None),
            }
        }
        Ok(Some(found))
    }
}

/// Says where in the line JSON ends to be JSON; that it is a line of many, JSON does not know.
pub(super) fn of_line(error: &serde_json::Error) -> anyhow::Error {
    anyhow::Error::msg(error.to_string().replace(" at line 1 column", " at column"))
}

/// A string, borrowed where it has no escapes.
#[derive(serde::Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a> Text<'a> {
    fn into_bytes(self) -> Cow<'a, [u8]> {
        match self.0 {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        }
    }
}

/// Finds a member of an object, the last of this name; anything else has none.
fn member<'a>(value: &'a RawValue, name: &str) -> serde_json::Result<Option<&'a RawValue>> {
    if !value.get().starts_with('{') {
        return Ok(None);
    }
    Member(name).deserialize(&mut serde_json::Deserializer::from_str(value.get()))
}

struct Member<'n>(&'n str);

impl<'de> DeserializeSeed<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, object: D) -> Result<Self::Value, D::Error> {
        object.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(Text(name)) = members.next_key()? {
            if name == self.0 {
                found = Some(members.next_value()?);
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(field: &str, line: &str) -> Option<String> {
        let source = KeySource::new(Some(field), None).unwrap();
        let keyed = source.split(line.as_bytes()).unwrap();
        keyed
            .key
            .map(|key| String::from_utf8(key.into_owned()).unwrap())
    }

    #[test]
    fn a_key_comes_from_a_field_of_the_line() {
        let line = r#" {"user":{"id":"u\u00fc1"},"n":1}"#;
        assert_eq!(key("user.id", line).as_deref(), Some("uü1"));
        assert_eq!(key("user.id", r#"{"user":{"id":7}}"#).as_deref(), Some("7"));
        for line in [
            r#"{"user":{}}"#,
            r#"{"user":{"id":null}}"#,
            r#"{"user":"id"}"#,
            "[1]",
        ] {
            assert_eq!(key("user.id", line), None, "{line}");
        }
        let source = KeySource::new(Some("id"), None).unwrap();
        for line in [
            "not json",
            r#"{"id":1"#,
            r#"{"id":1} more"#,
            r#"{"n":tru,"id":1}"#,
            "",
        ] {
            assert!(source.split(line.as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn a_key_that_is_no_string_is_the_text_that_stands_there() {
        for text in [
            "12345678901234567890123",
            "12345678901234567890124",
            "1.50",
            "1.5",
            "-0",
            "1E5",
            "true",
            r#"{"b": 1, "a":[ ]}"#,
        ] {
            let line = format!(r#"{{"n":0, "id": {text} }}"#);
            assert_eq!(key("id", &line).as_deref(), Some(text));
        }
    }

    #[test]
    fn a_field_of_the_very_name_goes_before_a_path() {
        let line = r#"{"user":{"id":"path"},"user.id":"flat"}"#;
        assert_eq!(key("user.id", line).as_deref(), Some("flat"));
        assert_eq!(key(".id", r#"{".id":1}"#).as_deref(), Some("1"));
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
