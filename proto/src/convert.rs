//! Conversions between plain wire records and batches, for callers without a batch encoder.

use bytes::Bytes;

use crate::{
    batch::{BatchBuilder, BatchError, Record, Records},
    types::{Offset, TimestampMs},
    v1,
};

/// Appends a plain record to the batch being built. A timestamp of 0 means `now`.
///
/// # Errors
///
/// Those of [`BatchBuilder::push`].
pub fn push_wire_record(
    builder: &mut BatchBuilder,
    record: &v1::Record,
    now: TimestampMs,
) -> Result<(), BatchError> {
    let timestamp = match record.timestamp_ms {
        0 => now,
        timestamp_ms => TimestampMs::new(timestamp_ms),
    };
    let headers: Vec<_> = record
        .headers
        .iter()
        .map(|header| (header.key.as_str(), header.value.as_deref()))
        .collect();
    builder.push(
        timestamp,
        record.key.as_deref(),
        record.value.as_deref(),
        &headers,
    )
}

/// Returns the records from `offset` on as plain ones. Their keys and values share the memory of
/// the batch. The iterator is lazy, so that the caller bounds what is held at a time.
pub fn wire_records(
    records: &Records,
    offset: Offset,
) -> impl Iterator<Item = Result<v1::Record, BatchError>> {
    let is_wanted = move |record: &Result<Record<'_>, BatchError>| {
        record
            .as_ref()
            .map_or(true, |record| record.offset >= offset)
    };
    records
        .iter()
        .filter(is_wanted)
        .map(|record| wire_record(records.bytes(), record?))
}

fn wire_record(bytes: &Bytes, record: Record<'_>) -> Result<v1::Record, BatchError> {
    let shared = |part: Option<&[u8]>| part.map(|part| bytes.slice_ref(part));
    let headers = record.headers.map(|header| {
        let header = header?;
        Ok(v1::Header {
            key: header.key.to_owned(),
            value: shared(header.value),
        })
    });
    Ok(v1::Record {
        key: shared(record.key),
        value: shared(record.value),
        headers: headers.collect::<Result<_, BatchError>>()?,
        timestamp_ms: record.timestamp.get(),
        offset: record.offset.get(),
    })
}
