//! Fetches and decodes one index page, for readers and owners of partitions alike.
//!
//! A large page takes tens of megabytes while it is decoded. All loads of the process share
//! [`LOADS_BYTES_MAX`], each takes its part before it fetches, so that an agent that starts with many
//! partitions loads their pages one after the other.

mod damaged;

use std::time::Duration;

use bytes::Bytes;
use esker_index::{PageRef, Rows};
use esker_proto::batch::crc32c;
use tokio::sync::{Semaphore, SemaphorePermit};

pub(crate) use damaged::DamagedPages;

use crate::{env::TaskSet, error::Error, store::Store};

/// Memory for pages that are being fetched and decoded. A page that takes more is loaded alone.
pub(crate) const LOADS_BYTES_MAX: u32 = 96 << 20;
/// What a row takes while it is decoded: eleven columns, and the row itself.
const ROW_BYTES: u64 = 160;
/// How long a load waits for its memory.
const WAIT: Duration = Duration::from_secs(30);
/// Bytes that fail their check are fetched again: they may have been damaged on their way. The same
/// wrong bytes twice are the object's own.
const FETCHES_MAX: usize = 4;

/// The page loads of the process.
pub(crate) static LOADS: Loads = Loads::new(LOADS_BYTES_MAX);

/// Loads that share a bound on their memory.
#[derive(Debug)]
pub(crate) struct Loads {
    free: Semaphore,
    bytes_max: u32,
}

impl Loads {
    const fn new(bytes_max: u32) -> Self {
        Self {
            free: Semaphore::const_new(bytes_max as usize),
            bytes_max,
        }
    }

    /// Returns the rows of a page.
    ///
    /// # Errors
    ///
    /// `NotFound` if the object is missing, `Corrupt` if it is not what the manifest says,
    /// `ReadMemory` if too many pages were being loaded for too long.
    pub(crate) async fn load(
        &self,
        store: &Store,
        tasks: &TaskSet,
        key: &str,
        page: &PageRef,
    ) -> Result<Rows, Error> {
        let _memory = self.memory(page).await?;
        let mut seen = Vec::with_capacity(FETCHES_MAX);
        loop {
            let bytes = store.get(key).await?;
            let reason = match decode(tasks, bytes.clone(), *page).await? {
                Ok(rows) => return Ok(rows),
                Err(error) => error.to_string(),
            };
            let digest = (bytes.len(), crc32c(&bytes));
            if seen.contains(&digest) {
                return Err(Error::corrupt(key, reason));
            }
            seen.push(digest);
            if seen.len() == FETCHES_MAX {
                let key = key.to_owned();
                return Err(Error::DamagedOnTheWay { key, reason });
            }
            tracing::info!(key, reason, "checksum failed, fetching again");
        }
    }

    async fn memory(&self, page: &PageRef) -> Result<SemaphorePermit<'_>, Error> {
        let bytes = u64::from(page.row_count) * ROW_BYTES + page.size_bytes;
        let weight = u32::try_from(bytes).unwrap_or(u32::MAX);
        let taken = self.free.acquire_many(weight.min(self.bytes_max));
        let taken = tokio::time::timeout(WAIT, taken).await;
        let taken = taken.map_err(|_| Error::ReadMemory {
            bytes,
            waited: WAIT,
        })?;
        Ok(taken.expect("the semaphore is never closed"))
    }
}

/// Decoding a page takes milliseconds: too long for a thread that serves others.
async fn decode(
    tasks: &TaskSet,
    bytes: Bytes,
    page: PageRef,
) -> Result<Result<Rows, esker_index::Error>, Error> {
    let decoding = tasks.spawn_blocking(move || Rows::decode_page(bytes, &page));
    decoding.await.map_err(|_| Error::Cancelled {
        operation: "decode page",
    })
}

#[cfg(test)]
mod tests;
