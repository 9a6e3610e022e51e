//! Cutting the end off a log.

use super::support::*;
use crate::log::{Error, RecoverAt};

/// Three segments of ten batches of two records, each in its own epoch.
fn three_epochs() -> TestLog {
    let mut log = TestLog::new();
    for segment in 1..=3 {
        log.leader_epoch = epoch(segment);
        for _ in 0..10 {
            log.append(2, 400);
        }
        if segment < 3 {
            log.log.roll().unwrap();
        }
    }
    log.sync().unwrap();
    log
}

fn truncate(log: &mut TestLog, from: u64) -> u64 {
    let end = log.log.truncate_from(offset(from), offset(0)).unwrap();
    log.appended
        .retain(|batch| batch.header().next_offset() <= end);
    end.get()
}

#[test]
fn a_truncated_log_is_the_prefix_and_goes_on_from_there() {
    for (from, expected) in [
        (59, 58),
        (50, 50),
        (41, 40),
        (40, 40),
        (33, 32),
        (1, 0),
        (0, 0),
    ] {
        let mut log = three_epochs();
        assert_eq!(truncate(&mut log, from), expected);
        assert_eq!(log.log.log_end_offset(), offset(expected));
        assert_eq!(log.log.flushed_offset(), offset(expected));
        log.check_content();

        log.leader_epoch = epoch(9);
        log.append(3, 500);
        log.log.roll().unwrap();
        log.append(3, 500);
        log.sync().unwrap();
        log.check_content();
        let log = log.reopen(&RecoverAt::default()).unwrap();
        assert_eq!(log.log.log_end_offset(), offset(expected + 6));
        log.check_content();
    }
}

#[test]
fn epochs_are_cut_even_if_the_log_is_not() {
    let mut log = three_epochs();
    log.log.begin_epoch(epoch(7)).unwrap();
    assert_eq!(truncate(&mut log, 60), 60);
    assert_eq!(log.log.epochs().last().unwrap().leader_epoch, epoch(3));
    let log = log.reopen(&RecoverAt::default()).unwrap();
    assert_eq!(log.log.epochs().last().unwrap().leader_epoch, epoch(3));
    log.check_content();
}

#[test]
fn nothing_is_cut_below_the_floor_or_the_local_start() {
    let mut log = three_epochs();
    log.log.delete_below(offset(20)).unwrap();
    for (from, floor) in [(49, 50), (19, 0)] {
        let error = log
            .log
            .truncate_from(offset(from), offset(floor))
            .unwrap_err();
        assert!(matches!(error, Error::BelowFloor { .. }), "{error}");
    }
    assert_eq!(log.log.log_end_offset(), offset(60));
    log.check_content();
    // Down to the local start there is no batch left, and the producers are those of that offset.
    let end = log.log.truncate_from(offset(20), offset(20)).unwrap();
    assert_eq!(end, offset(20));
    check_prefix(&log.log, &log.appended);
}

#[test]
fn a_reader_that_was_past_the_cut_reads_what_came_instead() {
    let mut log = three_epochs();
    log.sync().unwrap();
    let mut reader = log.log.reader();
    reader.read(offset(50), 1, offset(60)).unwrap();
    truncate(&mut log, 52);
    log.leader_epoch = epoch(9);
    log.append(4, 1_000);
    log.sync().unwrap();

    let bytes = reader.read(offset(52), 1, offset(60)).unwrap();
    assert_eq!(&bytes, log.appended.last().unwrap().bytes());
}
