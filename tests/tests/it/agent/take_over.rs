//! A second agent takes over from one that lives: that one is fenced, and nothing is corrupted.

use esker_proto::v1::ErrorKind;
use esker_tests::{
    agent::{Plan, page, until},
    s3::S3Server,
};
use tempfile::TempDir;

use super::support::{
    PROGRAM, Raw, TOPIC, agent_id_in, assert_intact, batch, connect, create, describe, publish,
    replay, replay_all, s3_url, seal,
};
use crate::support::BUCKET;

struct Bench {
    server: S3Server,
    store: String,
    first: TempDir,
    second: TempDir,
}

async fn bench() -> Bench {
    let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
    let store = s3_url(&server);
    Bench {
        server,
        store,
        first: TempDir::new().unwrap(),
        second: TempDir::new().unwrap(),
    }
}

impl Bench {
    fn first(&self) -> Plan {
        Plan::new(&self.store, self.first.path())
    }

    fn second(&self) -> Plan {
        Plan::new(&self.store, self.second.path()).with("take-over", agent_id_in(self.first.path()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deposed_agent_makes_nothing_durable_in_the_bucket_and_refuses_batches() {
    let bench = bench().await;
    // It never looks by itself: it has to find out by what it tries.
    let first = bench
        .first()
        .with("metadata-poll", "1h")
        .start()
        .await
        .unwrap();
    let old = connect(first.grpc_address()).await;
    create(&old, 1).await;
    publish(&old, 0..1000).await;
    seal(&old, true).await;

    let second = bench.second().start().await.unwrap();
    let new = connect(second.grpc_address()).await;
    replay_all(&new, 1000).await;
    let manifests = manifests(&bench.server);

    // The old leader still takes a batch, since nobody told it; it will never be in the bucket.
    let mut raw = Raw::connect(first.grpc_address()).await;
    let taken = raw.produce(TOPIC, 0, batch(&["lost"])).await.unwrap();
    assert_eq!(taken.base_offset, 1000);
    let sealed = old
        .admin()
        .seal_topic(TOPIC, false, std::time::Duration::from_secs(60))
        .await
        .unwrap_err();
    assert_eq!(sealed.wire_kind(), ErrorKind::Fenced, "{sealed}");
    let refused = raw
        .produce(TOPIC, 0, batch(&["refused"]))
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused:?}");
    assert!(refused.has_no_side_effects);
    assert_ne!(describe(&old).await[0].offline_reason, "");
    let created = old
        .admin()
        .create_topic("other", 1, Default::default())
        .await
        .unwrap_err();
    assert_eq!(created.wire_kind(), ErrorKind::NotController, "{created}");
    assert_eq!(self::manifests(&bench.server), manifests);

    publish(&new, 1000..2000).await;
    replay_all(&new, 2000).await;
    first.stop().await;
    assert!(second.drain().await.is_complete);
    assert_intact(&bench.store).await;
    assert_eq!(bench.server.counts().rewrites, 0);
}

fn manifests(server: &S3Server) -> Vec<String> {
    let keys = server.keys(BUCKET);
    keys.into_iter()
        .filter(|key| key.contains("/manifest/"))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_was_never_uploaded_is_taken_over_too() {
    let bench = bench().await;
    let first = bench
        .first()
        .with("metadata-poll", "1h")
        .start()
        .await
        .unwrap();
    let old = connect(first.grpc_address()).await;
    create(&old, 1).await;
    publish(&old, 0..100).await;

    let second = bench.second().start().await.unwrap();
    let new = connect(second.grpc_address()).await;
    publish(&new, 0..10).await;

    // Its first upload opens the manifest chain, where the newer epoch stands already.
    let sealed = old
        .admin()
        .seal_topic(TOPIC, false, std::time::Duration::from_secs(60))
        .await
        .unwrap_err();
    assert_eq!(sealed.wire_kind(), ErrorKind::Fenced, "{sealed}");
    replay_all(&new, 10).await;
    assert!(second.drain().await.is_complete);
    first.stop().await;
    assert_intact(&bench.store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_agent_that_was_deposed_finds_out_says_so_and_ends() {
    let bench = bench().await;
    let first = bench.first().with("metadata-poll", "200ms");
    let first = first.start().await.unwrap();
    let old = connect(first.grpc_address()).await;
    create(&old, 2).await;
    publish(&old, 0..100).await;

    let second = bench.second().start().await.unwrap();

    let http = first.http_address();
    tokio::time::timeout(std::time::Duration::from_secs(45), first.fenced())
        .await
        .unwrap();
    assert_eq!(page(http, "/healthz").await.unwrap().0, 503);
    assert_eq!(
        page(http, "/readyz").await.unwrap(),
        (503, "fenced\n".to_owned())
    );
    let mut raw = Raw::connect(first.grpc_address()).await;
    until("the partition refuses", async || {
        let answer = raw.produce(TOPIC, 0, batch(&["late"])).await;
        answer.is_err_and(|detail| detail.kind() == ErrorKind::Fenced)
    })
    .await;
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deposed_process_exits_with_75_however_busy_its_producers_are() {
    let bench = bench().await;
    let first = bench.first().with("metadata-poll", "200ms");
    let first = first.spawn(PROGRAM).await.unwrap();
    let old = connect(first.grpc).await;
    create(&old, 2).await;
    publish(&old, 0..3000).await;
    let mut raw = Raw::connect(first.grpc).await;

    let second = bench.second().start().await.unwrap();
    // Whatever becomes of these: they may be taken, refused, or cut off.
    let late = (0..100).map(|_| v1_request());
    let answers = raw
        .log
        .produce(futures::stream::iter(late.collect::<Vec<_>>()))
        .await;
    drop(answers);

    let exit = first.ended().await.unwrap();
    assert_eq!(exit.code, Some(75), "{exit:?}");
    assert!(exit.said.iter().any(|line| line.contains("taken over")));
    let found = replay(&connect(second.grpc_address()).await).await;
    assert!(found.places.len() <= 3000);
    assert!(second.drain().await.is_complete);
    assert_intact(&bench.store).await;
}

fn v1_request() -> esker_proto::v1::ProduceRequest {
    esker_proto::v1::ProduceRequest {
        topic: TOPIC.to_owned(),
        batch: batch(&["late"]),
        ..Default::default()
    }
}
