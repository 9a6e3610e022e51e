//! A definite put tells the truth, and a read gives all or an error, whatever the store does.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use esker_tests::s3::{Fault, Release, Rule, S3Server, Status, Verb};
use esker_tiering::{
    ErrorKind,
    chain::{Put, RetryPolicy},
};

use super::{
    contract::{body, put},
    places::{Place, hasty_options, options, s3_of},
};
use crate::support::BUCKET;

const KEY: &str = "slot/1";
const FULL_KEY: &str = "a/prefix/slot/1";

async fn place(rule: Rule) -> Place<Arc<S3Server>> {
    let server = S3Server::builder()
        .bucket(BUCKET)
        .fault(rule)
        .start()
        .await
        .unwrap();
    s3_of(server, options()).await
}

/// Short pauses: what is tested is what comes out, not how long it takes.
fn policy() -> RetryPolicy {
    RetryPolicy {
        deadline: Duration::from_secs(60),
        backoff: Duration::from_millis(5),
        backoff_max: Duration::from_millis(20),
    }
}

/// Puts under a fault of the first `times` PUTs, and expects to win and to be told so.
async fn wins_in_spite_of(fault: Fault, times: u64) {
    let place = place(Rule::new(fault).verb(Verb::Put).times(times)).await;

    let outcome = put(&place.store, KEY, 1, policy()).await;

    assert!(matches!(outcome, Put::Won), "{fault:?}: {outcome:?}");
    assert_eq!(
        place.home.object(BUCKET, FULL_KEY).unwrap(),
        body(1),
        "{fault:?}"
    );
    assert_eq!(place.home.counts().rewrites, 0, "{fault:?}");
    assert_eq!(
        place.store.requests().total(),
        place.home.counts().total(),
        "{fault:?}"
    );
}

#[tokio::test]
async fn a_lost_reply_does_not_hide_that_the_put_won() {
    wins_in_spite_of(Fault::ReplyLost, 1).await;
}

#[tokio::test]
async fn a_conflict_without_effect_is_tried_again_until_it_is_created() {
    wins_in_spite_of(Fault::Answer(Status::Conflict), 3).await;
}

#[tokio::test]
async fn an_error_after_the_put_was_applied_does_not_hide_that_it_won() {
    for status in [
        Status::Internal,
        Status::Unavailable,
        Status::SlowDown,
        Status::Conflict,
    ] {
        wins_in_spite_of(Fault::AppliedThen(status), 1).await;
    }
}

#[tokio::test]
async fn a_put_delivered_twice_is_not_taken_for_a_rival() {
    wins_in_spite_of(Fault::AppliedTwice, 1).await;
}

#[tokio::test]
async fn a_store_that_is_busy_for_a_while_is_waited_for() {
    wins_in_spite_of(Fault::Answer(Status::SlowDown), 4).await;
    wins_in_spite_of(Fault::Answer(Status::Internal), 2).await;
}

#[tokio::test]
async fn a_connection_lost_before_or_amid_the_request_is_tried_again() {
    wins_in_spite_of(Fault::Drop, 2).await;
    wins_in_spite_of(Fault::Reset { after_bytes: 3 }, 1).await;
}

#[tokio::test]
async fn a_request_that_hangs_is_given_up_and_tried_again() {
    let hang = Rule::new(Fault::Hang).verb(Verb::Put).times(1);
    let server = S3Server::builder()
        .bucket(BUCKET)
        .fault(hang)
        .start()
        .await
        .unwrap();
    let place = s3_of(server, hasty_options()).await;

    let outcome = put(&place.store, KEY, 1, policy()).await;

    assert!(matches!(outcome, Put::Won), "{outcome:?}");
    assert_eq!(place.home.object(BUCKET, FULL_KEY).unwrap(), body(1));
}

#[tokio::test]
async fn a_put_that_arrives_late_changes_nothing() {
    let place = place(
        Rule::new(Fault::LateApply(Release::OnCall))
            .verb(Verb::Put)
            .times(1),
    )
    .await;

    let outcome = put(&place.store, KEY, 1, policy()).await;
    assert!(matches!(outcome, Put::Won), "{outcome:?}");
    assert_eq!(place.home.release_late().await, 1);

    assert_eq!(place.home.object(BUCKET, FULL_KEY).unwrap(), body(1));
    assert_eq!(place.home.counts().rewrites, 0);
}

#[tokio::test]
async fn a_rival_whose_put_was_only_late_is_seen_to_have_won() {
    let place = place(
        Rule::new(Fault::LateApply(Release::OnCall))
            .verb(Verb::Put)
            .times(1),
    )
    .await;
    let hopeless = RetryPolicy {
        deadline: Duration::ZERO,
        ..policy()
    };
    let rival = put(&place.store, KEY, 1, hopeless).await;
    assert!(matches!(rival, Put::Unknown(_)), "{rival:?}");
    place.home.release_late().await;

    let ours = put(&place.store, KEY, 2, policy()).await;

    assert!(
        matches!(&ours, Put::Lost(seen) if *seen == body(1)),
        "{ours:?}"
    );
}

#[tokio::test]
async fn an_outage_past_the_deadline_leaves_the_outcome_unknown() {
    let place = place(Rule::new(Fault::Drop)).await;
    let impatient = RetryPolicy {
        deadline: Duration::from_millis(100),
        ..policy()
    };

    let outcome = put(&place.store, KEY, 1, impatient).await;

    let Put::Unknown(error) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn a_forbidden_put_is_refused_at_once() {
    let place = place(Rule::new(Fault::Answer(Status::Forbidden))).await;

    let outcome = put(&place.store, KEY, 1, policy()).await;

    let Put::Refused(error) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(error.kind(), ErrorKind::Forbidden, "{error}");
    assert_eq!(place.home.counts().total(), 1);
}

#[tokio::test]
async fn a_plain_put_outlasts_a_burst_and_is_counted_try_by_try() {
    let place = place(
        Rule::new(Fault::Answer(Status::SlowDown))
            .verb(Verb::Put)
            .times(2),
    )
    .await;

    place.store.put_object(KEY, body(1)).await.unwrap();

    assert_eq!(place.home.counts().of(Verb::Put), 3);
    assert_eq!(place.store.requests().total(), 3);
}

#[tokio::test]
async fn a_read_that_breaks_off_is_finished_or_fails() {
    let place = place(
        Rule::new(Fault::Reset { after_bytes: 1000 })
            .verb(Verb::Get)
            .times(1),
    )
    .await;
    let bytes = Bytes::from(vec![7; 300_000]);
    place.home.plant(BUCKET, FULL_KEY, bytes.clone());

    match place.store.get_range(KEY, 0..300_000).await {
        Ok(found) => assert!(found == bytes),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
    }
    assert!(place.store.get_range(KEY, 0..300_000).await.unwrap() == bytes);
}

#[tokio::test]
async fn a_read_cut_short_is_never_taken_for_the_whole() {
    let place = place(Rule::new(Fault::Truncate { to_bytes: 1000 }).verb(Verb::Get)).await;
    place.home.plant(BUCKET, FULL_KEY, vec![7; 5000]);

    let range = place.store.get_range(KEY, 0..5000).await;
    let whole = place.store.get(KEY).await;

    assert!(range.is_err(), "{range:?}");
    // Without a range, the length in the reply is all there is to go by.
    assert!(whole.is_err() || whole.is_ok_and(|bytes| bytes.len() == 1000));
}

#[tokio::test]
async fn damage_on_the_way_to_the_store_is_refused_there_and_the_put_repeated() {
    let place = place(Rule::new(Fault::BitFlip).verb(Verb::Put).times(1)).await;

    let first = place.store.put_object(KEY, body(1)).await;
    if first.is_err() {
        assert!(place.home.object(BUCKET, FULL_KEY).is_none());
        place.store.put_object(KEY, body(1)).await.unwrap();
    }

    assert_eq!(place.home.object(BUCKET, FULL_KEY).unwrap(), body(1));
}
