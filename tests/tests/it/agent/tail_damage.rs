//! Bytes of the local log that change under a running agent: the partition they belong to goes
//! offline, says where, and nobody else notices.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use esker_client::TopicSettings;
use esker_proto::v1::{ErrorKind, FetchFormat, FetchRequest, FetchSource};
use esker_tests::agent::{Plan, directory_url, page, until};
use tempfile::TempDir;

use super::support::{PROGRAM, Raw, TOPIC, batch, connect, create, create_with, describe, detail};

const HEADER_BYTES: u32 = 61;

/// The only segment file of a partition.
fn segment_of(data_dir: &Path, partition: u32) -> PathBuf {
    let topics = fs::read_dir(data_dir.join("log")).unwrap();
    let mut topics = topics.map(|topic| topic.unwrap().path());
    let topic = topics.find(|path| !path.ends_with("spare")).unwrap();
    let files = fs::read_dir(topic.join(format!("{partition:06}"))).unwrap();
    let mut logs = files
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "log"));
    logs.next().unwrap()
}

/// Where the batch with this number begins.
fn position_of(path: &Path, batch: usize) -> u64 {
    let bytes = fs::read(path).unwrap();
    let position = (0..batch).fold(0, |at, _| {
        let length = bytes[at + 8..at + 12].try_into().unwrap();
        at + 12 + usize::try_from(u32::from_be_bytes(length)).unwrap()
    });
    position as u64
}

/// Flips a bit in the file that the agent has open.
fn flip(path: &Path, position: u64, bit: u32) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, position).unwrap();
    file.write_all_at(&[byte[0] ^ (1 << bit)], position)
        .unwrap();
}

fn fetch(partition: u32, offset: u64, end: u64, format: FetchFormat) -> FetchRequest {
    FetchRequest {
        topic: TOPIC.to_owned(),
        partition,
        offset,
        end_offset: Some(end),
        min_bytes: 1,
        format: format.into(),
        ..FetchRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_flipped_byte_of_a_batch_header_takes_its_partition_offline_and_no_other() {
    let home = TempDir::new().unwrap();
    let plan = Plan::new(directory_url(home.path()), home.path());
    let agent = plan.spawn(PROGRAM).await.unwrap();
    let client = connect(agent.grpc).await;
    // Each partition gets another byte flipped; the last one stays whole.
    create(&client, HEADER_BYTES + 1).await;
    let mut raw = Raw::connect(agent.grpc).await;
    for partition in 0..=HEADER_BYTES {
        for _ in 0..6 {
            let batch = batch(&["a", "b", "c", "d"]);
            raw.produce(TOPIC, partition, batch).await.unwrap();
        }
    }
    for byte in 0..HEADER_BYTES {
        let path = segment_of(home.path(), byte);
        let position = position_of(&path, 2);
        flip(&path, position + u64::from(byte), byte % 8);

        // Checksums are left to the reader of whole batches: one that is asked for those may get them.
        if let Err(status) = raw.fetch(fetch(byte, 8, 24, FetchFormat::Batches)).await {
            assert_eq!(detail(&status).kind(), ErrorKind::CorruptData, "{byte}");
        }
        let status = raw.fetch(fetch(byte, 0, 24, FetchFormat::Records)).await;
        let error = detail(&status.unwrap_err());

        assert_eq!(error.kind(), ErrorKind::CorruptData, "{byte}: {error:?}");
        let place = format!("offset=`8`, position=`{position}`");
        let is_named = |text: &str| text.contains(".log`") && text.contains(&place);
        assert!(is_named(&error.message), "{byte}: {error:?}");
        let refused = raw.produce(TOPIC, byte, batch(&["e"])).await.unwrap_err();
        assert_eq!(
            refused.kind(),
            ErrorKind::CorruptData,
            "{byte}: {refused:?}"
        );
        assert!(is_named(&refused.message), "{byte}: {refused:?}");
        assert!(refused.message.contains("log repair"), "{refused:?}");
        let before = raw.fetch(fetch(byte, 0, 8, FetchFormat::Records)).await;
        assert_eq!(before.unwrap().last().unwrap().next_offset, 8, "{byte}");
    }
    let whole = HEADER_BYTES;
    raw.produce(TOPIC, whole, batch(&["e"])).await.unwrap();
    let read = raw.fetch(fetch(whole, 0, 25, FetchFormat::Records)).await;
    assert_eq!(read.unwrap().last().unwrap().next_offset, 25);
    assert_eq!(page(agent.http, "/healthz").await.unwrap().0, 200);
    agent.terminate().unwrap();
    assert_eq!(agent.ended().await.unwrap().code, Some(76));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_that_cannot_be_uploaded_for_its_damage_holds_no_other_partition_back() {
    let home = TempDir::new().unwrap();
    let plan = Plan::new(directory_url(home.path()), home.path());
    let plan = plan
        .with("segment-bytes", "512KiB")
        .with("unuploaded-bytes-max", "1MiB");
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 2).await;
    let mut raw = Raw::connect(agent.grpc_address()).await;
    let large = "x".repeat(40 << 10);
    for _ in 0..10 {
        raw.produce(TOPIC, 0, batch(&[&large])).await.unwrap();
    }
    let path = segment_of(home.path(), 0);
    flip(&path, position_of(&path, 2) + 1_000, 3);

    let sealed = client
        .admin()
        .seal_topic(TOPIC, false, std::time::Duration::from_secs(60))
        .await;

    assert!(sealed.is_err(), "{sealed:?}");
    let at = describe(&client).await;
    let reason = &at[0].offline_reason;
    for part in [".log`", "offset=`2`", "position=`", "log repair --data-dir"] {
        assert!(reason.contains(part), "{part} is not in {reason}");
    }
    assert!(at[0].unuploaded_bytes > 400 << 10, "{at:?}");
    let (_, metrics) = page(agent.http_address(), "/metrics").await.unwrap();
    assert!(
        metrics.contains("\nesker_agent_unuploaded_bytes 0\n"),
        "{metrics}"
    );
    for _ in 0..30 {
        until("room for the other partition", async || {
            raw.produce(TOPIC, 1, batch(&[&large])).await.is_ok()
        })
        .await;
    }
    assert_eq!(describe(&client).await[1].offline_reason, "");
    let drained = agent.drain().await;
    assert!(!drained.is_complete);
    assert!(drained.unuploaded_bytes > 400 << 10, "{drained:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_local_copy_of_what_the_bucket_has_is_read_from_the_bucket() {
    let home = TempDir::new().unwrap();
    let plan = Plan::new(directory_url(home.path()), home.path());
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    let settings = TopicSettings {
        local_retention_bytes: Some(1 << 30),
        ..TopicSettings::default()
    };
    create_with(&client, 1, settings).await;
    let mut raw = Raw::connect(agent.grpc_address()).await;
    for _ in 0..6 {
        raw.produce(TOPIC, 0, batch(&["a", "b"])).await.unwrap();
    }
    super::support::seal(&client, false).await;
    let path = segment_of(home.path(), 0);
    flip(&path, position_of(&path, 2) + 7, 3);

    let read = raw
        .fetch(fetch(0, 4, 12, FetchFormat::Batches))
        .await
        .unwrap();

    assert_eq!(read.last().unwrap().next_offset, 12);
    assert_eq!(read[0].source(), FetchSource::Bucket);
    assert_eq!(describe(&client).await[0].offline_reason, "");
    assert!(agent.drain().await.is_complete);
}
