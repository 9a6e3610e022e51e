//! Reads a sealed segment file into the body of one put, and checks every batch on the way.
//!
//! What the bucket gets is final, so bytes that a disk has spoiled must not reach it. The index
//! entries of the object are built from the bytes that were checked, not taken over.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::PathBuf,
    sync::Arc,
};

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use esker_index::{EpochHistory, IndexBuilder, IndexEntry};
use esker_proto::{
    batch::{Batches, RecordBatch},
    types::{LeaderEpoch, Offset},
};
use tokio_util::sync::CancellationToken;

use crate::{error::Error, store::PutPayload};

/// Most parts of an object, somewhat below what S3 allows.
const PARTS_MAX: u64 = 9000;

/// A segment file that will not change any more, and the state of the log at its end.
#[derive(Clone, Debug)]
pub struct SealedSegment {
    /// The file: batches back to back.
    pub path: PathBuf,
    /// Offset of its first record.
    pub base_offset: Offset,
    /// Offset after its last record.
    pub next_offset: Offset,
    /// Length of its batches, in bytes. The file may be longer.
    pub size_bytes: u64,
    /// Its index. Says where runs of whole batches begin and end.
    pub entries: Vec<IndexEntry>,
    /// Leader epochs of the log up to its end.
    pub epochs: EpochHistory,
    /// Producer snapshot at its end.
    pub producers: Bytes,
}

/// Checked batches, ready to be put.
#[derive(Debug)]
pub(super) struct SegmentBody {
    /// The batches, in pieces of about one index entry.
    pub pieces: Vec<Bytes>,
    /// Their index; the first is at position 0.
    pub entries: Vec<IndexEntry>,
    /// CRC-32C of all of them.
    pub crc32c: u32,
    /// Where the first of them begins in the file.
    pub start: u64,
}

/// What becomes of batches that were checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pieces {
    /// They are put as they were read.
    Keep,
    /// They are read once more, part by part, with [`Parts`].
    Drop,
}

/// Reads the batches of `segment` at and above `from`, which must be a batch boundary if it lies
/// within the segment. Blocks.
pub(super) fn read(
    segment: &SealedSegment,
    from: Offset,
    pieces: Pieces,
    cancel: &CancellationToken,
) -> Result<SegmentBody, Error> {
    let mut file = File::open(&segment.path).map_err(|source| unreadable(segment, source))?;
    let mut checker = Checker::new(segment.base_offset, from, pieces);
    let mut position = 0;
    for entry in &segment.entries {
        if cancel.is_cancelled() {
            return Err(Error::Cancelled {
                operation: "upload",
            });
        }
        if entry.position.get() != position {
            return Err(corrupt(segment, "index entries do not follow each other"));
        }
        position = entry.next_position().get();
        if entry.next_offset() <= from {
            checker.skip_to(entry.next_offset());
            continue;
        }
        let piece = read_piece(&mut file, entry).map_err(|source| unreadable(segment, source))?;
        checker
            .push(piece, entry.position.get())
            .map_err(|reason| corrupt(segment, reason))?;
    }
    if position != segment.size_bytes {
        return Err(corrupt(segment, "index entries do not cover the file"));
    }
    checker
        .finish(segment.next_offset)
        .map_err(|reason| corrupt(segment, reason))
}

/// Reads checked batches once more, in parts for the store, and refuses them at the end if they are
/// not the same any more.
#[derive(Debug)]
pub(super) struct Parts {
    segment: SealedSegment,
    file: Option<File>,
    position: u64,
    part_bytes: u64,
    crc32c: u32,
    digest: Digest,
    trailer: Bytes,
}

/// Bytes of a part that leave in one go: the store's client notices progress by them.
const SLICE_BYTES: usize = 1 << 20;

impl Parts {
    /// Begins at the start of `body`; `trailer` follows the batches.
    pub(super) fn new(
        segment: SealedSegment,
        body: &SegmentBody,
        trailer: Bytes,
        part_bytes: u64,
    ) -> Self {
        Self {
            file: None,
            position: body.start,
            part_bytes: part_bytes.max(segment.size_bytes / PARTS_MAX),
            crc32c: body.crc32c,
            digest: Digest::new(CrcAlgorithm::Crc32Iscsi),
            trailer,
            segment,
        }
    }

    /// Length of the object.
    pub(super) fn size_bytes(&self) -> u64 {
        self.segment.size_bytes - self.position + self.trailer.len() as u64
    }

    /// Reads the next part; `None` after the last. Blocks.
    pub(super) fn next(&mut self) -> Result<Option<PutPayload>, Error> {
        let left = self.segment.size_bytes - self.position;
        if left == 0 {
            return Ok(None);
        }
        let length = left.min(self.part_bytes);
        let bytes = self.read(length);
        let bytes = bytes.map_err(|source| unreadable(&self.segment, source))?;
        self.position += length;
        self.digest.update(&bytes);
        let trailer = if length == left {
            self.check()?;
            self.trailer.clone()
        } else {
            Bytes::new()
        };
        let ends = (SLICE_BYTES..bytes.len() + SLICE_BYTES).step_by(SLICE_BYTES);
        let slices = ends.map(|end| bytes.slice(end - SLICE_BYTES..end.min(bytes.len())));
        Ok(Some(slices.chain([trailer]).collect()))
    }

    fn read(&mut self, length: u64) -> io::Result<Bytes> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(File::open(&self.segment.path)?),
        };
        let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
        file.seek(SeekFrom::Start(self.position))?;
        file.take(length).read_to_end(&mut bytes)?;
        if bytes.len() as u64 == length {
            return Ok(bytes.into());
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    fn check(&self) -> Result<(), Error> {
        if self.digest.finalize() == u64::from(self.crc32c) {
            return Ok(());
        }
        Err(corrupt(
            &self.segment,
            "the file changed while it was uploaded",
        ))
    }
}

fn read_piece(file: &mut File, entry: &IndexEntry) -> io::Result<Bytes> {
    let length = usize::try_from(entry.length).expect("a length of 32 bits fits usize");
    let mut piece = Vec::with_capacity(length);
    file.seek(SeekFrom::Start(entry.position.get()))?;
    file.take(entry.length.into()).read_to_end(&mut piece)?;
    if piece.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(piece.into())
}

/// A file shorter than its index is damage, not a disk that is slow to answer.
fn unreadable(segment: &SealedSegment, source: io::Error) -> Error {
    if source.kind() == io::ErrorKind::UnexpectedEof {
        return corrupt(segment, "the file is shorter than its index says");
    }
    Error::LocalFile {
        path: segment.path.display().to_string(),
        source: Arc::new(source),
    }
}

fn corrupt(segment: &SealedSegment, reason: impl Into<String>) -> Error {
    Error::corrupt(segment.path.display().to_string(), reason)
}

/// Follows the batches of a segment and refuses what does not hold.
struct Checker {
    from: Offset,
    next_offset: Offset,
    leader_epoch: LeaderEpoch,
    wanted: Pieces,
    pieces: Vec<Bytes>,
    start: Option<u64>,
    index: IndexBuilder,
    digest: Digest,
}

impl Checker {
    fn new(base_offset: Offset, from: Offset, wanted: Pieces) -> Self {
        Self {
            from,
            next_offset: base_offset,
            leader_epoch: LeaderEpoch::default(),
            wanted,
            pieces: Vec::new(),
            start: None,
            index: IndexBuilder::new(),
            digest: Digest::new(CrcAlgorithm::Crc32Iscsi),
        }
    }

    fn skip_to(&mut self, next_offset: Offset) {
        self.next_offset = next_offset;
    }

    fn push(&mut self, piece: Bytes, position: u64) -> Result<(), String> {
        let mut skipped = 0;
        for batch in Batches::new(piece.clone()) {
            let batch = batch.map_err(|error| error.to_string())?;
            self.check(&batch)?;
            if batch.header().next_offset() <= self.from {
                skipped += batch.bytes().len();
            } else {
                self.index(&batch)?;
            }
        }
        let kept = piece.slice(skipped..);
        self.digest.update(&kept);
        self.start.get_or_insert(position + skipped as u64);
        if self.wanted == Pieces::Keep {
            self.pieces.push(kept);
        }
        Ok(())
    }

    fn check(&mut self, batch: &RecordBatch) -> Result<(), String> {
        let header = batch.header();
        if header.base_offset != self.next_offset {
            let (expected, actual) = (self.next_offset, header.base_offset);
            return Err(format!(
                "offsets leave a gap. expected=`{expected}`, actual=`{actual}`"
            ));
        }
        if header.leader_epoch < self.leader_epoch {
            return Err(format!(
                "leader epochs fall. base_offset=`{}`",
                header.base_offset
            ));
        }
        self.next_offset = header.next_offset();
        self.leader_epoch = header.leader_epoch;
        Ok(())
    }

    fn index(&mut self, batch: &RecordBatch) -> Result<(), String> {
        let header = batch.header();
        if header.base_offset < self.from {
            return Err(format!(
                "no batch begins at the tiered offset. tiered=`{}`",
                self.from
            ));
        }
        self.index.push(header);
        Ok(())
    }

    fn finish(self, next_offset: Offset) -> Result<SegmentBody, String> {
        if self.next_offset != next_offset {
            let actual = self.next_offset;
            return Err(format!(
                "batches end elsewhere. expected=`{next_offset}`, actual=`{actual}`"
            ));
        }
        let crc32c = u32::try_from(self.digest.finalize()).expect("a CRC-32 has 32 bits");
        Ok(SegmentBody {
            pieces: self.pieces,
            entries: self.index.finish(),
            crc32c,
            start: self.start.unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests;
