//! Memory for what is on its way to a reader: bytes of the local log, responses that wait for their
//! peer, and the pieces of them that the transport has taken and will not give back.
//!
//! A piece is either a slice that keeps its whole buffer in memory (no byte is copied) or a small
//! copy. Each kind has a share of the budget of its own: peers that take nothing can use up the
//! first, and then everybody's pieces are copied, which costs time and not memory. Where there is no
//! room for a copy either, whoever stood still for longest is ended (see `borrowers`).

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    borrowers::{Borrower, Borrowers, LOOK_INTERVAL, Loan},
    budget::{Budget, Charge, Side},
    chunk::{Buffer, Charged},
    holds::Hold,
};
use crate::error::Error;

/// Copied pieces that fit into their share. Each stalled peer holds two at most.
const COPIES: usize = 768;
/// Least and largest piece that is copied: small ones cost the transport time.
const COPY_BYTES_MIN: usize = 1 << 10;
const COPY_BYTES_MAX: usize = 32 << 10;
/// A response is no smaller for lack of memory.
const RESPONSE_BYTES_MIN: u64 = 64 << 10;

/// The memory of all reads of one agent. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ReadMemory {
    budget: Budget,
    pins: Pool,
    copies: Pool,
    copy_bytes: usize,
    borrowers: Borrowers,
    responses_bytes: u64,
    patience: Duration,
}

#[derive(Clone, Debug)]
struct Pool {
    free: Arc<Semaphore>,
    bytes: usize,
}

impl Pool {
    fn new(bytes: u64) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let bytes = bytes.clamp(COPY_BYTES_MAX, u32::MAX as usize);
        let free = Arc::new(Semaphore::new(bytes));
        Self { free, bytes }
    }

    /// What is larger than the pool takes all of it.
    fn weight(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.min(self.bytes)).unwrap_or(u32::MAX)
    }

    fn try_take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let taken = self.free.clone().try_acquire_many_owned(self.weight(bytes));
        taken.ok()
    }

    async fn take(&self, bytes: usize) -> OwnedSemaphorePermit {
        let taken = self.free.clone().acquire_many_owned(self.weight(bytes));
        taken.await.expect("the semaphore is never closed")
    }
}

/// What the transport has of one stream.
#[derive(Debug)]
pub struct Taken {
    /// The buffer that the last pieces were cut from.
    pinned: Option<(Buffer, Weak<OwnedSemaphorePermit>)>,
    borrower: Borrower,
}

/// Room for one copied piece.
#[derive(Debug)]
pub struct CopyRoom {
    permit: OwnedSemaphorePermit,
    loan: Loan,
}

impl CopyRoom {
    /// Copies as much as fits from the front of `rest`.
    pub fn copy(self, rest: &mut Bytes) -> Bytes {
        let length = rest.len().min(self.permit.num_permits());
        let bytes = Bytes::copy_from_slice(&rest.split_to(length));
        Bytes::from_owner(Lent {
            bytes,
            _permit: (self.permit, self.loan),
        })
    }
}

/// A piece on its way.
struct Lent<P> {
    bytes: Bytes,
    _permit: P,
}

impl<P> AsRef<[u8]> for Lent<P> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl ReadMemory {
    /// `lent_bytes` for pieces of either kind, `responses_bytes` for responses.
    pub(super) fn new(
        budget: Budget,
        lent_bytes: u64,
        responses_bytes: u64,
        patience: Duration,
    ) -> Self {
        Self {
            budget,
            pins: Pool::new(lent_bytes),
            copies: Pool::new(lent_bytes),
            copy_bytes: copy_bytes(lent_bytes),
            borrowers: Borrowers::default(),
            responses_bytes,
            patience,
        }
    }

    /// Waits for memory to read `bytes` of the local log.
    ///
    /// # Errors
    ///
    /// [`Error::ReadMemory`] if there is none for a while.
    pub async fn charge(&self, bytes: u64) -> Result<Charge, Error> {
        self.budget.demand(Side::Tail, bytes, self.patience).await
    }

    /// Makes a place for the rest of a response.
    pub fn hold<T: std::fmt::Debug + Send + 'static>(&self) -> Hold<T> {
        self.budget.holds().add(Side::Tail)
    }

    /// Keeps the rest of a response until its peer takes it or others need the memory.
    pub fn keep<T>(&self, hold: &Hold<T>, rest: T) {
        self.budget.keep(hold, rest);
    }

    /// How large a response may be, by the number of those under way.
    pub fn response_bytes(&self) -> u64 {
        let active = self.budget.holds().count_active(Side::Tail).max(1) as u64;
        (self.responses_bytes / active).max(RESPONSE_BYTES_MIN)
    }

    /// A charge for what is in memory already. Others make room for it.
    pub fn overdraw(&self) -> Charge {
        self.budget.overdraw(Side::Tail)
    }

    /// Begins a stream. `end` ends it, or all that shares a connection with it: it is called where the
    /// peer takes nothing for a while, and others find no room for what they take.
    pub fn begin(&self, end: impl Fn() + Send + Sync + 'static) -> Taken {
        Taken {
            pinned: None,
            borrower: self.borrowers.add(Box::new(end)),
        }
    }

    /// Cuts the next piece from the front of `rest`, which keeps `buffer` in memory; `None` if there
    /// is no room for even a copy.
    pub fn try_piece(&self, rest: &mut Bytes, buffer: Buffer, taken: &mut Taken) -> Option<Bytes> {
        taken.borrower.touch();
        let is_small = rest.len() <= self.copy_bytes && buffer.size_bytes > 2 * rest.len();
        let pin = (!is_small).then(|| self.pin(buffer, taken)).flatten();
        if let Some(permit) = pin {
            let bytes = std::mem::take(rest);
            return Some(Bytes::from_owner(Lent {
                bytes,
                _permit: permit,
            }));
        }
        let permit = self.copies.try_take(rest.len().min(self.copy_bytes))?;
        let loan = taken.borrower.loan();
        Some(CopyRoom { permit, loan }.copy(rest))
    }

    /// Waits for room for a copy. Streams whose peers stand still make some.
    ///
    /// # Errors
    ///
    /// [`Error::ReadMemory`] if there is none for a while.
    pub async fn room_for_copy(&self, stream: &Taken) -> Result<CopyRoom, Error> {
        let taken = tokio::time::timeout(self.patience, self.take_copy(&stream.borrower)).await;
        let short = |_| self.budget.short(self.copy_bytes as u64, self.patience);
        let permit = taken.map_err(short)?;
        let loan = stream.borrower.loan();
        Ok(CopyRoom { permit, loan })
    }

    async fn take_copy(&self, borrower: &Borrower) -> OwnedSemaphorePermit {
        let mut taken = std::pin::pin!(self.copies.take(self.copy_bytes));
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        loop {
            // Who waits for others does not stand still.
            borrower.touch();
            tokio::select! {
                biased;
                permit = &mut taken => return permit,
                _ = looks.tick() => self.borrowers.end_stalled(),
            }
        }
    }

    /// Pieces of one buffer share its pin.
    fn pin(&self, buffer: Buffer, taken: &mut Taken) -> Option<Arc<OwnedSemaphorePermit>> {
        // A buffer that is still pinned cannot have made place for another.
        let last = taken.pinned.as_ref().filter(|(last, _)| *last == buffer);
        if let Some(permit) = last.and_then(|(_, permit)| permit.upgrade()) {
            return Some(permit);
        }
        let permit = Arc::new(self.pins.try_take(buffer.size_bytes)?);
        taken.pinned = Some((buffer, Arc::downgrade(&permit)));
        Some(permit)
    }
}

fn copy_bytes(lent_bytes: u64) -> usize {
    let bytes = usize::try_from(lent_bytes).unwrap_or(usize::MAX) / COPIES;
    bytes.clamp(COPY_BYTES_MIN, COPY_BYTES_MAX)
}

impl Charge {
    /// Ties the charge to bytes: it is given back with the last slice of them.
    pub fn tie(mut self, bytes: Bytes) -> Bytes {
        self.resize(bytes.len() as u64);
        Bytes::from_owner(Charged::new(bytes, self))
    }
}
