//! What is checked of a batch before its partition sees it: its bytes, and each of its records.
//!
//! A batch that no consumer can decode would end every consumer that comes to it. Checking what is
//! compressed takes memory that its size does not tell, so it goes by a budget: a first try with room
//! for an ordinary batch, and a second one, alone, with room for the largest.

use bytes::Bytes;
use esker_proto::batch::{
    BatchError, Compression, DECOMPRESSED_BYTES_MAX, RecordBatch, RecordTimes,
};

use crate::shared::Shared;

/// Memory of all checks of compressed batches: one of the largest, or several ordinary ones.
pub(crate) const CHECK_BYTES_MAX: u64 = DECOMPRESSED_BYTES_MAX as u64;
/// What an ordinary batch has when decompressed.
const ORDINARY_BYTES_MAX: usize = 8 << 20;
/// Larger batches are checked off the runtime's threads.
const INLINE_BYTES_MAX: usize = 1 << 20;

/// A batch that holds, and the times of its records as far as they were checked.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) batch: RecordBatch,
    pub(super) times: RecordTimes,
}

/// Checks one batch. `is_compressed_checked`: also the records of a compressed one.
pub(super) async fn check(
    shared: &Shared,
    bytes: Bytes,
    is_compressed_checked: bool,
) -> Result<Checked, BatchError> {
    let batch = RecordBatch::validate(bytes)?;
    let times = match batch.header().compression() {
        Compression::None if batch.bytes().len() <= INLINE_BYTES_MAX => batch.check_records()?,
        Compression::None => check_off_thread(shared, &batch, DECOMPRESSED_BYTES_MAX).await?,
        _ if is_compressed_checked => check_compressed(shared, &batch).await?,
        _ => RecordTimes::of_header(batch.header())?,
    };
    Ok(Checked { batch, times })
}

async fn check_compressed(shared: &Shared, batch: &RecordBatch) -> Result<RecordTimes, BatchError> {
    for bytes_max in [ORDINARY_BYTES_MAX, DECOMPRESSED_BYTES_MAX] {
        let bytes = u32::try_from(bytes_max).unwrap_or(u32::MAX);
        let _room = shared.check_memory.acquire(bytes).await;
        match check_off_thread(shared, batch, bytes_max).await {
            Err(BatchError::TooLarge { .. }) if bytes_max < DECOMPRESSED_BYTES_MAX => {}
            checked => return checked,
        }
    }
    Err(BatchError::TooLarge {
        bytes_max: DECOMPRESSED_BYTES_MAX,
    })
}

async fn check_off_thread(
    shared: &Shared,
    batch: &RecordBatch,
    bytes_max: usize,
) -> Result<RecordTimes, BatchError> {
    let checked = batch.clone();
    let check = move || checked.check_records_within(bytes_max);
    let checking = shared.tasks.spawn_blocking(check).await;
    // The agent is ending: the partition refuses the batch, whatever it holds.
    checking.unwrap_or_else(|_| RecordTimes::of_header(batch.header()))
}
