//! Records as they come out of a partition.

use std::{slice, sync::Arc};

use esker_proto::{
    batch::{self, Batches, Record, RecordIter, Records},
    types::{Offset, OffsetRange, PartitionId},
    v1,
};

use crate::error::{Error, ErrorKind, Result};

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

/// Some records of one partition, in order and without a gap after the ones before. Every batch's
/// checksum has been checked.
#[derive(Clone, Debug)]
pub struct Fetched {
    topic: Arc<str>,
    partition: PartitionId,
    wanted: OffsetRange,
    batches: Vec<Records>,
    size_bytes: usize,
    high_watermark: Offset,
    log_start_offset: Offset,
    source: FetchSource,
}

impl Fetched {
    /// Reads a response. Records below `wanted` and from its end on are left out; `None`: there
    /// are no others.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] if a batch does not hold together, or if records are missing between
    /// `wanted` and the first batch or between batches.
    pub(crate) fn read(
        topic: &Arc<str>,
        partition: PartitionId,
        wanted: &OffsetRange,
        response: v1::FetchResponse,
    ) -> Result<Option<Self>> {
        let source = FetchSource::from(response.source());
        let size_bytes = response.batches.len();
        let mut batches = Vec::new();
        let mut next_offset = wanted.start;
        for batch in Batches::new(response.batches) {
            let context = || format!("partition {partition} after offset {next_offset}");
            let batch = batch.map_err(|error| Error::corrupt(context(), error))?;
            let offsets = batch.header().offsets();
            if offsets.end <= next_offset {
                continue;
            }
            if offsets.start > next_offset {
                return Err(gap(partition, next_offset, offsets.start));
            }
            if next_offset >= wanted.end {
                break;
            }
            batches.push(
                batch
                    .records()
                    .map_err(|error| Error::corrupt(context(), error))?,
            );
            next_offset = offsets.end;
        }
        let wanted = wanted.start..next_offset.min(wanted.end);
        let fetched = Self {
            topic: Arc::clone(topic),
            partition,
            wanted,
            batches,
            size_bytes,
            high_watermark: Offset::new(response.high_watermark),
            log_start_offset: Offset::new(response.log_start_offset),
            source,
        };
        Ok((!fetched.wanted.is_empty()).then_some(fetched))
    }

    /// Returns the topic's name.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Returns the partition.
    pub const fn partition(&self) -> PartitionId {
        self.partition
    }

    /// Returns the records, borrowed from the bytes that were fetched.
    pub fn records(&self) -> FetchedRecords<'_> {
        FetchedRecords {
            batches: self.batches.iter(),
            records: None,
            wanted: self.wanted.clone(),
            partition: self.partition,
        }
    }

    /// Returns the offset of the first record.
    pub const fn base_offset(&self) -> Offset {
        self.wanted.start
    }

    /// Returns the offset to go on from.
    pub const fn next_offset(&self) -> Offset {
        self.wanted.end
    }

    /// Returns the number of records.
    pub const fn record_count(&self) -> u64 {
        self.wanted.end.since(self.wanted.start)
    }

    /// Returns the bytes of the batches as they were fetched, compressed ones compressed.
    pub const fn size_bytes(&self) -> usize {
        self.size_bytes
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
    wanted: OffsetRange,
    partition: PartitionId,
}

impl<'a> Iterator for FetchedRecords<'a> {
    type Item = Result<Record<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some(record) = self.records.as_mut().and_then(Iterator::next) else {
                self.records = Some(self.batches.next()?.iter());
                continue;
            };
            match record {
                Ok(record) if record.offset < self.wanted.start => {}
                Ok(record) if record.offset >= self.wanted.end => return self.end(),
                Ok(record) => return Some(Ok(record)),
                Err(error) => return Some(Err(self.corrupt(error))),
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
    fn corrupt(&self, error: batch::BatchError) -> Error {
        Error::corrupt(format_args!("partition {}", self.partition), error)
    }
}

fn gap(partition: PartitionId, expected: Offset, found: Offset) -> Error {
    let message = format!(
        "agent left records out. partition=`{partition}` expected_offset=`{expected}` \
         offset=`{found}`"
    );
    Error::new(ErrorKind::Corrupt, message)
}
