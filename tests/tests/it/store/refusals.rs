//! Stores that cannot be used are refused in one clear line and in time, before anything is lost.

use std::time::Duration;

use esker_tests::s3::{
    ACCESS_KEY, Condition, Fault, Rule, S3Server, SECRET_KEY, Status, Verb, serve,
};
use esker_tiering::{
    env::{RandomIds, TaskSet},
    probe::{PROBE_DEADLINE, check_store},
    store::Store,
};
use s3s::{auth::SimpleAuth, service::S3ServiceBuilder};
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::DropGuard;

use super::contract::PATIENCE;
use super::places::{open, options, s3_of, s3_url};
use crate::support::BUCKET;

/// Probes a store that must be refused, and returns the line that says why.
async fn refusal(store: &Store, deadline: Duration) -> String {
    let probing = check_store(store, &RandomIds, deadline);
    let report = tokio::time::timeout(deadline.max(PROBE_DEADLINE), probing)
        .await
        .unwrap();
    let line = report
        .first_fault()
        .unwrap_or_else(|| panic!("accepted: {report}"));
    assert!(!line.contains('\n'), "{line}");
    line
}

async fn refusal_under(rule: Rule) -> String {
    let server = S3Server::builder()
        .bucket(BUCKET)
        .fault(rule)
        .start()
        .await
        .unwrap();
    refusal(&s3_of(server, options()).await.store, PATIENCE).await
}

/// The off-the-shelf server that checks a condition in one step and writes in another.
struct PlainS3sFs {
    url: String,
    _home: TempDir,
    _stop: DropGuard,
}

async fn plain_s3s_fs() -> PlainS3sFs {
    let home = TempDir::new().unwrap();
    std::fs::create_dir(home.path().join(BUCKET)).unwrap();
    let mut service = S3ServiceBuilder::new(FileSystem::new(home.path()).unwrap());
    service.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let tasks = TaskSet::new();
    tasks.spawn(
        "s3s-fs",
        serve(listener, service.build(), tasks.token().clone()),
    );
    PlainS3sFs {
        url,
        _home: home,
        _stop: tasks.token().clone().drop_guard(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_s3s_fs_is_refused() {
    let server = plain_s3s_fs().await;
    let store = open(&s3_url(&server.url, BUCKET), options()).await;

    let line = refusal(&store, PATIENCE).await;

    assert!(line.contains("create") || line.contains("range"), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_ignores_the_condition_is_refused() {
    let line = refusal_under(Rule::new(Fault::Condition(Condition::Ignored))).await;

    assert!(line.contains("create"), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_checks_first_and_writes_later_is_refused() {
    let line = refusal_under(Rule::new(Fault::Condition(Condition::Racy))).await;

    assert!(line.contains("create"), "{line}");
}

#[tokio::test]
async fn a_store_that_damages_what_it_holds_is_refused() {
    refusal_under(Rule::new(Fault::BitFlip).verb(Verb::Get)).await;
}

#[tokio::test]
async fn a_store_that_cuts_reads_short_is_refused() {
    refusal_under(Rule::new(Fault::Truncate { to_bytes: 3 }).verb(Verb::Get)).await;
}

#[tokio::test]
async fn a_store_that_may_not_be_written_is_refused() {
    let line = refusal_under(Rule::new(Fault::Answer(Status::Forbidden)).verb(Verb::Put)).await;

    assert!(line.contains("access denied"), "{line}");
}

#[tokio::test]
async fn a_bucket_that_expires_live_objects_is_refused() {
    let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
    assert!(server.set_expiration(BUCKET, "a/prefix/", 7));

    let line = refusal(&s3_of(server, options()).await.store, PATIENCE).await;

    assert!(line.contains("lifecycle"), "{line}");
}

/// The line of one check in the report of a store.
async fn line_of(check: &str, server: S3Server) -> (bool, String) {
    let place = s3_of(server, options()).await;
    let report = check_store(&place.store, &RandomIds, PATIENCE).await;
    let text = report.to_string();
    let line = text.lines().find(|line| line.contains(check));
    (
        report.is_fit(),
        line.unwrap_or_else(|| panic!("{text}")).to_owned(),
    )
}

#[tokio::test]
async fn versions_that_are_kept_are_a_warning_about_the_bill() {
    let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
    assert!(server.set_versioning(BUCKET, true));

    let (is_fit, line) = line_of("versioning", server).await;

    assert!(is_fit, "{line}");
    assert!(
        line.contains("warning") && line.contains("billed"),
        "{line}"
    );
}

#[tokio::test]
async fn a_rule_for_another_prefix_is_no_reason_to_refuse() {
    let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
    assert!(server.set_expiration(BUCKET, "backups/", 7));

    let (is_fit, line) = line_of("lifecycle", server).await;

    assert!(is_fit, "{line}");
    assert!(line.trim_start().starts_with("ok"), "{line}");
}

#[tokio::test]
async fn questions_about_the_bucket_that_are_not_allowed_are_skipped() {
    let rule = Rule::new(Fault::Answer(Status::Forbidden)).verb(Verb::Bucket);
    for check in ["versioning", "lifecycle"] {
        let server = S3Server::builder().bucket(BUCKET).fault(rule.clone());
        let (is_fit, line) = line_of(check, server.start().await.unwrap()).await;

        assert!(is_fit, "{line}");
        assert!(
            line.contains("skipped") && line.contains("AccessDenied"),
            "{line}"
        );
    }
}

#[tokio::test]
async fn wrong_credentials_give_one_clear_line() {
    for (access_key, secret_key) in [("nobody", SECRET_KEY), (ACCESS_KEY, "guess")] {
        let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
        let mut options = options();
        let credentials = options.s3_credentials.as_mut().unwrap();
        credentials.access_key_id = access_key.to_owned();
        credentials.secret_access_key = secret_key.to_owned();

        let line = refusal(&s3_of(server, options).await.store, PROBE_DEADLINE).await;

        assert!(line.contains("unknown or wrong credentials"), "{line}");
        assert!(!line.contains(secret_key), "{line}");
    }
}

#[tokio::test]
async fn a_missing_bucket_gives_one_clear_line() {
    let server = S3Server::builder().bucket("another").start().await.unwrap();

    let line = refusal(&s3_of(server, options()).await.store, PROBE_DEADLINE).await;

    assert!(line.contains("no such bucket"), "{line}");
    assert!(line.contains(BUCKET), "{line}");
}

#[tokio::test]
async fn an_endpoint_that_nobody_listens_on_gives_one_clear_line() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);

    let line = refusal(
        &open(&s3_url(&url, BUCKET), options()).await,
        PROBE_DEADLINE,
    )
    .await;

    assert!(line.contains("no connection to the store"), "{line}");
    assert!(line.contains(&url), "{line}");
}

#[tokio::test]
async fn an_endpoint_that_never_answers_gives_one_clear_line_at_the_deadline() {
    assert!(PROBE_DEADLINE <= Duration::from_secs(30));
    let server = S3Server::builder()
        .bucket(BUCKET)
        .fault(Rule::new(Fault::Hang))
        .start();
    let place = s3_of(server.await.unwrap(), options()).await;

    let line = refusal(&place.store, Duration::from_secs(5)).await;

    assert!(line.contains("5s") || line.contains("no answer"), "{line}");
}
