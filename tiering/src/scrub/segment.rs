//! Reads segment objects: their trailers, and all their bytes.

use std::ops::Range;

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use esker_index::{IndexEntry, SegmentMeta, SegmentTrailer, TRAILER_TAIL_BYTES};
use esker_proto::{batch::Batches, types::OffsetRange};

use crate::{error::Error, store::Store};

/// Enough for most trailers, so that one request is.
const TAIL_BYTES: u64 = 64 * 1024;
/// Bytes of a segment read at a time.
const READ_BYTES: u64 = 8 << 20;

/// Why a segment object is not what it should be.
#[derive(Debug)]
pub(crate) struct Fault {
    pub reason: String,
    /// Offsets known to be spoiled.
    pub offsets: Option<OffsetRange>,
}

impl Fault {
    fn whole(reason: impl ToString) -> Self {
        Self {
            reason: reason.to_string(),
            offsets: None,
        }
    }
}

/// Reads the trailer of an object of `size_bytes`. The outer error is the store's, the inner one
/// says why the bytes make no trailer.
pub(crate) async fn read_trailer(
    store: &Store,
    key: &str,
    size_bytes: u64,
) -> Result<Result<SegmentTrailer, Fault>, Error> {
    // The store refuses to read an empty range.
    if size_bytes < TRAILER_TAIL_BYTES as u64 {
        let reason = format!("object of {size_bytes} bytes is too short for a trailer");
        return Ok(Err(Fault::whole(reason)));
    }
    let mut wanted = TAIL_BYTES;
    loop {
        let tail = store
            .get_range(key, size_bytes.saturating_sub(wanted)..size_bytes)
            .await?;
        match SegmentTrailer::decode_from_tail(&tail) {
            Ok(trailer) => return Ok(check_length(trailer, &tail, size_bytes)),
            Err(esker_index::Error::TailTooShort { needed_bytes }) => {
                let needed_bytes = needed_bytes as u64;
                if needed_bytes > size_bytes || needed_bytes <= wanted {
                    return Ok(Err(Fault::whole("object is shorter than its trailer")));
                }
                wanted = needed_bytes;
            }
            Err(error) => return Ok(Err(Fault::whole(error))),
        }
    }
}

fn check_length(
    trailer: SegmentTrailer,
    tail: &[u8],
    size_bytes: u64,
) -> Result<SegmentTrailer, Fault> {
    let length = SegmentTrailer::length_from_tail(tail).map_err(Fault::whole)? as u64;
    if trailer.meta.size_bytes.checked_add(length) == Some(size_bytes) {
        return Ok(trailer);
    }
    Err(Fault::whole("object length does not add up"))
}

/// The least length of an object with these batches.
pub(crate) const fn size_bytes_min(meta: &SegmentMeta) -> u64 {
    meta.size_bytes.saturating_add(TRAILER_TAIL_BYTES as u64)
}

/// Reads all of a segment and compares it with what the manifest says.
pub(super) async fn check_bytes(
    store: &Store,
    key: &str,
    meta: &SegmentMeta,
    entries: &[IndexEntry],
) -> Result<Result<(), Fault>, Error> {
    let size_bytes = store.head(key).await?.size_bytes;
    let trailer = match read_trailer(store, key, size_bytes).await? {
        Ok(trailer) => trailer,
        Err(fault) => return Ok(Err(fault)),
    };
    if trailer.meta != *meta {
        return Ok(Err(Fault::whole("trailer disagrees with the manifest")));
    }
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for run in runs(entries) {
        let (first, last) = (entries[run.start], entries[run.end - 1]);
        let range = first.position.get()..last.next_position().get();
        let bytes = store.get_range(key, range).await?;
        digest.update(&bytes);
        if let Err(fault) = check_run(&bytes, &entries[run]) {
            return Ok(Err(fault));
        }
    }
    if digest.finalize() != u64::from(meta.crc32c) {
        return Ok(Err(Fault::whole("segment checksum mismatch")));
    }
    Ok(Ok(()))
}

/// Cuts entries into runs of about [`READ_BYTES`].
fn runs(entries: &[IndexEntry]) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    let mut start = 0;
    for (index, entry) in entries.iter().enumerate() {
        let length = entry.next_position().get() - entries[start].position.get();
        if length >= READ_BYTES || index + 1 == entries.len() {
            runs.push(start..index + 1);
            start = index + 1;
        }
    }
    runs
}

fn check_run(bytes: &Bytes, entries: &[IndexEntry]) -> Result<(), Fault> {
    let mut rest = bytes.clone();
    for entry in entries {
        let length = usize::try_from(entry.length).expect("a length of 32 bits fits usize");
        check_entry(rest.split_to(length), entry).map_err(|reason| Fault {
            reason,
            offsets: Some(entry.base_offset..entry.next_offset()),
        })?;
    }
    Ok(())
}

fn check_entry(bytes: Bytes, entry: &IndexEntry) -> Result<(), String> {
    let mut next_offset = entry.base_offset;
    for batch in Batches::new(bytes) {
        let batch = batch.map_err(|error| error.to_string())?;
        if batch.header().base_offset != next_offset {
            return Err(format!("offsets leave a gap. expected=`{next_offset}`"));
        }
        next_offset = batch.header().next_offset();
    }
    if next_offset != entry.next_offset() {
        return Err(format!(
            "batches end elsewhere. next_offset=`{next_offset}`"
        ));
    }
    Ok(())
}
