//! What must hold of every manifest and between two versions; checked whenever one is made, by an
//! update or from bytes. What must hold of rows is in `rows/invariants.rs`.
//!
//! | id | promise |
//! | --- | --- |
//! | I1 | pages are not empty, and each begins where the one before it ends |
//! | I2 | the head begins where the pages end |
//! | I3 | the index ends at the tiered offset; without index it is the log start |
//! | I4 | the log start is within the oldest page, or the oldest segment of the head |
//! | I5 | no segment or page is of a later leader epoch than the manifest |
//! | I6 | a page holds the rows that its reference counts |
//! | I7 | no leader epoch starts above the tiered offset, or is later than the manifest's |
//! | I8 | head and pages keep to their limits, and offsets to 63 bits |
//! | N1 | the next version is of the same partition, one higher, and of no earlier leader epoch |
//! | N2 | neither log start nor tiered offset falls |

use esker_proto::types::Offset;

use super::{HEAD_ROWS_MAX, HEAD_SEGMENTS_MAX, ManifestParts, PAGE_ROWS_MAX, PageRef};
use crate::{Error, error::ensure};

/// Checks I1 to I5, I7 and I8.
pub(super) fn check(parts: &ManifestParts) -> Result<(), Error> {
    pages_follow_each_other(parts)?;
    head_follows_pages(parts)?;
    index_ends_at_tiered_offset(parts)?;
    log_start_is_in_oldest(parts)?;
    nothing_is_of_a_later_epoch(parts)?;
    epochs_are_of_the_tiered_log(parts)?;
    limits_are_kept(parts)
}

/// Checks N1 and N2.
pub(super) fn check_follows(previous: &ManifestParts, next: &ManifestParts) -> Result<(), Error> {
    let (old, new) = (&previous.header, &next.header);
    let same_log = old.cluster_id == new.cluster_id && old.topic_partition == new.topic_partition;
    let follows = new.version.get() == old.version.get().saturating_add(1);
    let at = new.version.get();
    ensure(
        same_log && follows && old.leader_epoch <= new.leader_epoch,
        "N1",
        at,
    )?;
    let rises = previous.log_start_offset <= next.log_start_offset
        && previous.tiered_offset <= next.tiered_offset;
    ensure(rises, "N2", at)
}

fn pages_follow_each_other(parts: &ManifestParts) -> Result<(), Error> {
    for page in &*parts.pages {
        let is_empty = page.row_count == 0 || page.segment_count == 0;
        let holds = !is_empty && page.base_offset < page.next_offset;
        ensure(holds, "I1", page.base_offset.get())?;
    }
    for pair in parts.pages.windows(2) {
        let at = pair[1].base_offset;
        ensure(pair[0].next_offset == at, "I1", at.get())?;
    }
    Ok(())
}

fn head_follows_pages(parts: &ManifestParts) -> Result<(), Error> {
    let (Some(page), Some(base)) = (parts.pages.last(), parts.head.base_offset()) else {
        return Ok(());
    };
    ensure(page.next_offset == base, "I2", base.get())
}

fn index_ends_at_tiered_offset(parts: &ManifestParts) -> Result<(), Error> {
    let paged = parts.pages.last().map(|page| page.next_offset);
    let end = parts
        .head
        .next_offset()
        .or(paged)
        .unwrap_or(parts.log_start_offset);
    ensure(end == parts.tiered_offset, "I3", end.get())
}

fn log_start_is_in_oldest(parts: &ManifestParts) -> Result<(), Error> {
    let page = parts
        .pages
        .first()
        .map(|page| (page.base_offset, page.next_offset));
    let segment = parts
        .head
        .segments()
        .first()
        .map(|meta| (meta.base_offset, meta.next_offset));
    let Some((base, next)) = page.or(segment) else {
        return Ok(());
    };
    let log_start = parts.log_start_offset;
    ensure(base <= log_start && log_start < next, "I4", log_start.get())
}

fn nothing_is_of_a_later_epoch(parts: &ManifestParts) -> Result<(), Error> {
    let epoch = parts.header.leader_epoch;
    let later_page = parts.pages.iter().find(|page| page.leader_epoch > epoch);
    ensure(
        later_page.is_none(),
        "I5",
        later_page.map_or(0, |page| page.base_offset.get()),
    )?;
    // Epochs do not fall from segment to segment (S8), so the last one tells.
    let newest = parts.head.segments().last();
    let later = newest.filter(|meta| meta.leader_epoch > epoch);
    ensure(
        later.is_none(),
        "I5",
        later.map_or(0, |meta| meta.base_offset.get()),
    )
}

fn epochs_are_of_the_tiered_log(parts: &ManifestParts) -> Result<(), Error> {
    let Some(last) = parts.epochs.last() else {
        return Ok(());
    };
    let holds =
        last.start_offset <= parts.tiered_offset && last.leader_epoch <= parts.header.leader_epoch;
    ensure(holds, "I7", last.start_offset.get())
}

fn limits_are_kept(parts: &ManifestParts) -> Result<(), Error> {
    let (rows, segments) = (parts.head.len(), parts.head.segments().len());
    ensure(
        rows <= HEAD_ROWS_MAX && segments <= HEAD_SEGMENTS_MAX,
        "I8",
        rows as u64,
    )?;
    let is_large = |page: &&PageRef| page.row_count as usize > PAGE_ROWS_MAX;
    let large = parts.pages.iter().find(is_large);
    ensure(
        large.is_none(),
        "I8",
        large.map_or(0, |page| page.base_offset.get()),
    )?;
    ensure(
        parts.tiered_offset <= Offset::MAX,
        "I8",
        parts.tiered_offset.get(),
    )
}
