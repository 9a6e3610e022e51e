//! Manifests deleted by hand: a partition is offline until it is repaired, and no offset is used twice.

use esker_proto::v1::ErrorKind;
use esker_tests::{
    agent::{Plan, repair, until},
    s3::S3Server,
};
use esker_tiering::store::StoreUrl;
use tempfile::TempDir;

use super::support::{
    Raw, TOPIC, assert_intact, batch, connect, create, describe, publish, replay_all, s3_url, seal,
};
use crate::support::BUCKET;

const RECORDS: u64 = 2000;

/// Keys of a partition's manifest versions, oldest first.
fn manifests(server: &S3Server) -> Vec<String> {
    let keys = server.keys(BUCKET).into_iter();
    keys.filter(|key| key.contains("/manifest/")).collect()
}

async fn offline_until_repaired(delete: impl Fn(&[String]) -> Vec<String>) {
    let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
    let home = TempDir::new().unwrap();
    let agent = Plan::new(s3_url(&server), home.path())
        .start()
        .await
        .unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    publish(&client, 0..RECORDS).await;
    assert!(agent.drain().await.is_complete);
    for key in delete(&manifests(&server)) {
        assert!(server.remove(BUCKET, &key));
    }
    let of_topic = || {
        let keys = server.keys(BUCKET).into_iter();
        keys.filter(|key| key.contains("/topics/"))
            .collect::<Vec<_>>()
    };
    let left = of_topic();

    // On an empty disk, as after the loss of an instance.
    let disk = TempDir::new().unwrap();
    let agent = Plan::new(s3_url(&server), disk.path());
    let started = agent.start().await.unwrap();
    let client = connect(started.grpc_address()).await;
    let reason = describe(&client).await[0].offline_reason.clone();
    assert!(reason.contains("/segments/"), "{reason}");
    let store: StoreUrl = s3_url(&server).parse().unwrap();
    let repair_command = format!("`esker bucket repair --store '{store}' --partition ");
    assert!(reason.contains(&repair_command), "{reason}");
    let mut raw = Raw::connect(started.grpc_address()).await;
    let refused = raw.produce(TOPIC, 0, batch(&["x"])).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::CorruptData, "{refused:?}");
    started.stop().await;
    assert_eq!(of_topic(), left, "nothing of it may change");

    repair(&s3_url(&server)).await.unwrap();

    let started = agent.start().await.unwrap();
    let client = connect(started.grpc_address()).await;
    assert_eq!(describe(&client).await[0].offline_reason, "");
    replay_all(&client, RECORDS).await;
    assert!(started.drain().await.is_complete);
    assert_intact(&s3_url(&server)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_whose_manifests_were_all_deleted_is_offline_until_it_is_repaired() {
    offline_until_repaired(<[String]>::to_vec).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_whose_newest_manifest_was_deleted_is_offline_until_it_is_repaired() {
    offline_until_repaired(|keys| keys[keys.len() - 1..].to_vec()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repaired_partition_is_served_without_a_restart() {
    let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
    let home = TempDir::new().unwrap();
    let plan = Plan::new(s3_url(&server), home.path());
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    publish(&client, 0..RECORDS).await;
    assert!(agent.drain().await.is_complete);
    let newest = manifests(&server).pop().unwrap();
    assert!(server.remove(BUCKET, &newest));
    let disk = TempDir::new().unwrap();
    let agent = Plan::new(s3_url(&server), disk.path())
        .start()
        .await
        .unwrap();
    let client = connect(agent.grpc_address()).await;
    assert_ne!(describe(&client).await[0].offline_reason, "");

    repair(&s3_url(&server)).await.unwrap();

    until("the partition is served", async || {
        describe(&client).await[0].offline_reason.is_empty()
    })
    .await;
    replay_all(&client, RECORDS).await;
    publish(&client, RECORDS..RECORDS + 10).await;
    assert!(agent.drain().await.is_complete);
    assert_intact(&s3_url(&server)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_does_not_claim_what_somebody_deleted_from_the_bucket() {
    let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
    let home = TempDir::new().unwrap();
    let plan = Plan::new(s3_url(&server), home.path());
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    publish(&client, 0..RECORDS).await;
    seal(&client, false).await;
    for key in server.keys(BUCKET) {
        if key.contains("/topics/") {
            assert!(server.remove(BUCKET, &key));
        }
    }
    assert!(!agent.drain().await.is_complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_not_founded_anew_where_topics_are() {
    let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
    let home = TempDir::new().unwrap();
    let plan = Plan::new(s3_url(&server), home.path());
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    publish(&client, 0..10).await;
    assert!(agent.drain().await.is_complete);
    let key = server.keys(BUCKET);
    let key = key
        .iter()
        .find(|key| key.ends_with("cluster.json"))
        .unwrap();
    assert!(server.remove(BUCKET, key));
    let disk = TempDir::new().unwrap();
    let refused = Plan::new(s3_url(&server), disk.path()).start().await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.exit_code(), 65);
    assert!(refused.to_string().contains("cluster.json"), "{refused}");
    assert!(!server.keys(BUCKET).contains(key), "founded anew");
}
