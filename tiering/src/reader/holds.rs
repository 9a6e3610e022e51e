//! The chunk each cursor is in the middle of, kept for its next call unless memory is short.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::chunk::Chunk;

type Place = Mutex<Option<Arc<Chunk>>>;

/// All cursors' places for a chunk.
#[derive(Clone, Debug, Default)]
pub(super) struct Holds(Arc<Mutex<Vec<Weak<Place>>>>);

/// One cursor's place for a chunk. What is in it may vanish between two looks.
#[derive(Debug)]
pub(super) struct Hold(Arc<Place>);

impl Holds {
    /// Adds a place, which leaves when it is dropped.
    pub(super) fn add(&self) -> Hold {
        let hold = Arc::default();
        let mut all = self.0.lock();
        // Swept when it would grow, so that it holds at most twice the living.
        if all.len() == all.capacity() {
            all.retain(|hold| hold.strong_count() > 0);
        }
        all.push(Arc::downgrade(&hold));
        Hold(hold)
    }

    /// Empties every place. Chunks go that the cache does not hold, so that their bytes come free.
    pub(super) fn release(&self) {
        let all: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        for hold in all {
            hold.lock().take();
        }
    }
}

impl Hold {
    pub(super) fn take(&self) -> Option<Arc<Chunk>> {
        self.0.lock().take()
    }

    pub(super) fn put(&self, chunk: Arc<Chunk>) {
        self.0.lock().replace(chunk);
    }
}
