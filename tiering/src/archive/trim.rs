//! Moves the log start up, and merges index pages.

use esker_index::{
    Manifest, Place, Rows, SegmentMeta, Update,
    retention::{self, Decision, RetentionPolicy},
};
use esker_proto::types::{Offset, TimestampMs};

use super::{
    Archive,
    commit::Fallout,
    garbage::{Dead, dead_after_trim},
    plan::{self, Reason},
};
use crate::{
    error::{Error, ErrorKind},
    scrub::repair_command,
};

impl Archive {
    /// Moves the log start up to `offset` and returns where it is; one at or below the present log
    /// start changes nothing. What lies below is deleted by [`Archive::collect_garbage`].
    ///
    /// # Errors
    ///
    /// `Invalid` above the tiered offset; those of a commit.
    pub async fn trim_below(&mut self, offset: Offset) -> Result<Offset, Error> {
        self.settle().await?;
        let manifest = self.manifest();
        if offset <= manifest.log_start_offset() {
            return Ok(manifest.log_start_offset());
        }
        let page = match manifest.find(offset) {
            Place::Page(page) => self.rows_if_readable(page).await?,
            _ => None,
        };
        let if_won = dead_after_trim(&manifest, offset);
        let fallout = Fallout {
            if_won,
            ..Fallout::default()
        };
        self.commit(
            Update::TrimBelow {
                log_start_offset: offset,
                page,
            },
            fallout,
        )
        .await?;
        Ok(offset)
    }

    /// The rows only keep counts exact; a damaged page must not keep a user from trimming it away.
    async fn rows_if_readable(
        &mut self,
        page: &esker_index::PageRef,
    ) -> Result<Option<Rows>, Error> {
        let was_known = self.pages.is_damaged(page);
        match self.pages.rows(page).await {
            Ok(rows) => Ok(Some(rows)),
            Err(error) if is_damage(&error) && was_known => Ok(None),
            Err(error) if is_damage(&error) => {
                let at = self.keys.topic_partition();
                let command = repair_command(self.deps.store.name(), at);
                tracing::error!(
                    partition = %at, %error,
                    "cannot read an index page; `{command}` shows what can be repaired"
                );
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Trims what `policy` lets go at `now`. Returns the new log start, if it moved.
    ///
    /// Counts only what is committed, and only since this epoch was opened.
    ///
    /// # Errors
    ///
    /// Those of a commit, and of reading the page that holds the log start.
    pub async fn apply_retention(
        &mut self,
        now: TimestampMs,
        policy: RetentionPolicy,
    ) -> Result<Option<Offset>, Error> {
        self.settle().await?;
        let manifest = self.manifest();
        let mut decision = retention::plan(&manifest, None, now, policy);
        if let Decision::NeedPage(page) = decision {
            if self.must_keep_oldest(&manifest, now, policy) {
                return Ok(None);
            }
            // Without its rows a page goes as a whole, once all of it may.
            let Some(rows) = self.rows_if_readable(&page).await? else {
                return Ok(None);
            };
            decision = retention::plan(&manifest, Some(&rows), now, policy);
            self.oldest = plan::oldest(&rows, manifest.log_start_offset());
        }
        let outcome = match decision {
            Decision::TrimBelow(offset) => self.trim_below(offset).await.map(Some),
            Decision::Keep | Decision::NeedPage(_) => Ok(None),
        };
        self.pages.release();
        outcome
    }

    /// Whether the segment remembered from an earlier look at the oldest page is still the oldest,
    /// and has to stay: then the page need not be read again, nor held meanwhile.
    fn must_keep_oldest(
        &self,
        manifest: &Manifest,
        now: TimestampMs,
        policy: RetentionPolicy,
    ) -> bool {
        let log_start_offset = manifest.log_start_offset();
        let holds_start = |meta: &&SegmentMeta| {
            meta.base_offset <= log_start_offset && log_start_offset < meta.next_offset
        };
        let oldest = self.oldest.as_ref().filter(holds_start);
        oldest.is_some_and(|oldest| !plan::may_go(manifest.bucket_bytes(), oldest, now, policy))
    }

    /// Merges, unless a page is damaged: that is reported once, and must not stop the rest.
    pub(super) async fn merge_pages_if_readable(&mut self) -> Result<(), Error> {
        if self.cannot_merge {
            return Ok(());
        }
        match self.merge_pages().await {
            Err(error) if is_damage(&error) => {
                tracing::error!(%error, "index pages cannot be merged");
                self.cannot_merge = true;
                Ok(())
            }
            outcome => outcome.map(drop),
        }
    }

    /// Merges one run of index pages, if one is due. Returns whether it did.
    ///
    /// # Errors
    ///
    /// Those of a commit, and of reading the pages.
    pub async fn merge_pages(&mut self) -> Result<bool, Error> {
        self.settle().await?;
        let Some(run) = self.manifest().merge_due() else {
            return Ok(false);
        };
        let mut merged = Vec::with_capacity(run.len());
        for page in run {
            merged.push((page, self.pages.load(&page).await?));
        }
        let replaced = merged
            .iter()
            .map(|(page, _)| Dead::Page(page.into(), Reason::Merged));
        let fallout = Fallout {
            if_won: replaced.collect(),
            ..Fallout::default()
        };
        self.commit(Update::MergePages { merged }, fallout).await?;
        Ok(true)
    }
}

/// Whether an object is missing or its bytes are wrong, as opposed to a store that does not answer.
pub(crate) const fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt)
}
