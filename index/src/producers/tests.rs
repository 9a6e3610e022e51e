use esker_proto::{
    batch::{Attributes, Compression},
    types::LeaderEpoch,
};
use proptest::prelude::*;

use super::*;

const WEEK_MS: u64 = 7 * 24 * 3_600 * 1_000;

#[derive(Clone, Copy, Debug)]
struct Sent {
    id: i64,
    epoch: i16,
    sequence: i32,
    count: u32,
}

fn sent(id: i64, epoch: i16, sequence: i32, count: u32) -> Sent {
    Sent {
        id,
        epoch,
        sequence,
        count,
    }
}

fn header(sent: Sent, base_offset: u64) -> BatchHeader {
    BatchHeader {
        base_offset: Offset::new(base_offset),
        size_bytes: 100,
        leader_epoch: LeaderEpoch::new(1),
        crc: 0,
        attributes: Attributes::new(Compression::None),
        last_offset_delta: sent.count.saturating_sub(1),
        base_timestamp: TimestampMs::new(0),
        max_timestamp: TimestampMs::new(0),
        producer_id: ProducerId::new(sent.id),
        producer_epoch: ProducerEpoch::new(sent.epoch),
        base_sequence: Sequence::new(sent.sequence),
        record_count: sent.count,
    }
}

/// A table and the end of the log it belongs to.
#[derive(Default)]
struct Log {
    table: ProducerTable,
    end: u64,
}

impl Log {
    fn append(&mut self, batch: Sent) -> Result<Check, ProducerError> {
        let checked = self.table.check(&header(batch, 0));
        if checked == Ok(Check::Append) {
            self.table.apply(&header(batch, self.end));
            self.end += u64::from(batch.count);
        }
        checked
    }
}

fn duplicate_at(base_offset: u64) -> Result<Check, ProducerError> {
    Ok(Check::Duplicate {
        base_offset: Offset::new(base_offset),
    })
}

fn out_of_order(expected: i32, got: i32) -> Result<Check, ProducerError> {
    let (expected, got) = (Sequence::new(expected), Sequence::new(got));
    Err(ProducerError::OutOfOrder { expected, got })
}

#[test]
fn a_retried_batch_gets_the_offset_it_had() {
    let mut log = Log::default();
    log.append(sent(9, 0, 0, 3)).unwrap();
    log.append(sent(-1, -1, -1, 10)).unwrap();
    log.append(sent(9, 0, 3, 2)).unwrap();

    assert_eq!(log.append(sent(9, 0, 0, 3)), duplicate_at(0));
    assert_eq!(log.append(sent(9, 0, 3, 2)), duplicate_at(13));
    assert_eq!(log.end, 15);
}

#[test]
fn every_batch_of_the_window_is_recognised_and_none_before_it() {
    let mut log = Log::default();
    let window = i32::try_from(WINDOW_BATCHES).unwrap();
    for sequence in 0..=window {
        log.append(sent(1, 0, sequence, 1)).unwrap();
    }

    for sequence in 1..=window {
        let offset = u64::try_from(sequence).unwrap();
        assert_eq!(log.append(sent(1, 0, sequence, 1)), duplicate_at(offset));
    }
    assert_eq!(log.append(sent(1, 0, 0, 1)), out_of_order(window + 1, 0));
    const { assert!(WINDOW_BATCHES >= 5) };
}

#[test]
fn a_gap_or_a_partial_overlap_is_out_of_order() {
    let mut log = Log::default();
    log.append(sent(1, 0, 0, 10)).unwrap();

    assert_eq!(log.append(sent(1, 0, 11, 1)), out_of_order(10, 11));
    assert_eq!(log.append(sent(1, 0, 5, 10)), out_of_order(10, 5));
    assert_eq!(log.append(sent(1, 0, 0, 9)), out_of_order(10, 0));
    assert_eq!(log.append(sent(1, 0, 10, 1)), Ok(Check::Append));
}

#[test]
fn sequences_go_round_to_zero_within_and_between_batches() {
    let mut log = Log::default();
    log.table.apply(&header(sent(1, 0, i32::MAX - 1, 1), 0));
    log.end = 1;

    assert_eq!(log.append(sent(1, 0, i32::MAX, 3)), Ok(Check::Append));
    assert_eq!(log.append(sent(1, 0, 2, 1)), Ok(Check::Append));
    assert_eq!(log.append(sent(1, 0, i32::MAX, 3)), duplicate_at(1));
    assert_eq!(log.append(sent(1, 0, 0, 1)), out_of_order(3, 0));
}

#[test]
fn a_bumped_epoch_starts_over_at_zero_and_fences_the_older() {
    let mut log = Log::default();
    log.append(sent(1, 0, 0, 5)).unwrap();

    assert_eq!(log.append(sent(1, 1, 5, 1)), out_of_order(0, 5));
    assert_eq!(log.append(sent(1, 1, 0, 5)), Ok(Check::Append));
    let fenced = ProducerError::Fenced {
        current: ProducerEpoch::new(1),
        got: ProducerEpoch::new(0),
    };
    assert_eq!(log.append(sent(1, 0, 5, 1)), Err(fenced));
    assert_eq!(log.append(sent(1, 0, 0, 5)), Err(fenced));
    assert_eq!(log.append(sent(1, 1, 0, 5)), duplicate_at(5));
}

#[test]
fn an_unknown_producer_may_start_at_zero_only() {
    let mut log = Log::default();

    let unknown = ProducerError::Unknown {
        producer_id: ProducerId::new(4),
        got: Sequence::new(7),
    };
    assert_eq!(log.append(sent(4, 2, 7, 1)), Err(unknown));
    assert_eq!(log.append(sent(4, 2, 0, 7)), Ok(Check::Append));
    assert_eq!(log.append(sent(4, 2, 7, 1)), Ok(Check::Append));
}

#[test]
fn an_expired_producer_goes_on_by_bumping_its_epoch() {
    let mut log = Log::default();
    log.append(sent(4, 0, 0, 7)).unwrap();
    log.table.expire(TimestampMs::new(0), 10);
    log.table.expire(TimestampMs::new(11), 10);

    assert!(matches!(
        log.append(sent(4, 0, 7, 1)),
        Err(ProducerError::Unknown { .. })
    ));
    assert_eq!(log.append(sent(4, 1, 0, 1)), Ok(Check::Append));
    assert_eq!(log.append(sent(4, 1, 0, 1)), duplicate_at(7));
}

#[test]
fn producers_expire_by_idle_time_whatever_their_records_say() {
    let mut log = Log::default();
    let start = TimestampMs::new(1_800_000_000_000);
    let at = |ms: i64| TimestampMs::new(start.get() + ms);
    // Records from 1970, read back by recovery long after: used at the first expiry, not in 1970.
    log.append(sent(1, 0, 0, 1)).unwrap();
    log.append(sent(2, 0, 0, 1)).unwrap();
    assert_eq!(log.table.expire(start, WEEK_MS), 0);

    let week = i64::try_from(WEEK_MS).unwrap();
    log.append(sent(2, 0, 1, 1)).unwrap();
    assert_eq!(log.table.expire(at(week), WEEK_MS), 0);
    assert_eq!(log.table.expire(at(week + 1), WEEK_MS), 1);
    assert_eq!(log.append(sent(2, 0, 1, 1)), duplicate_at(2));
    assert_eq!(log.table.len(), 1);
}

#[test]
fn a_full_table_forgets_nobody_who_wrote_lately() {
    let mut log = Log::default();
    let full = i64::try_from(PRODUCERS_MAX).unwrap();
    let minutes = |count: i64| TimestampMs::new(count * 60_000);
    log.table.expire(minutes(0), WEEK_MS);
    for id in 0..full {
        log.append(sent(id, 0, 0, 1)).unwrap();
    }
    let too_many = Err(ProducerError::TooMany { max: PRODUCERS_MAX });
    assert_eq!(log.append(sent(full, 0, 0, 1)), too_many);
    log.table.expire(minutes(1), WEEK_MS);
    assert_eq!(
        log.append(sent(0, 0, 0, 1)),
        duplicate_at(0),
        "a retry is recognised"
    );
    log.append(sent(0, 0, 1, 1)).unwrap();
    log.table.expire(minutes(5), WEEK_MS);
    assert_eq!(log.append(sent(full, 0, 0, 1)), too_many);

    log.table.expire(minutes(6), WEEK_MS);
    log.append(sent(full, 0, 0, 1)).unwrap();

    assert_eq!(log.table.len(), PRODUCERS_MAX);
    assert_eq!(
        log.append(sent(0, 0, 1, 1)),
        duplicate_at(PRODUCERS_MAX as u64)
    );
    assert!(matches!(
        log.append(sent(1, 0, 1, 1)),
        Err(ProducerError::Unknown { .. })
    ));
}

#[test]
fn malformed_producer_fields_are_refused_and_leave_no_trace() {
    let mut log = Log::default();
    for batch in [sent(1, -1, 0, 1), sent(1, 0, -1, 1), sent(1, 0, 0, 0)] {
        assert!(matches!(
            log.append(batch),
            Err(ProducerError::Malformed { .. })
        ));
        log.table.apply(&header(batch, 0));
    }
    assert!(log.table.is_empty());
}

#[test]
fn a_full_snapshot_stays_far_below_a_manifest_commit() {
    let mut table = ProducerTable::new();
    let mut offset = 1 << 40;
    for batch in 0..i32::try_from(WINDOW_BATCHES).unwrap() {
        for id in 0..i64::try_from(PRODUCERS_MAX).unwrap() {
            table.apply(&header(
                sent((1 << 40) + id, 3, batch * 5_000, 5_000),
                offset,
            ));
            offset += 5_000;
        }
    }
    table.expire(TimestampMs::new(1_800_000_000_000), 1);
    let bytes = table.encode().len();
    assert!(bytes < 320 << 10, "{bytes}");
}

/// The bytes of version 1, which every later release must read.
#[test]
fn golden_snapshot_of_version_1_is_read() {
    let golden: &[u8] = include_bytes!("../../testdata/producers-v1.bin");
    let mut table = ProducerTable::new();
    table.apply(&header(sent(7, 0, 0, 2), 1_000));
    table.expire(TimestampMs::new(1_700_000_000_000), WEEK_MS);
    table.apply(&header(sent(300, 5, i32::MAX, 4), 1_002));
    table.apply(&header(sent(300, 5, 3, 1), 1_500));

    assert_eq!(ProducerTable::decode(golden).unwrap(), table);
    assert_eq!(table.encode(), golden);
}

#[test]
fn a_snapshot_of_another_version_is_refused() {
    let mut bytes = ProducerTable::new().encode()[..2].to_vec();
    bytes[0] = 2;
    let crc = esker_proto::batch::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    assert_eq!(
        ProducerTable::decode(&bytes),
        Err(SnapshotError::UnknownVersion(2))
    );
}

fn any_batch() -> impl Strategy<Value = Sent> {
    let sequence = prop_oneof![0..40_i32, (i32::MAX - 20)..=i32::MAX];
    (0..4_i64, 0..3_i16, sequence, 1..6_u32).prop_map(|(id, epoch, sequence, count)| Sent {
        id,
        epoch,
        sequence,
        count,
    })
}

proptest! {
    /// Decided by brute force over the whole log: a batch is appended at most once, and in order.
    #[test]
    fn no_sequence_is_appended_twice_or_after_a_gap(
        batches in prop::collection::vec(any_batch(), 1..200),
    ) {
        let mut log = Log::default();
        let mut appended: Vec<(Sent, u64)> = Vec::new();
        for batch in batches {
            let at = log.end;
            let same = |(seen, _): &&(Sent, u64)| {
                (seen.id, seen.epoch, seen.sequence, seen.count)
                    == (batch.id, batch.epoch, batch.sequence, batch.count)
            };
            match log.append(batch) {
                Ok(Check::Append) => {
                    let last = appended.iter().rfind(|(seen, _)| seen.id == batch.id);
                    let expected = match last {
                        Some((last, _)) if last.epoch == batch.epoch => {
                            Sequence::new(last.sequence).advance(last.count).get()
                        }
                        Some((last, _)) => {
                            prop_assert!(last.epoch < batch.epoch);
                            0
                        }
                        None => 0,
                    };
                    prop_assert_eq!(batch.sequence, expected);
                    appended.push((batch, at));
                }
                Ok(Check::Duplicate { base_offset }) => {
                    let seen = appended.iter().rfind(same).map(|(_, offset)| *offset);
                    prop_assert_eq!(seen, Some(base_offset.get()));
                }
                Err(_) => {}
            }
        }
    }

    #[test]
    fn a_restored_table_decides_as_the_original(
        batches in prop::collection::vec(any_batch(), 0..100),
        now in any::<i64>(),
        later in prop::collection::vec(any_batch(), 0..50),
    ) {
        let mut log = Log::default();
        for (number, batch) in batches.into_iter().enumerate() {
            log.table.apply(&header(batch, log.end));
            log.end += u64::from(batch.count);
            if number == 50 {
                log.table.expire(TimestampMs::new(now), 100);
            }
        }

        let bytes = log.table.encode();
        let mut restored = Log { table: ProducerTable::decode(&bytes).unwrap(), end: log.end };

        prop_assert_eq!(&restored.table, &log.table);
        prop_assert_eq!(restored.table.encode(), bytes);
        for batch in later {
            prop_assert_eq!(restored.append(batch), log.append(batch));
        }
    }

    #[test]
    fn decode_of_arbitrary_bytes_never_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = ProducerTable::decode(&bytes);
        if let Some(version) = bytes.first_mut() {
            *version = 1;
        }
        let crc = esker_proto::batch::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        let _ = ProducerTable::decode(&bytes);
    }

    #[test]
    fn a_changed_byte_is_noticed(at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        let mut log = Log::default();
        log.append(sent(1, 0, 0, 3)).unwrap();
        let mut bytes = log.table.encode().to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        prop_assert!(ProducerTable::decode(&bytes).is_err());
    }
}
