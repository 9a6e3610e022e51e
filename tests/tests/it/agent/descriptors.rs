//! An agent that may have few files open, or finds no inodes.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use esker_client::TopicSettings;
use esker_proto::v1::ErrorKind;
use esker_tests::agent::{Plan, directory_url, until};
use tempfile::TempDir;

use super::{
    disk::Disk,
    support::{PROGRAM, Raw, TOPIC, batch, connect, create, describe},
};

/// A program that runs the agent with so many open files at most.
fn limited(home: &TempDir, files: u32) -> PathBuf {
    let script = home.path().join("limited");
    let text = format!("#!/bin/sh\nexec /usr/bin/prlimit --nofile={files} {PROGRAM} \"$@\"\n");
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    script
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_this_machine_cannot_open_is_refused_before_it_is_recorded() {
    let home = TempDir::new().unwrap();
    let plan = Plan::new(directory_url(home.path()), &home.path().join("data"));
    let program = limited(&home, 256).display().to_string();
    let agent = plan.spawn(&program).await.unwrap();
    let client = connect(agent.grpc).await;
    let admin = client.admin();
    let refused = admin.create_topic(TOPIC, 2000, TopicSettings::default());
    let refused = refused.await.unwrap_err().to_string();
    assert!(refused.contains("LimitNOFILE"), "{refused}");

    create(&client, 3).await;
    let mut raw = Raw::connect(agent.grpc).await;
    raw.produce(TOPIC, 2, batch(&["kept"])).await.unwrap();
    agent.kill().unwrap();
    let agent = plan.spawn(&program).await.unwrap();
    let described = describe(&connect(agent.grpc).await).await;
    assert_eq!(described.len(), 3);
    assert_eq!(described[2].high_watermark, 1);
    agent.kill().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_leave_the_logs_their_files() {
    let home = TempDir::new().unwrap();
    let plan = Plan::new(directory_url(home.path()), &home.path().join("data"));
    let agent = plan
        .spawn(&limited(&home, 256).display().to_string())
        .await
        .unwrap();
    create(&connect(agent.grpc).await, 8).await;
    let mut raw = Raw::connect(agent.grpc).await;
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(tokio::net::TcpStream::connect(agent.grpc).await.unwrap());
    }
    for partition in 0..8 {
        let taken = raw.produce(TOPIC, partition, batch(&["taken"])).await;
        taken.unwrap();
    }
    drop(idle);
    until("there is a place for a new client", async || {
        let channel = esker_client::Client::connect(agent.grpc.to_string()).await;
        match channel {
            Ok(client) => client.admin().describe_topic(TOPIC).await.is_ok(),
            Err(_) => false,
        }
    })
    .await;
    agent.kill().unwrap();
}

/// Uses up the inodes of a disk.
fn take_inodes(disk: &Disk) -> PathBuf {
    let filler = disk.path().join("filler");
    fs::create_dir(&filler).unwrap();
    let mut made = 0;
    while fs::write(filler.join(made.to_string()), "").is_ok() {
        made += 1;
    }
    filler
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_without_inodes_refuses_requests_and_takes_no_partition_offline() {
    let Some(disk) = Disk::mount("16m,nr_inodes=120") else {
        return;
    };
    let home = TempDir::new().unwrap();
    let plan = Plan::new(directory_url(home.path()), &disk.path().join("data"));
    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    create(&client, 2).await;
    let mut raw = Raw::connect(agent.grpc_address()).await;
    raw.produce(TOPIC, 0, batch(&["first"])).await.unwrap();
    let filler = take_inodes(&disk);

    let admin = client.admin();
    let refused = admin.create_topic("many", 50, TopicSettings::default());
    let refused = refused.await.unwrap_err().to_string();
    assert!(refused.contains("inodes"), "{refused}");
    // The first wait for their file. Those that come once that is known are refused.
    let mut attempts = tokio::task::JoinSet::new();
    let mut refused = None;
    until("a batch is refused", async || {
        let mut raw = Raw::connect(agent.grpc_address()).await;
        attempts.spawn(async move { raw.produce(TOPIC, 1, batch(&["more"])).await });
        refused = attempts.try_join_next();
        refused.is_some()
    })
    .await;
    let refused = refused.unwrap().unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Throttled, "{refused:?}");
    assert!(refused.has_no_side_effects, "{refused:?}");
    assert_eq!(describe(&client).await[1].offline_reason, "");

    fs::remove_dir_all(filler).unwrap();
    let answers = attempts.join_all().await;
    assert!(
        answers.iter().any(Result::is_ok),
        "the first was taken: {answers:?}"
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_cannot_be_opened_at_start_is_opened_when_it_can() {
    let Some(disk) = Disk::mount("16m,nr_inodes=120") else {
        return;
    };
    let home = TempDir::new().unwrap();
    let data_dir = disk.path().join("data");
    let plan = Plan::new(directory_url(home.path()), &data_dir).with("metadata-poll", "100ms");
    let agent = plan.start().await.unwrap();
    create(&connect(agent.grpc_address()).await, 3).await;
    let mut raw = Raw::connect(agent.grpc_address()).await;
    raw.produce(TOPIC, 0, batch(&["first"])).await.unwrap();
    agent.stop().await;
    drop(raw);
    let _ = fs::remove_dir_all(data_dir.join("log/spare"));
    let filler = take_inodes(&disk);

    let agent = plan.start().await.unwrap();
    let client = connect(agent.grpc_address()).await;
    let described = describe(&client).await;
    assert_eq!(described.len(), 3);
    assert_ne!(described[0].offline_reason, "");

    fs::remove_dir_all(filler).unwrap();
    until("all partitions are served", async || {
        let described = describe(&client).await;
        described.iter().all(|at| at.offline_reason.is_empty())
    })
    .await;
    let mut raw = Raw::connect(agent.grpc_address()).await;
    // Once there is room for the next start again.
    until("a batch is taken", async || {
        let taken = raw.produce(TOPIC, 0, batch(&["second"])).await;
        taken.is_ok_and(|ack| ack.base_offset == 1)
    })
    .await;
    agent.stop().await;
}
