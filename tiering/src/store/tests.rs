//! What a store promises on this machine, and what it says when a server refuses.

use std::sync::Arc;

use futures::TryStreamExt;
use object_store::memory::InMemory;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;
use crate::{
    env::{ManualClock, TaskSet},
    error::ErrorKind,
    testing::{Faults, FaultyStore, Op, Trouble, When},
};

fn faulty() -> (Store, Faults) {
    let (objects, faults) = FaultyStore::new(Arc::new(InMemory::new()), 1);
    let store = Store::from_object_store(Arc::new(objects), "a/prefix", &Registry::new()).unwrap();
    (store, faults)
}

async fn open(url: &str, options: StoreOptions) -> Result<Store, Error> {
    Store::open(&url.parse().unwrap(), options, &Registry::new()).await
}

async fn keys(store: &Store, prefix: &str, start_after: Option<&str>) -> Vec<String> {
    let listed = store.list(prefix, start_after).map_ok(|object| object.key);
    listed.try_collect().await.unwrap()
}

#[tokio::test]
async fn a_directory_lists_in_order_and_keeps_to_its_prefix() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}/bucket", dir.path().display());
    let store = open(&url, StoreOptions::default()).await.unwrap();
    for number in [7, 3, 9, 1, 5] {
        store
            .put_object(&format!("a/{number}"), Bytes::from_static(b"x"))
            .await
            .unwrap();
    }
    store
        .put_object("ab/1", Bytes::from_static(b"x"))
        .await
        .unwrap();

    assert_eq!(
        keys(&store, "a", None).await,
        ["a/1", "a/3", "a/5", "a/7", "a/9"]
    );
    assert_eq!(keys(&store, "a", Some("a/5")).await, ["a/7", "a/9"]);
    assert_eq!(keys(&store, "nothing", None).await, [""; 0]);
}

#[tokio::test]
async fn an_unusable_directory_is_named_in_the_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();

    let refused = open(
        &format!("file://{}/below", file.display()),
        StoreOptions::default(),
    )
    .await;

    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(
        refused.to_string().contains(&file.display().to_string()),
        "{refused}"
    );
}

#[tokio::test]
async fn the_prefix_is_added_and_taken_off() {
    let objects = Arc::new(InMemory::new());
    let store = Store::from_object_store(objects.clone(), "/a/prefix/", &Registry::new()).unwrap();

    store
        .put_object("k/1", Bytes::from_static(b"x"))
        .await
        .unwrap();

    assert!(objects.head(&Path::from("a/prefix/k/1")).await.is_ok());
    assert_eq!(keys(&store, "k", None).await, ["k/1"]);
    assert_eq!(keys(&store, "", None).await, ["k/1"]);
    assert_eq!(store.head("k/1").await.unwrap().key, "k/1");
}

#[tokio::test]
async fn folders_are_listed_without_what_they_hold() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}/bucket", dir.path().display());
    let directory = open(&url, StoreOptions::default()).await.unwrap();
    for store in [directory, faulty().0] {
        for key in ["a/1/x", "a/1/y/z", "a/2/x", "a/file", "ab/3/x"] {
            store
                .put_object(key, Bytes::from_static(b"x"))
                .await
                .unwrap();
        }
        let folders = store.folders("a").await.unwrap();
        assert_eq!(folders.into_iter().collect::<Vec<_>>(), ["a/1", "a/2"]);
        assert!(store.folders("nothing").await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn every_request_is_counted_by_verb_and_outcome() {
    let (store, faults) = faulty();
    store
        .put_object("k", Bytes::from_static(b"four"))
        .await
        .unwrap();
    let _ = store.create("k", Bytes::from_static(b"x")).await;
    store.get("k").await.unwrap();
    store.get("missing").await.unwrap_err();
    faults.inject(When::on(Op::Get), Trouble::SlowDown);
    store.get("k").await.unwrap_err();
    store.delete(["k", "missing"]).await.unwrap();
    keys(&store, "", None).await;

    let requests = store.requests();

    assert_eq!(requests.count(Verb::Put, Outcome::Ok), 1);
    assert_eq!(requests.count(Verb::Create, Outcome::Conflict), 1);
    assert_eq!(requests.count(Verb::Get, Outcome::Ok), 1);
    assert_eq!(requests.count(Verb::Get, Outcome::NotFound), 1);
    assert_eq!(requests.count(Verb::Get, Outcome::Failed), 1);
    assert_eq!(requests.of(Verb::Delete), 2);
    assert_eq!(requests.of(Verb::List), 1);
    assert_eq!(requests.total(), 8);
    assert_eq!((requests.bytes_sent, requests.bytes_received), (5, 4));
}

#[tokio::test]
async fn one_registry_counts_one_store() {
    let registry = Registry::new();
    let url: StoreUrl = "memory://".parse().unwrap();
    Store::open(&url, StoreOptions::default(), &registry)
        .await
        .unwrap();

    let second = Store::open(&url, StoreOptions::default(), &registry).await;

    assert!(matches!(second, Err(Error::MetricsTaken)));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_ends_early_is_an_error_and_never_data() {
    let (store, faults) = faulty();
    store
        .put_object("k", Bytes::from_static(b"0123456789"))
        .await
        .unwrap();
    faults.inject(When::on(Op::Get).times(6), Trouble::ShortRead);

    let whole = store.get("k").await.unwrap_err();
    let range = store.get_range("k", 2..8).await.unwrap_err();

    assert!(whole.is_retryable(), "{whole}");
    assert!(range.is_retryable(), "{range}");
    assert_eq!(store.get_range("k", 2..8).await.unwrap(), "234567");
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_breaks_off_is_asked_for_again() {
    let (store, faults) = faulty();
    for key in ["k/1", "k/2", "k/3", "k/4"] {
        store
            .put_object(key, Bytes::from_static(b"0123"))
            .await
            .unwrap();
    }
    for (op, trouble) in [
        (Op::Get, Trouble::ShortRead),
        (Op::Get, Trouble::BreakOff),
        (Op::List, Trouble::BreakOff),
    ] {
        faults.inject(When::on(op).times(2), trouble);

        assert_eq!(store.get("k/1").await.unwrap(), "0123");
        let listed: Vec<_> = store.list("k", None).try_collect().await.unwrap();
        let keys: Vec<_> = listed.iter().map(|object| object.key.as_str()).collect();
        assert_eq!(keys, ["k/1", "k/2", "k/3", "k/4"]);
    }
    faults.inject(When::on(Op::List), Trouble::BreakOff);
    let listed = store.list("k", None).try_collect::<Vec<_>>().await;
    assert!(listed.unwrap_err().is_retryable());
}

#[tokio::test]
async fn a_range_beyond_the_end_means_that_the_object_is_cut_short() {
    let (store, _) = faulty();
    store
        .put_object("k", Bytes::from_static(b"0123456789"))
        .await
        .unwrap();

    let error = store.get_range("k", 8..12).await.unwrap_err();

    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[tokio::test(start_paused = true)]
async fn no_call_waits_for_ever() {
    let (store, faults) = faulty();
    faults.inject(When::any(), Trouble::Hang);

    let got = store.get("k").await.unwrap_err();
    let put = store.put_object("k", Bytes::new()).await.unwrap_err();
    let deleted = store.delete(["k"]).await.unwrap_err();
    let listed = store
        .list("", None)
        .try_collect::<Vec<_>>()
        .await
        .unwrap_err();
    let created = store.create("k", Bytes::new()).await;

    for error in [got, put, deleted, listed] {
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(error.is_retryable() && !error.has_no_side_effects());
    }
    assert!(
        matches!(created, CreateOutcome::Unknown(Error::Timeout { .. })),
        "{created:?}"
    );
}

#[tokio::test]
async fn deletes_try_every_key_and_report_the_first_refusal() {
    let (store, faults) = faulty();
    for key in ["a", "b", "c"] {
        store
            .put_object(key, Bytes::from_static(b"x"))
            .await
            .unwrap();
    }
    faults.inject(When::on(Op::Delete).key("/a").times(1), Trouble::Forbid);

    let refused = store.delete(["a", "b", "missing", "c"]).await.unwrap_err();

    assert_eq!(refused.kind(), ErrorKind::Forbidden);
    assert_eq!(keys(&store, "", None).await, ["a"]);
}

#[tokio::test]
async fn a_create_that_surely_wrote_nothing_is_told_from_one_in_doubt() {
    let (store, faults) = faulty();
    faults.inject(When::on(Op::Create).times(1), Trouble::Forbid);
    faults.inject(When::on(Op::Create).times(1), Trouble::FailBefore);

    let refused = store.create("k", Bytes::new()).await;
    let unknown = store.create("k", Bytes::new()).await;

    assert!(matches!(refused, CreateOutcome::Refused(_)), "{refused:?}");
    assert!(matches!(unknown, CreateOutcome::Unknown(_)), "{unknown:?}");
    assert!(matches!(
        store.create("k", Bytes::new()).await,
        CreateOutcome::Created
    ));
}

/// A server that gives one answer to everybody, and its URL.
async fn server(tasks: &TaskSet, status: &'static str, body: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let date = "Date: Sun, 06 Nov 1994 08:49:37 GMT";
    let length = body.len();
    let reply = format!(
        "HTTP/1.1 {status}\r\n{date}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    tasks.spawn("server", async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = socket.read(&mut request).await;
            let _ = socket.write_all(reply.as_bytes()).await;
        }
    });
    format!("http://{address}")
}

fn options() -> StoreOptions {
    let s3_credentials = Some(S3Credentials {
        access_key_id: "AKIAEXAMPLE".to_owned(),
        secret_access_key: "hunter2".to_owned(),
        session_token: None,
    });
    StoreOptions {
        s3_credentials,
        retries: 1,
        clock: Arc::new(ManualClock::new(TimestampMs::new(784_111_777_000 - 5_000))),
        ..StoreOptions::default()
    }
}

async fn refusing(tasks: &TaskSet, status: &'static str, code: &str) -> Store {
    let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
    let endpoint = server(tasks, status, body).await;
    open(&format!("s3://bucket/p?endpoint={endpoint}"), options())
        .await
        .unwrap()
}

#[tokio::test]
async fn a_missing_bucket_never_passes_for_a_missing_object() {
    let tasks = TaskSet::new();
    let no_bucket = refusing(&tasks, "404 Not Found", "NoSuchBucket").await;
    let no_key = refusing(&tasks, "404 Not Found", "NoSuchKey").await;

    let error = no_bucket.get("k").await.unwrap_err();

    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("no such bucket"), "{error}");
    assert!(no_key.get("k").await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn what_the_server_says_decides_kind_and_advice() {
    let tasks = TaskSet::new();
    for (status, code, kind, says) in [
        (
            "301 Moved Permanently",
            "PermanentRedirect",
            ErrorKind::Invalid,
            "region=",
        ),
        (
            "400 Bad Request",
            "AuthorizationHeaderMalformed",
            ErrorKind::Invalid,
            "region=",
        ),
        (
            "400 Bad Request",
            "ExpiredToken",
            ErrorKind::Forbidden,
            "expired",
        ),
        (
            "403 Forbidden",
            "RequestTimeTooSkewed",
            ErrorKind::Unavailable,
            "clock",
        ),
        (
            "403 Forbidden",
            "InvalidAccessKeyId",
            ErrorKind::Forbidden,
            "AWS_ACCESS_KEY_ID",
        ),
        (
            "403 Forbidden",
            "AccessDenied",
            ErrorKind::Forbidden,
            "permission",
        ),
        (
            "503 Slow Down",
            "SlowDown",
            ErrorKind::Unavailable,
            "fewer requests",
        ),
        (
            "500 Internal Server Error",
            "InternalError",
            ErrorKind::Unavailable,
            "failed",
        ),
    ] {
        let store = refusing(&tasks, status, code).await;

        let error = store.get("k").await.unwrap_err();

        assert_eq!(error.kind(), kind, "{code}: {error}");
        assert!(error.to_string().contains(says), "{code}: {error}");
        assert!(
            !format!("{error:?} {store:?}").contains("hunter2"),
            "{code}"
        );
    }
}

#[tokio::test]
async fn creates_are_sent_once_and_reads_again() {
    let tasks = TaskSet::new();
    let store = refusing(&tasks, "500 Internal Server Error", "InternalError").await;

    let created = store.create("k", Bytes::from_static(b"x")).await;
    store.get("k").await.unwrap_err();

    assert!(matches!(created, CreateOutcome::Unknown(_)), "{created:?}");
    let requests = store.requests();
    assert_eq!(requests.count(Verb::Create, Outcome::Failed), 1);
    assert_eq!(requests.count(Verb::Get, Outcome::Failed), 2);
}

#[tokio::test]
async fn a_conflict_counts_as_existing_whatever_its_status() {
    let tasks = TaskSet::new();
    for (status, code) in [
        ("412 Precondition Failed", "PreconditionFailed"),
        ("409 Conflict", "ConditionalRequestConflict"),
        ("304 Not Modified", ""),
    ] {
        let store = refusing(&tasks, status, code).await;

        let outcome = store.create("k", Bytes::from_static(b"x")).await;

        assert!(
            matches!(outcome, CreateOutcome::Exists),
            "{status}: {outcome:?}"
        );
    }
}

#[tokio::test]
async fn a_dead_endpoint_is_told_as_such_and_wrote_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let store = open(&format!("s3://bucket?endpoint={endpoint}"), options())
        .await
        .unwrap();

    let outcome = store.create("k", Bytes::from_static(b"x")).await;

    let CreateOutcome::Refused(error) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(error.is_retryable());
    assert!(error.to_string().contains("endpoint="), "{error}");
}

#[tokio::test]
async fn a_silent_server_is_given_up_after_the_request_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let options = StoreOptions {
        request_timeout: Duration::from_millis(50),
        ..options()
    };
    let store = open(&format!("s3://bucket?endpoint={endpoint}"), options)
        .await
        .unwrap();

    let outcome = store.create("k", Bytes::from_static(b"x")).await;

    let CreateOutcome::Unknown(error) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(error.is_retryable(), "{error}");
}

#[tokio::test]
async fn the_store_tells_by_how_much_its_clock_differs() {
    let tasks = TaskSet::new();
    let store = refusing(&tasks, "404 Not Found", "NoSuchKey").await;
    assert_eq!(store.clock_skew_ms(), None);

    store.get("k").await.unwrap_err();

    assert_eq!(store.clock_skew_ms(), Some(5_000));
}

#[cfg(not(feature = "aws"))]
#[tokio::test]
async fn missing_credentials_are_named() {
    let error = open("s3://bucket", StoreOptions::default())
        .await
        .unwrap_err();

    assert!(error.to_string().contains("AWS_ACCESS_KEY_ID"), "{error}");
}
