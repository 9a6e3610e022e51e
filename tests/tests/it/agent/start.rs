//! An agent that cannot start says in one line what to mend, with a code that a service manager can
//! act on, and costs the bucket next to nothing however often it is started.

use std::{
    net::SocketAddr,
    path::Path,
    process::{Command, Output},
};

use esker_tests::{
    agent::Plan,
    s3::{ACCESS_KEY, Fault, Rule, S3Server, SECRET_KEY, Status, Verb},
};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::support::{PROGRAM, s3_url};
use crate::support::BUCKET;

/// Requests that a refused start may cost: the one that is refused, and the probe's cleaning.
const REQUESTS_MAX: u64 = 4;

/// The agent's command with these keys, and nothing else of this machine's environment.
fn command(verb: &str, store: &str, data_dir: &Path, secret_key: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg(verb).env_clear();
    command.env("AWS_ACCESS_KEY_ID", ACCESS_KEY);
    command.env("AWS_SECRET_ACCESS_KEY", secret_key);
    command.args(["--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0"]);
    command.args(["--log-level=error", "--store", store]);
    command.arg("--data-dir").arg(data_dir);
    command
}

async fn run(mut command: Command) -> Output {
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

/// Runs `run` and `check-store`; both must end with this code, and one line that says so.
async fn refused(store: &str, secret_key: &str, code: i32, says: &[&str]) {
    let home = TempDir::new().unwrap();
    for verb in ["run", "check-store"] {
        let ended = run(command(verb, store, home.path(), secret_key)).await;
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(code), "{verb}: {said}");
        assert_eq!(said.lines().count(), 1, "{verb}: {said}");
        for part in says {
            assert!(
                said.contains(part),
                "{verb}: `{part}` is missing in: {said}"
            );
        }
        assert!(!said.contains(secret_key), "{verb}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_refusal_of_a_store_has_its_words_and_its_code() {
    let cases: [(Status, i32, &[&str]); 5] = [
        (
            Status::Redirect,
            77,
            &["another region", "region=eu-west-1"],
        ),
        (
            Status::WrongRegion,
            77,
            &["another region", "region=eu-west-1"],
        ),
        (Status::Forbidden, 69, &["access denied", "another account"]),
        (Status::ExpiredToken, 69, &["expired", "AWS_SESSION_TOKEN"]),
        (
            Status::TooSkewed,
            69,
            &["clock", "NTP", "differs from the store's by"],
        ),
    ];
    for (status, code, says) in cases {
        let server = S3Server::builder().bucket(BUCKET);
        let server = server.fault(Rule::new(Fault::Answer(status)));
        let server = server.start().await.unwrap();

        refused(&s3_url(&server), SECRET_KEY, code, says).await;

        let total = server.counts().total();
        assert!(total <= 2 * REQUESTS_MAX, "{status:?}: {total}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_keys_and_a_bucket_that_is_not_there_have_their_words_and_their_codes() {
    let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
    let says = ["unknown or wrong credentials", "AWS_ACCESS_KEY_ID"];
    refused(&s3_url(&server), "a-guess", 77, &says).await;

    let strict = S3Server::builder()
        .bucket(BUCKET)
        .credentials("other", "keys");
    let strict = strict.start().await.unwrap();
    refused(&s3_url(&strict), SECRET_KEY, 77, &says).await;

    let other = S3Server::builder().bucket("another").start().await.unwrap();
    refused(&s3_url(&other), SECRET_KEY, 69, &["no such bucket", BUCKET]).await;
    for server in [server, strict, other] {
        let total = server.counts().total();
        assert!(total <= 2 * REQUESTS_MAX, "{total}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_a_region_is_a_wrong_setting() {
    let says = ["region is missing", "region= in the url"];
    refused("s3://bucket/prefix", SECRET_KEY, 78, &says).await;
}

/// Accepts nothing, and has no room for connections that wait for it: what a packet filter does to
/// a bucket without a way to it.
async fn black_hole() -> (SocketAddr, TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    let patience = std::time::Duration::from_millis(300);
    while let Ok(connected) = tokio::time::timeout(patience, TcpStream::connect(address)).await {
        waiting.push(connected.unwrap());
        assert!(waiting.len() < 100, "the backlog does not fill");
    }
    (address, listener, waiting)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_no_way_leads_to_is_out_of_reach_and_told_from_a_wrong_one() {
    let (address, _listener, _waiting) = black_hole().await;
    let store = format!("s3://{BUCKET}/prefix?endpoint=http://{address}&region=us-east-1");
    let says = [
        "no connection to the store",
        "endpoint=",
        "gateway endpoint",
    ];
    refused(&store, SECRET_KEY, 69, &says).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_fails_amid_the_probe_is_out_of_reach_and_not_unfit() {
    let faults = [
        Rule::new(Fault::Answer(Status::Unavailable)).skip(5),
        Rule::new(Fault::Answer(Status::Forbidden)).verb(Verb::DeleteMany),
        Rule::new(Fault::Drop).verb(Verb::List),
    ];
    for rule in faults {
        let server = S3Server::builder().bucket(BUCKET).fault(rule.clone());
        let server = server.start().await.unwrap();
        let home = TempDir::new().unwrap();
        let store = s3_url(&server);

        let ended = run(command("check-store", &store, home.path(), SECRET_KEY)).await;

        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(69), "{rule:?}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_goes_away_before_the_metadata_is_read_is_out_of_reach() {
    let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
    let home = TempDir::new().unwrap();
    let plan = Plan::new(s3_url(&server), home.path());
    plan.start().await.unwrap().stop().await;
    for rule in [
        Rule::new(Fault::Answer(Status::Forbidden)).key_contains("meta/"),
        Rule::new(Fault::Answer(Status::Forbidden)).key_contains("cluster.json"),
    ] {
        let rule = server.add_fault(rule);
        let refused = plan.start().await.unwrap_err();
        assert_eq!(refused.exit_code(), 69, "{refused}");
        assert!(refused.to_string().contains("access denied"), "{refused}");
        rule.disarm();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_agent_on_one_directory_asks_the_bucket_for_nothing() {
    let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
    let home = TempDir::new().unwrap();
    let agent = Plan::new(s3_url(&server), home.path());
    let agent = agent.start().await.unwrap();
    let before = server.counts().total();

    let ended = run(command("run", &s3_url(&server), home.path(), SECRET_KEY)).await;

    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(74), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("in use by another agent"), "{said}");
    assert!(said.contains("data-dir"), "{said}");
    assert_eq!(server.counts().total(), before);
    agent.stop().await;
}
