//! Manifests deleted by hand: a partition is offline until it is repaired, and no offset is used twice.

use std::time::Duration;

use esker_client::{AlterTopicRequest, TopicSettings};
use esker_proto::v1::ErrorKind;
use esker_tests::{
    agent::{Plan, give_up, repair, until},
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

/// Nothing lies above what is left: only the record of the drain tells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_offset_is_used_twice_after_a_manifest_went_with_all_it_alone_named() {
    let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
    let home = TempDir::new().unwrap();
    let agent = Plan::new(s3_url(&server), home.path())
        .start()
        .await
        .unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    publish(&client, 0..10).await;
    seal(&client, false).await;
    let before = server.keys(BUCKET);
    publish(&client, 10..20).await;
    assert!(agent.drain().await.is_complete);
    for key in server.keys(BUCKET) {
        if key.contains("/topics/") && !before.contains(&key) {
            assert!(server.remove(BUCKET, &key));
        }
    }

    let disk = TempDir::new().unwrap();
    let agent = Plan::new(s3_url(&server), disk.path());
    let started = agent.start().await.unwrap();
    let client = connect(started.grpc_address()).await;
    let reason = describe(&client).await[0].offline_reason.clone();
    assert!(reason.contains("/manifest/"), "{reason}");
    assert!(reason.contains("`esker bucket repair --store "), "{reason}");
    let mut raw = Raw::connect(started.grpc_address()).await;
    let refused = raw.produce(TOPIC, 0, batch(&["x"])).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::CorruptData, "{refused:?}");
    // A drain of an agent that could not open it forgets nothing.
    started.drain().await;
    let started = agent.start().await.unwrap();
    let client = connect(started.grpc_address()).await;
    assert_ne!(describe(&client).await[0].offline_reason, "");
    started.stop().await;

    give_up(&s3_url(&server)).await.unwrap();

    let started = agent.start().await.unwrap();
    let client = connect(started.grpc_address()).await;
    assert_eq!(describe(&client).await[0].offline_reason, "");
    replay_all(&client, 10).await;
    publish(&client, 10..30).await;
    replay_all(&client, 30).await;
    assert!(started.drain().await.is_complete);
    assert_intact(&s3_url(&server)).await;
}

/// Deletes all that topics have, and returns the keys.
fn empty_topics(server: &S3Server) -> Vec<String> {
    let mut keys = server.keys(BUCKET);
    keys.retain(|key| key.contains("/topics/"));
    assert!(!keys.is_empty());
    for key in &keys {
        assert!(server.remove(BUCKET, key));
    }
    keys
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_copies_stay_once_somebody_deleted_those_in_the_bucket() {
    let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
    let home = TempDir::new().unwrap();
    let plan = Plan::new(s3_url(&server), home.path());
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    publish(&client, 0..RECORDS).await;
    seal(&client, false).await;
    let deleted = empty_topics(&server);

    let sealing = client.admin();
    let sealed = sealing.seal_topic(TOPIC, true, Duration::from_secs(60));
    let refused = sealed.await.unwrap_err().to_string();

    let at = describe(&client).await.remove(0);
    assert_eq!(at.local_log_start_offset, 0, "{at:?}");
    let named = deleted.iter().any(|key| {
        let key = key.trim_start_matches("prefix/");
        at.offline_reason.contains(key) && refused.contains(key)
    });
    assert!(named, "{}, {refused}", at.offline_reason);
    assert_eq!(replay_all(&client, RECORDS).await.from_bucket, 0);
    assert!(!agent.drain().await.is_complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_commit_after_the_deletion_lets_older_local_copies_go() {
    let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
    let home = TempDir::new().unwrap();
    let plan = Plan::new(s3_url(&server), home.path());
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    publish(&client, 0..RECORDS).await;
    seal(&client, false).await;
    empty_topics(&server);
    let change = AlterTopicRequest {
        name: TOPIC.to_owned(),
        settings: Some(TopicSettings {
            local_retention_bytes: Some(0),
            ..TopicSettings::default()
        }),
        ..AlterTopicRequest::default()
    };

    // What comes now may still be committed: no look at the bucket is due.
    publish(&client, RECORDS..RECORDS + 10).await;
    let sealing = client.admin();
    let sealed = sealing.seal_topic(TOPIC, false, Duration::from_secs(60));
    // It may go either way.
    let _ = sealed.await;
    client.admin().alter_topic(change).await.unwrap();

    until("the loss is seen", async || {
        !describe(&client).await[0].offline_reason.is_empty()
    })
    .await;
    let at = describe(&client).await.remove(0);
    assert_eq!(at.local_log_start_offset, 0, "{at:?}");
    replay_all(&client, RECORDS + 10).await;
    assert!(!agent.drain().await.is_complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_does_not_claim_what_was_deleted_of_a_partition_that_was_idle() {
    let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
    let home = TempDir::new().unwrap();
    let plan = Plan::new(s3_url(&server), home.path());
    let agent = plan.start().await.unwrap();
    create(&connect(agent.grpc_address()).await, 2).await;
    publish(&connect(agent.grpc_address()).await, 0..RECORDS).await;
    assert!(agent.drain().await.is_complete);
    let agent = plan.start().await.unwrap();
    empty_topics(&server);

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
