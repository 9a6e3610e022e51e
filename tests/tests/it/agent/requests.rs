//! What a restart asks of the bucket, and what it leaves there.

use esker_tests::{agent::Plan, s3::S3Server};
use tempfile::TempDir;

use super::support::{PROGRAM, assert_intact, connect, create, publish, replay_all, s3_url, seal};
use crate::support::BUCKET;

const PARTITIONS: u32 = 200;
const RECORDS: u64 = 2000;
/// What the agent as a whole asks: identity and metadata. One request for each partition is more.
const REQUESTS_MAX: u64 = 100;

async fn bucket() -> S3Server {
    let builder = S3Server::builder().bucket(BUCKET).seed(7);
    builder.start().await.unwrap()
}

/// Objects of topics: the metadata log grows with each start.
fn objects(server: &S3Server) -> Vec<String> {
    let mut keys = server.keys(BUCKET);
    keys.retain(|key| key.contains("topics/"));
    keys
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_after_a_drain_asks_nothing_for_idle_partitions_and_leaves_no_object() {
    let (server, home) = (bucket().await, TempDir::new().unwrap());
    let plan = Plan::new(s3_url(&server), home.path());
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, PARTITIONS).await;
    publish(&client, 0..RECORDS).await;
    assert!(agent.drain().await.is_complete);
    let before = objects(&server);

    for _ in 0..3 {
        let requests = server.counts().total();
        let agent = plan.start().await.unwrap();
        assert!(agent.drain().await.is_complete);
        let requests = server.counts().total() - requests;
        assert!(requests <= REQUESTS_MAX, "{requests} requests");
    }

    assert_eq!(objects(&server), before);
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    publish(&client, RECORDS..2 * RECORDS).await;
    seal(&client, true).await;
    replay_all(&client, 2 * RECORDS).await;
    assert!(agent.drain().await.is_complete);
    assert_intact(&s3_url(&server)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_after_kill_asks_nothing_for_idle_partitions_and_leaves_no_object() {
    let (server, home) = (bucket().await, TempDir::new().unwrap());
    let plan = Plan::new(s3_url(&server), home.path()).with("local-retention-bytes", "0B");
    let agent = plan.spawn(PROGRAM).await.unwrap();
    // The process asks whether the store can be trusted, too.
    let first_start = server.counts().total();
    let client = connect(agent.grpc).await;
    create(&client, PARTITIONS).await;
    publish(&client, 0..RECORDS).await;
    seal(&client, true).await;
    agent.terminate().unwrap();
    agent.ended().await.unwrap();
    let before = objects(&server);

    for _ in 0..3 {
        let requests = server.counts().total();
        let agent = plan.spawn(PROGRAM).await.unwrap();
        agent.kill().unwrap();
        let requests = server.counts().total() - requests;
        assert!(
            requests <= first_start + REQUESTS_MAX,
            "{requests} requests, {first_start} without partitions"
        );
    }

    assert_eq!(objects(&server), before);
    let agent = plan.spawn(PROGRAM).await.unwrap();
    replay_all(&connect(agent.grpc).await, RECORDS).await;
}

/// The copy was made before the rest was uploaded: what it remembers of the bucket is old.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copied_data_directory_is_believed_nothing_about_the_bucket() {
    let (server, home) = (bucket().await, TempDir::new().unwrap());
    let copy = TempDir::new().unwrap();
    let plan = Plan::new(s3_url(&server), home.path());
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 2).await;
    publish(&client, 0..100).await;
    seal(&client, true).await;
    copy_dir(home.path(), copy.path());
    publish(&client, 100..200).await;
    assert!(agent.drain().await.is_complete);

    let agent = plan.on(copy.path()).start().await.unwrap();

    let client = connect(agent.grpc_address()).await;
    publish(&client, 200..300).await;
    replay_all(&client, 300).await;
    assert!(agent.drain().await.is_complete);
    assert_intact(&s3_url(&server)).await;
}

fn copy_dir(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
