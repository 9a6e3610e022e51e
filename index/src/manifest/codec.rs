//! The manifest's bytes: the head as a table, everything else as text in its metadata.
//!
//! | key | value |
//! | --- | --- |
//! | `esker.format` | `manifest` |
//! | `esker.manifest` | JSON object: ids, version, leader epoch, nonce, previous version's SHA-256, offsets |
//! | `esker.epochs` | JSON array of `[leader epoch, start offset]` |
//! | `esker.pages` | JSON object of arrays, one element per page |
//! | `esker.producers` | base64 of the producer snapshot |
//!
//! Pages are tables of the same columns whose `esker.format` is `page`.

use std::collections::HashMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use esker_proto::types::{
    ClusterId, LeaderEpoch, ManifestVersion, Offset, PartitionId, TimestampMs, TopicId,
    TopicPartition,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use uuid::Uuid;

use super::{HEAD_ROWS_MAX, Header, Manifest, ManifestParts, PageId, PageRef};
use crate::{Error, Sha256Digest, table};

const MANIFEST: &str = "esker.manifest";
const EPOCHS: &str = "esker.epochs";
const PAGES: &str = "esker.pages";
const PRODUCERS: &str = "esker.producers";

impl Manifest {
    /// Encodes this version; `prev_sha256` is that of the previous version's object.
    pub fn encode(&self, prev_sha256: Sha256Digest) -> Bytes {
        let parts = &self.0;
        let metadata = vec![
            ("esker.format", "manifest".to_owned()),
            (MANIFEST, to_json(&HeaderText::of(parts, prev_sha256))),
            (EPOCHS, to_json(&parts.epochs)),
            (PAGES, to_json(&PageColumns::of(&parts.pages))),
            (PRODUCERS, BASE64_STANDARD.encode(&parts.producers)),
        ];
        table::write(&parts.head, metadata).into()
    }

    /// Decodes a version and checks the invariants.
    pub fn decode(object: Bytes) -> Result<Self, Error> {
        let table = table::read(object, HEAD_ROWS_MAX)?;
        let header: HeaderText = from_json(&table.metadata, MANIFEST)?;
        let pages: PageColumns = from_json(&table.metadata, PAGES)?;
        let producers = text(&table.metadata, PRODUCERS)?;
        let malformed = |_| Error::Malformed { what: PRODUCERS };
        Self::from_parts(ManifestParts {
            header: header.header()?,
            log_start_offset: header.log_start_offset,
            tiered_offset: header.tiered_offset,
            epochs: from_json(&table.metadata, EPOCHS)?,
            producers: BASE64_STANDARD.decode(producers).map_err(malformed)?.into(),
            pages: pages.into_refs()?.into(),
            head: table.rows,
        })
    }

    /// Returns the nonce in the bytes of a manifest; `None` if they are none.
    pub fn nonce_of(object: &[u8]) -> Option<u128> {
        let manifest = Self::decode(Bytes::copy_from_slice(object)).ok()?;
        Some(manifest.header().nonce)
    }
}

fn to_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("strings, numbers and arrays are always JSON")
}

fn text<'a>(metadata: &'a HashMap<String, String>, what: &'static str) -> Result<&'a str, Error> {
    metadata
        .get(what)
        .map(String::as_str)
        .ok_or(Error::Malformed { what })
}

fn from_json<T: DeserializeOwned>(
    metadata: &HashMap<String, String>,
    what: &'static str,
) -> Result<T, Error> {
    serde_json::from_str(text(metadata, what)?).map_err(|_| Error::Malformed { what })
}

#[derive(Serialize, Deserialize)]
struct HeaderText {
    cluster_id: ClusterId,
    topic_id: TopicId,
    partition: PartitionId,
    version: ManifestVersion,
    leader_epoch: LeaderEpoch,
    nonce: String,
    prev_sha256: String,
    log_start_offset: Offset,
    tiered_offset: Offset,
}

impl HeaderText {
    fn of(parts: &ManifestParts, prev_sha256: Sha256Digest) -> Self {
        let Header {
            cluster_id,
            topic_partition,
            version,
            leader_epoch,
            nonce,
            ..
        } = parts.header;
        let TopicPartition {
            topic_id,
            partition,
        } = topic_partition;
        Self {
            cluster_id,
            topic_id,
            partition,
            version,
            leader_epoch,
            nonce: format!("{nonce:032x}"),
            prev_sha256: prev_sha256
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
            log_start_offset: parts.log_start_offset,
            tiered_offset: parts.tiered_offset,
        }
    }

    fn header(&self) -> Result<Header, Error> {
        let malformed = |_| Error::Malformed { what: MANIFEST };
        Ok(Header {
            cluster_id: self.cluster_id,
            topic_partition: TopicPartition {
                topic_id: self.topic_id,
                partition: self.partition,
            },
            version: self.version,
            leader_epoch: self.leader_epoch,
            nonce: u128::from_str_radix(&self.nonce, 16).map_err(malformed)?,
            prev_sha256: parse_digest(&self.prev_sha256)?,
        })
    }
}

fn parse_digest(hex: &str) -> Result<Sha256Digest, Error> {
    let malformed = Error::Malformed { what: MANIFEST };
    let digits = hex.as_bytes();
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(malformed);
    }
    let mut digest = [0; 32];
    for (byte, pair) in digest.iter_mut().zip(digits.chunks(2)) {
        let pair = std::str::from_utf8(pair).expect("ASCII digits are UTF-8");
        *byte = u8::from_str_radix(pair, 16).map_err(|_| malformed.clone())?;
    }
    Ok(digest)
}

/// Page references, column by column: half the size of an object for each, and still text.
#[derive(Default, Serialize, Deserialize)]
struct PageColumns {
    id: Vec<Uuid>,
    leader_epoch: Vec<LeaderEpoch>,
    level: Vec<u8>,
    base_offset: Vec<Offset>,
    next_offset: Vec<Offset>,
    row_count: Vec<u32>,
    segment_count: Vec<u32>,
    segment_bytes: Vec<u64>,
    min_timestamp: Vec<TimestampMs>,
    max_timestamp: Vec<TimestampMs>,
    /// Empty in the first manifests.
    #[serde(default)]
    min_uploaded_at: Vec<TimestampMs>,
    #[serde(default)]
    max_uploaded_at: Vec<TimestampMs>,
    size_bytes: Vec<u64>,
    crc32c: Vec<u32>,
}

impl PageColumns {
    fn of(pages: &[PageRef]) -> Self {
        let mut columns = Self::default();
        for page in pages {
            columns.id.push(page.id.get());
            columns.leader_epoch.push(page.leader_epoch);
            columns.level.push(page.level);
            columns.base_offset.push(page.base_offset);
            columns.next_offset.push(page.next_offset);
            columns.row_count.push(page.row_count);
            columns.segment_count.push(page.segment_count);
            columns.segment_bytes.push(page.segment_bytes);
            columns.min_timestamp.push(page.min_timestamp);
            columns.max_timestamp.push(page.max_timestamp);
            columns.min_uploaded_at.push(page.min_uploaded_at);
            columns.max_uploaded_at.push(page.max_uploaded_at);
            columns.size_bytes.push(page.size_bytes);
            columns.crc32c.push(page.crc32c);
        }
        columns
    }

    fn into_refs(self) -> Result<Vec<PageRef>, Error> {
        (0..self.id.len())
            .map(|index| self.page(index).ok_or(Error::Malformed { what: PAGES }))
            .collect()
    }

    fn uploaded_at(&self, column: &[TimestampMs], index: usize) -> Option<TimestampMs> {
        if self.min_uploaded_at.is_empty() && self.max_uploaded_at.is_empty() {
            return Some(TimestampMs::default());
        }
        column.get(index).copied()
    }

    fn page(&self, index: usize) -> Option<PageRef> {
        Some(PageRef {
            id: PageId::new(*self.id.get(index)?),
            leader_epoch: *self.leader_epoch.get(index)?,
            level: *self.level.get(index)?,
            base_offset: *self.base_offset.get(index)?,
            next_offset: *self.next_offset.get(index)?,
            row_count: *self.row_count.get(index)?,
            segment_count: *self.segment_count.get(index)?,
            segment_bytes: *self.segment_bytes.get(index)?,
            min_timestamp: *self.min_timestamp.get(index)?,
            max_timestamp: *self.max_timestamp.get(index)?,
            min_uploaded_at: self.uploaded_at(&self.min_uploaded_at, index)?,
            max_uploaded_at: self.uploaded_at(&self.max_uploaded_at, index)?,
            size_bytes: *self.size_bytes.get(index)?,
            crc32c: *self.crc32c.get(index)?,
        })
    }
}
