//! Deletes garbage: first what this owner knows to be dead, then what a listing shows.

use std::collections::{BTreeMap, VecDeque};

use esker_index::{Manifest, PageRef};
use esker_proto::types::{Offset, OffsetRange};
use futures::TryStreamExt;

use super::{
    Archive,
    plan::{self, DEAD_MAX, DELETES_PER_CALL_MAX, Reason},
    scan::{Found, Scan},
    trim::is_damage,
};
use crate::{
    error::Error,
    keys::{Key, PageName, SegmentName},
};

/// Most keys of one request to delete, as S3 has it.
const KEYS_PER_DELETE: usize = 1000;
/// Most objects that one call looks at in a listing.
const LISTED_PER_CALL_MAX: usize = 50_000;

/// What one call of garbage collection came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Objects deleted, by why they were garbage.
    pub deleted: BTreeMap<Reason, u64>,
    /// Whether the call stopped at a limit: there may be more.
    pub has_more: bool,
}

impl Collected {
    /// Objects deleted in all.
    pub fn total(&self) -> u64 {
        self.deleted.values().sum()
    }

    fn add(&mut self, reason: Reason, objects: u64) {
        if objects > 0 {
            *self.deleted.entry(reason).or_default() += objects;
        }
    }
}

/// Something dead that is still to be deleted.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Dead {
    Segment(SegmentName, Reason),
    Page(PageName, Reason),
    /// A page some or all of whose segments were trimmed; its rows say which.
    Trimmed {
        page: PageRef,
        trimmed: OffsetRange,
        is_dropped: bool,
    },
}

/// What an owner remembers of garbage. Forgetting it costs a listing, never more.
#[derive(Debug, Default)]
pub(super) struct Garbage {
    dead: VecDeque<Dead>,
    scan: Scanning,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Scanning {
    #[default]
    Done,
    Due {
        start_after: Option<String>,
        /// Skip the segments between the log start and this offset.
        edge: Option<Offset>,
    },
}

impl Garbage {
    pub(super) fn request_scan(&mut self) {
        self.scan = Scanning::Due {
            start_after: None,
            edge: None,
        };
    }

    /// Asks for a scan of where the last owner was at work when it ended: the pages, the segments
    /// below the log start, and those at and above its tiered offset. The rest is left to the scan
    /// that an owner asks for every day or so.
    pub(super) fn request_edge_scan(&mut self, tiered_offset: Offset) {
        self.scan = Scanning::Due {
            start_after: None,
            edge: Some(tiered_offset),
        };
    }

    pub(super) fn is_empty(&self) -> bool {
        self.dead.is_empty() && self.scan == Scanning::Done
    }

    pub(super) fn extend(&mut self, dead: impl IntoIterator<Item = Dead>) {
        self.dead.extend(dead);
        if self.dead.len() > DEAD_MAX {
            self.dead.truncate(DEAD_MAX);
            self.request_scan();
        }
    }

    /// Segments this owner put, or began to put, and will never name: each attempt draws its own
    /// name.
    pub(super) fn give_up_segments(&mut self, names: impl IntoIterator<Item = SegmentName>) {
        self.extend(
            names
                .into_iter()
                .map(|name| Dead::Segment(name, Reason::Orphan)),
        );
    }
}

/// What a trim from the log start of `manifest` to `after` leaves to delete.
pub(super) fn dead_after_trim(manifest: &Manifest, after: Offset) -> Vec<Dead> {
    let before = manifest.log_start_offset();
    let pages = manifest
        .pages()
        .iter()
        .filter(|page| page.base_offset < after);
    let of_pages = pages.map(|page| Dead::Trimmed {
        page: *page,
        trimmed: before..after,
        is_dropped: page.next_offset <= after,
    });
    let of_head = plan::dead_segments(manifest.head(), before, after).into_iter();
    of_pages
        .chain(of_head.map(|name| Dead::Segment(name, Reason::Trimmed)))
        .collect()
}

impl Archive {
    /// Asks that the next calls of [`Archive::collect_garbage`] look for orphans by listing. Done on
    /// opening; an owner that stays asks again every day or so.
    pub fn request_scan(&mut self) {
        self.garbage.request_scan();
    }

    /// Merges pages when due, and deletes a bounded number of objects that are garbage: dead
    /// segments and pages, old manifest versions, and, when a scan was asked for, orphans.
    ///
    /// MAY be called at any time, and again after any error. Does nothing, and asks the store
    /// nothing, when there is nothing to do.
    ///
    /// # Errors
    ///
    /// Those of the store, of [`Archive::settle`] and of the commit of a merge.
    pub async fn collect_garbage(&mut self) -> Result<Collected, Error> {
        self.settle().await?;
        self.merge_pages_if_readable().await?;
        let mut collected = Collected::default();
        let outcome = self.collect_all(&mut collected).await;
        self.pages.release();
        for (reason, objects) in &collected.deleted {
            self.deps.metrics.deleted(*reason, *objects);
        }
        outcome.map(|()| collected)
    }

    async fn collect_all(&mut self, collected: &mut Collected) -> Result<(), Error> {
        self.delete_dead(collected).await?;
        let versions = self.collect_versions().await?;
        collected.add(Reason::OldVersion, versions);
        if !collected.has_more {
            self.scan(collected).await?;
        }
        Ok(())
    }

    /// Removes from the queue only what was deleted.
    async fn delete_dead(&mut self, collected: &mut Collected) -> Result<(), Error> {
        while let Some(front) = self.garbage.dead.front() {
            if collected.total() >= DELETES_PER_CALL_MAX as u64 {
                collected.has_more = true;
                return Ok(());
            }
            if let Dead::Trimmed { .. } = front {
                let front = front.clone();
                self.delete_trimmed(&front, collected).await?;
                self.garbage.dead.pop_front();
            } else {
                self.delete_plain(collected).await?;
            }
        }
        Ok(())
    }

    async fn delete_plain(&mut self, collected: &mut Collected) -> Result<(), Error> {
        let run = self
            .garbage
            .dead
            .iter()
            .map_while(|dead| self.plain_key(dead));
        let run: Vec<_> = run.take(KEYS_PER_DELETE).collect();
        self.delete_as_owner(run.iter().map(|(key, _)| key.clone()))
            .await?;
        self.garbage.dead.drain(..run.len());
        run.iter().for_each(|(_, reason)| collected.add(*reason, 1));
        Ok(())
    }

    /// Deletes what this owner holds for dead. Asks first whether it still owns the partition: a
    /// repair or a newer owner may have named since what this one gave up.
    async fn delete_as_owner(&mut self, keys: impl Iterator<Item = String>) -> Result<(), Error> {
        let keys: Vec<String> = keys.collect();
        if keys.is_empty() {
            return Ok(());
        }
        self.confirm_ownership().await?;
        self.deps.store.delete(&keys).await
    }

    fn plain_key(&self, dead: &Dead) -> Option<(String, Reason)> {
        match dead {
            Dead::Segment(name, reason) => Some((self.keys.segment(*name), *reason)),
            Dead::Page(name, reason) => Some((self.keys.page(*name), *reason)),
            Dead::Trimmed { .. } => None,
        }
    }

    /// Deletes the segments of a trimmed page, then the page, which alone knows their names.
    async fn delete_trimmed(
        &mut self,
        dead: &Dead,
        collected: &mut Collected,
    ) -> Result<(), Error> {
        let Dead::Trimmed {
            page,
            trimmed,
            is_dropped,
        } = dead
        else {
            return Ok(());
        };
        let rows = match self.pages.rows(page).await {
            Ok(rows) => rows,
            // Deleted by an earlier try, or damaged: a listing tells what is left.
            Err(error) if is_damage(&error) => {
                self.garbage.request_scan();
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let names = plan::dead_segments(&rows, trimmed.start, trimmed.end);
        for names in names.chunks(KEYS_PER_DELETE) {
            let keys = self.keys;
            self.delete_as_owner(names.iter().map(|name| keys.segment(*name)))
                .await?;
            collected.add(Reason::Trimmed, names.len() as u64);
        }
        if *is_dropped {
            let key = self.keys.page(page.into());
            self.delete_as_owner(std::iter::once(key)).await?;
            collected.add(Reason::Trimmed, 1);
        }
        Ok(())
    }

    async fn scan(&mut self, collected: &mut Collected) -> Result<(), Error> {
        let Scanning::Due { start_after, edge } = self.garbage.scan.clone() else {
            return Ok(());
        };
        let Scanned {
            garbage,
            start_after,
        } = self.list_garbage(start_after, edge).await?;
        for run in garbage.chunks(KEYS_PER_DELETE) {
            self.delete_as_owner(run.iter().map(|found| found.key.clone()))
                .await?;
            run.iter().for_each(|found| collected.add(found.reason, 1));
        }
        collected.has_more |= start_after.is_some();
        self.garbage.scan = match start_after {
            None => Scanning::Done,
            start_after => Scanning::Due { start_after, edge },
        };
        Ok(())
    }

    /// Lists the partition's folder, from where the last call stopped to where this one has to.
    async fn list_garbage(
        &self,
        start_after: Option<String>,
        edge: Option<Offset>,
    ) -> Result<Scanned, Error> {
        let manifest = self.manifest();
        let log_start_offset = manifest.log_start_offset();
        let is_skipped = |key: &str| {
            let base_offset = match Key::parse(key) {
                Some(Key::Segment(_, name)) => name.base_offset,
                _ => return false,
            };
            edge.is_some_and(|edge| (log_start_offset..edge).contains(&base_offset))
        };
        let mut scan = Scan::new(self.keys, &manifest, self.pages.another());
        // Pages and segments are neighbours, and last, in the order of keys.
        let start_after = start_after.unwrap_or_else(|| self.keys.pages());
        let mut listing = self
            .deps
            .store
            .list(&self.keys.folder(), Some(&start_after));
        let mut garbage = Vec::new();
        let mut listed = 0;
        while let Some(object) = listing.try_next().await? {
            listed += 1;
            if let Some(edge) = edge
                && is_skipped(&object.key)
            {
                let start_after = self.keys.segments_before(edge);
                listing = self
                    .deps
                    .store
                    .list(&self.keys.folder(), Some(&start_after));
                continue;
            }
            garbage.extend(scan.garbage(&object).await?);
            if garbage.len() >= DELETES_PER_CALL_MAX || listed >= LISTED_PER_CALL_MAX {
                return Ok(Scanned {
                    garbage,
                    start_after: Some(object.key),
                });
            }
        }
        if let Some(error) = scan.into_damage() {
            tracing::error!(%error, "index page cannot be read; segments it may name are kept");
        }
        Ok(Scanned {
            garbage,
            start_after: None,
        })
    }
}

struct Scanned {
    garbage: Vec<Found>,
    /// Where to go on; `None` at the end.
    start_after: Option<String>,
}
