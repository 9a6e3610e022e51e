//! Bytes that changed on the disk behind the log's back, each of them in turn.

use bytes::Bytes;
use esker_proto::{
    batch::{Batches, HEADER_BYTES, RecordBatch},
    types::{Offset, TimestampMs},
};

use super::{mem_disk::MemDisk, support::*};
use crate::log::{
    Damage, Error, ErrorKind, Flushed, Found, Known, LogReader, OffsetCheckpoint, RecoverAt,
    examine::examine_on, repair::*,
};

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
pub(super) fn position_of(log: &TestLog, batch: usize) -> usize {
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

/// What the agent's checkpoint says of a log that was flushed to `flushed`.
pub(super) fn known(flushed: u64) -> RecoverAt {
    RecoverAt {
        known: Some(Known {
            flushed_offset: offset(flushed),
            is_final: false,
        }),
        is_flushed_first: true,
        ..RecoverAt::default()
    }
}

/// Two sealed segments and an active one, flushed: everything a log's directory can hold.
pub(super) fn all_files() -> TestLog {
    let mut log = TestLog::new();
    for segment in 0..3 {
        for _ in 0..3 {
            log.append(2, 40);
        }
        if segment < 2 {
            log.log.roll().unwrap();
        }
    }
    log.sync().unwrap();
    log
}

/// Opens what is on the disk: all of it, or a typed error and nothing changed.
fn opens_whole_or_not(disk: &MemDisk, whole: &TestLog, at: &RecoverAt, case: &str) {
    let before = disk.contents();
    match TestLog::open(disk.clone(), at) {
        Ok(log) => {
            let end = log.log.log_end_offset();
            assert_eq!(end, offset(18), "{case}: the end fell in silence");
            let (_, error) = consume(&mut log.log.reader(), end);
            assert!(
                !matches!(error, Some(Error::Io { .. })),
                "{case}: {error:?}"
            );
            assert_eq!(log.log.epochs(), whole.log.epochs(), "{case}");
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{case}: {error}");
            assert_eq!(
                segments_in(&disk.contents()),
                segments_in(&before),
                "{case}"
            );
        }
    }
}

type Harm = (&'static str, fn(&mut Vec<u8>));

/// Ways to harm a segment file.
const HARMS: [Harm; 4] = [
    ("flipped", |bytes| bytes[70] ^= 4),
    ("cut short", |bytes| bytes.truncate(bytes.len() - 3)),
    ("emptied", Vec::clear),
    ("longer", |bytes| bytes.extend([7; 9])),
];

#[test]
fn a_damaged_segment_that_the_bucket_has_is_kept_unread_and_any_other_is_refused() {
    let whole = all_files();
    let image = whole.disk.image();
    let at = RecoverAt {
        tiered_offset: offset(12),
        epochs: whole.log.epochs().clone(),
        producers: Some(whole.log.sealed().last().unwrap().producers.clone()),
        ..known(18)
    };
    for base in [0, 6, 12] {
        for (harm, change) in HARMS {
            for has_state in [true, false] {
                let case = format!("{base} is {harm}, has its state: {has_state}");
                if harm == "emptied" && !has_state {
                    // It passes for what a removal left that a crash cut short.
                    continue;
                }
                let disk = MemDisk::of(image.clone());
                let path = whole.segment_path(base);
                disk.corrupt(&path, change);
                if !has_state && base < 12 {
                    disk.forget(&dir().join(format!("{:020}.state", base + 6)));
                }
                let before = disk.contents();
                let opened = TestLog::open(disk.clone(), &at);
                if base == 12 && harm == "longer" {
                    assert!(opened.unwrap().recovered.cut.is_some(), "a torn tail");
                    continue;
                }
                assert!(
                    segments_in(&disk.contents()) == segments_in(&before),
                    "{case}"
                );
                if base == 12 {
                    assert_eq!(opened.err().unwrap().kind(), ErrorKind::Corrupt, "{case}");
                    continue;
                }
                let log = opened.unwrap();
                // A sealed segment is not read at start while its state and length are right.
                let is_seen = !(has_state && harm == "flipped");
                assert_eq!(
                    log.recovered.distrusted.len(),
                    usize::from(is_seen),
                    "{case}"
                );
                let reader = log.log.reader();
                assert_eq!(reader.is_distrusted(offset(base)), is_seen, "{case}");
                assert_eq!(log.log.log_end_offset(), offset(18), "{case}");
                assert_eq!(log.log.local_log_start_offset(), offset(0), "{case}");
                assert_eq!(log.log.producers(), whole.log.producers(), "{case}");
                assert_eq!(log.log.epochs(), whole.log.epochs(), "{case}");
                let tail = read_all(&mut log.log.reader(), offset(12), 300);
                assert_eq!(tail, disk.bytes(&whole.segment_path(12)), "{case}");
            }
        }
    }
}

#[test]
fn a_segment_that_cannot_be_opened_is_forgiven_only_if_the_bucket_has_it() {
    const EIO: i32 = 5;
    let whole = all_files();
    for (tiered, is_forgiven) in [(0, false), (6, false), (12, true)] {
        let disk = MemDisk::of(whole.disk.image());
        disk.fail_opens(&whole.segment_path(6), 1, EIO);
        let at = RecoverAt {
            tiered_offset: offset(tiered),
            ..known(18)
        };
        let opened = TestLog::open(disk, &at);
        assert_eq!(opened.is_ok(), is_forgiven, "{tiered}");
    }
}

#[test]
fn checksums_are_compared_below_the_bound_and_a_segment_is_distrusted_once() {
    let log = all_files();
    let path = log.segment_path(6);
    log.disk
        .corrupt(&path, |bytes| *bytes.last_mut().unwrap() ^= 1);
    let mut reader = log.log.reader();
    assert!(reader.read(offset(6), 10_000, offset(18)).is_ok());
    reader.check_below(offset(12));
    let error = reader.read(offset(6), 10_000, offset(18)).unwrap_err();
    let Error::Corrupt {
        offset: at,
        path: named,
        ..
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!((*at, named), (offset(10), &path));
    assert!(
        !reader.distrust(offset(8), offset(11)),
        "not all of it is there"
    );
    assert!(reader.distrust(offset(8), offset(12)));
    assert!(!reader.distrust(offset(8), offset(12)));
    assert!(reader.is_distrusted(offset(11)) && !reader.is_distrusted(offset(12)));
    assert!(reader.read(offset(0), 10_000, offset(18)).is_ok());
}

type Contents = std::collections::BTreeMap<std::path::PathBuf, Vec<u8>>;

fn segments_in(contents: &Contents) -> Vec<(&std::path::PathBuf, &Vec<u8>)> {
    let is_log = |path: &std::path::Path| path.extension().is_some_and(|e| e == "log");
    contents.iter().filter(|(path, _)| is_log(path)).collect()
}

#[test]
fn every_file_of_a_log_with_any_byte_changed_cut_or_gone_opens_whole_or_not() {
    let whole = all_files();
    let image = whole.disk.image();
    let at = known(18);
    for (path, bytes) in whole.disk.contents() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // All of the small files; of batches, other tests see to each byte.
        let step = if name.ends_with(".log") { 7 } else { 1 };
        for byte in (0..bytes.len()).step_by(step) {
            let disk = MemDisk::of(image.clone());
            disk.corrupt(&path, |bytes| bytes[byte] ^= 1 << (byte % 8));
            opens_whole_or_not(&disk, &whole, &at, &format!("{name}, byte {byte} flipped"));
            let disk = MemDisk::of(image.clone());
            disk.corrupt(&path, |bytes| bytes.truncate(byte));
            opens_whole_or_not(&disk, &whole, &at, &format!("{name}, cut to {byte}"));
        }
        let disk = MemDisk::of(image.clone());
        disk.forget(&path);
        opens_whole_or_not(&disk, &whole, &at, &format!("{name} gone"));
    }
}

#[test]
fn a_segment_that_is_gone_is_missed_although_it_was_short() {
    let log = six_batches();
    log.disk.forget(&log.segment_path(0));
    let error = log.reopen(&RecoverAt::default()).err().unwrap();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
}

#[test]
fn a_tail_that_was_acknowledged_is_never_cut_as_torn() {
    let log = six_batches();
    let path = log.segment_path(0);
    log.disk.forget(&dir().join("mark"));
    log.disk
        .corrupt(&path, |bytes| bytes.truncate(bytes.len() - 7));
    let before = log.disk.bytes(&path);
    let disk = log.disk.clone();

    let error = log.reopen(&known(24)).err().unwrap();

    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    assert_eq!(disk.bytes(&path), before);
    let opened = TestLog::open(disk, &known(20)).unwrap();
    assert_eq!(opened.log.log_end_offset(), offset(20));
}

#[test]
fn a_log_whose_files_are_all_gone_is_missed_unless_the_bucket_has_it_for_sure() {
    let at = |flushed_offset, is_final, tiered: u64| RecoverAt {
        known: Some(Known {
            flushed_offset: offset(flushed_offset),
            is_final,
        }),
        tiered_offset: offset(tiered),
        ..RecoverAt::default()
    };
    for (at, is_missed) in [
        (at(30, false, 20), true),
        (at(30, true, 20), true),
        // More may have been acknowledged after the checkpoint was written.
        (at(30, false, 30), true),
        (at(30, true, 30), false),
    ] {
        let opened = TestLog::open(MemDisk::default(), &at);
        let is_vanished = matches!(opened, Err(Error::Vanished { .. }));
        assert_eq!(is_vanished, is_missed, "{at:?}");
    }
}

#[test]
fn a_log_that_ends_below_what_it_uploaded_is_an_older_copy() {
    let copy = six_batches();
    let image = copy.disk.image();
    let mut epochs = copy.log.epochs().clone();
    let at = |epochs: &esker_index::EpochHistory, is_flushed_first| RecoverAt {
        tiered_offset: offset(40),
        epochs: epochs.clone(),
        is_flushed_first,
        ..RecoverAt::default()
    };
    let error = copy.reopen(&at(&epochs, true)).err().unwrap();
    assert!(matches!(error, Error::Rewound { .. }), "{error}");
    // Where records are acknowledged before they are flushed, a power cut leaves that too.
    assert!(TestLog::open(MemDisk::of(image.clone()), &at(&epochs, false)).is_ok());
    // And another leader may have written the rest.
    epochs.push(epoch(2), offset(24)).unwrap();
    assert!(TestLog::open(MemDisk::of(image), &at(&epochs, true)).is_ok());
}

/// Where repairs put what they cut.
pub(super) fn aside() -> std::path::PathBuf {
    std::path::PathBuf::from("/data/aside/1")
}

#[test]
fn a_repair_keeps_what_is_whole_and_moves_the_rest_aside() {
    for bad in 0..9 {
        let log = all_files();
        let segment = log.segment_path(bad / 3 * 6);
        let position = position_of(&log, usize::try_from(bad).unwrap())
            - position_of(&log, usize::try_from(bad / 3 * 3).unwrap());
        log.disk
            .corrupt(&segment, |bytes| bytes[position + 70] ^= 4);
        let at = known(18);
        let disk = log.disk.clone();

        let examined = examine_on(&disk, &dir(), at.known, None).unwrap();
        assert_eq!(examined.end_offset, offset(bad * 2), "{examined:?}");
        let Some(Error::Corrupt {
            path,
            position: from,
            ..
        }) = &examined.damage
        else {
            panic!("{examined:?}")
        };
        assert_eq!((path, from.get()), (&segment, position as u64));
        let bytes: usize = log.appended[usize::try_from(bad).unwrap()..]
            .iter()
            .map(|batch| batch.bytes().len())
            .sum();
        assert_eq!(examined.beyond.1, bytes as u64, "{examined:?}");
        repair_on(&disk, &dir(), &aside(), &examined).unwrap();

        let moved: usize = disk
            .contents()
            .iter()
            .filter(|(path, _)| {
                path.parent() == Some(&aside()) && path.to_string_lossy().contains(".log")
            })
            .map(|(_, bytes)| bytes.len())
            .sum();
        assert_eq!(moved, bytes, "batch {bad}");
        // The checkpoint has forgotten the log.
        let forgotten = RecoverAt { known: None, ..at };
        let repaired = log.reopen(&forgotten).unwrap();
        let note = repaired.recovered.repaired.unwrap();
        assert_eq!(
            (note.cut_offset, note.flushed_offset),
            (offset(bad * 2), offset(18))
        );
        assert_eq!(repaired.log.log_end_offset(), offset(bad * 2));
        repaired.check_content();
        let again = repaired.reopen(&forgotten).unwrap();
        assert_eq!(again.recovered.repaired, None);
    }
}

#[test]
fn a_repaired_log_that_ends_below_the_bucket_continues_there() {
    let log = all_files();
    let segment = log.segment_path(6);
    log.disk.corrupt(&segment, |bytes| bytes[70] ^= 4);
    let epochs = log.log.epochs().clone();
    let examined = examine_on(&log.disk, &dir(), None, None).unwrap();
    repair_on(&log.disk, &dir(), &aside(), &examined).unwrap();
    let at = RecoverAt {
        tiered_offset: offset(12),
        epochs,
        is_flushed_first: true,
        ..RecoverAt::default()
    };
    let log = log.reopen(&at).unwrap();
    assert_eq!(log.log.log_end_offset(), offset(12));
}

#[test]
fn an_offset_checkpoint_says_what_was_written_or_nothing() {
    let disk = MemDisk::default();
    let data = std::path::Path::new("/data");
    let open = |disk: &MemDisk| {
        OffsetCheckpoint::open_on(std::sync::Arc::new(disk.clone()), data).unwrap()
    };
    let at = esker_proto::types::TopicPartition {
        topic_id: esker_proto::types::TopicId::new(uuid::Uuid::from_u128(7)),
        partition: esker_proto::types::PartitionId::new(3),
    };
    let (checkpoint, found) = open(&disk);
    assert_eq!(found, Found::Nothing);
    let flushed = Flushed {
        leader_epoch: epoch(2),
        offset: offset(500),
    };
    checkpoint.advance([(at, flushed)], false).unwrap();

    let (again, found) = open(&disk);
    assert_eq!(found, Found::Whole);
    let said = again.known(at, epoch(2)).unwrap();
    assert_eq!((said.flushed_offset, said.is_final), (offset(500), false));
    assert_eq!(again.known(at, epoch(3)), None, "another agent led since");
    again.forget(|_| true).unwrap();
    assert_eq!(open(&disk).0.known(at, epoch(2)), None);

    checkpoint.advance([(at, flushed)], true).unwrap();
    let path = data.join("offset-checkpoint");
    let image = disk.image();
    for byte in 0..disk.bytes(&path).len() {
        for is_cut in [true, false] {
            let disk = MemDisk::of(image.clone());
            disk.corrupt(&path, |bytes| match is_cut {
                true => bytes.truncate(byte),
                false => bytes[byte] ^= 1 << (byte % 8),
            });
            let (checkpoint, found) = open(&disk);
            assert!(matches!(found, Found::Damaged(_)), "byte {byte}");
            assert_eq!(checkpoint.known(at, epoch(0)), None, "byte {byte}");
            assert_eq!(open(&disk).1, Found::Nothing);
        }
    }
}
