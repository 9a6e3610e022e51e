//! Bytes of the local log that change under a running agent: the partition they belong to goes
//! offline, says where, and nobody else notices.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use esker_client::{Client, TopicSettings};
use esker_proto::{
    batch::Batches,
    v1::{ErrorKind, FetchFormat, FetchRequest},
};
use esker_tests::agent::{Plan, directory_url, page, until};
use tempfile::TempDir;

use super::support::{PROGRAM, Raw, TOPIC, batch, connect, create, create_with, describe, detail};

const HEADER_BYTES: u32 = 61;

/// The directory of the only topic.
fn topic_in(data_dir: &Path) -> PathBuf {
    let topics = fs::read_dir(data_dir.join("log")).unwrap();
    let mut topics = topics.map(|topic| topic.unwrap().path());
    topics.find(|path| !path.ends_with("spare")).unwrap()
}

/// The only segment file of a partition.
fn segment_of(data_dir: &Path, partition: u32) -> PathBuf {
    let topic = topic_in(data_dir);
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

/// What harms the local copy of a segment.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Header,
    Payload,
    CutShort,
    Emptied,
    Gone,
}

impl Harm {
    const ALL: [Self; 5] = [
        Self::Header,
        Self::Payload,
        Self::CutShort,
        Self::Emptied,
        Self::Gone,
    ];

    /// Harms the third batch of a segment, or more.
    fn does(self, path: &Path) {
        let file = || OpenOptions::new().write(true).open(path).unwrap();
        match self {
            Self::Header => flip(path, position_of(path, 2) + 7, 3),
            // The first byte of a value.
            Self::Payload => flip(path, position_of(path, 2) + 72, 1),
            Self::CutShort => file().set_len(position_of(path, 2) + 50).unwrap(),
            Self::Emptied => file().set_len(0).unwrap(),
            Self::Gone => fs::remove_file(path).unwrap(),
        }
    }
}

/// Reads a partition from each of its batches on, whole and as records.
async fn reads_all(raw: &mut Raw, partition: u32, case: &str) {
    for format in [FetchFormat::Records, FetchFormat::Batches] {
        for from in [0, 4, 6] {
            let read = raw.fetch(fetch(partition, from, 16, format)).await;
            let read = read.unwrap_or_else(|status| panic!("{case}, {format:?}: {status:?}"));
            assert_eq!(read.last().unwrap().next_offset, 16, "{case}");
            let mut batches: Vec<u8> = Vec::new();
            for response in &read {
                batches.extend_from_slice(&response.batches);
                for (record, value) in response.records.iter().zip(["a", "b"].iter().cycle()) {
                    assert_eq!(record.value.as_deref(), Some(value.as_bytes()), "{case}");
                }
            }
            for batch in Batches::new(batches.into()) {
                batch.unwrap_or_else(|error| panic!("{case}: {error}"));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_local_copy_of_what_the_bucket_has_is_read_from_the_bucket() {
    let home = TempDir::new().unwrap();
    let plan = Plan::new(directory_url(home.path()), home.path());
    let agent = plan.spawn(PROGRAM).await.unwrap();
    let client = connect(agent.grpc).await;
    let settings = TopicSettings {
        local_retention_bytes: Some(1 << 30),
        ..TopicSettings::default()
    };
    let partitions = u32::try_from(Harm::ALL.len()).unwrap();
    create_with(&client, partitions, settings).await;
    let mut raw = Raw::connect(agent.grpc).await;
    // Six batches that the bucket has, and two more.
    for batches in [6, 2] {
        for partition in 0..partitions {
            for _ in 0..batches {
                let batch = batch(&["a", "b"]);
                raw.produce(TOPIC, partition, batch).await.unwrap();
            }
        }
        if batches == 6 {
            super::support::seal(&client, false).await;
        }
    }
    for (harm, partition) in Harm::ALL.into_iter().zip(0..) {
        harm.does(&topic_in(home.path()).join(format!("{partition:06}/{:020}.log", 0)));
    }
    is_served(&client, &mut raw).await;
    agent.kill().unwrap();
    let agent = plan.spawn(PROGRAM).await.unwrap();
    is_served(
        &connect(agent.grpc).await,
        &mut Raw::connect(agent.grpc).await,
    )
    .await;
    agent.terminate().unwrap();
    assert_eq!(agent.ended().await.unwrap().code, Some(0));
    let agent = plan.spawn(PROGRAM).await.unwrap();
    is_served(
        &connect(agent.grpc).await,
        &mut Raw::connect(agent.grpc).await,
    )
    .await;
}

/// Expects every partition to give all it was given.
async fn is_served(client: &Client, raw: &mut Raw) {
    for (at, harm) in describe(client).await.iter().zip(Harm::ALL) {
        reads_all(raw, at.partition, &format!("{harm:?}")).await;
    }
    for (at, harm) in describe(client).await.iter().zip(Harm::ALL) {
        assert_eq!(at.offline_reason, "", "{harm:?}");
    }
}
