//! Tests of `epoch_history.rs`.

use super::*;
use crate::testing::{at, epoch, epochs};

#[test]
fn epoch_of_an_offset_is_the_last_one_that_started() {
    let history = epochs(&[(1, 10), (4, 20)]);

    assert_eq!(history.epoch_at(at(9)), None);
    assert_eq!(history.epoch_at(at(10)), Some(epoch(1)));
    assert_eq!(history.epoch_at(at(19)), Some(epoch(1)));
    assert_eq!(history.epoch_at(at(20)), Some(epoch(4)));
}

#[test]
fn an_epoch_ends_where_the_next_one_starts() {
    let history = epochs(&[(1, 10), (4, 20)]);

    assert_eq!(history.end_offset_for(epoch(0), at(30)), None);
    assert_eq!(
        history.end_offset_for(epoch(1), at(30)),
        Some((epoch(1), at(20)))
    );
    assert_eq!(
        history.end_offset_for(epoch(3), at(30)),
        Some((epoch(1), at(20)))
    );
    assert_eq!(
        history.end_offset_for(epoch(9), at(30)),
        Some((epoch(4), at(30)))
    );
}

#[test]
fn a_reader_diverges_where_the_log_has_another_record_or_none() {
    let history = epochs(&[(2, 10), (4, 20), (5, 40)]);
    let same = [(2, 11), (2, 20), (4, 21), (4, 40), (5, 41), (5, 50)];
    // Read from this log before it was cut, and from ones that never were this log.
    let others = [
        ((2, 21), 20),
        ((4, 45), 40),
        ((5, 51), 50),
        ((5, 60), 50),
        ((3, 25), 20),
        ((3, 15), 14),
        ((1, 15), 10),
        ((7, 30), 29),
        ((7, 60), 50),
    ];
    for (leader_epoch, next_offset) in same {
        let found = history.divergence(epoch(leader_epoch), at(next_offset), at(50));
        assert_eq!(found, None, "{leader_epoch} {next_offset}");
    }
    for ((leader_epoch, next_offset), expected) in others {
        let found = history.divergence(epoch(leader_epoch), at(next_offset), at(50));
        assert_eq!(found, Some(at(expected)), "{leader_epoch} {next_offset}");
    }
}

#[test]
fn what_the_history_does_not_reach_is_no_divergence() {
    let history = epochs(&[(2, 10), (4, 20)]);
    for (leader_epoch, next_offset) in [(1, 10), (9, 10), (1, 0), (9, 0)] {
        let found = history.divergence(epoch(leader_epoch), at(next_offset), at(50));
        assert_eq!(found, None, "{leader_epoch} {next_offset}");
    }
    assert_eq!(
        EpochHistory::new().divergence(epoch(1), at(5), at(50)),
        None
    );
}

#[test]
fn neither_epochs_nor_offsets_go_backwards() {
    let mut history = epochs(&[(2, 10), (4, 20)]);
    let before = history.clone();

    assert!(history.push(epoch(3), at(30)).is_err());
    assert!(history.push(epoch(5), at(19)).is_err());
    assert!(history.push(epoch(4), at(19)).is_err());
    assert!(history.push(epoch(4), at(25)).is_ok());
    assert_eq!(history, before);
}

#[test]
fn an_epoch_without_records_is_forgotten() {
    let mut history = epochs(&[(1, 0), (2, 10)]);

    history.push(epoch(3), at(10)).expect("ascends");

    assert_eq!(history, epochs(&[(1, 0), (3, 10)]));
}

#[test]
fn truncation_and_trim_keep_what_is_between() {
    let mut history = epochs(&[(1, 0), (2, 10), (3, 20), (4, 30)]);

    history.truncate_from(at(30));
    history.trim_below(at(15));
    assert_eq!(history, epochs(&[(2, 15), (3, 20)]));

    history.trim_below(at(5));
    assert_eq!(history, epochs(&[(2, 15), (3, 20)]));
}

#[test]
fn a_shorter_memory_extends_a_longer_one() {
    let tiered = epochs(&[(1, 0), (2, 100)]);
    let local = epochs(&[(2, 150), (3, 200)]);

    let extended = tiered.extended_by(&local, at(180)).expect("agree");

    assert_eq!(extended, epochs(&[(1, 0), (2, 100), (3, 200)]));
}

#[test]
fn a_history_that_contradicts_tiered_offsets_is_refused() {
    let tiered = epochs(&[(1, 0), (2, 100)]);

    let error = tiered
        .extended_by(&epochs(&[(1, 0), (3, 120)]), at(180))
        .unwrap_err();
    assert_eq!(
        error,
        Error::EpochsDiverge {
            start_offset: at(100)
        }
    );

    // Nothing was tiered in epoch 2: another leader may have replaced it.
    let extended = tiered.extended_by(&epochs(&[(1, 0), (3, 100)]), at(100));
    assert_eq!(extended, Ok(epochs(&[(1, 0), (3, 100)])));
}

#[test]
fn text_that_goes_backwards_is_refused() {
    let text = serde_json::to_string(&epochs(&[(1, 0), (2, 10)])).expect("JSON");
    assert_eq!(text, "[[1,0],[2,10]]");

    assert!(serde_json::from_str::<EpochHistory>("[[1,0],[2,10]]").is_ok());
    assert!(serde_json::from_str::<EpochHistory>("[[2,0],[1,10]]").is_err());
    assert!(serde_json::from_str::<EpochHistory>("[[1,0],[2,0]]").is_err());
}
