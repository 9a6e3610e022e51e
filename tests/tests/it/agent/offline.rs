//! A partition that is damaged does not keep the others from being served, and nothing of it goes.

use std::{collections::BTreeMap, fs, path::Path, path::PathBuf};

use bytes::Bytes;
use esker_proto::{
    types::{Offset, PartitionId},
    v1::{
        ErrorKind, FetchRequest, FetchSource, ListOffsetsRequest, list_offsets_request::Position,
    },
};
use esker_tests::{
    agent::{Plan, directory_url, page},
    s3::{Fault, Rule, S3Server, Status},
};
use tempfile::TempDir;

use super::support::{
    PROGRAM, Raw, TOPIC, assert_intact, batch, connect, create, describe, detail, publish,
    replay_all, s3_url, seal,
};
use crate::support::BUCKET;

/// The partition that gets damaged; the other one is 1.
const BAD: u32 = 0;

/// Files below a directory, and what they hold.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    found
}

fn dir_of(data_dir: &Path, partition: u32) -> PathBuf {
    let topics = fs::read_dir(data_dir.join("log")).unwrap();
    let mut topics = topics.map(|topic| topic.unwrap().path());
    let topic = topics.find(|path| !path.ends_with("spare")).unwrap();
    topic.join(format!("{partition:06}"))
}

/// Flips a bit in the first batch of the newest segment, which others follow.
fn damage_log(data_dir: &Path) {
    let files = files(&dir_of(data_dir, BAD));
    let mut logs = files
        .into_iter()
        .filter(|(path, _)| path.extension().is_some_and(|e| e == "log"));
    let (path, mut bytes) = logs.next_back().unwrap();
    bytes[100] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn fetch(partition: u32, offset: u64, end_offset: u64) -> FetchRequest {
    FetchRequest {
        topic: TOPIC.to_owned(),
        partition,
        offset,
        end_offset: Some(end_offset),
        ..FetchRequest::default()
    }
}

/// Asks a damaged partition for what it cannot give: everything at its end, and what `offset` holds.
async fn refuses(raw: &mut Raw, offset: u64) {
    let produced = raw.produce(TOPIC, BAD, batch(&["x"])).await.unwrap_err();
    assert_eq!(produced.kind(), ErrorKind::CorruptData, "{produced:?}");
    assert!(
        produced.has_no_side_effects && !produced.is_retryable,
        "{produced:?}"
    );
    let fetched = raw.fetch(fetch(BAD, offset, offset + 1)).await.unwrap_err();
    assert_eq!(
        detail(&fetched).kind(),
        ErrorKind::CorruptData,
        "{fetched:?}"
    );
    let position = |position| ListOffsetsRequest {
        topic: TOPIC.to_owned(),
        partitions: vec![BAD, 1],
        position: Some(position),
        ..ListOffsetsRequest::default()
    };
    for position in [
        position(Position::Latest(true)),
        position(Position::TimestampMs(i64::MAX)),
    ] {
        let listed = raw.log.list_offsets(position).await.unwrap().into_inner();
        let error = listed.offsets[0].error.as_ref().unwrap();
        assert_eq!(error.kind(), ErrorKind::CorruptData, "{error:?}");
        assert_eq!(listed.offsets[1].error, None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_local_log_is_offline_and_kept_while_all_else_is_served() {
    let home = TempDir::new().unwrap();
    let store = directory_url(home.path());
    let disk = TempDir::new().unwrap();
    let plan = Plan::new(&store, disk.path());
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 2).await;
    publish(&client, 0..500).await;
    seal(&client, true).await;
    publish(&client, 500..1000).await;
    let before = describe(&client).await;
    agent.stop().await;
    let whole = files(&dir_of(disk.path(), BAD));
    damage_log(disk.path());
    let damaged = files(&dir_of(disk.path(), BAD));

    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    let mut raw = Raw::connect(agent.grpc_address()).await;
    let at = describe(&client).await;
    assert!(
        at[0].offline_reason.contains("segment is corrupt"),
        "{at:?}"
    );
    assert!(
        at[0].offline_reason.contains(".log"),
        "names no file: {at:?}"
    );
    assert_eq!(at[0].unuploaded_bytes, before[0].unuploaded_bytes);
    assert_eq!(at[1].offline_reason, "");
    let (_, metrics) = page(agent.http_address(), "/metrics").await.unwrap();
    for (partition, is_offline) in [(0, 1), (1, 0)] {
        let gauge = format!(
            "esker_agent_partition_offline{{partition=\"{partition}\",topic=\"{TOPIC}\"}} {is_offline}"
        );
        assert!(metrics.contains(&gauge), "{metrics}");
    }
    refuses(&mut raw, at[0].tiered_offset).await;
    let tiered = raw.fetch(fetch(BAD, 0, at[0].tiered_offset)).await.unwrap();
    assert_eq!(
        tiered[0].source(),
        FetchSource::Bucket,
        "the bucket is whole"
    );
    raw.produce(TOPIC, 1, batch(&["more"])).await.unwrap();
    let trimmed = client
        .admin()
        .trim_partition(TOPIC, PartitionId::new(BAD), Offset::new(1))
        .await;
    assert!(trimmed.is_err(), "nothing of it may go");
    assert!(
        !agent.drain().await.is_complete,
        "it has what the bucket lacks"
    );
    assert_eq!(files(&dir_of(disk.path(), BAD)), damaged);

    for (path, bytes) in whole {
        fs::write(path, bytes).unwrap();
    }
    let agent = plan.start().await.unwrap();
    let at = describe(&connect(agent.grpc_address()).await).await;
    assert_eq!(at[0].high_watermark, before[0].high_watermark);
    assert!(agent.drain().await.is_complete);
    assert_intact(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_leaves_a_damaged_log_behind_ends_with_its_own_code() {
    let home = TempDir::new().unwrap();
    let plan = Plan::new(directory_url(home.path()), home.path());
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 2).await;
    publish(&client, 0..500).await;
    agent.stop().await;
    damage_log(home.path());

    let agent = plan.spawn(PROGRAM).await.unwrap();
    assert_eq!(page(agent.http, "/readyz").await.unwrap().0, 200);
    agent.terminate().unwrap();
    let exit = agent.ended().await.unwrap();

    assert_eq!(exit.code, Some(76), "{exit:?}");
    let said = exit.said.join("\n");
    assert!(said.contains("partition is offline"), "{said}");
    assert!(said.contains("segment is corrupt"), "{said}");
}

struct Bench {
    server: S3Server,
    _home: TempDir,
    /// Keys of the bad partition's manifests.
    manifests: Vec<String>,
    plan: Plan,
}

impl Bench {
    /// Two partitions, all of them in the bucket, and no agent.
    async fn start() -> Self {
        let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
        let home = TempDir::new().unwrap();
        let plan = Plan::new(s3_url(&server), home.path()).with("local-retention-bytes", "0B");
        let agent = plan.start().await.unwrap();
        let client = connect(agent.grpc_address()).await;
        create(&client, 2).await;
        publish(&client, 0..500).await;
        seal(&client, true).await;
        assert!(agent.drain().await.is_complete);
        // As after a power cut: the start reads the bucket, whatever the directory remembers of it.
        fs::remove_file(home.path().join("run")).unwrap();
        let manifests = server.keys(BUCKET).into_iter();
        let manifests = manifests.filter(|key| key.contains("/000000/manifest/"));
        Self {
            manifests: manifests.collect(),
            server,
            _home: home,
            plan,
        }
    }

    fn objects(&self) -> BTreeMap<String, Bytes> {
        let keys = self.server.keys(BUCKET).into_iter();
        let topics = keys.filter(|key| key.contains("/000000/"));
        let objects = topics.map(|key| {
            let bytes = self.server.object(BUCKET, &key).unwrap();
            (key, bytes)
        });
        objects.collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_manifest_chain_is_offline_and_kept_while_all_else_is_served() {
    let bench = Bench::start().await;
    for key in &bench.manifests {
        let whole = bench.server.object(BUCKET, key).unwrap();
        assert!(
            bench
                .server
                .plant(BUCKET, key, whole.slice(..whole.len() / 2))
        );
    }
    let damaged = bench.objects();

    let plan = bench
        .plan
        .clone()
        .with("retention", "1s")
        .with("retention-interval", "100ms");
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    let mut raw = Raw::connect(agent.grpc_address()).await;
    let at = describe(&client).await;
    assert!(
        at[0].offline_reason.contains("/manifest/"),
        "names no object: {at:?}"
    );
    assert_eq!(at[1].offline_reason, "");
    refuses(&mut raw, 0).await;
    refuses(&mut raw, 7).await;
    raw.produce(TOPIC, 1, batch(&["more"])).await.unwrap();
    assert!(
        agent.drain().await.is_complete,
        "nothing of it is on this disk alone"
    );
    assert_eq!(bench.objects(), damaged, "nothing of it may go");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_refuses_or_drops_a_chain_is_out_of_reach_and_damages_nothing() {
    let bench = Bench::start().await;
    let refusing = Rule::new(Fault::Answer(Status::Forbidden)).key_contains("/000000/manifest/");
    let refusing = bench.server.add_fault(refusing);

    let refused = bench.plan.start().await.unwrap_err();

    assert_eq!(refused.exit_code(), 69, "{refused}");
    assert!(refused.to_string().contains("access denied"), "{refused}");
    refusing.disarm();
    let agent = bench.plan.start().await.unwrap();
    replay_all(&connect(agent.grpc_address()).await, 500).await;
    agent.stop().await;
}
