//! Finds garbage by listing: what a crash left behind, and what was forgotten.

use esker_index::Manifest;

use super::{
    pages::Pages,
    plan::{self, Frontier, Reason, Verdict},
    trim::is_damage,
};
use crate::{
    error::Error,
    keys::{Key, Keys, PageName, SegmentName},
    store::ObjectInfo,
};

/// An object that may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub key: String,
    pub size_bytes: u64,
    pub reason: Reason,
}

/// Judges listed objects of one partition, best in the order of their keys.
#[derive(Debug)]
pub(crate) struct Scan<'a> {
    keys: Keys,
    manifest: &'a Manifest,
    frontier: Frontier,
    pages: Pages,
    damaged: Option<Error>,
}

impl<'a> Scan<'a> {
    pub(crate) fn new(keys: Keys, manifest: &'a Manifest, pages: Pages) -> Self {
        Self {
            keys,
            manifest,
            frontier: Frontier::of(manifest),
            pages,
            damaged: None,
        }
    }

    /// Returns the first damage that kept segments from being judged.
    pub(crate) fn into_damage(self) -> Option<Error> {
        self.damaged
    }

    /// Returns the object if it is garbage. What is not ours to judge never is.
    pub(crate) async fn garbage(&mut self, object: &ObjectInfo) -> Result<Option<Found>, Error> {
        Ok(match self.verdict(&object.key).await? {
            Verdict::Garbage(reason) => Some(Found {
                key: object.key.clone(),
                size_bytes: object.size_bytes,
                reason,
            }),
            Verdict::Named | Verdict::Undecided => None,
        })
    }

    /// Judges an object by its key.
    pub(crate) async fn verdict(&mut self, key: &str) -> Result<Verdict, Error> {
        Ok(match Key::parse(key) {
            Some(Key::Segment(tp, name)) if tp == self.keys.topic_partition() => {
                self.segment(&name).await?
            }
            Some(Key::Page(tp, name)) if tp == self.keys.topic_partition() => self.page(&name),
            _ => Verdict::Undecided,
        })
    }

    /// Fetches a page only for a segment that would be garbage if it was not named.
    async fn segment(&mut self, name: &SegmentName) -> Result<Verdict, Error> {
        let verdict = plan::judge_segment(name, false, &self.frontier);
        if verdict == Verdict::Undecided || name.base_offset >= self.frontier.tiered_offset {
            return Ok(verdict);
        }
        let rows = match self.pages.covering(self.manifest, name.base_offset).await {
            Ok(rows) => rows,
            // Only that page tells which of its segments are named: the rest can still be judged.
            Err(error) if is_damage(&error) => {
                self.damaged.get_or_insert(error);
                return Ok(Verdict::Undecided);
            }
            Err(error) => return Err(error),
        };
        let is_named = plan::names(&rows, name, self.frontier.log_start_offset);
        Ok(plan::judge_segment(name, is_named, &self.frontier))
    }

    fn page(&self, name: &PageName) -> Verdict {
        let is_named = self
            .manifest
            .pages()
            .iter()
            .any(|page| PageName::from(page) == *name);
        plan::judge_page(name.leader_epoch, is_named, &self.frontier)
    }
}
