//! Open files: how many a log holds, and what happens when no file can be created.

use std::path::Path;

use super::{
    mem_disk::{Action, Fault},
    support::*,
};
use crate::log::{Error, LogEvent, RecoverAt};

const EMFILE: i32 = 24;
const ENOSPC: i32 = 28;

fn next_event(log: &mut TestLog) -> LogEvent {
    let TestLog {
        events, runtime, ..
    } = log;
    runtime.block_on(events.next())
}

/// Waits until the log cannot create a file, whatever comes before.
fn await_shortage(log: &mut TestLog) -> Error {
    loop {
        match next_event(log) {
            LogEvent::Short(error) => return error,
            LogEvent::Flushed { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// A log of one sealed segment.
fn sealed() -> TestLog {
    let mut log = TestLog::new();
    log.append(1, 1_000);
    log.log.roll().unwrap();
    log.sync().unwrap();
    log
}

#[test]
fn a_log_that_is_not_appended_to_holds_no_file_open() {
    let mut log = TestLog::new();
    assert_eq!(log.disk.open_files(), 0);
    log.append(1, 100);
    log.sync().unwrap();
    assert_eq!(log.disk.open_files(), 1, "the active segment");
    log.log.roll().unwrap();
    log.sync().unwrap();
    assert_eq!(log.disk.open_files(), 0);
    let log = log.reopen(&RecoverAt::default()).unwrap();
    assert_eq!(log.disk.open_files(), 0);
}

#[test]
fn sealed_segments_are_opened_when_they_are_read_so_many_at_a_time() {
    let mut log = TestLog::new();
    for _ in 0..6 {
        log.append(2, 500);
        log.log.roll().unwrap();
    }
    log.sync().unwrap();
    log.check_content();
    assert_eq!(log.disk.open_files(), options().open_files_max);
    log.check_content();
    assert_eq!(log.disk.open_files(), options().open_files_max);
}

#[test]
fn a_segment_that_cannot_be_created_now_is_created_later_and_nothing_is_lost() {
    for errno in [EMFILE, 23, 12, ENOSPC] {
        let mut log = sealed();
        log.disk.set_create_errno(Some(errno));
        log.append(3, 700);
        let shortage = await_shortage(&mut log);
        assert!(shortage.is_shortage(), "{shortage}");
        assert!(log.log.failure().is_none());

        log.disk.set_create_errno(None);
        log.append(1, 10);
        log.sync().unwrap();
        assert!(log.log.failure().is_none());
        log.check_content();
        let log = log.reopen(&RecoverAt::default()).unwrap();
        log.check_content();
    }
}

#[test]
fn a_directory_that_cannot_be_opened_now_is_no_flush_that_failed() {
    // It is opened before a segment is created, and before its state is written.
    let mut log = sealed();
    for step in 0..2 {
        log.disk.fail_opens(&dir(), usize::MAX, EMFILE);
        match step {
            0 => drop(log.append(3, 700)),
            _ => drop(log.log.roll().unwrap()),
        }
        await_shortage(&mut log);
        assert!(log.log.failure().is_none());
        log.disk.fail_opens(&dir(), 0, EMFILE);
        log.append(1, 10);
        log.sync().unwrap();
        while !matches!(next_event(&mut log), LogEvent::Resumed) {}
    }
    let log = log.reopen(&RecoverAt::default()).unwrap();
    log.check_content();
}

#[test]
fn the_owner_hears_when_files_can_be_created_again() {
    let mut log = sealed();
    log.append(1, 100);
    log.sync().unwrap();
    log.disk.set_create_errno(Some(EMFILE));
    log.log.roll().unwrap();
    await_shortage(&mut log);
    log.disk.set_create_errno(None);
    assert!(matches!(next_event(&mut log), LogEvent::Resumed));
}

#[test]
fn what_frees_space_is_done_ahead_of_what_waits_for_it() {
    let mut log = sealed();
    let below = log.log.log_end_offset();
    log.append(1, 100);
    log.sync().unwrap();
    log.disk.set_create_errno(Some(ENOSPC));
    log.log.roll().unwrap();
    await_shortage(&mut log);

    log.log.delete_below(below).unwrap();
    let first = format!("{:020}.log", 0);
    while log.disk.file_names().contains(&first) {
        std::thread::yield_now();
    }
    log.disk.set_create_errno(None);
    log.sync().unwrap();
    log.check_content();
}

#[test]
fn a_local_copy_that_cannot_be_removed_stays_and_ends_nothing() {
    let mut log = sealed();
    let below = log.log.log_end_offset();
    log.append(1, 100);
    log.sync().unwrap();
    log.disk.fail(Action::Rename, 0, Fault::Errno(13));

    log.log.delete_below(below).unwrap();
    log.append(1, 100);
    log.sync().unwrap();

    assert!(log.log.failure().is_none());
    assert_eq!(log.log.log_end_offset(), offset(3));
    assert!(log.disk.file_names().contains(&format!("{:020}.log", 0)));
    let at = RecoverAt {
        tiered_offset: below,
        ..RecoverAt::default()
    };
    let log = log.reopen(&at).unwrap();
    assert_eq!(log.log.log_end_offset(), offset(3));
}

#[test]
fn a_log_that_waits_for_a_file_ends_with_the_pool_and_says_why() {
    let mut log = sealed();
    log.disk.set_create_errno(Some(EMFILE));
    log.append(1, 100);
    await_shortage(&mut log);
    let waiting = log.log.sync();
    let TestLog {
        log, pool, runtime, ..
    } = log;
    drop((log, pool));
    let failure = runtime.block_on(waiting).unwrap_err();
    assert!(failure.is_shortage(), "{failure}");
}

#[test]
fn a_mark_that_cannot_be_opened_now_is_written_later() {
    let mut log = TestLog::new();
    log.append(1, 100);
    log.sync().unwrap();
    log.disk.fail_opens(Path::new("mark"), 1, EMFILE);
    log.log.roll().unwrap();
    log.append(1, 100);
    log.sync().unwrap();
    log.append(1, 100);
    log.sync().unwrap();
    let log = log.reopen(&RecoverAt::default()).unwrap();
    log.check_content();
}

#[test]
fn a_sync_that_cannot_wait_ends_with_a_shortage_that_begins_before_or_during_it() {
    for is_known in [true, false] {
        let mut log = sealed();
        log.disk.set_create_errno(Some(EMFILE));
        log.append(1, 100);
        if is_known {
            await_shortage(&mut log);
        }
        let synced = log.runtime.block_on(log.log.sync_unless_short());
        let failure = synced.unwrap_err();
        assert!(failure.is_shortage(), "{failure}");
        assert!(log.log.failure().is_some());
    }
    let mut log = sealed();
    log.append(1, 100);
    log.runtime.block_on(log.log.sync_unless_short()).unwrap();
}
