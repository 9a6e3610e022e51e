//! What must hold of segments and their entries; checked when rows are built, from whatever source.
//!
//! | id | promise |
//! | --- | --- |
//! | S1 | a segment has an entry, and its first one is at its base offset and position 0 |
//! | S2 | each entry begins at the offset and position at which the one before it ends |
//! | S3 | the last entry ends at the segment's next offset and size |
//! | S4 | every entry has a record and a byte |
//! | S5 | timestamps are ordered, and the segment's are the least and greatest of its entries' |
//! | S6 | offsets and positions fit 63 bits |
//! | S7 | a segment begins where the one before it ends |
//! | S8 | leader epochs do not fall from segment to segment |

use esker_proto::types::{Offset, Position};

use crate::{Error, IndexEntry, SEGMENT_ENTRIES_MAX, SegmentMeta, error::ensure};

/// Checks S1 to S6.
pub(crate) fn check_segment(meta: &SegmentMeta, entries: &[IndexEntry]) -> Result<(), Error> {
    let actual = entries.len() as u64;
    if entries.len() > SEGMENT_ENTRIES_MAX {
        return Err(Error::TooLarge {
            limit: "SEGMENT_ENTRIES_MAX",
            actual,
        });
    }
    ensure(!entries.is_empty(), "S1", meta.base_offset.get())?;
    let (mut offset, mut position) = (meta.base_offset, Position::ZERO);
    for entry in entries {
        let at = entry.base_offset.get();
        let id = if position == Position::ZERO {
            "S1"
        } else {
            "S2"
        };
        ensure(
            entry.base_offset == offset && entry.position == position,
            id,
            at,
        )?;
        ensure(entry.record_count > 0 && entry.length > 0, "S4", at)?;
        ensure(entry.min_timestamp <= entry.max_timestamp, "S5", at)?;
        ensure(fits(entry), "S6", at)?;
        (offset, position) = (entry.next_offset(), entry.next_position());
    }
    let at = meta.next_offset.get();
    ensure(
        offset == meta.next_offset && position.get() == meta.size_bytes,
        "S3",
        at,
    )?;
    ensure(times_agree(meta, entries), "S5", at)
}

/// Checks S7 and S8.
pub(crate) fn check_neighbours(before: &SegmentMeta, after: &SegmentMeta) -> Result<(), Error> {
    let at = after.base_offset.get();
    ensure(before.next_offset == after.base_offset, "S7", at)?;
    ensure(before.leader_epoch <= after.leader_epoch, "S8", at)
}

fn times_agree(meta: &SegmentMeta, entries: &[IndexEntry]) -> bool {
    let min = entries.iter().map(|entry| entry.min_timestamp).min();
    let max = entries.iter().map(|entry| entry.max_timestamp).max();
    (min, max) == (Some(meta.min_timestamp), Some(meta.max_timestamp))
}

/// Bounds the sums too: a 63-bit number and a 32-bit one do not overflow 64 bits.
fn fits(entry: &IndexEntry) -> bool {
    let bound = Offset::MAX.get();
    let ends = |start: u64, count: u32| start <= bound && start + u64::from(count) <= bound;
    ends(entry.base_offset.get(), entry.record_count) && ends(entry.position.get(), entry.length)
}
