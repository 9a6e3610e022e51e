//! Batches, a log on a disk in memory, and what it must hold.

use std::{num::NonZeroUsize, path::PathBuf, sync::Arc};

use bytes::Bytes;
use esker_index::producers::ProducerTable;
use esker_proto::{
    batch::{BatchBuilder, BatchHeader, Batches, Compression, RecordBatch},
    types::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs},
};
use tokio::runtime::{Builder, Runtime};

use super::mem_disk::MemDisk;
use crate::log::{
    Error, FlushPolicy, FlushPool, LocalLog, LogEvents, LogReader, PoolOptions, RecoverAt,
    Recovered,
};

pub(super) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

pub(super) fn dir() -> PathBuf {
    PathBuf::from("/data/topic/000000")
}

pub(super) fn options() -> PoolOptions {
    PoolOptions {
        threads: NonZeroUsize::MIN,
        policy: FlushPolicy::Ack,
        room_bytes: 1 << 20,
        files_max: 16,
        open_files_max: 2,
    }
}

pub(super) fn pool(disk: &MemDisk) -> FlushPool {
    FlushPool::start_on(Arc::new(disk.clone()), options()).unwrap()
}

pub(super) fn epoch(epoch: u32) -> LeaderEpoch {
    LeaderEpoch::new(epoch)
}

pub(super) fn offset(offset: u64) -> Offset {
    Offset::new(offset)
}

/// A batch of `records` records whose bytes depend on `seed`, stamped 1 ms apart from `timestamp` on.
pub(super) fn batch(seed: u64, records: u32, value_bytes: usize, timestamp: i64) -> RecordBatch {
    let mut builder = BatchBuilder::new(Compression::None);
    for record in 0..records {
        let fill = u8::try_from((seed + u64::from(record)) % 255).unwrap() + 1;
        let at = TimestampMs::new(timestamp + i64::from(record));
        builder
            .push(
                at,
                Some(&seed.to_be_bytes()),
                Some(&vec![fill; value_bytes]),
                &[],
            )
            .unwrap();
    }
    let producer = (ProducerId::new(1), ProducerEpoch::new(0), Sequence::new(0));
    // Half of the batches come from producers that retry.
    let producer = seed.is_multiple_of(2).then_some((
        ProducerId::new(i64::try_from(seed % 6).unwrap()),
        producer.1,
        Sequence::new(i32::try_from(seed).unwrap()),
    ));
    RecordBatch::validate(builder.finish(producer)).unwrap()
}

/// A log and what was put into it.
pub(super) struct TestLog {
    pub(super) disk: MemDisk,
    pub(super) pool: FlushPool,
    pub(super) log: LocalLog,
    pub(super) events: LogEvents,
    pub(super) runtime: Runtime,
    pub(super) recovered: Recovered,
    /// Every batch as it must be read, from offset 0 on.
    pub(super) appended: Vec<RecordBatch>,
    pub(super) leader_epoch: LeaderEpoch,
    seed: u64,
}

impl TestLog {
    pub(super) fn new() -> Self {
        Self::open(MemDisk::default(), &RecoverAt::default()).unwrap()
    }

    pub(super) fn open(disk: MemDisk, at: &RecoverAt) -> Result<Self, Error> {
        let pool = pool(&disk);
        Self::open_on(disk, pool, at)
    }

    pub(super) fn open_on(disk: MemDisk, pool: FlushPool, at: &RecoverAt) -> Result<Self, Error> {
        let (log, events, recovered) = LocalLog::open(&pool, &dir(), at)?;
        Ok(Self {
            disk,
            pool,
            log,
            events,
            runtime: runtime(),
            recovered,
            appended: Vec::new(),
            leader_epoch: epoch(1),
            seed: 0,
        })
    }

    /// Opens the log again on the same disk, as after a crash of the process.
    pub(super) fn reopen(self, at: &RecoverAt) -> Result<Self, Error> {
        let Self {
            disk,
            pool,
            log,
            events,
            appended,
            leader_epoch,
            seed,
            ..
        } = self;
        drop((log, events, pool));
        let opened = Self::open(disk, at)?;
        Ok(Self {
            appended,
            leader_epoch,
            seed,
            ..opened
        })
    }

    pub(super) fn append(&mut self, records: u32, value_bytes: usize) -> BatchHeader {
        self.seed += 1;
        let timestamp = i64::try_from(self.seed).unwrap() * 1_000;
        let batch = batch(self.seed, records, value_bytes, timestamp);
        self.append_batch(&batch).unwrap()
    }

    pub(super) fn append_batch(&mut self, batch: &RecordBatch) -> Result<BatchHeader, Error> {
        let base_offset = self.log.log_end_offset();
        let (header, body) = batch.stamped(base_offset, self.leader_epoch);
        let stamped = batch.header().stamped(base_offset, self.leader_epoch);
        let room = self
            .runtime
            .block_on(self.pool.reserve(header.len() + body.len()));
        self.log.append(header, body.clone(), &stamped, room)?;
        let bytes = [&header[..], &body].concat();
        self.appended
            .push(RecordBatch::validate(bytes.into()).unwrap());
        Ok(stamped)
    }

    pub(super) fn sync(&self) -> Result<(), Error> {
        self.runtime.block_on(self.log.sync())
    }

    pub(super) fn close(self) -> MemDisk {
        let Self {
            log, runtime, disk, ..
        } = self;
        runtime.block_on(log.close()).unwrap();
        disk
    }

    pub(super) fn segment_path(&self, base: u64) -> PathBuf {
        dir().join(format!("{base:020}.log"))
    }

    /// Reads all of the log and compares it with what was appended below its end.
    pub(super) fn check_content(&self) {
        check_prefix(&self.log, &self.appended);
    }
}

/// Reads everything from `start` on, a few batches at a time.
pub(super) fn read_all(reader: &mut LogReader, start: Offset, max_bytes: usize) -> Bytes {
    let mut all = Vec::new();
    let mut at = start;
    loop {
        let bytes = reader.read(at, max_bytes, Offset::MAX).unwrap();
        let Some(last) = Batches::new(bytes.clone()).last() else {
            return all.into();
        };
        at = last.unwrap().header().next_offset();
        all.extend_from_slice(&bytes);
    }
}

/// Checks that `log` holds exactly those of `appended` that lie in it, and its state with them.
pub(super) fn check_prefix(log: &LocalLog, appended: &[RecordBatch]) {
    let (start, end) = (log.local_log_start_offset(), log.log_end_offset());
    let is_in = |batch: &&RecordBatch| {
        batch.header().base_offset >= start && batch.header().next_offset() <= end
    };
    let expected: Vec<&RecordBatch> = appended.iter().filter(is_in).collect();
    let bytes: Vec<u8> = expected
        .iter()
        .flat_map(|batch| batch.bytes().to_vec())
        .collect();
    let read = read_all(&mut log.reader(), start, 10_000);
    assert!(
        read == bytes,
        "read {} bytes, expected {}",
        read.len(),
        bytes.len()
    );
    assert_eq!(log.bytes_from(start), bytes.len() as u64);
    let last = expected
        .last()
        .map_or(start, |batch| batch.header().next_offset());
    assert_eq!(last, end);

    let mut producers = ProducerTable::new();
    for batch in appended
        .iter()
        .filter(|batch| batch.header().next_offset() <= end)
    {
        producers.apply(batch.header());
        let header = batch.header();
        assert_eq!(
            log.epochs().epoch_at(header.base_offset),
            Some(header.leader_epoch)
        );
    }
    assert_eq!(*log.producers(), producers);
}
