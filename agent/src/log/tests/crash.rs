//! Power cuts at every operation, keeping any part of what was not flushed.

use std::{
    num::NonZeroUsize,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use esker_proto::{batch::RecordBatch, types::Offset};
use parking_lot::Mutex;

use super::{
    mem_disk::{Image, MemDisk},
    support::*,
};
use crate::log::{FlushPolicy, FlushPool, Known, LocalLog, PoolOptions, RecoverAt};

/// The moment before one operation.
#[derive(Clone)]
struct Moment {
    image: Image,
    /// Below this everything was acknowledged as durable.
    acked: Offset,
    /// What the bucket held.
    tiered: RecoverAt,
}

/// A source of choices that is the same each time.
struct Choices(u64);

impl Choices {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Runs the life of a log and records every moment of it.
fn live(policy: FlushPolicy) -> (Vec<Moment>, Vec<RecordBatch>) {
    let moments: Arc<Mutex<Vec<Moment>>> = Arc::default();
    let tiered: Arc<Mutex<RecoverAt>> = Arc::default();
    let synced = Arc::new(AtomicU64::new(0));
    let disk = MemDisk::default();
    let options = PoolOptions {
        threads: NonZeroUsize::MIN,
        policy,
        ..options()
    };
    let pool = FlushPool::start_on(Arc::new(disk.clone()), options).unwrap();
    let mut log = TestLog::open_on(disk.clone(), pool, &RecoverAt::default()).unwrap();
    record(&log, &moments, &tiered, &synced, policy);

    let note_synced = |log: &TestLog| {
        log.sync().unwrap();
        synced.store(log.log.log_end_offset().get(), Ordering::SeqCst);
    };
    for round in 0..3_u32 {
        log.leader_epoch = epoch(round + 1);
        log.log.begin_epoch(log.leader_epoch).unwrap();
        for group in 0..4 {
            for batch in 0..4 {
                log.append(batch + 1, 300 + 1_500 * usize::try_from(group % 3).unwrap());
            }
            if group % 2 == round % 2 {
                note_synced(&log);
            }
        }
        let sealed = log.log.roll().unwrap().unwrap().clone();
        log.append(2, 100);
        log.append(2, 5_000);
        note_synced(&log);
        if round > 0 {
            let producers = Some(sealed.producers.clone());
            let at = RecoverAt {
                tiered_offset: sealed.next_offset,
                epochs: sealed.epochs,
                producers,
                is_flushed_first: policy == FlushPolicy::Ack,
                ..RecoverAt::default()
            };
            *tiered.lock() = at;
            let below = if round == 1 {
                sealed.base_offset
            } else {
                sealed.next_offset
            };
            log.log.delete_below(below).unwrap();
        }
    }
    let appended = log.appended.clone();
    log.close();
    disk.without_hook();
    let moments = std::mem::take(&mut *moments.lock());
    (moments, appended)
}

fn record(
    log: &TestLog,
    moments: &Arc<Mutex<Vec<Moment>>>,
    tiered: &Arc<Mutex<RecoverAt>>,
    synced: &Arc<AtomicU64>,
    policy: FlushPolicy,
) {
    let (moments, tiered, synced) = (moments.clone(), tiered.clone(), synced.clone());
    let reader = log.log.reader();
    log.disk.before_each_change(move |image| {
        let synced = Offset::new(synced.load(Ordering::SeqCst));
        let acked = if policy == FlushPolicy::Ack {
            reader.flushed_offset()
        } else {
            synced
        };
        let (image, tiered) = (image.clone(), tiered.lock().clone());
        moments.lock().push(Moment {
            image,
            acked: acked.max(synced),
            tiered,
        });
    });
}

/// Opens the log after a power cut: it must hold what was acknowledged and a prefix of the rest.
fn check_recovery(image: Image, moment: &Moment, appended: &[RecordBatch]) -> Image {
    let disk = MemDisk::of(image);
    // The most that the agent's checkpoint may have said.
    let known = Known {
        flushed_offset: moment.acked,
        is_final: true,
    };
    let at = RecoverAt {
        known: Some(known),
        ..moment.tiered.clone()
    };
    let mut log = TestLog::open(disk.clone(), &at).unwrap();
    let recovered = disk.image();
    let end = log.log.log_end_offset();
    assert!(end >= moment.acked, "end {end}, acked {}", moment.acked);
    assert!(log.log.local_log_start_offset() <= moment.tiered.tiered_offset);
    check_prefix(&log.log, appended);

    // It goes on as if nothing had happened.
    log.appended = appended.to_vec();
    log.appended
        .retain(|batch| batch.header().next_offset() <= end);
    log.leader_epoch = epoch(100);
    log.append(3, 400);
    log.append(1, 4_500);
    log.sync().unwrap();
    let log = log.reopen(&moment.tiered).unwrap();
    assert_eq!(log.log.log_end_offset(), end.advance(4));
    log.check_content();
    recovered
}

/// Ways a power cut can go: nothing, everything, all but one, only one, and mixtures.
fn check_moment(moment: &Moment, appended: &[RecordBatch], choices: &mut Choices, mixtures: usize) {
    let pending = moment.image.pending();
    for keep in [false, true] {
        check_recovery(moment.image.after_power_cut(|| keep), moment, appended);
        for odd in (0..pending).step_by(1 + pending / 3) {
            let mut at = 0;
            let image = moment.image.after_power_cut(|| {
                at += 1;
                keep ^ (at - 1 == odd)
            });
            check_recovery(image, moment, appended);
        }
    }
    // One or two changes are through with the above.
    for _ in 0..if pending > 2 { mixtures } else { 0 } {
        let image = moment
            .image
            .after_power_cut(|| choices.next().is_multiple_of(2));
        check_recovery(image, moment, appended);
    }
}

#[test]
fn after_a_power_cut_the_log_is_a_prefix_with_all_that_was_acknowledged() {
    let (moments, appended) = live(FlushPolicy::Ack);
    assert!(moments.len() > 40, "{}", moments.len());
    let mut choices = Choices(0x9e37_79b9_7f4a_7c15);
    for moment in &moments {
        check_moment(moment, &appended, &mut choices, 3);
    }
}

#[test]
fn with_flush_by_interval_a_power_cut_leaves_a_prefix_with_all_that_was_synced() {
    let (moments, appended) = live(FlushPolicy::Interval(Duration::from_secs(3_600)));
    let mut choices = Choices(0x2545_f491_4f6c_dd1d);
    for moment in moments.iter().step_by(2) {
        check_moment(moment, &appended, &mut choices, 3);
    }
}

#[test]
fn a_power_cut_during_recovery_is_recovered_from() {
    let (moments, appended) = live(FlushPolicy::Ack);
    let mut choices = Choices(0x1234_5678_9abc_def1);
    for moment in moments.iter().step_by(5) {
        let cut = moment
            .image
            .after_power_cut(|| choices.next().is_multiple_of(2));
        let steps: Arc<Mutex<Vec<Image>>> = Arc::default();
        let disk = MemDisk::of(cut);
        let seen = steps.clone();
        disk.before_each_change(move |image| seen.lock().push(image.clone()));
        let pool = pool(&disk);
        drop(LocalLog::open(&pool, &dir(), &moment.tiered).unwrap());
        disk.without_hook();
        let steps = std::mem::take(&mut *steps.lock());
        for step in steps {
            for _ in 0..2 {
                let image = step.after_power_cut(|| choices.next().is_multiple_of(2));
                check_recovery(image, moment, &appended);
            }
        }
    }
}

fn log_on(pool: &FlushPool, number: usize) -> LocalLog {
    let dir = PathBuf::from(format!("/data/topic/{number:06}"));
    LocalLog::open(pool, &dir, &RecoverAt::default()).unwrap().0
}

fn append_to(log: &mut LocalLog, pool: &FlushPool, seed: u64) {
    let batch = batch(seed, 1, 1_000, 1_000);
    let base_offset = log.log_end_offset();
    let (header, body) = batch.stamped(base_offset, epoch(1));
    let stamped = batch.header().stamped(base_offset, epoch(1));
    let room = pool.try_reserve(1_200).expect("nothing else is in flight");
    log.append(header, body, &stamped, room).unwrap();
}

/// Has two threads flush the whole disk at once, for a log each, and returns what each log acknowledged
/// and what it holds after a power cut. A write of the second log to the device fails.
fn flush_at_once() -> [(Offset, Offset); 2] {
    let disk = MemDisk::default();
    let options = PoolOptions {
        threads: NonZeroUsize::new(2).unwrap(),
        files_max: 0,
        ..options()
    };
    let pool = FlushPool::start_on(Arc::new(disk.clone()), options).unwrap();
    let mut logs = [0, 1].map(|number| log_on(&pool, number));
    let runtime = runtime();
    for log in &mut logs {
        append_to(log, &pool, 1);
        runtime.block_on(log.sync()).unwrap();
    }
    disk.fail_next_writeback(&PathBuf::from(format!("/data/topic/000001/{:020}.log", 0)));
    let meeting = disk.hold_syncs_until(2);
    append_to(&mut logs[0], &pool, 2);
    // The first thread waits there, and the second takes the other log.
    while meeting.arrived() < 1 {
        std::thread::yield_now();
    }
    append_to(&mut logs[1], &pool, 2);
    let _ = logs.each_ref().map(|log| runtime.block_on(log.sync()));
    let acked = logs.each_ref().map(LocalLog::flushed_offset);
    drop((logs, pool));
    let after = pool_on(disk.image().after_power_cut(|| false));
    let ends = [0, 1].map(|number| log_on(&after, number).log_end_offset());
    [(acked[0], ends[0]), (acked[1], ends[1])]
}

fn pool_on(image: Image) -> FlushPool {
    pool(&MemDisk::of(image))
}

#[test]
fn no_flush_thread_acknowledges_what_another_thread_was_told_is_lost() {
    // Either thread may be the first to meet the failure.
    for _ in 0..50 {
        for (number, (acked, end)) in flush_at_once().into_iter().enumerate() {
            assert!(end >= acked, "log {number} ends at {end}, acked {acked}");
        }
    }
}
