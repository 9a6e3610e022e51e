//! Records as they come out of a partition.

use std::{slice, sync::Arc};

use esker_proto::{
    batch::{BatchError, Record, RecordIter, Records},
    types::{LeaderEpoch, Offset, OffsetRange, PartitionId, TopicId},
    v1,
};

use super::{position::SavedPosition, response::fault_offset};
use crate::error::{Error, Result};

/// Where records came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FetchSource {
    /// The agent did not say.
    Unknown,
    /// The local hot tail.
    Tail,
    /// The bucket, through the cache.
    Bucket,
}

impl From<v1::FetchSource> for FetchSource {
    fn from(source: v1::FetchSource) -> Self {
        match source {
            v1::FetchSource::Unspecified => Self::Unknown,
            v1::FetchSource::Tail => Self::Tail,
            v1::FetchSource::Bucket => Self::Bucket,
        }
    }
}

/// Which partition records come from.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) topic: Arc<str>,
    pub(crate) topic_id: TopicId,
    pub(crate) partition: PartitionId,
}

impl Origin {
    /// Says of an error that it is about this partition, and these offsets, unless it does already.
    pub(crate) fn name(&self, error: Error, offsets: Option<OffsetRange>) -> Error {
        match error.partition() {
            None => error.at(&self.topic, self.partition, offsets),
            Some(_) => error,
        }
    }
}

/// Some records of one partition, in order and without a gap after the ones before, unless
/// [`Fetched::skipped`] names one. Every batch's checksum has been checked.
#[derive(Clone, Debug)]
pub struct Fetched {
    pub(crate) origin: Origin,
    pub(crate) offsets: OffsetRange,
    pub(crate) batches: Vec<Records>,
    pub(crate) skipped: Vec<Error>,
    pub(crate) high_watermark: Offset,
    pub(crate) log_start_offset: Offset,
    pub(crate) source: FetchSource,
}

impl Fetched {
    /// Returns the topic's name.
    pub fn topic(&self) -> &str {
        &self.origin.topic
    }

    /// Returns the partition.
    pub const fn partition(&self) -> PartitionId {
        self.origin.partition
    }

    /// Returns the records, borrowed from the bytes that were fetched.
    ///
    /// A record that cannot be decoded is an error that says which offsets it stands for, up to
    /// the end of its batch; the records of the next batch may follow.
    pub fn records(&self) -> FetchedRecords<'_> {
        FetchedRecords {
            batches: self.batches.iter(),
            records: None,
            batch: None,
            offsets: self.offsets.clone(),
            origin: &self.origin,
        }
    }

    /// Returns the offset of the first record.
    pub const fn base_offset(&self) -> Offset {
        self.offsets.start
    }

    /// Returns the offset to go on from.
    pub const fn next_offset(&self) -> Offset {
        self.offsets.end
    }

    /// Returns the number of records.
    pub const fn record_count(&self) -> u64 {
        self.offsets.end.since(self.offsets.start)
    }

    /// Returns what was left out directly before these records because it cannot be read: each
    /// error says which records and why. Empty unless [`OnDamage::Skip`](super::OnDamage::Skip) is
    /// chosen; there may be no records then.
    pub fn skipped(&self) -> &[Error] {
        &self.skipped
    }

    /// Returns the position behind these records, to be saved once they are dealt with.
    pub fn saved_position(&self) -> SavedPosition {
        SavedPosition {
            topic: self.topic().to_owned(),
            topic_id: self.origin.topic_id,
            partition: self.partition(),
            next_offset: self.next_offset(),
            leader_epoch: self.leader_epoch(),
        }
    }

    /// Returns the epoch of the leader that appended the record at `offset`; `None` if it is not among
    /// these records.
    pub fn leader_epoch_at(&self, offset: Offset) -> Option<LeaderEpoch> {
        let index = self
            .batches
            .partition_point(|batch| batch.header().next_offset() <= offset);
        let header = self.batches.get(index)?.header();
        (self.offsets.contains(&offset) && header.offsets().contains(&offset))
            .then_some(header.leader_epoch)
    }

    /// The epoch of the last record; `None` if there are no records.
    pub(crate) fn leader_epoch(&self) -> Option<LeaderEpoch> {
        self.batches.last().map(|batch| batch.header().leader_epoch)
    }

    /// Returns the bytes of the batches as they were fetched, compressed ones compressed.
    pub fn size_bytes(&self) -> usize {
        let sizes = self.batches.iter().map(|batch| batch.header().size_bytes);
        sizes.map(|bytes| bytes as usize).sum()
    }

    /// Returns the partition's high watermark at the time of the fetch.
    pub const fn high_watermark(&self) -> Offset {
        self.high_watermark
    }

    /// Returns the partition's log start offset at the time of the fetch.
    pub const fn log_start_offset(&self) -> Offset {
        self.log_start_offset
    }

    /// Returns where the records came from.
    pub const fn source(&self) -> FetchSource {
        self.source
    }

    /// Returns the batches, for callers that do their own bookkeeping: the first may begin below
    /// [`Fetched::base_offset`], the last may go on beyond [`Fetched::next_offset`].
    pub fn batches(&self) -> &[Records] {
        &self.batches
    }
}

impl<'a> IntoIterator for &'a Fetched {
    type Item = Result<Record<'a>>;
    type IntoIter = FetchedRecords<'a>;

    fn into_iter(self) -> Self::IntoIter {
        self.records()
    }
}

/// Iterates over the records of a [`Fetched`].
#[derive(Clone, Debug)]
pub struct FetchedRecords<'a> {
    batches: slice::Iter<'a, Records>,
    records: Option<RecordIter<'a>>,
    batch: Option<&'a Records>,
    offsets: OffsetRange,
    origin: &'a Origin,
}

impl<'a> Iterator for FetchedRecords<'a> {
    type Item = Result<Record<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some(record) = self.records.as_mut().and_then(Iterator::next) else {
                let batch = self.batches.next()?;
                (self.batch, self.records) = (Some(batch), Some(batch.iter()));
                continue;
            };
            match record {
                Ok(record) if record.offset < self.offsets.start => {}
                Ok(record) if record.offset >= self.offsets.end => return self.end(),
                Ok(record) => return Some(Ok(record)),
                Err(error) => return self.fail(error),
            }
        }
    }
}

impl<'a> FetchedRecords<'a> {
    #[cold]
    fn end(&mut self) -> Option<Result<Record<'a>>> {
        (self.batches, self.records) = ([].iter(), None);
        None
    }

    #[cold]
    fn fail(&mut self, error: BatchError) -> Option<Result<Record<'a>>> {
        let batch = self.batch?;
        let from = fault_offset(batch, &error).max(self.offsets.start);
        if from >= self.offsets.end {
            return self.end();
        }
        let lost = from..batch.header().next_offset().min(self.offsets.end);
        Some(Err(self.origin.name(Error::corrupt(error), Some(lost))))
    }
}
