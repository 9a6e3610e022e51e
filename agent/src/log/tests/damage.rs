//! Bytes that changed on the disk behind the log's back, each of them in turn.

use bytes::Bytes;
use esker_proto::{
    batch::{Batches, HEADER_BYTES, RecordBatch},
    types::{Offset, TimestampMs},
};

use super::support::*;
use crate::log::{Damage, Error, ErrorKind, LogReader, RecoverAt};

/// More reads than a small log can take.
const READS_MAX: usize = 100;

/// Six batches of four records in one segment, flushed.
fn six_batches() -> TestLog {
    let mut log = TestLog::new();
    for _ in 0..6 {
        log.append(4, 40);
    }
    log.sync().unwrap();
    log
}

fn bytes_of(log: &TestLog) -> Vec<Bytes> {
    let batches = log.appended.iter();
    batches.map(|batch| batch.bytes().clone()).collect()
}

/// Where a batch lies in the file.
fn position_of(log: &TestLog, batch: usize) -> usize {
    let before = log.appended[..batch].iter();
    before.map(|batch| batch.bytes().len()).sum()
}

/// Each byte of a batch's header and some of its records, with the bits that are flipped in it.
fn flips(batch_bytes: usize) -> impl Iterator<Item = (usize, u8)> {
    let body = (HEADER_BYTES..batch_bytes).step_by(17);
    let bytes = (0..HEADER_BYTES).chain(body).chain([batch_bytes - 1]);
    bytes.flat_map(|byte| (0..8).map(move |bit| (byte, 1 << bit)))
}

/// Reads on to the end as a consumer does, who compares checksums: what it got, and what ended it.
fn consume(reader: &mut LogReader, end: Offset) -> (Vec<Bytes>, Option<Error>) {
    let (mut at, mut got) = (Offset::ZERO, Vec::new());
    for _ in 0..READS_MAX {
        if at >= end {
            return (got, None);
        }
        let bytes = match reader.read(at, 300, end) {
            Ok(bytes) => bytes,
            Err(error) => return (got, Some(reader.locate(error))),
        };
        assert!(!bytes.is_empty(), "stands still at {at}");
        for batch in Batches::new(bytes) {
            // The reader leaves the checksum to the consumer, who stops here.
            let Ok(batch) = batch else {
                return (got, reader.check(at, end).err());
            };
            at = batch.header().next_offset();
            got.push(batch.bytes().clone());
        }
    }
    panic!("reads on for ever, now at {at}");
}

#[test]
fn every_flipped_bit_of_a_batch_ends_a_read_and_is_named() {
    let log = six_batches();
    let path = log.segment_path(0);
    let end = log.log.log_end_offset();
    for bad in [0, 2, 5] {
        let position = position_of(&log, bad);
        for (byte, bit) in flips(log.appended[bad].bytes().len()) {
            let flip = |bytes: &mut Vec<u8>| bytes[position + byte] ^= bit;
            log.disk.corrupt(&path, flip);

            let (got, error) = consume(&mut log.log.reader(), end);

            let case = format!("batch {bad}, byte {byte}, bit {bit}: {error:?}");
            let Some(Error::Corrupt {
                path: named,
                offset: at,
                position: from,
                ..
            }) = error
            else {
                panic!("{case}")
            };
            let base = log.appended[bad].header().base_offset;
            assert_eq!(
                (named, at, from.get()),
                (path.clone(), base, position as u64),
                "{case}"
            );
            assert_eq!(got, bytes_of(&log)[..bad], "{case}");
            log.disk.corrupt(&path, flip);
        }
    }
    assert_eq!(consume(&mut log.log.reader(), end).0, bytes_of(&log));
}

#[test]
fn a_search_by_time_ends_whichever_bit_is_flipped() {
    let log = six_batches();
    let (path, end) = (log.segment_path(0), log.log.log_end_offset());
    let position = position_of(&log, 2);
    for (byte, bit) in flips(log.appended[2].bytes().len()) {
        let flip = |bytes: &mut Vec<u8>| bytes[position + byte] ^= bit;
        log.disk.corrupt(&path, flip);
        for timestamp in [2_000, 3_001, i64::MAX] {
            let since = TimestampMs::new(timestamp);
            let found = log
                .log
                .reader()
                .offset_for_timestamp(since, Offset::ZERO, end);
            if let Ok(Some((offset, _))) = found {
                assert!(offset < end, "byte {byte}, bit {bit}");
            }
        }
        log.disk.corrupt(&path, flip);
    }
}

#[test]
fn a_batch_that_claims_records_above_the_end_is_damage() {
    let log = six_batches();
    let path = log.segment_path(0);
    let position = position_of(&log, 5);
    log.disk.corrupt(&path, |bytes| {
        // Record count and last offset delta agree with each other.
        bytes[position + 25] ^= 1;
        bytes[position + 59] ^= 1;
    });
    let error = log
        .log
        .reader()
        .read(offset(20), 1, offset(24))
        .unwrap_err();
    let is_beyond = |error: &Error| {
        matches!(
            error,
            Error::Corrupt {
                damage: Damage::Beyond { .. },
                ..
            }
        )
    };
    assert!(is_beyond(&error), "{error}");
}

/// A value that is a whole batch at `base`.
fn batch_of_batch(base: u64) -> RecordBatch {
    let inner = batch(1, 2, 50, 0);
    let (header, body) = inner.stamped(offset(base), epoch(1));
    let value = [&header[..], &body].concat();
    let mut builder = esker_proto::batch::BatchBuilder::new(esker_proto::batch::Compression::None);
    for value in [&value[..], &[7; 500]] {
        builder
            .push(TimestampMs::new(0), None, Some(value), &[])
            .unwrap();
    }
    RecordBatch::validate(builder.finish(None)).unwrap()
}

#[test]
fn a_batch_the_file_ends_within_is_torn_whatever_its_records_hold() {
    // Offsets that could follow, and the one that must.
    for inner in [5, 9, 1_000] {
        let mut log = TestLog::new();
        log.append(3, 100);
        log.append_batch(&batch_of_batch(inner)).unwrap();
        log.sync().unwrap();
        log.disk.forget(&dir().join("mark"));
        let path = log.segment_path(0);
        log.disk
            .corrupt(&path, |bytes| bytes.truncate(bytes.len() - 20));

        let log = log.reopen(&RecoverAt::default()).unwrap();

        assert_eq!(log.log.log_end_offset(), offset(3), "inner {inner}");
        assert!(log.recovered.cut.is_some());
    }
}

#[test]
fn a_length_that_reaches_beyond_the_file_is_no_torn_tail_if_the_batch_is_whole() {
    for bad in [2, 5] {
        let log = six_batches();
        log.disk.forget(&dir().join("mark"));
        let (path, position) = (log.segment_path(0), position_of(&log, bad));
        log.disk.corrupt(&path, |bytes| bytes[position + 9] ^= 1);
        let error = log.reopen(&RecoverAt::default()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}
