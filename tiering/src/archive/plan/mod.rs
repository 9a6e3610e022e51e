//! Decides which objects of a partition are garbage. Pure.
//!
//! A listing may be stale, and a deposed leader may look at an old manifest; both must be harmless.
//! What makes an object garbage is therefore never that something is absent, nor an age, but that no
//! manifest can name it at any later time:
//!
//! - Commits add segments at the tiered offset and nowhere below, and the tiered offset never
//!   falls. So an unnamed segment that begins below the tiered offset, of *any* manifest, is garbage
//!   for ever.
//! - A leader whose epoch is below an opened one can commit no more. So a page that it put and did
//!   not commit is garbage for ever. A segment of it is garbage only below the tiered offset: above,
//!   a manifest that was lost may have named it.
//! - Anything else that is unnamed may be on its way into a manifest.

use esker_index::{Manifest, Rows, SegmentMeta, retention::RetentionPolicy};
use esker_proto::types::{LeaderEpoch, Offset, TimestampMs};

use crate::keys::SegmentName;

/// Most objects that one call of garbage collection deletes.
pub(crate) const DELETES_PER_CALL_MAX: usize = 4096;
/// Most dead objects remembered between calls; what is beyond is found again by a scan.
pub(crate) const DEAD_MAX: usize = 16_384;
/// Old manifest versions kept for readers that follow the chain, and for the curious.
pub(crate) const VERSIONS_KEPT: u64 = 64;
/// Old manifest versions are collected this many at a time, to save requests.
pub(crate) const VERSIONS_PER_COLLECTION: u64 = 256;

/// What a manifest says about which objects can still be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frontier {
    /// The newest epoch known to have been opened.
    pub opened_epoch: LeaderEpoch,
    /// First offset a client may read.
    pub log_start_offset: Offset,
    /// Where the manifest ends.
    pub tiered_offset: Offset,
}

/// What may be done with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The manifest names it.
    Named,
    /// It may be on its way into a manifest.
    Undecided,
    /// No manifest names it, nor can one.
    Garbage(Reason),
}

/// Why an object is garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// It lies below the log start offset.
    Trimmed,
    /// It was uploaded and never named: its offsets are named from elsewhere, or its leader was
    /// deposed.
    Orphan,
    /// An index page that was merged with others.
    Merged,
    /// A manifest version that newer ones have replaced.
    OldVersion,
    /// What a put that never ended left in a directory.
    Unfinished,
}

impl Reason {
    /// Returns the reason in a word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trimmed => "trimmed",
            Self::Orphan => "orphan",
            Self::Merged => "merged",
            Self::OldVersion => "old version",
            Self::Unfinished => "unfinished",
        }
    }
}

/// Judges a segment object by its name. `is_named`: by the manifest that `frontier` is of.
pub(crate) fn judge_segment(name: &SegmentName, is_named: bool, frontier: &Frontier) -> Verdict {
    if is_named {
        return Verdict::Named;
    }
    // Nobody else may tidy up after a newer leader: the manifest at hand is not the latest.
    if name.leader_epoch > frontier.opened_epoch {
        return Verdict::Undecided;
    }
    // The segment that holds the log start begins below it, but is named.
    if name.base_offset < frontier.log_start_offset {
        return Verdict::Garbage(Reason::Trimmed);
    }
    // `<`, since the next commit adds exactly at the tiered offset. What lies above stays, whatever
    // its epoch: a lost manifest may have named it.
    if name.base_offset < frontier.tiered_offset {
        return Verdict::Garbage(Reason::Orphan);
    }
    Verdict::Undecided
}

/// Judges an index page by the epoch in its name. A merge may put a page anywhere, so a page of the
/// opened epoch is undecided: its owner remembers the ones it gave up.
pub(crate) fn judge_page(
    leader_epoch: LeaderEpoch,
    is_named: bool,
    frontier: &Frontier,
) -> Verdict {
    if is_named {
        Verdict::Named
    } else if leader_epoch < frontier.opened_epoch {
        Verdict::Garbage(Reason::Orphan)
    } else {
        Verdict::Undecided
    }
}

impl Frontier {
    /// Takes what is needed of a manifest.
    pub(crate) fn of(manifest: &Manifest) -> Self {
        Self {
            opened_epoch: manifest.header().leader_epoch,
            log_start_offset: manifest.log_start_offset(),
            tiered_offset: manifest.tiered_offset(),
        }
    }
}

/// Whether `rows` name this upload of this segment. A page may still hold rows of segments that were
/// trimmed since: those are not named any more.
pub(crate) fn names(rows: &Rows, name: &SegmentName, log_start_offset: Offset) -> bool {
    let segments = rows.segments();
    let found = segments.binary_search_by_key(&name.base_offset, |meta| meta.base_offset);
    found.is_ok_and(|index| {
        let meta = &segments[index];
        meta.segment_id == name.segment_id && meta.next_offset > log_start_offset
    })
}

/// Segments of `rows` that a trim from `before` to `after` made dead.
pub(crate) fn dead_segments(rows: &Rows, before: Offset, after: Offset) -> Vec<SegmentName> {
    let is_dead = |next_offset: Offset| before < next_offset && next_offset <= after;
    let dead = rows
        .segments()
        .iter()
        .filter(|meta| is_dead(meta.next_offset));
    dead.map(SegmentName::from).collect()
}

/// Returns the oldest segment of `rows` that is not trimmed.
pub(crate) fn oldest(rows: &Rows, log_start_offset: Offset) -> Option<SegmentMeta> {
    let is_live = |meta: &&SegmentMeta| meta.next_offset > log_start_offset;
    rows.segments().iter().find(is_live).copied()
}

/// Whether the oldest of segments that hold `bucket_bytes` together may go: the rule of
/// [`esker_index::retention`] for its first segment.
pub(crate) fn may_go(
    bucket_bytes: u64,
    oldest: &SegmentMeta,
    now: TimestampMs,
    policy: RetentionPolicy,
) -> bool {
    let is_old = |age_ms| now.millis_since(oldest.retained_since()) > age_ms;
    let is_surplus = |limit| bucket_bytes.saturating_sub(oldest.size_bytes) >= limit;
    policy.age_ms.is_some_and(is_old) || policy.size_bytes.is_some_and(is_surplus)
}

#[cfg(test)]
mod tests;
