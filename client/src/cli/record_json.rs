//! Records as JSON: what `consume --format json` prints and `produce --format json` takes. Printed
//! and taken back, a record is the same.
//!
//! Keys and values that are UTF-8 stand as text, others in Base64 under `key_base64`,
//! `value_base64`; one that is null is left out. Headers are a list, in their order, since their
//! names may repeat: `[{"key": "trace", "value": "7"}]`, with `value_base64` likewise.

use std::{borrow::Cow, collections::BTreeMap};

use anyhow::Context;
use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};

use crate::{PartitionId, Record, TimestampMs};

/// One record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RecordJson {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) partition: Option<u32>,
    /// Printed; ignored when produced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) timestamp_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
    #[serde(default, skip_serializing_if = "HeadersJson::is_empty")]
    headers: HeadersJson,
}

/// The headers of a record. A map of names to values is taken too, in any order; it is never printed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "headers are neither a list of {\"key\": ..., \"value\": ...} nor a map"
)]
enum HeadersJson {
    List(Vec<HeaderJson>),
    Map(BTreeMap<String, Option<String>>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderJson {
    key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
}

/// A header's name and value.
pub(super) type HeaderPair<'a> = (&'a str, Option<Cow<'a, [u8]>>);

impl RecordJson {
    /// Describes a record.
    pub(super) fn of(partition: PartitionId, record: &Record<'_>) -> anyhow::Result<Self> {
        let (key, key_base64) = text_or_base64(record.key);
        let (value, value_base64) = text_or_base64(record.value);
        let mut headers = Vec::new();
        for header in record.headers {
            let header = header?;
            let (value, value_base64) = text_or_base64(header.value);
            headers.push(HeaderJson {
                key: header.key.to_owned(),
                value,
                value_base64,
            });
        }
        Ok(Self {
            partition: Some(partition.get()),
            offset: Some(record.offset.get()),
            timestamp_ms: Some(record.timestamp.get()),
            key,
            key_base64,
            value,
            value_base64,
            headers: HeadersJson::List(headers),
        })
    }

    /// The key's bytes.
    pub(super) fn key(&self) -> anyhow::Result<Option<Cow<'_, [u8]>>> {
        bytes("key", self.key.as_deref(), self.key_base64.as_deref())
    }

    /// The value's bytes.
    pub(super) fn value(&self) -> anyhow::Result<Option<Cow<'_, [u8]>>> {
        bytes("value", self.value.as_deref(), self.value_base64.as_deref())
    }

    /// The headers.
    pub(super) fn headers(&self) -> anyhow::Result<Vec<HeaderPair<'_>>> {
        self.headers.pairs()
    }

    /// The timestamp, if one is given.
    pub(super) fn timestamp(&self) -> Option<TimestampMs> {
        self.timestamp_ms.map(TimestampMs::new)
    }
}

impl HeadersJson {
    fn is_empty(&self) -> bool {
        match self {
            Self::List(list) => list.is_empty(),
            Self::Map(map) => map.is_empty(),
        }
    }

    fn pairs(&self) -> anyhow::Result<Vec<HeaderPair<'_>>> {
        match self {
            Self::List(list) => list.iter().map(HeaderJson::pair).collect(),
            Self::Map(map) => Ok(map
                .iter()
                .map(|(key, value)| (key.as_str(), value.as_ref().map(|v| v.as_bytes().into())))
                .collect()),
        }
    }
}

impl HeaderJson {
    fn pair(&self) -> anyhow::Result<HeaderPair<'_>> {
        let (value, base64) = (self.value.as_deref(), self.value_base64.as_deref());
        let value = bytes("value", value, base64);
        let value = value.with_context(|| format!("header {}", self.key))?;
        Ok((&self.key, value))
    }
}

impl Default for HeadersJson {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

fn text_or_base64(bytes: Option<&[u8]>) -> (Option<String>, Option<String>) {
    match bytes.map(|bytes| (std::str::from_utf8(bytes), bytes)) {
        None => (None, None),
        Some((Ok(text), _)) => (Some(text.to_owned()), None),
        Some((Err(_), bytes)) => (None, Some(BASE64_STANDARD.encode(bytes))),
    }
}

fn bytes<'a>(
    name: &str,
    text: Option<&'a str>,
    base64: Option<&str>,
) -> anyhow::Result<Option<Cow<'a, [u8]>>> {
    match (text, base64) {
        (Some(_), Some(_)) => anyhow::bail!("both {name} and {name}_base64 are given"),
        (Some(text), None) => Ok(Some(text.as_bytes().into())),
        (None, Some(base64)) => {
            let decoded = BASE64_STANDARD.decode(base64);
            let decoded = decoded.with_context(|| format!("{name}_base64 is not Base64"))?;
            Ok(Some(decoded.into()))
        }
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use esker_proto::batch::{BatchBuilder, Compression, RecordBatch};
    use proptest::{collection::vec, option::of, prelude::*};

    use super::*;

    /// Any bytes: often text, often empty, often not UTF-8.
    fn any_bytes() -> impl Strategy<Value = Option<Vec<u8>>> {
        of(prop_oneof![
            ".*".prop_map(String::into_bytes),
            vec(any::<u8>(), 0..20),
        ])
    }

    fn batch(
        timestamp: TimestampMs,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&str, Option<&[u8]>)],
    ) -> RecordBatch {
        let mut builder = BatchBuilder::new(Compression::None);
        builder.push(timestamp, key, value, headers).unwrap();
        RecordBatch::validate(builder.finish(None)).unwrap()
    }

    /// Prints the only record of a batch, takes it back, and makes a batch of it.
    fn there_and_back(batch: &RecordBatch) -> RecordBatch {
        let records = batch.records().unwrap();
        let record = records.iter().next().unwrap().unwrap();
        let printed = RecordJson::of(PartitionId::new(3), &record).unwrap();
        let line = serde_json::to_string(&printed).unwrap();
        assert!(!line.contains('\n'), "{line}");
        let taken: RecordJson = serde_json::from_str(&line).unwrap();
        assert_eq!(taken.partition, Some(3));
        let headers = taken.headers().unwrap();
        let headers: Vec<_> = headers.iter().map(|(k, v)| (*k, v.as_deref())).collect();
        self::batch(
            taken.timestamp().unwrap(),
            taken.key().unwrap().as_deref(),
            taken.value().unwrap().as_deref(),
            &headers,
        )
    }

    proptest! {
        #[test]
        fn a_record_printed_and_taken_back_is_the_same(
            timestamp in any::<i64>(),
            key in any_bytes(),
            value in any_bytes(),
            headers in vec(("[a-c]?|.*", any_bytes()), 0..5),
        ) {
            let headers: Vec<_> = headers.iter().map(|(k, v)| (k.as_str(), v.as_deref())).collect();
            let timestamp = TimestampMs::new(timestamp);
            let sent = batch(timestamp, key.as_deref(), value.as_deref(), &headers);
            let taken = there_and_back(&sent);
            prop_assert_eq!(taken.bytes(), sent.bytes());
        }
    }

    #[test]
    fn headers_as_a_map_are_still_taken() {
        let json = r#"{"value":"v","headers":{"b":"2","a":null}}"#;
        let record: RecordJson = serde_json::from_str(json).unwrap();
        let headers = record.headers().unwrap();
        assert_eq!(headers, [("a", None), ("b", Some(b"2"[..].into()))]);
        let wrong = serde_json::from_str::<RecordJson>(r#"{"headers":[{"kye":"a"}]}"#);
        let wrong = wrong.unwrap_err().to_string();
        assert!(wrong.starts_with("headers are neither"), "{wrong}");
    }
}
