//! Records as JSON: what `consume --format json` prints and `produce --format json` takes.
//!
//! Keys and values that are UTF-8 stand as text, others in Base64 under `key_base64`, `value_base64`.

use std::collections::BTreeMap;

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
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, Option<String>>,
}

impl RecordJson {
    /// Describes a record.
    pub(super) fn of(partition: PartitionId, record: &Record<'_>) -> anyhow::Result<Self> {
        let (key, key_base64) = text_or_base64(record.key);
        let (value, value_base64) = text_or_base64(record.value);
        let mut headers = BTreeMap::new();
        for header in record.headers {
            let header = header?;
            let value = header
                .value
                .map(|value| String::from_utf8_lossy(value).into_owned());
            if header.key != super::source::HEADER {
                headers.insert(header.key.to_owned(), value);
            }
        }
        Ok(Self {
            partition: Some(partition.get()),
            offset: Some(record.offset.get()),
            timestamp_ms: Some(record.timestamp.get()),
            key,
            key_base64,
            value,
            value_base64,
            headers,
        })
    }

    /// The key's bytes.
    pub(super) fn key(&self) -> anyhow::Result<Option<Vec<u8>>> {
        bytes("key", self.key.as_deref(), self.key_base64.as_deref())
    }

    /// The value's bytes.
    pub(super) fn value(&self) -> anyhow::Result<Option<Vec<u8>>> {
        bytes("value", self.value.as_deref(), self.value_base64.as_deref())
    }

    /// The headers, as a producer takes them.
    pub(super) fn headers(&self) -> Vec<(&str, Option<&[u8]>)> {
        let headers = self.headers.iter();
        headers
            .map(|(key, value)| (key.as_str(), value.as_deref().map(str::as_bytes)))
            .collect()
    }

    /// The timestamp, if one is given.
    pub(super) fn timestamp(&self) -> Option<TimestampMs> {
        self.timestamp_ms.map(TimestampMs::new)
    }
}

fn text_or_base64(bytes: Option<&[u8]>) -> (Option<String>, Option<String>) {
    match bytes.map(|bytes| (std::str::from_utf8(bytes), bytes)) {
        None => (None, None),
        Some((Ok(text), _)) => (Some(text.to_owned()), None),
        Some((Err(_), bytes)) => (None, Some(BASE64_STANDARD.encode(bytes))),
    }
}

fn bytes(name: &str, text: Option<&str>, base64: Option<&str>) -> anyhow::Result<Option<Vec<u8>>> {
    match (text, base64) {
        (Some(_), Some(_)) => anyhow::bail!("both {name} and {name}_base64 are given"),
        (Some(text), None) => Ok(Some(text.as_bytes().to_vec())),
        (None, Some(base64)) => {
            let decoded = BASE64_STANDARD.decode(base64);
            Ok(Some(
                decoded.with_context(|| format!("{name}_base64 is no Base64"))?,
            ))
        }
        (None, None) => Ok(None),
    }
}
