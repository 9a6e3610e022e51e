//! Reads index pages for the owner of a partition and for tools. Readers have a cache of their own.

use esker_index::{Manifest, PageRef, Rows};
use esker_proto::types::Offset;

use super::trim::is_damage;
use crate::{
    env::TaskSet,
    error::Error,
    keys::{Keys, PageName},
    page_load::LOADS,
    store::Store,
};

/// Fetches pages and holds the last one, since they are asked for in offset order.
#[derive(Debug)]
pub(crate) struct Pages {
    store: Store,
    keys: Keys,
    tasks: TaskSet,
    /// A page that is damaged is remembered too: it is asked for once per segment.
    held: Option<(PageName, Result<Rows, Error>)>,
}

impl Pages {
    pub(crate) const fn new(store: Store, keys: Keys, tasks: TaskSet) -> Self {
        Self {
            store,
            keys,
            tasks,
            held: None,
        }
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
            return rows.clone();
        }
        let rows = self.load(page).await;
        if rows.as_ref().err().is_none_or(is_damage) {
            self.held = Some((name, rows.clone()));
        }
        rows
    }

    /// Forgets the page held: a large one takes megabytes.
    pub(crate) fn release(&mut self) {
        self.held = None;
    }

    /// Reads a page and leaves the one held alone.
    pub(crate) async fn load(&self, page: &PageRef) -> Result<Rows, Error> {
        let key = self.keys.page(page.into());
        LOADS.load(&self.store, &self.tasks, &key, page).await
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
