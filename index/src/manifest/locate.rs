//! Where in the index an offset or a timestamp is.

use esker_proto::types::{Offset, TimestampMs};

use super::{Manifest, PageRef};

/// Where to look further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// Below the log start: trimmed.
    BelowStart,
    /// In this page.
    Page(&'a PageRef),
    /// In the head.
    Head,
    /// At or above the tiered offset: not in the bucket.
    AtEnd,
}

impl Manifest {
    /// Returns the place of `offset`.
    pub fn find(&self, offset: Offset) -> Place<'_> {
        if offset < self.log_start_offset() {
            return Place::BelowStart;
        }
        if offset >= self.tiered_offset() {
            return Place::AtEnd;
        }
        let before = self
            .pages()
            .partition_point(|page| page.next_offset <= offset);
        self.pages().get(before).map_or(Place::Head, Place::Page)
    }

    /// Returns the first place, at or above `from` and the log start, that may hold a record whose
    /// timestamp is at least `timestamp`.
    ///
    /// The caller goes on with [`crate::Rows::seek_timestamp`]. If that finds nothing, as may be in
    /// a page that is partly below `from` or the log start, it asks again from the place's end.
    pub fn find_timestamp(&self, timestamp: TimestampMs, from: Offset) -> Place<'_> {
        let from = from.max(self.log_start_offset());
        let before = self
            .pages()
            .partition_point(|page| page.next_offset <= from);
        let mut later = self.pages()[before..].iter();
        if let Some(page) = later.find(|page| page.max_timestamp >= timestamp) {
            return Place::Page(page);
        }
        match self.head().seek_timestamp(timestamp, from) {
            Some(_) => Place::Head,
            None => Place::AtEnd,
        }
    }
}
