//! A bound on the bytes that requests hold.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::log::Room;

/// Bytes that may be held at a time, given out in the order asked for.
#[derive(Clone, Debug)]
pub(crate) struct MemoryBudget {
    bytes: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
    total: u32,
}

/// Somebody who waits.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Bytes held; given back when dropped.
#[derive(Debug)]
pub(crate) struct MemoryPermit(OwnedSemaphorePermit);

impl MemoryPermit {
    /// Splits off the room of a part, as much as there is.
    pub(crate) fn split(&mut self, bytes: u32) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let bytes = bytes.min(self.0.num_permits());
        Self(self.0.split(bytes).expect("no more than there is"))
    }

    /// Gives back what is held beyond `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: u32) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let excess = self.0.num_permits().saturating_sub(bytes);
        drop(self.0.split(excess));
    }
}

/// Room that was taken before a batch was received is the room of its write.
impl From<MemoryPermit> for Room {
    fn from(permit: MemoryPermit) -> Self {
        Self::held(permit.0)
    }
}

impl MemoryBudget {
    /// Starts with `total` bytes, at most 4 GiB.
    pub(crate) fn new(total: u64) -> Self {
        let total = u32::try_from(total).unwrap_or(u32::MAX);
        let permits = usize::try_from(total)
            .unwrap_or(usize::MAX)
            .min(Semaphore::MAX_PERMITS);
        Self {
            bytes: Arc::new(Semaphore::new(permits)),
            waiting: Arc::default(),
            total,
        }
    }

    /// Waits until `bytes` are free and takes them. One request larger than the whole budget gets
    /// all of it, alone.
    pub(crate) async fn acquire(&self, bytes: u32) -> MemoryPermit {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        let permit = Arc::clone(&self.bytes)
            .acquire_many_owned(bytes.min(self.total))
            .await;
        MemoryPermit(permit.expect("the semaphore is never closed"))
    }

    /// Takes `bytes` if they are free now.
    pub(crate) fn try_acquire(&self, bytes: u32) -> Option<MemoryPermit> {
        let bytes = bytes.min(self.total);
        let permit = Arc::clone(&self.bytes).try_acquire_many_owned(bytes);
        permit.ok().map(MemoryPermit)
    }

    /// Whether somebody waits for bytes.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Returns the bytes held now.
    pub(crate) fn in_use(&self) -> u64 {
        let free = u64::try_from(self.bytes.available_permits()).unwrap_or(u64::MAX);
        u64::from(self.total).saturating_sub(free)
    }
}
