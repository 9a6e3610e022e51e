//! What readers keep for their next step although they could read it again: the chunk a cursor is in
//! the middle of, the rest of a response whose peer is slow. Memory that others need is taken from
//! here, the longest unused first.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::budget::Side;

/// A reader that did nothing for so long is not counted when memory is shared out.
const IDLE_AFTER: Duration = Duration::from_secs(5);

/// With more places than this, they are counted now and then.
const COUNTED_ALWAYS_MAX: usize = 64;
const COUNTED_FOR: Duration = Duration::from_millis(100);

/// All readers' places.
#[derive(Clone, Debug)]
pub(super) struct Holds(Arc<All>);

#[derive(Debug)]
struct All {
    places: Mutex<Vec<Weak<dyn Held>>>,
    start: Instant,
    /// Orders the uses of places.
    uses: AtomicU64,
    /// Places of either side that were used lately, and when they were counted, in milliseconds.
    counted: Mutex<[(usize, u64); 2]>,
}

/// One reader's place. What is in it may vanish between two uses.
#[derive(Debug)]
pub struct Hold<T> {
    place: Arc<Place<T>>,
    all: Arc<All>,
}

#[derive(Debug)]
struct Place<T> {
    side: Side,
    content: Mutex<Option<T>>,
    /// Number of its last use.
    used: AtomicU64,
    /// When that was, in milliseconds since the start; 0 if it was not used.
    used_at: AtomicU64,
}

trait Held: std::fmt::Debug + Send + Sync {
    fn side(&self) -> Side;
    fn used(&self) -> u64;
    fn used_at(&self) -> u64;
    fn release(&self);
}

impl<T: std::fmt::Debug + Send> Held for Place<T> {
    fn side(&self) -> Side {
        self.side
    }

    fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn used_at(&self) -> u64 {
        self.used_at.load(Ordering::Relaxed)
    }

    fn release(&self) {
        // Dropped after the lock is.
        let content = self.content.lock().take();
        drop(content);
    }
}

impl Default for Holds {
    fn default() -> Self {
        Self(Arc::new(All {
            places: Mutex::default(),
            start: Instant::now(),
            uses: AtomicU64::new(0),
            counted: Mutex::default(),
        }))
    }
}

impl Holds {
    /// Adds a place, which leaves when it is dropped.
    pub(super) fn add<T: std::fmt::Debug + Send + 'static>(&self, side: Side) -> Hold<T> {
        let place = Arc::new(Place {
            side,
            content: Mutex::new(None),
            used: AtomicU64::new(0),
            used_at: AtomicU64::new(0),
        });
        let weak: Weak<Place<T>> = Arc::downgrade(&place);
        let mut places = self.0.places.lock();
        // Swept when it would grow, so that it holds at most twice the living.
        if places.len() == places.capacity() {
            places.retain(|place| place.strong_count() > 0);
        }
        places.push(weak);
        Hold {
            place,
            all: self.0.clone(),
        }
    }

    /// Empties places, the longest unused first, until `is_enough`.
    pub(super) fn release_until(&self, is_enough: impl Fn() -> bool) {
        if is_enough() {
            return;
        }
        let mut places = self.living();
        places.sort_by_cached_key(|place| place.used());
        for place in places {
            place.release();
            if is_enough() {
                return;
            }
        }
    }

    /// Empties the places of readers that have done nothing for a while.
    pub(super) fn release_idle(&self) {
        let since = self.0.idle_before();
        let is_idle = |place: &Arc<dyn Held>| place.used_at() < since;
        self.living()
            .into_iter()
            .filter(is_idle)
            .for_each(|place| place.release());
    }

    /// Counts the places of one side that were used lately. Where there are many, a count serves for
    /// a while.
    pub(super) fn count_active(&self, side: Side) -> usize {
        let now = self.0.now();
        let is_many = self.0.places.lock().len() > COUNTED_ALWAYS_MAX;
        let mut counted = self.0.counted.lock();
        let (count, at) = &mut counted[side as usize];
        if !is_many || *at + millis(COUNTED_FOR) < now {
            (*count, *at) = (self.count(side), now);
        }
        *count
    }

    fn count(&self, side: Side) -> usize {
        let since = self.0.idle_before();
        let is_active = |place: &&Arc<dyn Held>| place.side() == side && place.used_at() >= since;
        self.living().iter().filter(is_active).count()
    }

    fn living(&self) -> Vec<Arc<dyn Held>> {
        let places = self.0.places.lock();
        places.iter().filter_map(Weak::upgrade).collect()
    }
}

impl All {
    /// At least 1: what was never used is idle.
    fn idle_before(&self) -> u64 {
        self.now().saturating_sub(millis(IDLE_AFTER)).max(1)
    }

    fn now(&self) -> u64 {
        millis(self.start.elapsed()) + 1
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX - 1)
}

impl<T> Hold<T> {
    /// Takes what is there, if it was not released.
    pub fn take(&self) -> Option<T> {
        self.touch();
        self.place.content.lock().take()
    }

    /// Keeps something until it is taken or released.
    pub fn put(&self, content: T) {
        self.touch();
        let before = self.place.content.lock().replace(content);
        drop(before);
    }

    /// Notes that the reader is at work.
    pub fn touch(&self) {
        let used = self.all.uses.fetch_add(1, Ordering::Relaxed) + 1;
        self.place.used.store(used, Ordering::Relaxed);
        self.place.used_at.store(self.all.now(), Ordering::Relaxed);
    }

    /// Notes that the reader rests.
    pub(super) fn rest(&self) {
        self.place.used_at.store(0, Ordering::Relaxed);
    }
}
