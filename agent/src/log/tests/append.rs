//! Appending and reading.

use std::thread;

use esker_proto::{batch::Batches, types::TimestampMs};

use super::support::*;
use crate::log::{Error, ErrorKind, LogEvent, ReadWithin, RecoverAt};

#[test]
fn what_is_flushed_is_read_back_byte_for_byte() {
    let mut log = TestLog::new();
    for size in [1, 100, 5_000, 70_000, 200_000, 10] {
        log.append(3, size);
        log.append(1, size);
    }
    log.sync().unwrap();

    log.check_content();
    for max_bytes in [1, 61, 1_000, 64 << 10, 10 << 20] {
        let read = read_all(&mut log.log.reader(), offset(0), max_bytes);
        let expected: Vec<u8> = log
            .appended
            .iter()
            .flat_map(|b| b.bytes().to_vec())
            .collect();
        assert!(read == expected, "{max_bytes}");
    }
}

#[test]
fn the_file_is_the_batches_back_to_back() {
    let mut log = TestLog::new();
    log.append(2, 10);
    log.append(3, 20);
    log.sync().unwrap();

    let expected: Vec<u8> = log
        .appended
        .iter()
        .flat_map(|b| b.bytes().to_vec())
        .collect();
    assert_eq!(log.disk.bytes(&log.segment_path(0)), expected);
}

#[test]
fn a_read_begins_with_the_batch_that_holds_the_offset() {
    let mut log = TestLog::new();
    for _ in 0..50 {
        log.append(4, 3_000);
    }
    log.sync().unwrap();

    for at in [0, 1, 3, 4, 101, 199] {
        let bytes = log.log.reader().read(offset(at), 1, offset(200)).unwrap();
        let batches: Vec<_> = Batches::new(bytes).map(Result::unwrap).collect();
        assert_eq!(batches.len(), 1);
        assert_eq!(batches[0].header().base_offset, offset(at / 4 * 4));
    }
}

#[test]
fn a_read_stays_below_its_bound_and_in_its_size() {
    let mut log = TestLog::new();
    let size = u64::from(log.append(4, 100).size_bytes);
    for _ in 0..9 {
        log.append(4, 100);
    }
    log.sync().unwrap();

    let lengths = |from: u64, max_bytes: u64, below: u64| {
        let max_bytes = usize::try_from(max_bytes).unwrap();
        let read = log
            .log
            .reader()
            .read(offset(from), max_bytes, offset(below))
            .unwrap();
        read.len() as u64 / size
    };
    assert_eq!(lengths(0, 1 << 20, 40), 10);
    assert_eq!(lengths(0, 1 << 20, 8), 2);
    assert_eq!(lengths(0, 1 << 20, 11), 2);
    assert_eq!(lengths(0, 1 << 20, 3), 0);
    assert_eq!(lengths(0, size * 3, 40), 3);
    assert_eq!(lengths(0, size * 3 - 1, 40), 2);
    assert_eq!(lengths(0, 1, 40), 1);
    assert_eq!(lengths(40, 1 << 20, 40), 0);
    assert_eq!(lengths(8, 1 << 20, 4), 0);
}

#[test]
fn a_batch_larger_than_the_room_is_not_read_before_there_is_more() {
    let mut log = TestLog::new();
    log.append(4, 100);
    let size = log.append(4, 9_000).size_bytes as usize;
    log.append(4, 100);
    log.sync().unwrap();
    let mut reader = log.log.reader();
    let mut read = |from, room| {
        let read = reader.read_within(offset(from), (1_000, room), offset(12));
        read.unwrap()
    };

    let small = ReadWithin::Batches(log.appended[0].bytes().clone());
    assert_eq!(read(0, 1_000), small);
    for from in [4, 6] {
        for room in [1_000, size - 1] {
            assert_eq!(read(from, room), ReadWithin::Needs(size), "{from} {room}");
        }
        let large = ReadWithin::Batches(log.appended[1].bytes().clone());
        assert_eq!(read(from, size), large, "and not more than was wanted");
    }
}

#[test]
fn an_offset_outside_the_local_log_is_out_of_range() {
    let at = RecoverAt {
        tiered_offset: offset(100),
        ..RecoverAt::default()
    };
    let mut log = TestLog::open(Default::default(), &at).unwrap();
    log.append(10, 10);
    log.sync().unwrap();

    for out in [0, 99, 111] {
        let error = log
            .log
            .reader()
            .read(offset(out), 100, offset(1_000))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfRange, "{out}");
    }
    assert!(
        log.log
            .reader()
            .read(offset(110), 100, offset(1_000))
            .unwrap()
            .is_empty()
    );
}

#[test]
fn reading_goes_on_across_segments_and_after_the_read_ones_are_deleted() {
    let mut log = TestLog::new();
    for _ in 0..3 {
        log.append(5, 1_000);
        log.append(5, 1_000);
        log.log.roll().unwrap();
    }
    log.append(5, 1_000);
    log.sync().unwrap();
    log.check_content();

    let mut reader = log.log.reader();
    let first = reader.read(offset(0), 1, offset(35)).unwrap();
    assert_eq!(log.log.delete_below(offset(20)).unwrap(), offset(20));
    log.sync().unwrap();
    assert_eq!(first, log.appended[0].bytes());
    assert_eq!(
        reader.read(offset(5), 1, offset(35)).unwrap_err().kind(),
        ErrorKind::OutOfRange
    );
    assert_eq!(reader.local_log_start_offset(), offset(20));
    log.check_content();
    let segments = [20, 30].map(|base| format!("{base:020}.log"));
    let files = log.disk.file_names();
    assert_eq!(
        files
            .iter()
            .filter(|name| name.ends_with(".log"))
            .collect::<Vec<_>>(),
        segments.iter().collect::<Vec<_>>()
    );
}

#[test]
fn only_whole_sealed_segments_below_the_offset_are_deleted() {
    let mut log = TestLog::new();
    log.append(10, 10);
    log.log.roll().unwrap();
    log.append(10, 10);
    log.log.roll().unwrap();
    log.append(10, 10);

    assert_eq!(log.log.delete_below(offset(9)).unwrap(), offset(0));
    assert_eq!(log.log.delete_below(offset(15)).unwrap(), offset(10));
    assert_eq!(log.log.delete_below(offset(30)).unwrap(), offset(20));
    log.sync().unwrap();
    log.check_content();
}

#[test]
fn a_sealed_segment_says_what_the_bucket_needs_to_know() {
    let mut log = TestLog::new();
    assert!(log.log.roll().unwrap().is_none());
    log.append(2, 1 << 19);
    log.leader_epoch = epoch(4);
    log.append(2, 1 << 19);
    let size = log.log.active_bytes();
    let sealed = log.log.roll().unwrap().unwrap().clone();
    log.sync().unwrap();

    assert_eq!(
        (sealed.base_offset, sealed.next_offset),
        (offset(0), offset(4))
    );
    assert_eq!(sealed.size_bytes, size);
    assert_eq!(log.disk.bytes(&sealed.path).len() as u64, size);
    assert_eq!(sealed.entries.len(), 2);
    assert_eq!(sealed.entries[1].next_position().get(), size);
    assert_eq!(sealed.epochs.epoch_at(offset(3)), Some(epoch(4)));
    assert_eq!(sealed.producers, log.log.producers().encode());
    assert_eq!((log.log.active_bytes(), log.log.active_age()), (0, None));
    assert_eq!(log.log.sealed().len(), 1);
    assert!(log.log.roll().unwrap().is_none());
}

#[test]
fn bytes_are_counted_from_any_segment_on() {
    let mut log = TestLog::new();
    let size = u64::from(log.append(10, 10).size_bytes);
    log.log.roll().unwrap();
    log.append(10, 10);
    log.log.roll().unwrap();
    log.append(10, 10);

    let from = |at: u64| log.log.bytes_from(offset(at)) / size;
    assert_eq!([from(0), from(10), from(20), from(30)], [3, 2, 1, 1]);
    assert_eq!(log.log.size_bytes(), size * 3);
}

#[test]
fn a_batch_that_does_not_follow_or_is_of_an_old_epoch_changes_nothing() {
    let mut log = TestLog::new();
    log.leader_epoch = epoch(3);
    log.append(5, 10);

    let gap = batch(9, 1, 1, 0);
    let header = gap.header().stamped(offset(6), epoch(3));
    let room = log.pool.try_reserve(100).unwrap();
    let body = gap.bytes().slice(61..);
    let error = log
        .log
        .append(header.encode(), body, &header, room)
        .unwrap_err();
    assert!(matches!(error, Error::OffsetGap { .. }));
    log.leader_epoch = epoch(2);
    let error = log.append_batch(&gap).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced);
    assert_eq!(
        log.log.begin_epoch(epoch(2)).unwrap_err().kind(),
        ErrorKind::Fenced
    );

    log.leader_epoch = epoch(3);
    log.append(1, 1);
    log.sync().unwrap();
    log.check_content();
}

#[test]
fn a_timestamp_finds_the_first_record_at_or_after_it() {
    let mut log = TestLog::new();
    for _ in 0..40 {
        log.append(10, 2_000);
        if log.appended.len().is_multiple_of(15) {
            log.log.roll().unwrap();
        }
    }
    log.sync().unwrap();
    let log = log.reopen(&RecoverAt::default()).unwrap();

    let reader = log.log.reader();
    let find = |at: i64, below: u64| {
        reader
            .offset_for_timestamp(TimestampMs::new(at), offset(0), offset(below))
            .unwrap()
            .map(|(offset, at)| (offset.get(), at.get()))
    };
    // Batch b, counted from 1, holds b * 1000 to b * 1000 + 9.
    assert_eq!(find(i64::MIN, 400), Some((0, 1_000)));
    assert_eq!(find(1_004, 400), Some((4, 1_004)));
    assert_eq!(find(1_010, 400), Some((10, 2_000)));
    for batch in 1..=40 {
        let base = u64::try_from(batch - 1).unwrap() * 10;
        assert_eq!(
            find(batch * 1_000 + 3, 400),
            Some((base + 3, batch * 1_000 + 3))
        );
        assert_eq!(find(batch * 1_000 + 3, base), None);
    }
    assert_eq!(find(40_010, 400), None);
}

#[test]
fn one_event_tells_how_far_the_log_is_flushed() {
    let mut log = TestLog::new();
    for _ in 0..10 {
        log.append(1, 10);
    }
    log.sync().unwrap();

    let event = log.runtime.block_on(log.events.next());
    assert!(matches!(event, LogEvent::Flushed { log_end_offset } if log_end_offset == offset(10)));
    assert_eq!(log.log.flushed_offset(), offset(10));
}

#[test]
fn readers_follow_the_writer_and_never_see_a_torn_or_wrong_batch() {
    let mut log = TestLog::new();
    let readers: Vec<_> = (0..3)
        .map(|number| {
            let mut reader = log.log.reader();
            thread::spawn(move || {
                let mut at = offset(0);
                while at < offset(2_000) {
                    let bytes = reader
                        .read(at, 1 << (8 + 4 * number), offset(2_000))
                        .unwrap();
                    for batch in Batches::new(bytes) {
                        let batch = batch.unwrap();
                        assert_eq!(batch.header().base_offset, at);
                        at = batch.header().next_offset();
                    }
                    thread::yield_now();
                }
            })
        })
        .collect();
    for _ in 0..400 {
        log.append(5, 300);
        if log.appended.len().is_multiple_of(90) {
            log.log.roll().unwrap();
        }
    }
    for reader in readers {
        reader.join().unwrap();
    }
}
