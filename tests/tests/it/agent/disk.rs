//! A disk that is full, or cannot be written to.

use std::{
    path::Path,
    process::{Command, ExitStatus},
};

use esker_proto::v1::{ErrorKind, FetchSource};
use esker_tests::{
    agent::{Plan, directory_url, until},
    s3::S3Server,
};
use tempfile::TempDir;

use super::support::{
    PROGRAM, Raw, TOPIC, assert_intact, batch, connect, create, describe, s3_url,
};

/// A small file system in memory, unmounted when dropped.
pub(super) struct Disk(TempDir);

impl Disk {
    /// `None`: this user may not mount anything, and the test cannot run.
    pub(super) fn mount(size: &str) -> Option<Self> {
        let at = TempDir::new().unwrap();
        let options = format!("size={size}");
        let mounted = run(
            "mount",
            &["-t", "tmpfs", "-o", &options, "tmpfs"],
            at.path(),
        );
        match mounted {
            Ok(status) if status.success() => Some(Self(at)),
            _ => {
                eprintln!("SKIPPED: mounting a small disk needs root");
                None
            }
        }
    }

    fn resize(&self, size: &str) {
        let options = format!("remount,size={size}");
        assert!(
            run("mount", &["-o", &options], self.path())
                .unwrap()
                .success()
        );
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: whatever still has a file open there keeps it.
        let _ = run("umount", &["-l"], self.0.path());
    }
}

fn run(program: &str, arguments: &[&str], path: &Path) -> std::io::Result<ExitStatus> {
    let mut command = Command::new(program);
    command.args(arguments).arg(path);
    Ok(command.output()?.status)
}

/// A batch that can be told from the others.
fn numbered(number: u64) -> bytes::Bytes {
    batch(&[&format!("{number:08}{}", "x".repeat(20_000))])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_costs_no_acknowledged_record_and_reads_go_on() {
    let Some(disk) = Disk::mount("3m") else {
        return;
    };
    let home = TempDir::new().unwrap();
    let store = directory_url(home.path());
    // Nothing goes up meanwhile: the disk shall fill.
    let plan = Plan::new(&store, disk.path()).with("segment-bytes", "64MiB");
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 2).await;
    let mut raw = Raw::connect(agent.grpc_address()).await;
    raw.produce(TOPIC, 1, numbered(0)).await.unwrap();

    let mut taken = 0;
    let refused = loop {
        match raw.produce(TOPIC, 0, numbered(taken)).await {
            Err(detail) => break detail,
            Ok(ack) => assert_eq!(ack.base_offset, taken),
        }
        taken += 1;
        assert!(taken < 1000, "the disk does not fill");
    };

    assert_eq!(refused.kind(), ErrorKind::Storage, "{refused:?}");
    assert!(
        !refused.has_no_side_effects,
        "nobody knows what a failed write left"
    );
    let described = describe(&client).await;
    let reason = &described[0].offline_reason;
    assert!(reason.contains("restart the agent"), "{reason}");
    assert_eq!(described[0].high_watermark, taken);
    for at in &described {
        let (bytes, sources) = raw.bytes_of(at).await;
        assert_eq!(sources, [FetchSource::Tail]);
        assert!(bytes.len() as u64 >= at.high_watermark * 20_000);
    }
    let again = raw.produce(TOPIC, 0, numbered(taken)).await.unwrap_err();
    assert_eq!(
        again.kind(),
        ErrorKind::Storage,
        "it stays offline until a restart"
    );
    let (acknowledged, _) = raw.bytes_of(&described[0]).await;
    agent.stop().await;

    disk.resize("16m");
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    let mut raw = Raw::connect(agent.grpc_address()).await;
    let at = describe(&client).await.remove(0);
    assert!(at.high_watermark >= taken, "{at:?}");
    assert_eq!(at.offline_reason, "");
    let (bytes, _) = raw.bytes_of(&at).await;
    assert!(
        bytes.starts_with(&acknowledged),
        "what was acknowledged is there"
    );
    let next = raw.produce(TOPIC, 0, numbered(taken)).await.unwrap();
    assert_eq!(next.base_offset, at.high_watermark);
    assert!(agent.drain().await.is_complete);
    assert_intact(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_ends_on_a_full_disk_starts_on_it_again_and_uploads_what_filled_it() {
    let Some(disk) = Disk::mount("2m") else {
        return;
    };
    let home = TempDir::new().unwrap();
    let plan = Plan::new(directory_url(home.path()), disk.path());
    let plan = plan.with("segment-bytes", "64MiB");
    let agent = plan.spawn(PROGRAM).await.unwrap();
    create(&connect(agent.grpc).await, 1).await;
    let mut raw = Raw::connect(agent.grpc).await;
    let mut taken = 0;
    while raw.produce(TOPIC, 0, numbered(taken)).await.is_ok() {
        taken += 1;
    }
    agent.terminate().unwrap();
    assert_eq!(
        agent.ended().await.unwrap().code,
        Some(76),
        "it is not drained"
    );

    let agent = plan.spawn(PROGRAM).await.unwrap();
    let client = connect(agent.grpc).await;
    until("the tail is in the bucket", async || {
        describe(&client).await[0].tiered_offset >= taken
    })
    .await;
    let mut raw = Raw::connect(agent.grpc).await;
    until("batches are taken again", async || {
        raw.produce(TOPIC, 0, batch(&["small"])).await.is_ok()
    })
    .await;
    agent.terminate().unwrap();
    assert_eq!(agent.ended().await.unwrap().code, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producers_are_refused_before_the_disk_is_full() {
    let Some(disk) = Disk::mount("4m") else {
        return;
    };
    let home = TempDir::new().unwrap();
    let plan = Plan::new(directory_url(home.path()), disk.path());
    let plan = plan
        .with("segment-bytes", "64MiB")
        .with("disk-reserve", "2MiB");
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    let mut raw = Raw::connect(agent.grpc_address()).await;
    // Faster than the disk is looked at: what fits is known all the same.
    let mut taken = 0;
    let refused = loop {
        match raw.produce(TOPIC, 0, numbered(taken)).await {
            Err(detail) => break detail,
            Ok(_) => taken += 1,
        }
        assert!(taken < 1000, "the disk does not fill");
    };
    assert_eq!(refused.kind(), ErrorKind::Throttled, "{refused:?}");
    assert!(refused.has_no_side_effects, "{refused:?}");
    // What came since the look before counts twice at worst: half of 2 MiB is used in any case.
    assert!(taken >= 50, "refused too early: {taken}");
    assert_eq!(describe(&client).await[0].offline_reason, "");
    disk.resize("32m");
    until("batches are taken again", async || {
        raw.produce(TOPIC, 0, batch(&["small"])).await.is_ok()
    })
    .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reserve_is_kept_on_the_volume_of_the_logs() {
    let Some(disk) = Disk::mount("4m") else {
        return;
    };
    let home = TempDir::new().unwrap();
    let data_dir = home.path().join("data");
    std::fs::create_dir(&data_dir).unwrap();
    std::os::unix::fs::symlink(disk.path(), data_dir.join("log")).unwrap();
    let plan = Plan::new(directory_url(home.path()), &data_dir);
    let plan = plan
        .with("segment-bytes", "64MiB")
        .with("disk-reserve", "2MiB");
    let agent = plan.start().await.unwrap();
    create(&connect(agent.grpc_address()).await, 1).await;
    let mut raw = Raw::connect(agent.grpc_address()).await;
    let mut taken = 0;
    let refused = loop {
        match raw.produce(TOPIC, 0, numbered(taken)).await {
            Err(detail) => break detail,
            Ok(_) => taken += 1,
        }
        assert!(taken < 1000, "the disk does not fill");
    };
    assert_eq!(refused.kind(), ErrorKind::Throttled, "{refused:?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_cache_that_cannot_be_made_is_said_in_one_line() {
    let home = TempDir::new().unwrap();
    let data_dir = home.path().join("data");
    std::fs::create_dir(&data_dir).unwrap();
    std::fs::write(data_dir.join("cache"), "in the way").unwrap();
    let plan = Plan::new(directory_url(home.path()), &data_dir).with("cache-disk-bytes", "64MiB");
    let refused = plan.spawn(PROGRAM).await.unwrap_err().to_string();
    let said = last_words(&refused, 74);
    assert!(said.contains("data/cache"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_directory_that_cannot_be_written_is_said_in_one_line() {
    let home = TempDir::new().unwrap();
    let file = home.path().join("file");
    std::fs::write(&file, "in the way").unwrap();
    let plan = Plan::new(directory_url(home.path()), &file.join("data"));
    let refused = plan.spawn(PROGRAM).await.unwrap_err().to_string();
    let said = last_words(&refused, 74);
    assert!(said.contains("data directory cannot be used"), "{said}");
    assert!(said.contains("file/data"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_is_full_at_the_first_start_is_said_in_one_line() {
    let Some(disk) = Disk::mount("64k") else {
        return;
    };
    let filler = std::fs::write(disk.path().join("filler"), vec![0; 65 << 10]);
    assert!(filler.is_err(), "the disk is not full");
    let home = TempDir::new().unwrap();
    let plan = Plan::new(directory_url(home.path()), disk.path());
    let refused = plan.spawn(PROGRAM).await.unwrap_err().to_string();
    let said = last_words(&refused, 74);
    assert!(said.contains("its disk is full"), "{said}");
    assert!(said.contains("data_dir="), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_is_not_there_is_said_in_one_line() {
    let server = S3Server::builder().bucket("another").start().await.unwrap();
    let home = TempDir::new().unwrap();
    let plan = Plan::new(s3_url(&server), home.path());
    let refused = plan.spawn(PROGRAM).await.unwrap_err().to_string();
    let said = last_words(&refused, 69);
    assert!(said.contains("bucket"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_cannot_be_are_all_said_at_once() {
    let home = TempDir::new().unwrap();
    let plan = Plan::new(directory_url(home.path()), home.path())
        .with("partitions", "none")
        .with("segment-age", "soon")
        .with("flush", "never");
    let refused = plan.spawn(PROGRAM).await.unwrap_err().to_string();
    assert!(refused.contains("exit code Some(78)"), "{refused}");
    for name in ["--partitions", "--segment-age", "--flush"] {
        assert!(refused.contains(name), "{refused}");
    }
}

/// Returns what an agent said when it ended with this exit code: one line for a person.
fn last_words(refused: &str, code: i32) -> String {
    assert!(
        refused.contains(&format!("exit code Some({code})")),
        "{refused}"
    );
    let for_people = refused
        .lines()
        .filter(|line| line.contains("esker-agent: "));
    let lines: Vec<_> = for_people.collect();
    assert_eq!(lines.len(), 1, "{refused}");
    assert!(refused.ends_with(lines[0]), "{refused}");
    lines[0].to_owned()
}
