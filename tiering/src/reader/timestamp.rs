//! Finding an offset by time.

use esker_index::{IndexEntry, Manifest, Place, Rows};
use esker_proto::{
    batch::{BatchError, Batches},
    types::{Offset, TimestampMs, TopicPartition},
};

use super::{Inner, fetcher::Request};
use crate::error::Error;

impl Inner {
    /// Finds the first record at or above the log start whose timestamp is at least `timestamp`.
    pub(super) async fn offset_for_timestamp(
        &self,
        manifest: &Manifest,
        timestamp: TimestampMs,
    ) -> Result<Option<(Offset, TimestampMs)>, Error> {
        let tp = manifest.header().topic_partition;
        let mut from = manifest.log_start_offset();
        loop {
            let rows = match manifest.find_timestamp(timestamp, from) {
                Place::Page(page) => self.pages.rows(tp, page).await?,
                Place::Head => manifest.head().clone(),
                Place::AtEnd | Place::BelowStart => return Ok(None),
            };
            if let Some(found) = self.find_in_rows(tp, &rows, timestamp, &mut from).await? {
                return Ok(Some(found));
            }
        }
    }

    /// Searches one page or the head; without a find, `from` is behind its last row.
    async fn find_in_rows(
        &self,
        tp: TopicPartition,
        rows: &Rows,
        timestamp: TimestampMs,
        from: &mut Offset,
    ) -> Result<Option<(Offset, TimestampMs)>, Error> {
        while let Some(index) = rows.seek_timestamp(timestamp, *from) {
            let plan = self.plan(rows, index, 0);
            let chunk = match self.fetcher.demand(tp, &plan) {
                Request::Ready(chunk) => chunk,
                Request::Pending(pending) => pending.arrived().await?,
            };
            let entry = index - plan.rows.start;
            let bytes = chunk
                .read()
                .slice(plan.entry_start(entry)..plan.entry_end(entry));
            let found = find_in_batches(Batches::new(bytes), timestamp, *from);
            let found = found.map_err(|error| unreadable(tp, &plan.entries[entry], &error))?;
            if found.is_some() {
                return Ok(found);
            }
            *from = plan.entries[entry].next_offset();
        }
        *from = rows.next_offset().unwrap_or(*from).max(*from);
        Ok(None)
    }
}

/// Decodes only batches that may hold such a record.
fn find_in_batches(
    batches: Batches,
    timestamp: TimestampMs,
    from: Offset,
) -> Result<Option<(Offset, TimestampMs)>, BatchError> {
    for batch in batches {
        let batch = batch?;
        let header = batch.header();
        if header.max_timestamp < timestamp || header.next_offset() <= from {
            continue;
        }
        for record in &batch.records()? {
            let record = record?;
            if record.timestamp >= timestamp && record.offset >= from {
                return Ok(Some((record.offset, record.timestamp)));
            }
        }
    }
    Ok(None)
}

fn unreadable(tp: TopicPartition, entry: &IndexEntry, error: &BatchError) -> Error {
    let offset = entry.base_offset;
    Error::corrupt(
        tp.to_string(),
        format!("{error} in the batches from offset {offset} on"),
    )
}
