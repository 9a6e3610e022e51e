//! When what is flushed, and what holds back.

use std::{sync::Arc, time::Duration};

use futures::FutureExt;

use super::{
    mem_disk::{Action, MemDisk},
    support::*,
};
use crate::log::{FlushPolicy, FlushPool, LogEvent, PoolOptions, RecoverAt};

fn open(options: PoolOptions) -> TestLog {
    let disk = MemDisk::default();
    let pool = FlushPool::start_on(Arc::new(disk.clone()), options).unwrap();
    TestLog::open_on(disk, pool, &RecoverAt::default()).unwrap()
}

#[test]
fn what_is_queued_while_a_group_is_flushed_is_one_group() {
    let mut log = TestLog::new();
    log.append(1, 10);
    log.sync().unwrap();
    let before = log.disk.calls_of(Action::SyncData);
    // The first group cannot end before the hook lets it, so that all others gather behind it.
    let (go, gate) = std::sync::mpsc::channel::<()>();
    log.disk
        .before_each_change(move |_| gate.recv().unwrap_or_default());
    for _ in 0..200 {
        log.append(1, 10);
    }
    drop(go);
    log.sync().unwrap();

    let flushes = log.disk.calls_of(Action::SyncData) - before;
    assert!(flushes <= 2, "{flushes}");
    log.check_content();
}

#[test]
fn a_group_larger_than_one_write_call_is_whole() {
    let mut log = open(PoolOptions {
        room_bytes: 8 << 20,
        ..options()
    });
    let (go, gate) = std::sync::mpsc::channel::<()>();
    log.disk
        .before_each_change(move |_| gate.recv().unwrap_or_default());
    for _ in 0..3_000 {
        log.append(1, 10);
    }
    drop(go);
    log.sync().unwrap();
    log.check_content();
}

#[test]
fn without_room_nobody_can_append_until_something_is_flushed() {
    let mut log = open(PoolOptions {
        room_bytes: 1_000,
        ..options()
    });
    let (go, gate) = std::sync::mpsc::channel::<()>();
    log.disk
        .before_each_change(move |_| gate.recv().unwrap_or_default());
    log.append(1, 600);
    assert!(log.pool.try_reserve(600).is_none());
    let pool = log.pool.clone();
    let waiting = pool.reserve(600);
    let mut waiting = std::pin::pin!(waiting);
    assert!(waiting.as_mut().now_or_never().is_none());

    drop(go);
    let room = log.runtime.block_on(waiting);
    assert_eq!(log.pool.reserved_bytes(), 600);
    drop(room);
    log.sync().unwrap();
    assert_eq!(log.pool.reserved_bytes(), 0);
}

#[test]
fn a_batch_larger_than_all_room_takes_all_of_it() {
    let mut log = open(PoolOptions {
        room_bytes: 1_000,
        ..options()
    });
    log.append(1, 5_000);
    log.append(1, 5_000);
    log.sync().unwrap();
    log.check_content();
}

#[test]
fn by_interval_a_batch_is_flushed_when_written_and_on_the_disk_later() {
    let hour = Duration::from_secs(3_600);
    let mut log = open(PoolOptions {
        policy: FlushPolicy::Interval(hour),
        ..options()
    });
    let opened = log.disk.calls_of(Action::SyncData);
    log.log.begin_epoch(epoch(1)).unwrap();
    log.append(1, 100);
    let event = log.runtime.block_on(log.events.next());
    assert!(matches!(event, LogEvent::Flushed { .. }));
    log.check_content();
    // The epoch's checkpoint needs one.
    assert_eq!(log.disk.calls_of(Action::SyncData), opened + 1);

    log.sync().unwrap();
    assert_eq!(log.disk.calls_of(Action::SyncData), opened + 2);
}

#[test]
fn by_interval_the_disk_is_flushed_when_it_is_over() {
    let soon = Duration::from_millis(1);
    let mut log = open(PoolOptions {
        policy: FlushPolicy::Interval(soon),
        ..options()
    });
    let (flushed, is_flushed) = std::sync::mpsc::channel();
    log.append(1, 100);
    let opened = log.disk.clone();
    log.disk
        .before_each_change(move |_| flushed.send(()).unwrap_or_default());
    // Whatever comes after the write is the flush.
    if opened.calls_of(Action::SyncDir) < 3 {
        is_flushed.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}

#[test]
fn a_pool_that_is_dropped_writes_and_flushes_what_is_queued() {
    let hour = Duration::from_secs(3_600);
    for policy in [FlushPolicy::Ack, FlushPolicy::Interval(hour)] {
        let mut log = open(PoolOptions {
            policy,
            ..options()
        });
        for _ in 0..100 {
            log.append(1, 100);
        }
        let TestLog {
            disk,
            pool,
            log,
            appended,
            ..
        } = log;
        drop((log, pool));

        let durable = MemDisk::of(disk.image().after_power_cut(|| false));
        let log = TestLog::open(durable, &RecoverAt::default()).unwrap();
        assert_eq!(log.log.log_end_offset(), offset(100));
        check_prefix(&log.log, &appended);
    }
}

#[test]
fn a_pool_whose_threads_all_hang_on_the_disk_has_no_pulse() {
    let mut log = TestLog::new();
    let pool = log.pool.clone();
    log.runtime.block_on(pool.pulse());
    let (hangs, hung) = std::sync::mpsc::channel::<()>();
    let (go, gate) = std::sync::mpsc::channel::<()>();
    log.disk.before_each_change(move |_| {
        let _ = hangs.send(());
        gate.recv().unwrap_or_default();
    });
    log.append(1, 10);
    hung.recv().unwrap();

    let mut pulse = std::pin::pin!(pool.pulse());
    assert!(pulse.as_mut().now_or_never().is_none());

    drop(go);
    log.runtime.block_on(pulse);
}
