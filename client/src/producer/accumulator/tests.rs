//! Promises of the accumulator.

use esker_proto::batch::RecordBatch;

use super::*;

const LIMITS: Limits = Limits {
    batch_bytes: 1000,
    batch_bytes_max: 5000,
    linger: Duration::from_millis(10),
    delivery_timeout: Duration::from_secs(1),
    compression: Compression::None,
};
const FIXED: Choice = Choice {
    partition: PartitionId::new(0),
    is_free: false,
};

fn push(accumulator: &Accumulator, value: &[u8]) -> Push {
    accumulator.push(FIXED, &RecordRef::new(value), TimestampMs::new(1), 0)
}

fn is_added(push: Push) -> bool {
    matches!(push, Push::Added(_))
}

fn size(mut filled: Filled) -> usize {
    let batch = filled.builder.finish(None);
    RecordBatch::validate(batch.clone()).unwrap();
    assert!(
        filled.reserved >= batch.len(),
        "more in memory than accounted for"
    );
    batch.len()
}

#[tokio::test]
async fn batches_stay_within_the_limit() {
    let accumulator = Accumulator::new(1, LIMITS, 1 << 20);
    for _ in 0..100 {
        assert!(is_added(push(&accumulator, &[7; 90])));
    }
    let mut batches = 0;
    while let Some(filled) = accumulator.take_filled(0) {
        assert!(size(filled) <= LIMITS.batch_bytes);
        batches += 1;
    }
    assert!(batches >= 10);
}

#[tokio::test]
async fn large_record_goes_alone() {
    let accumulator = Accumulator::new(1, LIMITS, 1 << 20);
    assert!(is_added(push(&accumulator, b"small")));
    assert!(is_added(push(&accumulator, &[7; 2000])));
    assert!(matches!(push(&accumulator, &[7; 6000]), Push::Refused(_)));
    assert!(size(accumulator.take_filled(0).unwrap()) < 100);
    accumulator.close();
    assert!(size(accumulator.take_filled(0).unwrap()) > 2000);
}

#[tokio::test(start_paused = true)]
async fn open_batch_is_due_after_its_linger_or_when_hurried() {
    let accumulator = Accumulator::new(2, LIMITS, 1 << 20);
    let start = Instant::now();
    assert!(is_added(push(&accumulator, b"a")));
    let Take::Lingering(until) = accumulator.take(0, start) else {
        panic!("it is not due")
    };
    assert_eq!(until, start + LIMITS.linger);
    assert!(matches!(accumulator.take(1, start), Take::Empty));
    let taken = accumulator.take(0, until);
    assert!(matches!(taken, Take::Filled(_)));

    assert!(is_added(push(&accumulator, b"b")));
    assert_eq!(accumulator.hurry().len(), 2, "neither batch is settled");
    assert!(matches!(accumulator.take(0, start), Take::Filled(_)));
}

#[tokio::test]
async fn sender_is_woken_once_a_batch() {
    let accumulator = Accumulator::new(1, LIMITS, 1 << 20);
    assert!(is_added(push(&accumulator, b"a")));
    assert_eq!(accumulator.take_listed(), [0]);
    assert!(is_added(push(&accumulator, b"b")));
    assert!(accumulator.take_listed().is_empty());
    assert!(is_added(push(&accumulator, &[7; 980])));
    assert_eq!(accumulator.take_listed(), [0]);
}

#[tokio::test]
async fn room_is_bounded_and_all_of_it_comes_back() {
    let accumulator = Accumulator::new(1, LIMITS, 4000);
    let mut bytes = 0;
    let needed = loop {
        match push(&accumulator, &[7; 90]) {
            Push::Added(_) => bytes += 90,
            Push::NoRoom(needed) => break needed,
            other => panic!("{other:?}"),
        }
    };
    assert!((2000..4000).contains(&bytes), "{bytes}");
    assert!(!accumulator.budget.try_take(needed));
    accumulator.close();
    while let Some(filled) = accumulator.take_filled(0) {
        accumulator.budget.give_back(filled.reserved);
    }
    assert!(accumulator.budget.try_take(4000));
}

#[tokio::test]
async fn credit_is_used_given_back_or_left_to_the_caller() {
    let accumulator = Accumulator::new(1, LIMITS, 1000);
    assert!(accumulator.budget.try_take(300));
    let record = RecordRef::new(b"a");
    let added = accumulator.push(FIXED, &record, TimestampMs::new(1), 300);
    assert!(is_added(added));
    assert!(accumulator.budget.try_take(100));
    let too_large = RecordRef::new(&[7; 6000]);
    let refused = accumulator.push(FIXED, &too_large, TimestampMs::new(1), 100);
    assert!(matches!(refused, Push::Refused(_)));
    accumulator.close();
    assert!(accumulator.budget.try_take(100));
    let ended = accumulator.push(FIXED, &record, TimestampMs::new(1), 100);
    assert!(matches!(ended, Push::Ended(_)));
    accumulator.budget.give_back(100);
    accumulator
        .budget
        .give_back(accumulator.take_filled(0).unwrap().reserved);
    assert!(accumulator.budget.try_take(1000));
}

#[tokio::test(start_paused = true)]
async fn batches_expire_oldest_first() {
    let accumulator = Accumulator::new(1, LIMITS, 1 << 20);
    let start = Instant::now();
    assert!(is_added(push(&accumulator, b"a")));
    let deadline = start + LIMITS.delivery_timeout;
    assert_eq!(accumulator.deadline(0), Some(deadline));
    assert!(accumulator.take_expired(0, start).is_none());
    assert!(accumulator.take_expired(0, deadline).is_some());
    assert!(accumulator.is_empty());
}
