//! What became of a record.
//!
//! All records of a batch share one [`Completion`]: a [`Delivery`] is a pointer to it and the
//! record's place in the batch. So handing one out costs no allocation.

use std::{
    future::Future,
    ops::Deref,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker},
};

use esker_proto::types::{Offset, PartitionId};
use parking_lot::Mutex;

use crate::error::{Error, ErrorKind, Result};

/// A record is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Delivered {
    /// The partition it is in.
    pub partition: PartitionId,
    /// Its place there.
    pub offset: Offset,
}

/// Resolves once the record's fate is known. May be dropped: the record is sent all the same.
///
/// An error with `false` from [`Error::has_no_side_effects`] means the fate stays unknown: the
/// record may be in the log.
#[derive(Debug)]
#[must_use = "drop it, or await it to learn whether the record was delivered"]
pub struct Delivery {
    completion: Arc<Completion>,
    index: u32,
    /// Where its waker is kept, if it ever waited.
    slot: Option<usize>,
}

impl Delivery {
    pub(crate) const fn new(completion: Arc<Completion>, index: u32) -> Self {
        Self {
            completion,
            index,
            slot: None,
        }
    }

    /// Returns the partition the record goes to.
    pub fn partition(&self) -> PartitionId {
        self.completion.partition
    }

    /// Whether the record is the first of its batch; the next deliveries of its partition that are
    /// not share its fate.
    #[cfg(feature = "cli")]
    pub(crate) const fn is_first_of_batch(&self) -> bool {
        self.index == 0
    }

    /// Returns the result if it is known already.
    pub fn try_result(&self) -> Option<Result<Delivered>> {
        self.completion
            .outcome
            .get()
            .map(|outcome| self.result(outcome))
    }

    fn result(&self, outcome: &Result<Offset>) -> Result<Delivered> {
        let partition = self.completion.partition;
        match outcome {
            Ok(base) => Ok(Delivered {
                partition,
                offset: base.advance(self.index),
            }),
            Err(error) => Err(error.clone()),
        }
    }
}

impl Future for Delivery {
    type Output = Result<Delivered>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if !this.completion.is_done() {
            this.completion.register(&mut this.slot, cx.waker());
        }
        // Looked at after registering: a completion in between is either seen here or wakes us.
        this.try_result().map_or(Poll::Pending, Poll::Ready)
    }
}

/// The duty to settle a batch. Dropped unsettled, it says so: no caller waits for ever.
#[derive(Debug)]
pub(crate) struct Promise(pub(crate) Arc<Completion>);

impl Deref for Promise {
    type Target = Completion;

    fn deref(&self) -> &Completion {
        &self.0
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if !self.0.is_done() {
            self.0.complete(Err(runtime_ended()));
        }
    }
}

/// What a batch says that nobody is left to send.
pub(crate) fn runtime_ended() -> Error {
    let message = "runtime ended before the record was delivered";
    Error::new(ErrorKind::Closed, message)
}

/// The fate of one batch, once known.
#[derive(Debug)]
pub(crate) struct Completion {
    partition: PartitionId,
    /// Offset of the first record.
    outcome: OnceLock<Result<Offset>>,
    wakers: Mutex<Vec<Waker>>,
}

impl Completion {
    pub(crate) const fn new(partition: PartitionId) -> Self {
        Self {
            partition,
            outcome: OnceLock::new(),
            wakers: Mutex::new(Vec::new()),
        }
    }

    pub(crate) const fn partition(&self) -> PartitionId {
        self.partition
    }

    pub(crate) fn is_done(&self) -> bool {
        self.outcome.get().is_some()
    }

    /// Settles the batch. The first settlement stands.
    pub(crate) fn complete(&self, outcome: Result<Offset>) {
        _ = self.outcome.set(outcome);
        let wakers = std::mem::take(&mut *self.wakers.lock());
        wakers.into_iter().for_each(Waker::wake);
    }

    fn register(&self, slot: &mut Option<usize>, waker: &Waker) {
        let mut wakers = self.wakers.lock();
        match slot.and_then(|slot| wakers.get_mut(slot)) {
            Some(kept) => kept.clone_from(waker),
            None => {
                *slot = Some(wakers.len());
                wakers.push(waker.clone());
            }
        }
    }

    /// Waits until the batch is settled.
    pub(crate) async fn settled(self: Arc<Self>) -> Result<(), Error> {
        Delivery::new(self, 0).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, future::join_all};

    use super::*;

    fn completion() -> Arc<Completion> {
        Arc::new(Completion::new(PartitionId::new(3)))
    }

    #[tokio::test]
    async fn each_record_of_a_batch_learns_its_own_offset() {
        let completion = completion();
        let deliveries = [0, 1, 7].map(|index| Delivery::new(Arc::clone(&completion), index));
        let waiting = crate::env::spawn(join_all(deliveries));
        tokio::task::yield_now().await;

        completion.complete(Ok(Offset::new(40)));

        let offsets = waiting
            .await
            .unwrap()
            .into_iter()
            .map(|done| done.unwrap().offset.get());
        assert_eq!(offsets.collect::<Vec<_>>(), [40, 41, 47]);
    }

    #[tokio::test]
    async fn first_settlement_stands() {
        let completion = completion();
        completion.complete(Err(Error::new(ErrorKind::TimedOut, "late")));
        completion.complete(Ok(Offset::ZERO));
        let settled = completion.settled().await;
        assert_eq!(settled.unwrap_err().kind(), ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn batch_that_is_dropped_says_so() {
        let completion = completion();
        drop(Promise(Arc::clone(&completion)));
        let settled = completion.settled().await;
        assert_eq!(settled.unwrap_err().kind(), ErrorKind::Closed);
    }

    #[tokio::test]
    async fn polling_again_keeps_one_waker() {
        let completion = completion();
        let mut delivery = Delivery::new(Arc::clone(&completion), 0);
        for _ in 0..3 {
            assert!((&mut delivery).now_or_never().is_none());
        }
        assert_eq!(completion.wakers.lock().len(), 1);
    }
}
