//! How far the log start may move up, by age and by size.

use esker_proto::types::{Offset, TimestampMs};

use crate::{Manifest, PageRef, Rows, SegmentMeta};

/// What a topic keeps. Without limits it keeps everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// A segment may go when both its newest record and its upload are longer ago than this.
    pub age_ms: Option<u64>,
    /// The oldest segments may go while those after them still hold at least this many bytes.
    pub size_bytes: Option<u64>,
}

impl RetentionPolicy {
    /// Says for people why the oldest segment may go at `now`, given that it may.
    pub fn reason(&self, manifest: &Manifest, now: TimestampMs) -> &'static str {
        let budget = Budget::of(manifest, now, *self);
        let is_expired = match (manifest.pages().first(), manifest.head().segments().first()) {
            (Some(page), _) => budget.is_expired(page.min_timestamp.max(page.min_uploaded_at)),
            (None, Some(meta)) => budget.is_expired(meta.retained_since()),
            (None, None) => false,
        };
        if is_expired {
            "older than the topic's retention"
        } else {
            "beyond the topic's retention size"
        }
    }
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing may go.
    Keep,
    /// Every segment below this offset may go.
    TrimBelow(Offset),
    /// Some of this page may go: ask again with its rows.
    NeedPage(PageRef),
}

/// Decides what may go at `now`.
///
/// `oldest_rows` are the rows of the page asked for with [`Decision::NeedPage`]. Segments go whole
/// and in order: one that must stay keeps all after it. Must be asked of a manifest that its leader
/// has opened in its own epoch, so that the sizes are those of what is committed.
pub fn plan(
    manifest: &Manifest,
    oldest_rows: Option<&Rows>,
    now: TimestampMs,
    policy: RetentionPolicy,
) -> Decision {
    let mut budget = Budget::of(manifest, now, policy);
    let log_start_offset = manifest.log_start_offset();
    let mut start = log_start_offset;
    for page in manifest.pages() {
        if budget.drop_whole_page(page) {
            start = page.next_offset;
            continue;
        }
        if budget.must_keep_page(page) {
            return decide(log_start_offset, start);
        }
        let Some(rows) = oldest_rows.filter(|rows| page.is_of(rows)) else {
            return Decision::NeedPage(*page);
        };
        let live = rows
            .segments()
            .iter()
            .filter(|meta| meta.next_offset > log_start_offset);
        return decide(log_start_offset, budget.drop_segments(live, start));
    }
    decide(
        log_start_offset,
        budget.drop_segments(manifest.head().segments(), start),
    )
}

fn decide(log_start_offset: Offset, start: Offset) -> Decision {
    if start > log_start_offset {
        Decision::TrimBelow(start)
    } else {
        Decision::Keep
    }
}

struct Budget {
    policy: RetentionPolicy,
    now: TimestampMs,
    /// Bytes of the segments not dropped so far.
    kept_bytes: u64,
}

impl Budget {
    fn of(manifest: &Manifest, now: TimestampMs, policy: RetentionPolicy) -> Self {
        Self {
            policy,
            now,
            kept_bytes: manifest.bucket_bytes(),
        }
    }

    fn is_expired(&self, since: TimestampMs) -> bool {
        self.policy
            .age_ms
            .is_some_and(|age_ms| self.now.millis_since(since) > age_ms)
    }

    /// Whether enough is left without `bytes` of what is kept.
    fn is_surplus(&self, bytes: u64) -> bool {
        let limit = self.policy.size_bytes;
        limit.is_some_and(|limit| self.kept_bytes.saturating_sub(bytes) >= limit)
    }

    fn drop(&mut self, since: TimestampMs, bytes: u64) -> bool {
        let may_go = self.is_expired(since) || self.is_surplus(bytes);
        if may_go {
            self.kept_bytes = self.kept_bytes.saturating_sub(bytes);
        }
        may_go
    }

    fn drop_whole_page(&mut self, page: &PageRef) -> bool {
        let since = page.max_timestamp.max(page.max_uploaded_at);
        self.drop(since, page.segment_bytes)
    }

    /// Whether not even the page's oldest segment may go: nothing in it is old enough, and any byte
    /// less would be too little.
    fn must_keep_page(&self, page: &PageRef) -> bool {
        let since = page.min_timestamp.max(page.min_uploaded_at);
        !self.is_expired(since) && !self.is_surplus(1)
    }

    fn drop_segments<'a>(
        &mut self,
        segments: impl IntoIterator<Item = &'a SegmentMeta>,
        start: Offset,
    ) -> Offset {
        let dropped = segments
            .into_iter()
            .take_while(|meta| self.drop(meta.retained_since(), meta.size_bytes))
            .last();
        dropped.map_or(start, |meta| meta.next_offset)
    }
}

#[cfg(test)]
mod tests;
