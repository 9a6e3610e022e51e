//! Remembers which pages are damaged, so that they are not fetched again and again.

use std::{collections::HashMap, sync::Arc, time::Duration};

use esker_index::PageId;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::error::Error;

/// So many damaged pages are remembered.
const DAMAGED_MAX: usize = 1000;

/// Pages that were found damaged lately, and how. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct DamagedPages {
    pages: Arc<Mutex<HashMap<PageId, (Error, Instant)>>>,
    remembered_for: Duration,
}

impl DamagedPages {
    /// Each is forgotten after a while: somebody may have restored the object.
    pub(crate) fn new(remembered_for: Duration) -> Self {
        Self {
            pages: Arc::default(),
            remembered_for,
        }
    }

    /// Returns what is wrong with a page, as far as is known.
    pub(crate) fn known(&self, id: PageId) -> Option<Error> {
        let pages = self.pages.lock();
        let (error, since) = pages.get(&id)?;
        (since.elapsed() < self.remembered_for).then(|| error.clone())
    }

    pub(crate) fn note(&self, id: PageId, error: &Error) {
        let mut pages = self.pages.lock();
        if pages.len() >= DAMAGED_MAX {
            pages.clear();
        }
        pages.insert(id, (error.clone(), Instant::now()));
    }
}
