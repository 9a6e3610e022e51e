//! Reads index pages for the owner of a partition and for tools. Readers have a cache of their own.

use std::time::Duration;

use esker_index::{Manifest, PageRef, Rows};
use esker_proto::types::Offset;

use super::trim::is_damage;
use crate::{
    env::TaskSet,
    error::Error,
    keys::{Keys, PageName},
    page_load::{DamagedPages, LOADS},
    store::Store,
};

/// A page that was found damaged is not fetched again for so long, however often retention and
/// collection ask for it.
const DAMAGED_FOR: Duration = Duration::from_secs(3600);

/// Fetches pages and holds the last one, since they are asked for in offset order.
#[derive(Debug)]
pub(crate) struct Pages {
    store: Store,
    keys: Keys,
    tasks: TaskSet,
    held: Option<(PageName, Rows)>,
    damaged: DamagedPages,
}

impl Pages {
    pub(crate) fn new(store: Store, keys: Keys, tasks: TaskSet) -> Self {
        Self {
            store,
            keys,
            tasks,
            held: None,
            damaged: DamagedPages::new(DAMAGED_FOR),
        }
    }

    /// Returns another one that holds nothing yet, but knows which pages are damaged.
    pub(crate) fn another(&self) -> Self {
        Self {
            store: self.store.clone(),
            tasks: self.tasks.clone(),
            damaged: self.damaged.clone(),
            keys: self.keys,
            held: None,
        }
    }

    /// Whether a page was found damaged lately: it is not fetched again then.
    pub(crate) fn is_damaged(&self, page: &PageRef) -> bool {
        self.damaged.known(page.id).is_some()
    }

    /// Returns the rows of `page`.
    ///
    /// # Errors
    ///
    /// `NotFound` if the object is missing, `Corrupt` if it is not what the manifest says.
    pub(crate) async fn rows(&mut self, page: &PageRef) -> Result<Rows, Error> {
        let name = PageName::from(page);
        if let Some((held, rows)) = &self.held
            && *held == name
        {
            return Ok(rows.clone());
        }
        let rows = self.load(page).await?;
        self.held = Some((name, rows.clone()));
        Ok(rows)
    }

    /// Forgets the page held: a large one takes megabytes.
    pub(crate) fn release(&mut self) {
        self.held = None;
    }

    /// Reads a page and leaves the one held alone.
    pub(crate) async fn load(&self, page: &PageRef) -> Result<Rows, Error> {
        if let Some(error) = self.damaged.known(page.id) {
            return Err(error);
        }
        let key = self.keys.page(page.into());
        let loaded = LOADS.load(&self.store, &self.tasks, &key, page).await;
        if let Err(error) = &loaded
            && is_damage(error)
        {
            self.damaged.note(page.id, error);
        }
        loaded
    }

    /// Returns the rows that cover `offset`, below the log start too as far as a page reaches there.
    pub(crate) async fn covering(
        &mut self,
        manifest: &Manifest,
        offset: Offset,
    ) -> Result<Rows, Error> {
        let before = manifest
            .pages()
            .partition_point(|page| page.next_offset <= offset);
        match manifest.pages().get(before) {
            Some(page) => self.rows(page).await,
            None => Ok(manifest.head().clone()),
        }
    }
}
