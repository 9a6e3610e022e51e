//! A replay is complete or says that it is not, and continues where it was.

use std::{fs, path::Path};

use esker_proto::v1::ErrorKind;
use rustix::process::Signal;
use tempfile::TempDir;

use super::{Esker, produce, until};
use crate::fake_agent::{FakeAgent, FetchFault, detail};

/// An agent with lines of several runs, spread over two partitions, and the lines.
async fn filled() -> (FakeAgent, String) {
    let agent = FakeAgent::start(2).await;
    let line = |run: u32, n: u32| format!("{{\"id\":{},\"run\":{run},\"line\":{n}}}\n", n % 7);
    let runs = (0..3).map(|run| (0..40).map(|n| line(run, n)).collect());
    let runs: Vec<String> = runs.collect();
    let runs: Vec<_> = runs.iter().map(String::as_str).collect();
    let keyed = ["--key-field", "id"];
    produce(agent.address(), &keyed, &runs).await;
    assert!(!agent.values(0).is_empty() && !agent.values(1).is_empty());
    (agent, runs.concat())
}

/// Lets each partition's first response through and nothing else.
fn break_off(agent: &FakeAgent) {
    let away = || FetchFault::Refuse(detail(ErrorKind::ShuttingDown, "restarting"));
    agent.on_fetch([FetchFault::BreakAfter(1), FetchFault::BreakAfter(1)]);
    agent.on_fetch((0..1000).map(|_| away()));
}

fn args<'a>(output: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let output = output.to_str().unwrap();
    [&["replay", "t", "--output", output], more].concat()
}

#[tokio::test]
async fn interrupted_replay_leaves_its_output_as_it_was() {
    let (agent, lines) = filled().await;
    let home = TempDir::new().unwrap();
    let output = home.path().join("again");
    fs::write(&output, "earlier").unwrap();
    break_off(&agent);
    let esker = Esker::start(agent.address(), &args(&output, &[]));
    until("it is cut off", || agent.fetches() > 4).await;
    esker.signal(Signal::INT);
    let exit = esker.ended().await;
    exit.assert(
        130,
        &[
            "the output is not complete",
            "again.partial holds what was written",
            "stopped by SIGINT",
        ],
    );
    assert_eq!(fs::read(&output).unwrap(), b"earlier");
    let partial = fs::read_to_string(home.path().join("again.partial")).unwrap();
    assert!(
        !partial.is_empty() && lines.starts_with(&partial),
        "{partial}"
    );

    agent.fetch_well();
    let exit = Esker::run(agent.address(), &args(&output, &[]), b"").await;
    exit.assert(0, &["120 records"]);
    assert_eq!(fs::read_to_string(&output).unwrap(), lines);
    assert!(!home.path().join("again.partial").exists());
}

#[tokio::test]
async fn resumed_replay_continues_exactly_whatever_ended_it() {
    let (agent, lines) = filled().await;
    for signal in [Signal::INT, Signal::KILL] {
        let home = TempDir::new().unwrap();
        let (output, notes) = (home.path().join("again"), home.path().join("notes"));
        let args = args(&output, &["--resume", notes.to_str().unwrap()]);
        let before = agent.fetches();
        break_off(&agent);
        let esker = Esker::start(agent.address(), &args);
        until("it is cut off", || agent.fetches() > before + 4).await;
        esker.signal(signal);
        let exit = esker.ended().await;
        if signal == Signal::INT {
            exit.assert(130, &["the same command continues it"]);
            let partial = fs::read_to_string(&output).unwrap();
            assert!(
                !partial.is_empty() && lines.starts_with(&partial),
                "{partial}"
            );
            assert_epochs(&notes, 1);
            // As if it had been killed after another write.
            fs::write(&output, partial + "more than the notes say").unwrap();
        }
        agent.fetch_well();
        let exit = Esker::run(agent.address(), &args, b"").await;
        exit.assert(0, &[]);
        assert_eq!(fs::read_to_string(&output).unwrap(), lines);

        let exit = Esker::run(agent.address(), &args, b"").await;
        exit.assert(0, &["0 records"]);
        assert_eq!(fs::read_to_string(&output).unwrap(), lines);

        fs::remove_file(&notes).unwrap();
        let exit = Esker::run(agent.address(), &args, b"").await;
        exit.assert(1, &["again must not exist without"]);
        assert_eq!(fs::read_to_string(&output).unwrap(), lines);
    }
}

/// Checks that each position with a record before it has the epoch of that.
fn assert_epochs(notes: &Path, leader_epoch: u64) {
    let notes: serde_json::Value = serde_json::from_slice(&fs::read(notes).unwrap()).unwrap();
    for position in notes["positions"].as_array().unwrap() {
        let is_read = position["next_offset"].as_u64().unwrap() > 0;
        let epoch = position["leader_epoch"].as_u64();
        assert_eq!(epoch, is_read.then_some(leader_epoch), "{notes}");
    }
}

#[tokio::test]
async fn replay_is_not_resumed_in_a_log_that_lost_what_was_read() {
    for unordered in [&[][..], &["--unordered"]] {
        let agent = FakeAgent::start(1).await;
        produce(agent.address(), &[], &["a\n", "b\n", "c\n"]).await;
        let home = TempDir::new().unwrap();
        let (output, notes) = (home.path().join("again"), home.path().join("notes"));
        let more = [&["--resume", notes.to_str().unwrap()], unordered].concat();
        let args = args(&output, &more);
        Esker::run(agent.address(), &args, b"").await.assert(0, &[]);
        assert_epochs(&notes, 1);
        agent.truncate(0, 1);
        produce(agent.address(), &[], &["d\n", "e\n", "f\n"]).await;

        let exit = Esker::run(agent.address(), &args, b"").await;

        exit.assert(5, &["log was truncated", "--skip-removed continues"]);
        assert!(!exit.stderr.contains("the same command"), "{exit:?}");
        assert_eq!(fs::read_to_string(&output).unwrap(), "a\nb\nc\n");
        let args = [&args[..], &["--skip-removed"]].concat();
        let exit = Esker::run(agent.address(), &args, b"").await;
        exit.assert(0, &["partition 0 is read again from offset 1"]);
        assert_eq!(fs::read_to_string(&output).unwrap(), "a\nb\nc\nd\ne\nf\n");
        assert_epochs(&notes, 2);
    }
}

#[tokio::test]
async fn runs_follow_each_other_as_the_cluster_numbers_them_not_by_a_clock() {
    let agent = FakeAgent::start(2).await;
    agent.number_producers_from(1000);
    produce(
        agent.address(),
        &["--partition", "0"],
        &["numbered later\n"],
    )
    .await;
    agent.number_producers_from(10);
    produce(
        agent.address(),
        &["--partition", "1"],
        &["numbered earlier\n"],
    )
    .await;
    let args = ["replay", "t", "--output", "-"];
    let exit = Esker::run(agent.address(), &args, b"").await;
    exit.assert(0, &[]);
    assert_eq!(exit.text(), "numbered earlier\nnumbered later\n");
}

#[tokio::test]
async fn damage_is_found_without_an_output_and_what_precedes_it_is_written_with_one() {
    let agent = FakeAgent::start(1).await;
    produce(agent.address(), &[], &["a\n", "b\n", "c\n"]).await;
    agent.damage(0, 1);
    let exit = Esker::run(agent.address(), &["replay", "t"], b"").await;
    exit.assert(5, &["offsets=`1..2`"]);
    for unordered in [&[][..], &["--unordered"]] {
        let args = [&["replay", "t", "--output", "-"], unordered].concat();
        let exit = Esker::run(agent.address(), &args, b"").await;
        exit.assert(5, &["the rest begins at --from-offsets 0:1"]);
        assert_eq!(exit.text(), "a\n");
        let args = [&args[..], &["--skip-damaged"]].concat();
        let exit = Esker::run(agent.address(), &args, b"").await;
        exit.assert(
            0,
            &[
                "skipped, topic t partition 0",
                "2 records",
                "1 record skipped",
            ],
        );
        assert_eq!(exit.text(), "a\nc\n");
    }
}
