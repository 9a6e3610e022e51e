//! Disks that are full or broken.

use std::{sync::Arc, time::Duration};

use super::{
    mem_disk::{Action, Fault, MemDisk},
    support::*,
};
use crate::log::{
    Error, ErrorKind, FlushPolicy, FlushPool, LocalLog, LogEvent, PoolOptions, RecoverAt,
};

const EIO: Fault = Fault::Errno(5);

/// Appends one batch and waits for what becomes of it.
fn event_of_append(log: &mut TestLog) -> LogEvent {
    log.append(1, 100);
    let TestLog {
        events, runtime, ..
    } = log;
    runtime.block_on(events.next())
}

fn failure(event: LogEvent) -> Error {
    match event {
        LogEvent::Failed(error) => error,
        other => panic!("{other:?}"),
    }
}

fn started() -> TestLog {
    let mut log = TestLog::new();
    let event = event_of_append(&mut log);
    assert!(matches!(event, LogEvent::Flushed { .. }));
    log
}

#[test]
fn a_failed_fsync_ends_the_log_and_is_never_tried_again() {
    let mut log = started();
    log.disk.fail(Action::SyncData, 0, EIO);

    let error = failure(event_of_append(&mut log));

    assert_eq!(error.kind(), ErrorKind::Offline);
    assert_eq!(log.log.flushed_offset(), offset(1));
    assert_eq!(log.log.reader().flushed_offset(), offset(1));
    let synced = log.disk.calls_of(Action::SyncData);
    let written = log.disk.calls_of(Action::Write);
    let next = batch(9, 1, 1, 0);
    assert_eq!(
        log.append_batch(&next).unwrap_err().kind(),
        ErrorKind::Offline
    );
    assert_eq!(log.sync().unwrap_err().kind(), ErrorKind::Offline);
    assert!(log.log.failure().is_some());
    assert_eq!(log.disk.calls_of(Action::SyncData), synced);
    assert_eq!(log.disk.calls_of(Action::Write), written);
}

#[test]
fn each_kind_of_failure_ends_the_log() {
    for action in [Action::Write, Action::SyncData] {
        let mut log = started();
        log.disk.fail(action, 0, EIO);
        let error = failure(event_of_append(&mut log));
        assert_eq!(error.kind(), ErrorKind::Offline, "{action:?}");
    }
    for action in [
        Action::Create,
        Action::Write,
        Action::SyncData,
        Action::Rename,
        Action::SyncDir,
    ] {
        let mut log = started();
        log.disk.fail(action, 0, EIO);
        log.log.begin_epoch(epoch(9)).unwrap();
        assert_eq!(
            log.sync().unwrap_err().kind(),
            ErrorKind::Offline,
            "{action:?}"
        );
    }
}

#[test]
fn a_full_disk_acknowledges_nothing_and_the_log_opens_again_when_there_is_room() {
    let mut log = started();
    let used = log.disk.bytes(&log.segment_path(0)).len();
    log.disk.set_capacity(Some(used + 200));

    let mut flushed = 1;
    let error = loop {
        match event_of_append(&mut log) {
            LogEvent::Flushed { log_end_offset } => flushed = log_end_offset.get(),
            LogEvent::Failed(error) => break error,
            other => panic!("{other:?}"),
        }
    };

    assert!(error.is_disk_full(), "{error}");
    assert_eq!(log.log.flushed_offset(), offset(flushed));
    log.disk.set_capacity(None);
    let mut log = log.reopen(&RecoverAt::default()).unwrap();
    log.appended
        .truncate(usize::try_from(log.log.log_end_offset().get()).unwrap());
    assert!(log.log.log_end_offset() >= offset(flushed));
    log.check_content();
    assert!(matches!(
        event_of_append(&mut log),
        LogEvent::Flushed { .. }
    ));
    log.check_content();
}

/// What fails, its group holding writes, and some who wait for them.
fn fail_a_group(action: Action, fault: Fault) {
    let mut log = started();
    log.disk.fail(action, 0, fault);
    // The group before it cannot end before everything is queued behind it.
    let (go, gate) = std::sync::mpsc::channel::<()>();
    log.disk
        .before_each_change(move |_| gate.recv().unwrap_or_default());
    let early = log.log.sync();
    for _ in 0..10 {
        log.append(1, 1_000);
    }
    let late = log.log.sync();
    drop(go);

    assert!(log.runtime.block_on(late).is_err());
    // Queued before the writes: it may have been done in time.
    drop(log.runtime.block_on(early));
    assert!(log.log.failure().is_some());
    log.log.truncate_from(offset(1), offset(1)).unwrap_err();
    assert_eq!(log.pool.reserved_bytes(), 0);
}

#[test]
fn a_failed_log_gives_back_its_room_and_its_waiters_an_error() {
    fail_a_group(Action::Write, EIO);
    fail_a_group(Action::SyncData, EIO);
    fail_a_group(Action::Write, Fault::Panic);
}

#[test]
fn other_logs_go_on() {
    let disk = MemDisk::default();
    let options = PoolOptions {
        threads: 2.try_into().unwrap(),
        ..options()
    };
    let pool = FlushPool::start_on(Arc::new(disk.clone()), options).unwrap();
    let mut first = TestLog::open_on(disk.clone(), pool.clone(), &RecoverAt::default()).unwrap();
    let (mut second, _, _) =
        LocalLog::open(&pool, "/data/other/000000".as_ref(), &RecoverAt::default()).unwrap();
    assert!(matches!(
        event_of_append(&mut first),
        LogEvent::Flushed { .. }
    ));
    disk.fail(Action::Write, 0, EIO);
    failure(event_of_append(&mut first));

    second.begin_epoch(epoch(3)).unwrap();
    first.runtime.block_on(second.sync()).unwrap();
}

#[test]
fn a_panic_of_a_flush_thread_fails_its_log_and_the_thread_goes_on() {
    let mut log = started();
    log.disk.fail(Action::Write, 0, Fault::Panic);
    failure(event_of_append(&mut log));

    let mut log = log.reopen(&RecoverAt::default()).unwrap();
    assert!(matches!(
        event_of_append(&mut log),
        LogEvent::Flushed { .. }
    ));
}

/// Two logs on a disk whose file system is flushed as a whole, by one thread and after an hour.
fn two_logs() -> (TestLog, LocalLog) {
    let disk = MemDisk::default();
    let options = PoolOptions {
        files_max: 0,
        policy: FlushPolicy::Interval(Duration::from_secs(3_600)),
        ..options()
    };
    let pool = FlushPool::start_on(Arc::new(disk.clone()), options).unwrap();
    let at = RecoverAt::default();
    let (other, _, _) = LocalLog::open(&pool, "/data/other/000000".as_ref(), &at).unwrap();
    (TestLog::open_on(disk, pool, &at).unwrap(), other)
}

#[test]
fn a_failed_write_that_a_flush_for_another_log_reported_is_not_forgotten() {
    let (mut log, mut other) = two_logs();
    log.append(1, 100);
    log.runtime.block_on(log.events.next());
    let path = log.segment_path(0);
    log.disk.fail_next_writeback(&path);
    log.disk.write_back(&path);

    // Reports the failure. The other log has lost nothing.
    other.begin_epoch(epoch(3)).unwrap();
    log.runtime.block_on(other.sync()).unwrap();
    let failure = log.sync().unwrap_err();

    assert_eq!(failure.kind(), ErrorKind::Offline);
    assert!(log.log.failure().is_some());
    let lost = MemDisk::of(log.disk.image().after_power_cut(|| false));
    let log = TestLog::open(lost, &RecoverAt::default()).unwrap();
    assert_eq!(log.log.log_end_offset(), offset(0));
}

#[test]
fn a_file_system_that_cannot_be_flushed_fails_the_logs_that_lost_something() {
    let (mut log, mut other) = two_logs();
    log.append(1, 100);
    log.runtime.block_on(log.events.next());
    log.disk.fail_next_writeback(&log.segment_path(0));
    other.begin_epoch(epoch(3)).unwrap();

    let failure = log.sync().unwrap_err();

    assert_eq!(failure.kind(), ErrorKind::Offline);
    assert!(log.disk.calls_of(Action::SyncAll) > 0);
    log.runtime.block_on(other.sync()).unwrap();
    assert!(other.failure().is_none());
}

#[test]
fn a_log_on_another_file_system_is_flushed_by_its_own_file() {
    let disk = MemDisk::default();
    disk.set_elsewhere(&dir());
    let options = PoolOptions {
        files_max: 0,
        ..options()
    };
    let pool = FlushPool::start_on(Arc::new(disk.clone()), options).unwrap();
    let mut log = TestLog::open_on(disk.clone(), pool, &RecoverAt::default()).unwrap();
    event_of_append(&mut log);
    let before = disk.calls_of(Action::SyncData);
    event_of_append(&mut log);
    assert_eq!(disk.calls_of(Action::SyncData), before + 1);
}

#[test]
fn a_file_system_that_hides_failures_is_never_flushed_as_a_whole() {
    let disk = MemDisk::default();
    disk.set_silent();
    let options = PoolOptions {
        files_max: 0,
        ..options()
    };
    let pool = FlushPool::start_on(Arc::new(disk.clone()), options).unwrap();
    let mut log = TestLog::open_on(disk.clone(), pool, &RecoverAt::default()).unwrap();
    event_of_append(&mut log);
    assert_eq!(disk.calls_of(Action::SyncAll), 0);
    disk.fail_next_writeback(&log.segment_path(0));
    failure(event_of_append(&mut log));
}

#[test]
fn a_waiter_hears_why_the_log_failed() {
    for fault in [Fault::Errno(5), Fault::Panic] {
        for _ in 0..100 {
            let mut log = started();
            log.log.roll().unwrap();
            log.sync().unwrap();
            log.disk.fail(Action::Create, 0, fault);
            let (go, gate) = std::sync::mpsc::channel::<()>();
            log.disk
                .before_each_change(move |_| gate.recv().unwrap_or_default());
            log.append(1, 100);
            log.log.begin_epoch(epoch(9)).unwrap();
            let waiting = log.log.sync();
            drop(go);
            let failure = log.runtime.block_on(waiting).unwrap_err();
            assert!(matches!(failure, Error::Io { .. }), "{failure}");
        }
    }
}

#[test]
fn events_after_a_failure_never_come() {
    let mut log = started();
    log.disk.fail(Action::Write, 0, EIO);
    failure(event_of_append(&mut log));
    let TestLog {
        events, runtime, ..
    } = &mut log;
    runtime.block_on(async {
        tokio::select! {
            biased;
            event = events.next() => panic!("{event:?}"),
            () = tokio::task::yield_now() => {}
        }
    });
}
