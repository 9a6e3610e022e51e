//! Local logs that lost acknowledged records: the partition says so, waits for an order, and an
//! operator repairs it with the agent stopped.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use esker_client::{
    Client, Consumer, ConsumerConfig, End, ErrorKind, Offset, OutOfRange, PartitionId, StartAt,
};
use esker_tests::agent::{AgentProcess, Plan, directory_url, until};
use tempfile::TempDir;

use super::support::{PROGRAM, Raw, TOPIC, batch, connect, create, describe, seal};

/// Records that are acknowledged before the harm is done.
const RECORDS: u64 = 24;

fn log_dir(data_dir: &Path, partition: u32) -> PathBuf {
    let topics = fs::read_dir(data_dir.join("log")).unwrap();
    let mut topics = topics.map(|topic| topic.unwrap().path());
    let topic = topics.find(|path| !path.ends_with("spare")).unwrap();
    topic.join(format!("{partition:06}"))
}

fn segment_of(data_dir: &Path, partition: u32) -> PathBuf {
    log_dir(data_dir, partition).join(format!("{:020}.log", 0))
}

/// The partition as commands take it.
fn name_of(data_dir: &Path, partition: u32) -> String {
    let dir = log_dir(data_dir, partition);
    let topic = dir.parent().unwrap().file_name().unwrap();
    format!("{}/{partition}", topic.to_string_lossy())
}

fn command(data_dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command
        .arg("log")
        .args(arguments)
        .arg("--data-dir")
        .arg(data_dir);
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8(all).unwrap()
}

async fn produce(agent: &AgentProcess, partition: u32, batches: u64) {
    let mut raw = Raw::connect(agent.grpc).await;
    for _ in 0..batches {
        let batch = batch(&["a", "b", "c", "d"]);
        raw.produce(TOPIC, partition, batch).await.unwrap();
    }
}

/// Waits until the data directory says that two partitions were flushed as far as they are.
async fn until_noted(data_dir: &Path) {
    until("the checkpoint to say what is flushed", async || {
        let noted = fs::read(data_dir.join("offset-checkpoint")).unwrap_or_default();
        let flushed = RECORDS.to_le_bytes();
        noted.windows(8).filter(|bytes| *bytes == flushed).count() == 2
    })
    .await;
}

/// Two partitions with records that only this disk has, and an agent that was killed.
async fn killed(home: &TempDir) -> Plan {
    let plan = Plan::new(directory_url(home.path()), home.path());
    let agent = plan.spawn(PROGRAM).await.unwrap();
    create(&connect(agent.grpc).await, 2).await;
    for partition in 0..2 {
        produce(&agent, partition, RECORDS / 4).await;
    }
    until_noted(home.path()).await;
    agent.kill().unwrap();
    plan
}

/// Runs the repair that a reason names, as pasted into a shell with `more` behind it.
fn pasted(reason: &str, more: &str) -> Output {
    let (_, order) = reason.split_once("run `esker-agent ").unwrap();
    let (order, _) = order.split_once('`').unwrap();
    let script = format!("{PROGRAM} {order} {more}");
    Command::new("sh").args(["-c", &script]).output().unwrap()
}

/// Starts the agent, and expects partition 0 offline for these reasons and 1 served. Returns the reason.
async fn is_offline(plan: &Plan, parts: &[&str]) -> String {
    let agent = plan.spawn(PROGRAM).await.unwrap();
    let at = describe(&connect(agent.grpc).await).await;
    let reason = &at[0].offline_reason;
    for part in parts.iter().copied() {
        assert!(reason.contains(part), "`{part}` is not in `{reason}`");
    }
    assert_eq!(
        (at[1].offline_reason.as_str(), at[1].high_watermark),
        ("", RECORDS)
    );
    let beside = pasted(reason, "--execute");
    assert_eq!(beside.status.code(), Some(74), "{}", said(&beside));
    agent.kill().unwrap();
    reason.clone()
}

/// Repairs partition 0 as the reason says, and expects it served up to `end` afterwards.
async fn is_repaired(plan: &Plan, home: &TempDir, reason: &str, end: u64) {
    let verified = command(home.path(), &["verify"]);
    assert_eq!(verified.status.code(), Some(1), "{}", said(&verified));
    assert_eq!(
        said(&verified).matches("DAMAGED").count(),
        1,
        "{}",
        said(&verified)
    );
    let name = name_of(home.path(), 0);
    let dry = pasted(reason, "");
    assert!(
        dry.status.success() && said(&dry).contains("dry run"),
        "{}",
        said(&dry)
    );
    let again = command(home.path(), &["verify"]);
    assert_eq!(said(&again), said(&verified), "a dry run changes nothing");

    let repaired = pasted(reason, "--execute");

    assert!(repaired.status.success(), "{}", said(&repaired));
    let aside = home
        .path()
        .join("aside")
        .join(format!("{}-1", name.replace("/0", "/000000")));
    let loss = fs::read_to_string(aside.join("loss.json")).unwrap();
    assert!(
        loss.contains(&format!("\"acknowledged_below_offset\": {RECORDS}")),
        "{loss}"
    );
    let verified = command(home.path(), &["verify"]);
    assert!(verified.status.success(), "{}", said(&verified));
    let agent = plan.spawn(PROGRAM).await.unwrap();
    let at = describe(&connect(agent.grpc).await).await;
    assert_eq!(
        (at[0].offline_reason.as_str(), at[0].high_watermark),
        ("", end)
    );
    produce(&agent, 0, 1).await;
    agent.terminate().unwrap();
    let exit = agent.ended().await.unwrap();
    assert_eq!(exit.code, Some(0), "{exit:?}");
    let lost = format!("\"lost_records\":{}", RECORDS - end);
    assert!(
        exit.said.iter().any(|line| line.contains(&lost)),
        "{exit:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_directory_that_is_gone_is_offline_until_its_loss_is_accepted() {
    let home = TempDir::new().unwrap();
    let plan = killed(&home).await;
    fs::remove_dir_all(log_dir(home.path(), 0)).unwrap();
    fs::create_dir_all(log_dir(home.path(), 0)).unwrap();
    let flushed = format!("acknowledged_below=`{RECORDS}`");
    let reason = is_offline(&plan, &["gone with all its files", &flushed]).await;
    is_repaired(&plan, &home, &reason, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_active_segment_that_is_cut_short_is_offline_until_its_loss_is_accepted() {
    let home = TempDir::new().unwrap();
    let plan = killed(&home).await;
    let path = segment_of(home.path(), 0);
    let length = fs::metadata(&path).unwrap().len();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    // The batches are of one size.
    file.set_len(length / 6 * 4).unwrap();
    let flushed = format!("acknowledged_below=`{RECORDS}`");
    let reason = is_offline(
        &plan,
        &[
            "acknowledged records are gone",
            &flushed,
            "log_end_offset=`16`",
        ],
    )
    .await;
    is_repaired(&plan, &home, &reason, 16).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_in_the_last_batch_is_offline_until_it_is_cut_and_kept_aside() {
    let home = TempDir::new().unwrap();
    let plan = killed(&home).await;
    let path = segment_of(home.path(), 0);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, &bytes).unwrap();
    let reason = is_offline(
        &plan,
        &["segment is corrupt", ".log`", "offset=`20`", "position=`"],
    )
    .await;
    is_repaired(&plan, &home, &reason, 20).await;
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let part = fs::read_dir(
        home.path()
            .join("aside")
            .join(name_of(home.path(), 0).replace("/0", "/000000-1")),
    )
    .unwrap()
    .map(|entry| entry.unwrap().path())
    .find(|path| path.to_string_lossy().contains(&name))
    .unwrap();
    assert!(bytes.ends_with(&fs::read(part).unwrap()));
}

/// Reads partition 0 from a start to its end.
async fn read(
    client: &Client,
    start: StartAt,
    out_of_range: OutOfRange,
) -> (Consumer, esker_client::Result<u64>) {
    let mut consumer = client.consumer(ConsumerConfig {
        out_of_range,
        ..ConsumerConfig::default()
    });
    let (partition, until) = (PartitionId::new(0), Some(End::Latest));
    let assigned = consumer.assign(TOPIC, partition, start, until);
    assigned.await.unwrap();
    let mut records = 0;
    loop {
        match consumer.next().await {
            Ok(Some(fetched)) => records += fetched.record_count(),
            Ok(None) => return (consumer, Ok(records)),
            Err(error) => return (consumer, Err(error)),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_records_that_were_lost_is_told_so_although_others_have_their_offsets() {
    let home = TempDir::new().unwrap();
    let plan = Plan::new(directory_url(home.path()), home.path());
    let agent = plan.spawn(PROGRAM).await.unwrap();
    let client = connect(agent.grpc).await;
    create(&client, 2).await;
    for partition in 0..2 {
        produce(&agent, partition, RECORDS / 4).await;
    }
    let (consumer, records) = read(&client, StartAt::Earliest, OutOfRange::Error).await;
    assert_eq!(records.unwrap(), RECORDS);
    let saved = StartAt::Saved(consumer.saved_positions());
    until_noted(home.path()).await;
    agent.kill().unwrap();
    let path = segment_of(home.path(), 0);
    let length = fs::metadata(&path).unwrap().len();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(length / 6 * 4).unwrap();
    let name = name_of(home.path(), 0);
    let repaired = command(home.path(), &["repair", "--partition", &name, "--execute"]);
    assert!(repaired.status.success(), "{}", said(&repaired));

    let agent = plan.spawn(PROGRAM).await.unwrap();
    let client = connect(agent.grpc).await;
    // Before and after there are others at the offset to continue from.
    for end in [16, RECORDS + 4] {
        let (_, records) = read(&client, saved.clone(), OutOfRange::Error).await;
        let error = records.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Truncated, "{error:?}");
        assert_eq!(error.divergent_offset(), Some(Offset::new(16)));
        let (_, records) = read(&client, saved.clone(), OutOfRange::Earliest).await;
        assert_eq!(records.unwrap(), end - 16);
        produce(&agent, 0, 3).await;
    }
    // In the bucket it is told the same.
    seal(&client, true).await;
    let (_, records) = read(&client, saved, OutOfRange::Error).await;
    assert_eq!(records.unwrap_err().kind(), ErrorKind::Truncated);
    // What is read anew has an epoch that the log knows, over a restart too.
    let (consumer, _) = read(&client, StartAt::Earliest, OutOfRange::Error).await;
    let saved = StartAt::Saved(consumer.saved_positions());
    agent.kill().unwrap();
    let agent = plan.spawn(PROGRAM).await.unwrap();
    let client = connect(agent.grpc).await;
    produce(&agent, 0, 1).await;
    let (_, records) = read(&client, saved, OutOfRange::Error).await;
    assert_eq!(records.unwrap(), 4);
}

fn copy_dir(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let to = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy_dir(&path, &to)?,
            false => drop(fs::copy(&path, &to)?),
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_made_since_the_last_start_does_not_pass_for_the_original() {
    let (home, data) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let plan = Plan::new(directory_url(home.path()), &data.path().join("original"));
    let agent = plan.spawn(PROGRAM).await.unwrap();
    let client = connect(agent.grpc).await;
    create(&client, 1).await;
    produce(&agent, 0, 3).await;
    let copy = data.path().join("copy");
    copy_dir(&data.path().join("original"), &copy).unwrap();
    produce(&agent, 0, 3).await;
    seal(&client, false).await;
    agent.kill().unwrap();

    let agent = plan.clone().on(&copy).spawn(PROGRAM).await.unwrap();

    let at = describe(&connect(agent.grpc).await).await;
    let reason = &at[0].offline_reason;
    for part in [
        "older copy",
        "log_end_offset=`12`",
        "tiered_offset=`24`",
        "--discard",
    ] {
        assert!(reason.contains(part), "`{part}` is not in `{reason}`");
    }
    agent.kill().unwrap();
    let repair = [
        "repair",
        "--partition",
        &name_of(&copy, 0),
        "--discard",
        "--execute",
    ];
    let repaired = command(&copy, &repair);
    assert!(repaired.status.success(), "{}", said(&repaired));
    let agent = plan.clone().on(&copy).spawn(PROGRAM).await.unwrap();
    let at = describe(&connect(agent.grpc).await).await;
    assert_eq!(
        (at[0].offline_reason.as_str(), at[0].high_watermark),
        ("", 24)
    );
}
