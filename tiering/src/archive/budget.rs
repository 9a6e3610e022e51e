//! Bounds the memory of uploads in flight, over all partitions of an agent.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that uploads may hold in memory together. Cheap to clone; all clones share it.
///
/// Segments wait their turn in the order they came. One larger than the whole budget takes all of
/// it and goes alone.
#[derive(Clone, Debug)]
pub struct UploadBudget {
    room: Arc<Semaphore>,
    permits: u32,
}

/// Granularity: a semaphore counts in 32 bits.
const PERMIT_BYTES: u64 = 4096;

impl UploadBudget {
    /// Two segments of the default size, and their trailers.
    pub const DEFAULT_BYTES: u64 = 144 << 20;

    /// Allows `bytes` in all, and at least one permit.
    pub fn new(bytes: u64) -> Self {
        let permits = u32::try_from(bytes / PERMIT_BYTES)
            .unwrap_or(u32::MAX)
            .max(1);
        Self {
            room: Arc::new(Semaphore::new(permits as usize)),
            permits,
        }
    }

    /// Waits for room for `bytes`. Cancel-safe.
    pub(super) async fn reserve(&self, bytes: u64) -> OwnedSemaphorePermit {
        let wanted = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room);
        let permit = room.acquire_many_owned(wanted.min(self.permits)).await;
        permit.expect("the semaphore is never closed")
    }
}

impl Default for UploadBudget {
    fn default() -> Self {
        Self::new(Self::DEFAULT_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_segment_larger_than_the_budget_goes_alone() {
        let budget = UploadBudget::new(2 * PERMIT_BYTES);
        let small = budget.reserve(1).await;
        assert!(budget.reserve(u64::MAX).now_or_never().is_none());
        drop(small);
        let large = budget.reserve(u64::MAX).await;
        assert!(budget.reserve(1).now_or_never().is_none());
        drop(large);
        drop(budget.reserve(1).await);
    }
}
