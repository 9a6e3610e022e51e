//! One function for each thing a store must do. All take any store, and keep to keys of their own.

use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;
use esker_tiering::{
    Error, ErrorKind,
    chain::{Put, RetryPolicy, put_definite},
    env::{RandomIds, TaskSet},
    probe::check_store,
    store::{CreateOutcome, PutPayload, Store},
};
use futures::{StreamExt, TryStreamExt, future::join_all, stream};
use tokio_util::sync::CancellationToken;

/// Hands the name of every promise to a macro, so that no store can miss one.
macro_rules! promises {
    ($with:ident) => {
        $with! {
            one_of_32_racing_creates_wins,
            a_create_after_another_is_refused_and_changes_nothing,
            one_of_many_racing_definite_puts_wins_and_the_others_see_it,
            a_definite_put_knows_its_own_object_again,
            an_object_reads_back_whole_and_in_ranges,
            a_range_past_the_end_is_an_error,
            a_missing_object_is_not_found,
            a_put_of_the_same_bytes_may_be_repeated,
            a_large_object_survives_the_journey,
            an_object_put_in_parts_is_whole_or_is_not_there,
            listings_are_sorted_complete_and_start_where_told,
            deletes_take_many_and_do_not_mind_a_missing_key,
            the_probe_accepts_it_and_leaves_nothing_behind,
        }
    };
}
pub(crate) use promises;

/// For verdicts that are about the store and not about how busy this machine is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// A body with a nonce before the dot.
pub(crate) fn body(nonce: u128) -> Bytes {
    format!("{nonce}.body").into()
}

/// Reads what [`body`] wrote.
pub(crate) fn nonce_of(bytes: &[u8]) -> Option<u128> {
    std::str::from_utf8(bytes)
        .ok()?
        .split('.')
        .next()?
        .parse()
        .ok()
}

pub(crate) async fn put(store: &Store, key: &str, nonce: u128, policy: RetryPolicy) -> Put {
    put_definite(store, key, body(nonce), nonce_of, policy).await
}

pub(crate) async fn one_of_32_racing_creates_wins(store: &Store) {
    for round in 0..20 {
        let key = format!("race/{round}");
        let attempts = (0..32).map(|rival| {
            let (store, key) = (store.clone(), key.clone());
            TaskSet::new().spawn(
                "rival",
                async move { store.create(&key, body(rival)).await },
            )
        });
        let outcomes = join_all(attempts).await;
        let created =
            |outcome: &Result<CreateOutcome, _>| matches!(outcome, Ok(CreateOutcome::Created));
        let winners: Vec<_> = (0..32).zip(&outcomes).filter(|(_, o)| created(o)).collect();

        assert_eq!(winners.len(), 1, "{key}: {outcomes:?}");
        assert_eq!(store.get(&key).await.unwrap(), body(winners[0].0), "{key}");
    }
}

pub(crate) async fn a_create_after_another_is_refused_and_changes_nothing(store: &Store) {
    let first = store.create("again/1", body(1)).await;
    let second = store.create("again/1", body(2)).await;

    assert!(matches!(first, CreateOutcome::Created), "{first:?}");
    assert!(matches!(second, CreateOutcome::Exists), "{second:?}");
    assert_eq!(store.get("again/1").await.unwrap(), body(1));
}

pub(crate) async fn one_of_many_racing_definite_puts_wins_and_the_others_see_it(store: &Store) {
    for round in 0..5 {
        let key = format!("definite/{round}");
        let rivals = (0..16).map(|rival| {
            let (store, key) = (store.clone(), key.clone());
            TaskSet::new().spawn("rival", async move {
                put(&store, &key, rival, RetryPolicy::default()).await
            })
        });
        let outcomes = join_all(rivals).await;
        let kept = store.get(&key).await.unwrap();

        for (rival, outcome) in (0..16).zip(outcomes) {
            match outcome.unwrap() {
                Put::Won => assert_eq!(nonce_of(&kept), Some(rival), "{key}"),
                Put::Lost(seen) => {
                    assert_eq!(seen, kept, "{key}");
                    assert_ne!(nonce_of(&kept), Some(rival), "{key}");
                }
                other => panic!("{key}: {other:?}"),
            }
        }
    }
}

pub(crate) async fn a_definite_put_knows_its_own_object_again(store: &Store) {
    for _ in 0..2 {
        let outcome = put(store, "own/1", 7, RetryPolicy::default()).await;
        assert!(matches!(outcome, Put::Won), "{outcome:?}");
    }

    let other = put(store, "own/1", 8, RetryPolicy::default()).await;

    assert!(
        matches!(&other, Put::Lost(seen) if *seen == body(7)),
        "{other:?}"
    );
}

pub(crate) async fn an_object_reads_back_whole_and_in_ranges(store: &Store) {
    let bytes: Bytes = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    store.put_object("read/1", bytes.clone()).await.unwrap();
    store.put_object("read/empty", Bytes::new()).await.unwrap();

    assert_eq!(store.get("read/1").await.unwrap(), bytes);
    assert_eq!(store.head("read/1").await.unwrap().size_bytes, 400_000);
    for range in [0..1, 0..400_000, 4095..4097, 399_999..400_000] {
        let found = store.get_range("read/1", range.clone()).await.unwrap();
        let expected = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
        assert!(found == bytes.slice(expected), "{range:?}");
    }
    assert!(store.get("read/empty").await.unwrap().is_empty());
}

pub(crate) async fn a_range_past_the_end_is_an_error(store: &Store) {
    store
        .put_object("short/1", Bytes::from_static(b"0123456789"))
        .await
        .unwrap();

    let beyond = store.get_range("short/1", 5..11).await;
    let outside = store.get_range("short/1", 10..12).await;

    assert!(
        beyond
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Corrupt),
        "{beyond:?}"
    );
    assert!(outside.is_err(), "{outside:?}");
}

pub(crate) async fn a_missing_object_is_not_found(store: &Store) {
    let get = store.get("missing/1").await.unwrap_err();
    let range = store.get_range("missing/1", 0..1).await.unwrap_err();
    let head = store.head("missing/1").await.unwrap_err();

    for error in [get, range, head] {
        assert!(error.is_not_found(), "{error}");
        assert!(error.to_string().contains("missing/1"), "{error}");
    }
}

pub(crate) async fn a_put_of_the_same_bytes_may_be_repeated(store: &Store) {
    for _ in 0..2 {
        store
            .put_object("repeat/1", Bytes::from_static(b"same"))
            .await
            .unwrap();
    }

    assert_eq!(store.get("repeat/1").await.unwrap(), "same");
}

pub(crate) async fn a_large_object_survives_the_journey(store: &Store) {
    let bytes: Bytes = (0..5_000_000_u32).flat_map(u32::to_le_bytes).collect();
    store.put_object("large/1", bytes.clone()).await.unwrap();

    assert!(store.get("large/1").await.unwrap() == bytes);
    let tail = store
        .get_range("large/1", 19_000_000..20_000_000)
        .await
        .unwrap();
    assert!(tail == bytes.slice(19_000_000..));
}

pub(crate) async fn an_object_put_in_parts_is_whole_or_is_not_there(store: &Store) {
    let bytes: Bytes = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let part = |from: usize| Ok(bytes.slice(from..bytes.len().min(from + (5 << 20))).into());
    let parts: Vec<Result<PutPayload, Error>> = (0..3).map(|at| part(at * (5 << 20))).collect();
    let cut = vec![part(0), Err(Error::corrupt("file", "changed"))];
    let never = CancellationToken::new();

    let put = store.put_parts("parts/1", stream::iter(parts), &never);
    put.await.unwrap();
    let cut = store.put_parts("parts/2", stream::iter(cut), &never);
    assert_eq!(cut.await.unwrap_err().kind(), ErrorKind::Corrupt);

    assert!(store.get("parts/1").await.unwrap() == bytes);
    assert!(store.get("parts/2").await.unwrap_err().is_not_found());
}

pub(crate) async fn listings_are_sorted_complete_and_start_where_told(store: &Store) {
    let keys: Vec<_> = (0..1100).map(|key| format!("list/{key:020}")).collect();
    let puts =
        stream::iter(keys.iter().rev()).map(|key| store.put_object(key, Bytes::from_static(b"x")));
    puts.buffer_unordered(16)
        .try_collect::<Vec<()>>()
        .await
        .unwrap();
    for neighbour in ["lisa/1", "list-2/1", "lisu/1"] {
        store.put_object(neighbour, Bytes::new()).await.unwrap();
    }
    let listed = async |after: Option<&str>| {
        let found: Vec<_> = store.list("list", after).try_collect().await.unwrap();
        found
            .into_iter()
            .map(|object| object.key)
            .collect::<Vec<_>>()
    };

    assert!(listed(None).await == keys);
    assert!(listed(Some(&keys[1049])).await == keys[1050..]);
    assert_eq!(
        listed(Some(keys.last().unwrap())).await,
        Vec::<String>::new()
    );
    let nothing: Vec<_> = store.list("nothing", None).try_collect().await.unwrap();
    assert_eq!(nothing, []);
}

pub(crate) async fn deletes_take_many_and_do_not_mind_a_missing_key(store: &Store) {
    for key in 0..50 {
        store
            .put_object(&format!("delete/{key}"), Bytes::new())
            .await
            .unwrap();
    }
    let doomed = (0..60)
        .filter(|key| key % 10 != 0)
        .map(|key| format!("delete/{key}"));

    store.delete(doomed).await.unwrap();
    store.delete(["delete/1"]).await.unwrap();

    let left: Vec<_> = store.list("delete", None).try_collect().await.unwrap();
    let left: BTreeSet<_> = left.into_iter().map(|object| object.key).collect();
    let expected = (0..50)
        .step_by(10)
        .map(|key| format!("delete/{key}"))
        .collect();
    assert_eq!(left, expected);
}

pub(crate) async fn the_probe_accepts_it_and_leaves_nothing_behind(store: &Store) {
    let report = check_store(store, &RandomIds, PATIENCE).await;

    assert!(report.is_fit(), "{report}");
    let left: Vec<_> = store.list("probe", None).try_collect().await.unwrap();
    assert_eq!(left, []);
}
