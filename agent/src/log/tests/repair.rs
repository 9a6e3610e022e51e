//! What a repair keeps, and what is known after it.

use super::{
    damage::{all_files, aside, known, position_of},
    mem_disk::MemDisk,
    support::*,
};
use crate::log::{
    Error, Examined, Known, OsDisk, RecoverAt,
    examine::examine_on,
    repair::{Repaired, discard, repair_on},
};

/// Changes of a segment file in its second batch.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Harm {
    Flip,
    /// To a length that is the end of a batch.
    CutAtBatch,
    CutInBatch,
    Junk,
}

/// Harms a segment of three batches of two records, and returns the offset from which it does not hold.
fn harm(log: &TestLog, segment: usize, harm: Harm) -> u64 {
    let base = segment as u64 * 6;
    let second = position_of(log, segment * 3 + 1) - position_of(log, segment * 3);
    log.disk
        .corrupt(&log.segment_path(base), |bytes| match harm {
            Harm::Flip => bytes[second + 70] ^= 4,
            Harm::CutAtBatch => bytes.truncate(second),
            Harm::CutInBatch => bytes.truncate(second + 80),
            Harm::Junk => bytes.extend_from_slice(&[7; 100]),
        });
    base + if harm == Harm::Junk { 6 } else { 2 }
}

/// As a start after the repair has it: the checkpoint was lowered.
fn after_repair(at: &RecoverAt, examined: &Examined) -> RecoverAt {
    let lowered = at.known.map(|known| Known {
        flushed_offset: known.flushed_offset.min(examined.kept_offset()),
        ..known
    });
    RecoverAt {
        known: lowered,
        ..at.clone()
    }
}

fn in_bucket(log: &TestLog, tiered: u64) -> RecoverAt {
    RecoverAt {
        tiered_offset: offset(tiered),
        epochs: log.log.epochs().clone(),
        ..known(18)
    }
}

#[test]
fn a_repair_keeps_what_is_whole_and_the_bucket_lacks() {
    for segment in 0..3 {
        for kind in [Harm::Flip, Harm::CutAtBatch, Harm::CutInBatch, Harm::Junk] {
            for tiered in [0, 6, 12] {
                let case = format!("segment {segment}, {kind:?}, tiered {tiered}");
                let log = all_files();
                let bad = harm(&log, segment, kind);
                let at = in_bucket(&log, tiered);
                let is_copy = segment as u64 * 6 + 6 <= tiered;
                let refused = TestLog::open(MemDisk::of(log.disk.image()), &at).is_err();

                let examined =
                    examine_on(&log.disk, &dir(), at.known, Some(at.tiered_offset)).unwrap();

                assert!(examined.is_damaged() || !refused, "{case}: {examined:?}");
                // Behind the last record of the newest segment it is a torn tail.
                let is_torn = kind == Harm::Junk && segment == 2;
                let is_damaged = !is_copy && !is_torn;
                assert_eq!(examined.is_damaged(), is_damaged, "{case}: {examined:?}");
                assert_eq!(examined.copies.len(), usize::from(is_copy), "{case}");
                // Behind the last record of a segment nothing is lost.
                let kept = if is_copy || kind == Harm::Junk {
                    18
                } else {
                    bad.max(tiered)
                };
                assert_eq!(examined.kept_offset(), offset(kept), "{case}: {examined:?}");
                if examined.is_damaged() {
                    repair_on(&log.disk, &dir(), &aside(), &examined).unwrap();
                }
                let log = log.reopen(&after_repair(&at, &examined)).unwrap();
                assert_eq!(log.log.log_end_offset(), offset(kept), "{case}");
                if let Some(note) = log.recovered.repaired {
                    assert_eq!(note.flushed_offset, offset(18), "{case}");
                }
            }
        }
    }
}

#[test]
fn what_was_acknowledged_is_known_through_repairs_until_a_start_has_told_it() {
    let log = all_files();
    harm(&log, 2, Harm::Flip);
    let at = known(18);
    let first = examine_on(&log.disk, &dir(), at.known, None).unwrap();
    repair_on(&log.disk, &dir(), &aside(), &first).unwrap();
    let at = after_repair(&at, &first);
    let whole = examine_on(&log.disk, &dir(), at.known, None).unwrap();
    assert!(!whole.is_damaged(), "{whole:?}");

    // What is lost now is refused like any loss.
    let image = log.disk.image();
    harm(&log, 1, Harm::Flip);
    let second = examine_on(&log.disk, &dir(), at.known, None).unwrap();
    assert_eq!(second.flushed_offset, offset(18), "{second:?}");
    repair_on(&log.disk, &dir(), &aside(), &second).unwrap();
    let log = log.reopen(&after_repair(&at, &second)).unwrap();
    let note = log.recovered.repaired.unwrap();
    assert_eq!(
        (note.cut_offset, note.flushed_offset),
        (offset(8), offset(18))
    );

    let gone = MemDisk::of(image);
    gone.forget(&log.segment_path(12));
    let opened = TestLog::open(gone, &at).err();
    assert!(matches!(opened, Some(Error::Lost { .. })), "{opened:?}");
}

#[test]
fn a_log_that_is_gone_is_given_up_with_a_note() {
    for tiered in [0, 12] {
        let disk = MemDisk::default();
        let at = RecoverAt {
            tiered_offset: offset(tiered),
            ..known(18)
        };
        let examined = examine_on(&disk, &dir(), at.known, Some(at.tiered_offset)).unwrap();
        assert!(matches!(examined.damage, Some(Error::Vanished { .. })));
        repair_on(&disk, &dir(), &aside(), &examined).unwrap();

        let log = TestLog::open(disk, &after_repair(&at, &examined)).unwrap();
        assert_eq!(log.log.log_end_offset(), offset(tiered));
        assert_eq!(log.recovered.repaired.unwrap().flushed_offset, offset(18));
    }
}

#[test]
fn a_log_that_lost_its_segments_and_kept_its_mark_is_damaged() {
    let log = all_files();
    for base in [0, 6, 12] {
        log.disk.forget(&log.segment_path(base));
    }
    let at = in_bucket(&log, 6);
    let image = log.disk.image();
    let opened = TestLog::open(MemDisk::of(image), &at).err();
    assert!(matches!(opened, Some(Error::Lost { .. })), "{opened:?}");

    let examined = examine_on(&log.disk, &dir(), at.known, Some(at.tiered_offset)).unwrap();

    assert!(
        matches!(examined.damage, Some(Error::Lost { .. })),
        "{examined:?}"
    );
    repair_on(&log.disk, &dir(), &aside(), &examined).unwrap();
    let log = log.reopen(&after_repair(&at, &examined)).unwrap();
    assert_eq!(log.log.log_end_offset(), offset(6));
}

#[test]
fn a_discarded_log_leaves_a_note_of_what_was_acknowledged() {
    let root = tempfile::tempdir().unwrap();
    let (dir, aside) = (root.path().join("000000"), root.path().join("aside"));
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("some.log"), b"bytes").unwrap();
    let examined = Examined {
        tiered_offset: offset(12),
        flushed_offset: offset(18),
        ..Examined::default()
    };

    discard(&dir, &aside, &examined).unwrap();

    assert!(aside.join("some.log").exists() && !dir.join("some.log").exists());
    let disk = OsDisk::open(root.path()).unwrap();
    let note = Repaired::read(&disk, &dir).unwrap().unwrap();
    assert_eq!(
        (note.cut_offset, note.flushed_offset),
        (offset(12), offset(18))
    );
}

#[test]
fn a_newest_segment_that_is_sealed_is_held_to_its_length() {
    let mut log = all_files();
    log.log.roll().unwrap();
    log.sync().unwrap();
    harm(&log, 2, Harm::CutAtBatch);
    let at = RecoverAt {
        known: None,
        ..known(18)
    };
    let image = log.disk.image();
    assert!(TestLog::open(MemDisk::of(image), &at).is_err());

    let examined = examine_on(&log.disk, &dir(), None, None).unwrap();

    assert!(examined.is_damaged(), "{examined:?}");
    repair_on(&log.disk, &dir(), &aside(), &examined).unwrap();
    let log = log.reopen(&at).unwrap();
    assert_eq!(log.log.log_end_offset(), offset(14));
}
