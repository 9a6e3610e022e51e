//! The probe on stores that are fit, and on stores that are broken in one way each.

use std::sync::Arc;

use object_store::memory::InMemory;
use prometheus::Registry;

use super::*;
use crate::{
    env::SeededIds,
    store::{StoreOptions, Verb},
    testing::{Faults, FaultyStore, Op, Trouble, When},
};

fn faulty() -> (Store, Faults) {
    let (objects, faults) = FaultyStore::new(Arc::new(InMemory::new()), 1);
    let store = Store::from_object_store(Arc::new(objects), "prefix", &Registry::new()).unwrap();
    (store, faults)
}

async fn check(store: &Store) -> Report {
    check_store(store, &SeededIds::new(1), PROBE_DEADLINE).await
}

async fn fault_of(when: When, trouble: Trouble) -> String {
    let (store, faults) = faulty();
    faults.inject(when, trouble);
    check(&store)
        .await
        .first_fault()
        .unwrap_or_else(|| panic!("{trouble:?} went unnoticed"))
}

async fn leftovers(store: &Store) -> usize {
    use futures::TryStreamExt;
    store
        .list("", None)
        .try_collect::<Vec<_>>()
        .await
        .unwrap()
        .len()
}

#[tokio::test]
async fn a_store_in_memory_is_fit_and_left_clean() {
    let (store, _) = faulty();

    let report = check(&store).await;

    assert!(report.is_fit(), "{report}");
    assert_eq!(leftovers(&store).await, 0);
    assert!(store.requests().total() < 400, "{:?}", store.requests());
    assert!(store.requests().of(Verb::Create) > 250);
}

#[tokio::test]
async fn a_directory_is_fit() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}", dir.path().display()).parse().unwrap();
    let options = StoreOptions::default();
    let store = Store::open(&url, options, &Registry::new()).await.unwrap();

    let report = check(&store).await;

    assert!(report.is_fit(), "{report}");
    assert_eq!(leftovers(&store).await, 0);
}

#[tokio::test]
async fn a_store_that_ignores_the_condition_is_refused() {
    let fault = fault_of(When::on(Op::Create), Trouble::IgnoreCondition).await;

    assert!(fault.contains("create if absent"), "{fault}");
    assert!(fault.contains("both own a partition"), "{fault}");
}

#[tokio::test]
async fn a_store_with_two_winners_in_a_race_is_refused() {
    // The first two creates are the checks before the race.
    let fault = fault_of(
        When::on(Op::Create).skip(40).times(1),
        Trouble::IgnoreCondition,
    )
    .await;

    assert!(fault.contains("create race"), "{fault}");
    assert!(fault.contains("2 of 32"), "{fault}");
}

#[tokio::test]
async fn a_store_that_forgets_what_was_just_put_is_refused() {
    let fault = fault_of(When::on(Op::Get), Trouble::StaleNotFound).await;

    assert!(fault.contains("read after write"), "{fault}");
}

#[tokio::test]
async fn damage_and_cut_ranges_are_refused() {
    for trouble in [Trouble::FlipBit, Trouble::ShortRead] {
        let fault = fault_of(When::on(Op::Get).skip(12), trouble).await;

        assert!(fault.contains("checksums and ranges"), "{fault}");
    }
}

#[tokio::test]
async fn one_flipped_bit_on_the_way_is_not_the_stores() {
    // Each read of the probe once: the second of a race too.
    for skipped in 0..16 {
        let (store, faults) = faulty();
        faults.inject(When::on(Op::Get).skip(skipped).times(1), Trouble::FlipBit);

        let report = check(&store).await;

        assert!(report.is_fit(), "read {skipped}: {report}");
    }
}

#[tokio::test]
async fn what_befalls_single_requests_may_pass() {
    for (op, trouble) in [
        (Op::Create, Trouble::FailAfter),
        (Op::Get, Trouble::FailBefore),
        (Op::List, Trouble::FailBefore),
    ] {
        let (store, faults) = faulty();
        faults.inject(When::on(op).times(1), trouble);
        let report = check(&store).await;
        assert!(report.may_pass(), "{trouble:?}: {report}");
        assert!(check(&store).await.is_fit(), "{trouble:?}");
    }

    for (op, trouble) in [
        (Op::Create, Trouble::IgnoreCondition),
        (Op::Create, Trouble::Forbid),
        (Op::Get, Trouble::StaleNotFound),
    ] {
        let (store, faults) = faulty();
        faults.inject(When::on(op), trouble);
        let report = check(&store).await;
        assert!(!report.may_pass(), "{trouble:?}: {report}");
    }
}

#[tokio::test]
async fn a_late_listing_is_only_a_warning() {
    let (store, faults) = faulty();
    faults.inject(When::on(Op::List), Trouble::StaleList(2));

    let report = check(&store).await;

    assert!(report.is_fit(), "{report}");
    let late = report
        .checks
        .iter()
        .find(|check| check.verdict == Verdict::Warning)
        .unwrap();
    assert!(late.detail.contains("lacks 2"), "{report}");
}

#[tokio::test]
async fn a_forbidden_write_is_told_in_one_line() {
    let fault = fault_of(When::on(Op::Create), Trouble::Forbid).await;

    assert!(fault.contains("reach and write"), "{fault}");
    assert!(fault.contains("access denied"), "{fault}");
    assert!(!fault.contains('\n') && fault.len() < 200, "{fault}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_is_refused_in_time() {
    let (store, faults) = faulty();
    faults.inject(When::any().skip(3), Trouble::Hang);
    let start = tokio::time::Instant::now();

    let report = check(&store).await;

    assert!(
        report
            .first_fault()
            .unwrap()
            .contains("no verdict within 30s"),
        "{report}"
    );
    assert_eq!(report.checks[0].verdict, Verdict::Ok);
    assert!(
        !report.is_fit() && !report.is_unfit(),
        "slow is not unfit: {report}"
    );
    assert!(start.elapsed() <= PROBE_DEADLINE);
}

#[tokio::test(start_paused = true)]
async fn a_busy_store_gets_another_chance() {
    let (store, faults) = faulty();
    faults.inject(When::on(Op::Create).times(2), Trouble::SlowDown);

    let report = check(&store).await;

    assert!(report.is_fit(), "{report}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_only_fails_or_refuses_is_not_called_unfit() {
    // The first write, a read, a race, the large object, the listing, the deletes.
    for (when, trouble) in [
        (When::on(Op::Create), Trouble::Forbid),
        (When::on(Op::Create), Trouble::SlowDown),
        (When::on(Op::Get), Trouble::Forbid),
        (When::on(Op::Create).skip(20), Trouble::Forbid),
        (When::on(Op::Put).skip(2), Trouble::Forbid),
        (When::on(Op::List), Trouble::Forbid),
        (When::on(Op::Delete), Trouble::Forbid),
    ] {
        let (store, faults) = faulty();
        faults.inject(when.clone(), trouble);

        let report = check(&store).await;

        assert!(!report.is_fit(), "{when:?} {trouble:?}: {report}");
        assert!(!report.is_unfit(), "{when:?} {trouble:?}: {report}");
        assert!(report.fault.is_some(), "{when:?} {trouble:?}: {report}");
    }
}

#[tokio::test]
async fn a_store_that_breaks_a_promise_is_called_unfit() {
    for (when, trouble) in [
        (When::on(Op::Create), Trouble::IgnoreCondition),
        (When::on(Op::Get), Trouble::StaleNotFound),
        (When::on(Op::Get).skip(12), Trouble::FlipBit),
    ] {
        let (store, faults) = faulty();
        faults.inject(when, trouble);
        assert!(check(&store).await.is_unfit(), "{trouble:?}");
    }
}
