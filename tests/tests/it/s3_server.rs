//! The server in memory answers as S3 does.

use std::sync::Arc;

use bytes::Bytes;
use esker_tests::s3::{Condition, Fault, Rule, S3Server, Verb};
use futures::{StreamExt, TryStreamExt, future::join_all, stream};
use object_store::{
    GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion,
    path::Path,
};

use crate::support::{BUCKET, ask, builder, client, create, server};

fn numbered(count: usize) -> Bytes {
    (0..count).map(|i| u8::try_from(i % 251).unwrap()).collect()
}

async fn range(store: &dyn ObjectStore, key: &str, range: GetRange) -> object_store::Result<Bytes> {
    let options = GetOptions::new().with_range(Some(range));
    store
        .get_opts(&Path::from(key), options)
        .await?
        .bytes()
        .await
}

#[tokio::test]
async fn an_object_reads_back_whole_and_in_ranges() {
    let server = server().await;
    let store = client(&server);
    let body = numbered(300_000);
    store.put(&"a/b".into(), body.clone().into()).await.unwrap();

    assert_eq!(
        store
            .get(&"a/b".into())
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap(),
        body
    );
    assert_eq!(store.head(&"a/b".into()).await.unwrap().size, 300_000);
    let inner = range(&store, "a/b", GetRange::Bounded(1000..70_000))
        .await
        .unwrap();
    assert_eq!(inner, body.slice(1000..70_000));
    let past_the_end = range(&store, "a/b", GetRange::Bounded(299_990..300_100))
        .await
        .unwrap();
    assert_eq!(past_the_end, body.slice(299_990..));
    let tail = range(&store, "a/b", GetRange::Suffix(10)).await.unwrap();
    assert_eq!(tail, body.slice(299_990..));
    assert_eq!(
        range(&store, "a/b", GetRange::Suffix(1 << 40))
            .await
            .unwrap(),
        body
    );
    assert_eq!(
        range(&store, "a/b", GetRange::Offset(299_999))
            .await
            .unwrap()
            .len(),
        1
    );
    assert!(
        range(&store, "a/b", GetRange::Offset(300_000))
            .await
            .is_err()
    );
}

/// Races `rivals` creates of each of `keys` keys and returns the winners by key.
async fn race(store: &Arc<dyn ObjectStore>, keys: usize, rivals: usize) -> Vec<Vec<usize>> {
    let mut winners = Vec::new();
    for key in 0..keys {
        let attempts = (0..rivals).map(|rival| {
            let store = Arc::clone(store);
            async move {
                let won = create(
                    &*store,
                    &format!("race/{key}"),
                    rival.to_string().as_bytes(),
                )
                .await;
                won.is_ok().then_some(rival)
            }
        });
        winners.push(join_all(attempts).await.into_iter().flatten().collect());
    }
    winners
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_racing_creates_wins() {
    let server = server().await;
    let store: Arc<dyn ObjectStore> = Arc::new(client(&server));

    for (key, winners) in race(&store, 20, 32).await.into_iter().enumerate() {
        assert_eq!(winners.len(), 1, "winners of key {key}: {winners:?}");
        let kept = server.object(BUCKET, &format!("race/{key}")).unwrap();
        assert_eq!(kept, winners[0].to_string());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_told_to_race_or_to_ignore_conditions_lets_several_creates_win() {
    for condition in [Condition::Racy, Condition::Ignored] {
        let server = server().await;
        server.add_fault(Rule::new(Fault::Condition(condition)));
        let store: Arc<dyn ObjectStore> = Arc::new(client(&server));

        let winners = race(&store, 5, 32).await;

        assert!(
            winners.iter().any(|of_key| of_key.len() > 1),
            "{condition:?}: {winners:?}"
        );
    }
}

#[tokio::test]
async fn a_create_after_another_is_refused_and_changes_nothing() {
    let server = server().await;
    let store = client(&server);
    create(&store, "k", b"first").await.unwrap();

    let refused = create(&store, "k", b"second").await.unwrap_err();

    assert!(
        matches!(refused, object_store::Error::AlreadyExists { .. }),
        "{refused}"
    );
    assert_eq!(server.object(BUCKET, "k").unwrap(), "first");
}

#[tokio::test]
async fn an_update_needs_the_tag_of_what_it_replaces() {
    let server = server().await;
    let store = client(&server);
    let first = store.put(&"k".into(), "one".into()).await.unwrap();
    let at = |version: UpdateVersion| PutOptions {
        mode: PutMode::Update(version),
        ..PutOptions::default()
    };
    let first = UpdateVersion {
        e_tag: first.e_tag,
        version: None,
    };
    store
        .put_opts(&"k".into(), "two".into(), at(first.clone()))
        .await
        .unwrap();

    let stale = store
        .put_opts(&"k".into(), "three".into(), at(first.clone()))
        .await
        .unwrap_err();
    let missing = store
        .put_opts(&"no".into(), "x".into(), at(first))
        .await
        .unwrap_err();

    assert!(
        matches!(stale, object_store::Error::Precondition { .. }),
        "{stale}"
    );
    assert!(
        matches!(missing, object_store::Error::Precondition { .. }),
        "{missing}"
    );
    assert_eq!(server.object(BUCKET, "k").unwrap(), "two");
}

#[tokio::test]
async fn listings_are_sorted_complete_and_paged() {
    let server = server().await;
    let store = client(&server);
    for key in (0..2500).rev() {
        assert!(server.plant(BUCKET, &format!("list/{key:05}"), "x"));
    }
    server.plant(BUCKET, "lisa", "x");
    server.plant(BUCKET, "lisu", "x");
    let prefix = Path::from("list");
    let names = |found: Vec<object_store::ObjectMeta>| {
        found
            .into_iter()
            .map(|meta| meta.location.to_string())
            .collect::<Vec<_>>()
    };
    let expected = |range: std::ops::Range<usize>| {
        range
            .map(|key| format!("list/{key:05}"))
            .collect::<Vec<_>>()
    };

    let all: Vec<_> = store.list(Some(&prefix)).try_collect().await.unwrap();
    assert_eq!(names(all), expected(0..2500));
    assert_eq!(server.counts().of(Verb::List), 3);
    let after = store.list_with_offset(Some(&prefix), &"list/01233".into());
    assert_eq!(
        names(after.try_collect().await.unwrap()),
        expected(1234..2500)
    );
}

#[tokio::test]
async fn a_listing_with_a_delimiter_names_each_folder_once() {
    let server = server().await;
    for key in ["a/1", "a/2", "b", "c/d/1", "c/e", "d"] {
        server.plant(BUCKET, key, "x");
    }

    let root = client(&server).list_with_delimiter(None).await.unwrap();

    let folders: Vec<_> = root
        .common_prefixes
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(folders, ["a", "c"]);
    let objects: Vec<_> = root
        .objects
        .iter()
        .map(|meta| meta.location.to_string())
        .collect();
    assert_eq!(objects, ["b", "d"]);
}

#[tokio::test]
async fn pages_of_a_listing_never_repeat_nor_skip_a_folder() {
    let server = S3Server::builder()
        .bucket(BUCKET)
        .anonymous()
        .start()
        .await
        .unwrap();
    for key in ["a/1", "a/2", "b", "c/d/1", "c/e", "d"] {
        server.plant(BUCKET, key, "x");
    }
    let mut seen = Vec::new();
    let mut token = String::new();
    for _ in 0..4 {
        let query = format!("/{BUCKET}?list-type=2&delimiter=%2F&max-keys=1{token}");
        let page = ask(&server.url(), "GET", &query).await;
        seen.extend(
            ["Key", "Prefix"]
                .iter()
                .filter_map(|tag| field(&page, tag))
                .map(str::to_owned),
        );
        token = field(&page, "NextContinuationToken")
            .map(|at| format!("&continuation-token={}", escape(at)))
            .unwrap_or_default();
    }
    assert_eq!(seen, ["a/", "b", "c/", "d"]);
    assert_eq!(token, "");
}

#[tokio::test]
async fn deletes_take_one_or_many_and_do_not_mind_a_missing_key() {
    let server = server().await;
    let store = client(&server);
    for key in 0..1500 {
        server.plant(BUCKET, &format!("k/{key}"), "x");
    }
    store.delete(&"k/0".into()).await.unwrap();
    store.delete(&"k/0".into()).await.unwrap();

    let keys = stream::iter((0..1500).map(|key| Ok(Path::from(format!("k/{key}"))))).boxed();
    let gone: Vec<_> = store.delete_stream(keys).try_collect().await.unwrap();

    assert_eq!(gone.len(), 1500);
    assert!(server.keys(BUCKET).is_empty());
}

#[tokio::test]
async fn a_multipart_upload_becomes_one_object_only_when_completed() {
    let server = server().await;
    let store = client(&server);
    let mut upload = store.put_multipart(&"big".into()).await.unwrap();
    let part = numbered(5 << 20);
    upload.put_part(part.clone().into()).await.unwrap();
    upload.put_part(part.slice(..77).into()).await.unwrap();
    assert!(server.object(BUCKET, "big").is_none());
    upload.complete().await.unwrap();

    let whole = server.object(BUCKET, "big").unwrap();
    assert_eq!(whole.len(), (5 << 20) + 77);
    assert_eq!(whole.slice(5 << 20..), part.slice(..77));

    let mut given_up = store.put_multipart(&"other".into()).await.unwrap();
    given_up.put_part(part.into()).await.unwrap();
    given_up.abort().await.unwrap();
    assert!(server.object(BUCKET, "other").is_none());
}

#[tokio::test]
async fn a_stranger_and_a_wrong_secret_are_refused() {
    let server = server().await;
    let stranger = builder(&server.url())
        .with_access_key_id("nobody")
        .build()
        .unwrap();
    let forger = builder(&server.url())
        .with_secret_access_key("guess")
        .build()
        .unwrap();

    let of_stranger = stranger.get(&"k".into()).await.unwrap_err().to_string();
    let of_forger = forger
        .put(&"k".into(), "x".into())
        .await
        .unwrap_err()
        .to_string();

    assert!(of_stranger.contains("InvalidAccessKeyId"), "{of_stranger}");
    assert!(of_forger.contains("SignatureDoesNotMatch"), "{of_forger}");
    assert!(server.keys(BUCKET).is_empty());
}

#[tokio::test]
async fn a_missing_bucket_is_named_as_such() {
    let server = server().await;
    let store = builder(&server.url())
        .with_bucket_name("nowhere")
        .build()
        .unwrap();

    let error = store
        .put(&"k".into(), "x".into())
        .await
        .unwrap_err()
        .to_string();

    assert!(error.contains("NoSuchBucket"), "{error}");
}

#[tokio::test]
async fn requests_are_counted_by_verb() {
    let server = server().await;
    let store = client(&server);
    create(&store, "k", b"x").await.unwrap();
    create(&store, "k", b"y").await.unwrap_err();
    store.put(&"k".into(), "x".into()).await.unwrap();
    assert_eq!(server.counts().rewrites, 0);
    store.put(&"k".into(), "z".into()).await.unwrap();
    store.get(&"k".into()).await.unwrap().bytes().await.unwrap();
    store.head(&"k".into()).await.unwrap();

    let counts = server.counts();
    assert_eq!(
        (
            counts.of(Verb::Put),
            counts.of(Verb::Get),
            counts.of(Verb::Head)
        ),
        (4, 1, 1)
    );
    assert_eq!(counts.total(), 6);
    assert_eq!(counts.rewrites, 1);
}

#[tokio::test]
async fn what_a_policy_does_not_grant_is_refused() {
    let server = server().await;
    server.plant(BUCKET, "k", "x");
    server.set_policy(|wanted| wanted.action == "s3:GetObject" && wanted.key == "k");
    let store = client(&server);

    assert!(store.get(&"k".into()).await.is_ok());
    let refused = store.put(&"k".into(), "y".into()).await.unwrap_err();
    assert!(
        matches!(refused, object_store::Error::PermissionDenied { .. }),
        "{refused}"
    );
    assert!(store.delete(&"k".into()).await.is_err());
    assert!(store.get(&"other".into()).await.is_err());
    assert!(store.list(None).try_next().await.is_err());

    assert_eq!(server.object(BUCKET, "k").unwrap(), "x");
    assert_eq!(server.counts().refused, 4);
    server.clear_policy();
    store.put(&"k".into(), "y".into()).await.unwrap();
}

#[tokio::test]
async fn a_bucket_tells_its_location_versioning_and_lifecycle() {
    let server = S3Server::builder()
        .bucket(BUCKET)
        .anonymous()
        .start()
        .await
        .unwrap();
    let about = |what: &str| format!("/{BUCKET}?{what}");

    assert!(
        ask(&server.url(), "GET", &about("location"))
            .await
            .contains("LocationConstraint")
    );
    assert!(
        !ask(&server.url(), "GET", &about("versioning"))
            .await
            .contains("<Status>")
    );
    let none = ask(&server.url(), "GET", &about("lifecycle")).await;
    assert!(none.contains("NoSuchLifecycleConfiguration"), "{none}");
    server.set_versioning(BUCKET, true);
    server.set_expiration(BUCKET, "topics/", 7);
    assert_eq!(
        field(
            &ask(&server.url(), "GET", &about("versioning")).await,
            "Status"
        ),
        Some("Enabled")
    );
    let rules = ask(&server.url(), "GET", &about("lifecycle")).await;
    assert_eq!(
        (field(&rules, "Prefix"), field(&rules, "Days")),
        (Some("topics/"), Some("7"))
    );
    assert!(
        ask(&server.url(), "PUT", "/another-one")
            .await
            .contains("200 OK")
    );
    assert!(
        ask(&server.url(), "HEAD", "/another-one")
            .await
            .contains("200 OK")
    );
    assert!(
        ask(&server.url(), "HEAD", "/no-such-one")
            .await
            .contains("404")
    );
    assert_eq!(server.counts().total(), server.counts().of(Verb::Bucket));
}

/// Finds the first non-empty `<name>…</name>`.
fn field<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut parts = xml.split(open.as_str()).skip(1);
    parts.find_map(|part| {
        part.split(close.as_str())
            .next()
            .filter(|text| !text.is_empty())
    })
}

fn escape(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
