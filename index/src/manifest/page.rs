//! References to pages, and pages themselves.

use std::{fmt, str::FromStr};

use bytes::Bytes;
use esker_proto::types::{LeaderEpoch, Offset, TimestampMs};
use uuid::Uuid;

use super::merge::PAGE_ROWS_MAX;
use crate::{Error, Rows, SegmentMeta, checksum::crc32c, error::ensure, table};

/// Identity of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(Uuid);

impl PageId {
    /// Wraps a UUID.
    pub const fn new(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// Returns the UUID.
    pub const fn get(self) -> Uuid {
        self.0
    }
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

impl FromStr for PageId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::parse_str(text).map(Self)
    }
}

/// What a manifest knows of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRef {
    /// Identity; in its object key.
    pub id: PageId,
    /// Epoch of the leader that wrote it; in its object key.
    pub leader_epoch: LeaderEpoch,
    /// How often its rows were merged.
    pub level: u8,
    /// First offset of its rows; in its object key.
    pub base_offset: Offset,
    /// Offset after its last row.
    pub next_offset: Offset,
    /// Rows in the page.
    pub row_count: u32,
    /// Segments of the page that are not wholly below the log start.
    ///
    /// This, [`PageRef::segment_bytes`] and the timestamps follow the log start as it moves through
    /// the oldest page, provided that the update which trims brings that page's rows; without them
    /// they still count the segments just trimmed.
    pub segment_count: u32,
    /// Bytes of those segments' batches.
    pub segment_bytes: u64,
    /// Least timestamp of those segments.
    pub min_timestamp: TimestampMs,
    /// Greatest timestamp of those segments.
    pub max_timestamp: TimestampMs,
    /// When the first of those segments was uploaded; 0 where the index does not say.
    pub min_uploaded_at: TimestampMs,
    /// When the last of them was.
    pub max_uploaded_at: TimestampMs,
    /// Length of the page object.
    pub size_bytes: u64,
    /// CRC-32C of the page object.
    pub crc32c: u32,
}

/// A page to be stored before the manifest that names it is committed.
#[derive(Clone, Debug)]
pub struct NewPage {
    /// What the manifest says of it.
    pub page_ref: PageRef,
    /// The object.
    pub bytes: Bytes,
}

impl NewPage {
    /// Encodes `rows`, of which there must be some, as a page.
    pub(super) fn encode(
        rows: &Rows,
        (id, level, leader_epoch): (PageId, u8, LeaderEpoch),
    ) -> Result<Self, Error> {
        let bytes = Bytes::from(table::write(
            rows,
            vec![("esker.format", "page".to_owned())],
        ));
        let page_ref = PageRef {
            id,
            leader_epoch,
            level,
            base_offset: rows.base_offset().ok_or_else(no_rows)?,
            next_offset: rows.next_offset().ok_or_else(no_rows)?,
            row_count: count(rows.len())?,
            segment_count: 0,
            segment_bytes: 0,
            min_timestamp: TimestampMs::default(),
            max_timestamp: TimestampMs::default(),
            min_uploaded_at: TimestampMs::default(),
            max_uploaded_at: TimestampMs::default(),
            size_bytes: bytes.len() as u64,
            crc32c: crc32c(&[&bytes]),
        };
        let page_ref = page_ref.with_live(rows, Offset::ZERO)?;
        Ok(Self { page_ref, bytes })
    }
}

impl PageRef {
    /// Returns the reference with counts and timestamps of the segments that end above
    /// `log_start_offset`, of which there must be one.
    pub(super) fn with_live(self, rows: &Rows, log_start_offset: Offset) -> Result<Self, Error> {
        let dead = rows
            .segments()
            .partition_point(|meta| meta.next_offset <= log_start_offset);
        let live = &rows.segments()[dead..];
        Ok(Self {
            segment_count: count(live.len())?,
            segment_bytes: live
                .iter()
                .fold(0, |sum: u64, meta| sum.saturating_add(meta.size_bytes)),
            min_timestamp: least(live, |meta| meta.min_timestamp)?,
            max_timestamp: greatest(live, |meta| meta.max_timestamp)?,
            min_uploaded_at: least(live, |meta| meta.uploaded_at)?,
            max_uploaded_at: greatest(live, |meta| meta.uploaded_at)?,
            ..self
        })
    }

    /// Whether `rows` can be this page's.
    pub(crate) fn is_of(&self, rows: &Rows) -> bool {
        rows.len() as u64 == u64::from(self.row_count)
            && rows.base_offset() == Some(self.base_offset)
            && rows.next_offset() == Some(self.next_offset)
    }
}

fn least(
    segments: &[SegmentMeta],
    time: impl Fn(&SegmentMeta) -> TimestampMs,
) -> Result<TimestampMs, Error> {
    segments.iter().map(time).min().ok_or_else(no_rows)
}

fn greatest(
    segments: &[SegmentMeta],
    time: impl Fn(&SegmentMeta) -> TimestampMs,
) -> Result<TimestampMs, Error> {
    segments.iter().map(time).max().ok_or_else(no_rows)
}

const fn no_rows() -> Error {
    Error::Malformed {
        what: "page without rows",
    }
}

fn count(length: usize) -> Result<u32, Error> {
    u32::try_from(length).map_err(|_| Error::TooLarge {
        limit: "PAGE_ROWS_MAX",
        actual: length as u64,
    })
}

impl Rows {
    /// Decodes a page object, which must be the one that `page_ref` names.
    ///
    /// CPU only, but for a large page that is tens of milliseconds of it.
    pub fn decode_page(bytes: Bytes, page_ref: &PageRef) -> Result<Self, Error> {
        let (expected, actual) = (page_ref.size_bytes, bytes.len() as u64);
        if expected != actual {
            return Err(Error::WrongLength {
                format: "page",
                expected,
                actual,
            });
        }
        if crc32c(&[&bytes]) != page_ref.crc32c {
            return Err(Error::ChecksumMismatch { format: "page" });
        }
        let rows = table::read(bytes, PAGE_ROWS_MAX)?.rows;
        ensure(page_ref.is_of(&rows), "I6", page_ref.base_offset.get())?;
        Ok(rows)
    }
}
