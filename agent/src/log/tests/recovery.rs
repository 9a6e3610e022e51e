//! Opening a log: what is kept, what is cut, what is refused.

use esker_index::{EpochHistory, producers::ProducerTable};
use esker_proto::types::{Offset, TimestampMs};

use super::{mem_disk::MemDisk, support::*};
use crate::log::{Damage, Error, ErrorKind, RecoverAt};

fn start() -> RecoverAt {
    RecoverAt::default()
}

/// A log with two sealed segments and an active one, ten batches each.
fn three_segments() -> TestLog {
    let mut log = TestLog::new();
    for segment in 1..=3 {
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

fn reopen_error(log: TestLog) -> Error {
    log.reopen(&start()).err().expect("it must be refused")
}

#[test]
fn a_closed_log_opens_as_it_was() {
    let log = three_segments();
    let (appended, epochs) = (log.appended.clone(), log.log.epochs().clone());
    let sealed: Vec<_> = log.log.sealed().cloned().collect();
    let disk = log.close();

    let log = TestLog::open(disk, &start()).unwrap();
    assert!(log.recovered.was_clean);
    assert_eq!(log.recovered.cut, None);
    assert_eq!(log.log.log_end_offset(), offset(60));
    assert_eq!(log.log.epochs(), &epochs);
    assert_eq!(log.log.sealed().cloned().collect::<Vec<_>>(), sealed);
    check_prefix(&log.log, &appended);
}

#[test]
fn a_log_that_was_opened_since_is_not_clean() {
    let disk = three_segments().close();
    let log = TestLog::open(disk, &start()).unwrap();
    let log = log.reopen(&start()).unwrap();
    assert!(!log.recovered.was_clean);
}

#[test]
fn a_killed_process_loses_nothing_that_was_flushed() {
    let mut log = three_segments();
    for round in 0..20 {
        log.append(3, 200 + 100 * round);
        log.sync().unwrap();
        log = log.reopen(&start()).unwrap();
        log.check_content();
    }
    assert_eq!(log.log.log_end_offset(), offset(120));
}

#[test]
fn a_torn_tail_is_cut_at_the_last_whole_batch() {
    let whole = three_segments();
    // As if the tail had not been flushed, which the mark would know.
    whole.disk.forget(&dir().join("mark"));
    let image = whole.disk.image();
    let path = whole.segment_path(40);
    let length = whole.disk.bytes(&path).len();
    let last = whole.appended.last().unwrap().bytes().len();
    for lost in [1, 5, last - 61, last - 20, last - 1, last, last + 1] {
        let disk = MemDisk::of(image.clone());
        disk.corrupt(&path, |bytes| bytes.truncate(length - lost));

        let log = TestLog::open(disk.clone(), &start()).unwrap();

        let kept = if lost <= last { 58 } else { 56 };
        assert_eq!(log.log.log_end_offset(), offset(kept));
        check_prefix(&log.log, &whole.appended);
        let cut = log.recovered.cut.clone();
        assert_eq!(cut.is_some(), lost != last, "{lost}");
        if let Some(cut) = cut {
            assert_eq!(cut.position.get(), disk.bytes(&path).len() as u64);
        }
    }
}

#[test]
fn a_flipped_bit_before_valid_batches_is_corruption() {
    let whole = three_segments();
    // Without the mark, which would say that it was flushed, the batches that follow must tell.
    whole.disk.forget(&dir().join("mark"));
    let image = whole.disk.image();
    let path = whole.segment_path(40);
    let batch = whole.appended[20].bytes().len();
    // Every byte of the header of the third batch, and some of its body.
    let header = 2 * batch..2 * batch + 61;
    for at in header.chain([2 * batch + 62, 3 * batch - 1]) {
        let disk = MemDisk::of(image.clone());
        disk.corrupt(&path, |bytes| bytes[at] ^= 0x10);
        let before = disk.bytes(&path);

        let error = TestLog::open(disk.clone(), &start())
            .err()
            .expect("it must be refused");

        let Error::Corrupt {
            path: named,
            position,
            ..
        } = &error
        else {
            panic!("{error}")
        };
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(
            (named, position.get()),
            (&path, 2 * batch as u64),
            "byte {at}"
        );
        assert_eq!(disk.bytes(&path), before);
    }
}

#[test]
fn a_hole_in_what_was_not_flushed_is_cut_although_valid_batches_follow() {
    let mut log = TestLog::new();
    for _ in 0..40 {
        log.append(1, 1_000);
    }
    log.sync().unwrap();
    let path = log.segment_path(0);
    let size = log.disk.bytes(&path).len() as u64 / 40;
    // As if nothing had been flushed, which the mark would know.
    log.disk.forget(&dir().join("mark"));
    log.disk
        .corrupt(&path, |bytes| bytes[8_192..12_288].fill(0));

    let log = log.reopen(&start()).unwrap();

    assert_eq!(log.recovered.cut.as_ref().unwrap().bytes, (40 - 7) * size);
    assert_eq!(log.log.log_end_offset(), offset(7));
    log.check_content();
}

#[test]
fn a_hole_in_what_the_mark_says_was_flushed_is_corruption() {
    let mut log = TestLog::new();
    for _ in 0..8 {
        log.append(1, 300_000);
        log.sync().unwrap();
    }
    let path = log.segment_path(0);
    log.disk
        .corrupt(&path, |bytes| bytes[8_192..12_288].fill(0));

    let (disk, before) = (log.disk.clone(), log.disk.bytes(&path));
    let error = reopen_error(log);
    assert!(
        matches!(
            error,
            Error::Corrupt {
                damage: Damage::Batch(_),
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(disk.bytes(&path), before);
}

#[test]
fn a_tail_that_is_gone_although_it_was_flushed_is_corruption() {
    let mut log = TestLog::new();
    for _ in 0..8 {
        log.append(1, 300_000);
        log.sync().unwrap();
    }
    let path = log.segment_path(0);
    log.disk.corrupt(&path, |bytes| bytes.truncate(0));

    let error = reopen_error(log);
    assert!(matches!(error, Error::Lost { .. }), "{error}");
}

#[test]
fn any_damage_after_a_clean_close_is_corruption() {
    let log = three_segments();
    let path = log.segment_path(40);
    let disk = log.close();
    let image = disk.image();
    for cut in [true, false] {
        let disk = MemDisk::of(image.clone());
        disk.corrupt(&path, |bytes| match cut {
            true => bytes.truncate(bytes.len() - 3),
            false => *bytes.last_mut().unwrap() ^= 1,
        });
        let error = TestLog::open(disk, &start())
            .err()
            .expect("it must be refused");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn a_sealed_segment_of_another_length_is_corruption() {
    let log = three_segments();
    log.disk.corrupt(&log.segment_path(20), |bytes| {
        bytes.truncate(bytes.len() - 1)
    });
    let error = reopen_error(log);
    assert!(
        matches!(
            error,
            Error::Corrupt {
                damage: Damage::Length { .. },
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_missing_segment_is_corruption() {
    let log = three_segments();
    log.disk.forget(&log.segment_path(20));
    let error = reopen_error(log);
    assert!(
        matches!(
            error,
            Error::Corrupt {
                damage: Damage::Chain { .. },
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn states_that_are_lost_or_damaged_are_made_again_from_the_batches() {
    for is_lost in [true, false] {
        let log = three_segments();
        let sealed: Vec<_> = log.log.sealed().cloned().collect();
        for at in [20, 40] {
            let path = dir().join(format!("{at:020}.state"));
            match is_lost {
                true => log.disk.forget(&path),
                false => log.disk.corrupt(&path, |bytes| bytes[30] ^= 1),
            }
        }
        log.disk.forget(&dir().join("epochs"));
        log.disk.forget(&dir().join("mark"));

        let log = log.reopen(&start()).unwrap();
        log.check_content();
        assert_eq!(log.log.sealed().cloned().collect::<Vec<_>>(), sealed);
        log.reopen(&start()).unwrap().check_content();
    }
}

#[test]
fn a_bad_batch_in_a_segment_that_another_follows_is_never_cut() {
    let log = three_segments();
    log.disk.forget(&dir().join(format!("{:020}.state", 40)));
    log.disk.corrupt(&log.segment_path(20), |bytes| {
        *bytes.last_mut().unwrap() ^= 1
    });
    assert_eq!(reopen_error(log).kind(), ErrorKind::Corrupt);
}

#[test]
fn an_empty_log_begins_where_the_bucket_ends() {
    let mut epochs = EpochHistory::new();
    epochs.push(epoch(1), offset(0)).unwrap();
    epochs.push(epoch(5), offset(700)).unwrap();
    let mut producers = ProducerTable::new();
    producers.apply(batch(2, 3, 10, 0).header());
    let producers_bytes = Some(producers.encode());
    let at = RecoverAt {
        tiered_offset: offset(1_000),
        epochs,
        producers: producers_bytes,
        ..RecoverAt::default()
    };

    let mut log = TestLog::open(MemDisk::default(), &at).unwrap();
    assert_eq!(log.log.log_end_offset(), offset(1_000));
    assert_eq!(log.log.local_log_start_offset(), offset(1_000));
    assert_eq!(log.log.producers(), &producers);
    assert_eq!(log.log.epochs().epoch_at(offset(900)), Some(epoch(5)));

    // The producers of the bucket are still known when the log is opened again.
    log.leader_epoch = epoch(6);
    let unrelated = batch(3, 1, 1, 0);
    log.append_batch(&unrelated).unwrap();
    log.sync().unwrap();
    let log = log
        .reopen(&RecoverAt {
            producers: None,
            ..at
        })
        .unwrap();
    assert_eq!(log.log.producers(), &producers);
    assert_eq!(log.log.log_end_offset(), offset(1_001));
    assert_eq!(log.log.epochs().starts().len(), 3);
}

#[test]
fn a_log_that_ends_below_the_bucket_begins_anew() {
    let mut log = three_segments();
    log.log.begin_epoch(epoch(9)).unwrap();
    log.sync().unwrap();
    let mut epochs = EpochHistory::new();
    epochs.push(epoch(1), offset(0)).unwrap();
    epochs.push(epoch(7), offset(60)).unwrap();
    let at = RecoverAt {
        tiered_offset: offset(61),
        epochs,
        producers: None,
        ..RecoverAt::default()
    };

    let log = log.reopen(&at).unwrap();
    assert!(log.recovered.was_reset);
    assert_eq!(log.log.local_log_start_offset(), offset(61));
    assert_eq!(log.log.log_end_offset(), offset(61));
    assert!(log.log.producers().is_empty());
    // The newest epoch it had seen is not forgotten.
    assert_eq!(log.log.epochs().last().unwrap().leader_epoch, epoch(9));
    assert!(
        !log.disk
            .file_names()
            .iter()
            .any(|name| name.ends_with(".log"))
    );
}

#[test]
fn a_log_that_reaches_the_tiered_offset_is_kept() {
    let log = three_segments();
    let epochs = log.log.epochs().clone();
    let log = log
        .reopen(&RecoverAt {
            tiered_offset: offset(60),
            epochs,
            producers: None,
            ..RecoverAt::default()
        })
        .unwrap();
    assert!(!log.recovered.was_reset);
    assert_eq!(log.log.local_log_start_offset(), offset(0));
    log.check_content();
}

#[test]
fn a_log_that_begins_above_the_bucket_is_refused() {
    let mut log = three_segments();
    log.log.delete_below(offset(40)).unwrap();
    log.sync().unwrap();
    let at = |tiered: u64| RecoverAt {
        tiered_offset: Offset::new(tiered),
        ..start()
    };
    let image = log.disk.image();
    let error = log.reopen(&at(39)).err().unwrap();
    assert!(matches!(error, Error::Gap { .. }), "{error}");
    assert!(TestLog::open(MemDisk::of(image), &at(40)).is_ok());
}

#[test]
fn a_log_that_holds_another_epoch_than_the_bucket_is_refused() {
    let log = three_segments();
    let mut epochs = EpochHistory::new();
    epochs.push(epoch(1), offset(0)).unwrap();
    epochs.push(epoch(2), offset(30)).unwrap();
    let at = RecoverAt {
        tiered_offset: offset(40),
        epochs,
        producers: None,
        ..RecoverAt::default()
    };
    let error = log.reopen(&at).err().unwrap();
    assert!(matches!(error, Error::Diverged { .. }), "{error}");
}

#[test]
fn a_leftover_of_a_removal_that_was_cut_short_is_removed() {
    let log = three_segments();
    let image = log.disk.image();
    let first = log.segment_path(0);
    let disk = MemDisk::of(image);
    // The second file's removal reached the disk, the first's did not.
    disk.forget(&log.segment_path(20));
    let at = RecoverAt {
        tiered_offset: offset(40),
        ..start()
    };

    let opened = TestLog::open(disk.clone(), &at).unwrap();
    assert_eq!(opened.log.local_log_start_offset(), offset(40));
    assert_eq!(opened.log.log_end_offset(), offset(60));
    assert!(
        !disk
            .file_names()
            .contains(&first.file_name().unwrap().to_string_lossy().into())
    );
    check_prefix(&opened.log, &log.appended);
}

#[test]
fn an_epoch_without_batches_survives() {
    let mut log = three_segments();
    log.log.begin_epoch(epoch(8)).unwrap();
    log.sync().unwrap();
    let log = log.reopen(&start()).unwrap();
    let last = log.log.epochs().last().unwrap();
    assert_eq!(
        (last.leader_epoch, last.start_offset),
        (epoch(8), offset(60))
    );
}

#[test]
fn records_that_hold_batches_are_not_taken_for_batches_that_follow() {
    let mut log = TestLog::new();
    log.append(1, 100);
    // A log of logs: the value is a valid batch of the same offsets as those below it.
    let inner = log.appended[0].bytes().clone();
    let mut builder = esker_proto::batch::BatchBuilder::new(esker_proto::batch::Compression::None);
    builder
        .push(Default::default(), None, Some(&inner), &[])
        .unwrap();
    let outer = esker_proto::batch::RecordBatch::validate(builder.finish(None)).unwrap();
    log.append_batch(&outer).unwrap();
    log.sync().unwrap();
    // As if the tail had not been flushed, which the mark would know.
    log.disk.forget(&dir().join("mark"));
    let path = log.segment_path(0);
    log.disk
        .corrupt(&path, |bytes| bytes.truncate(bytes.len() - 1));

    let log = log.reopen(&start()).unwrap();
    assert_eq!(log.log.log_end_offset(), offset(1));
}

/// How old the active segment says it is when a log that was begun at `begun` is opened at `now`.
fn age_when_opened(begun: i64, now: i64) -> std::time::Duration {
    let mut log = TestLog::new();
    log.disk.set_time(TimestampMs::new(begun));
    log.append(10, 10);
    log.sync().unwrap();
    log.disk.set_time(TimestampMs::new(now));
    log.append(10, 10);
    log.sync().unwrap();
    let at = RecoverAt {
        now: TimestampMs::new(now),
        ..start()
    };
    log.reopen(&at).unwrap().log.active_age().unwrap()
}

#[test]
fn the_active_segment_is_as_old_as_its_first_batch_also_when_opened_again() {
    let hour = std::time::Duration::from_secs(3600);
    let age = age_when_opened(1_000_000, 1_000_000 + 3_600_000);
    assert!(age >= hour && age < 2 * hour, "{age:?}");
}

#[test]
fn a_clock_that_was_set_makes_no_age_negative_and_nothing_panics() {
    let hour = std::time::Duration::from_secs(3600);
    assert!(age_when_opened(1_000_000, 0) < hour);
    assert!(age_when_opened(i64::MAX, i64::MIN) < hour);
    assert!(age_when_opened(i64::MIN, i64::MAX) > hour);
}
