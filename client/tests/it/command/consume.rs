//! A follower gives up on nothing that passes, and says what it waits for and what it skips.

use esker_proto::v1::{self, ErrorKind};
use rustix::process::Signal;

use super::{Esker, Exit, produce};
use crate::fake_agent::{FakeAgent, FetchFault, detail};

fn consume<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&["consume", "t"], args].concat()
}

async fn read(agent: &FakeAgent, args: &[&str]) -> Exit {
    let args = [&["--from", "beginning", "--until", "end"], args].concat();
    Esker::run(agent.address(), &consume(&args), b"").await
}

#[tokio::test]
async fn records_copied_as_json_are_the_same() {
    let agent = FakeAgent::start(2).await;
    let records = concat!(
        r#"{"partition":0,"timestamp_ms":-5,"key":"","value":"","headers":[{"key":"b"},{"key":"a","value":""},{"key":"b","value_base64":"/w=="}]}"#,
        "\n",
        r#"{"partition":1,"timestamp_ms":9223372036854775807}"#,
        "\n",
        r#"{"partition":0,"timestamp_ms":1,"key_base64":"gA==","value":"\u0000\n\"ü"}"#,
        "\n",
        r#"{"partition":1,"timestamp_ms":0,"headers":{"old":"map"}}"#,
        "\n",
    );
    produce(agent.address(), &["--format", "json"], &[records]).await;
    let first = read(&agent, &["--format", "json"]).await;
    produce(agent.address(), &["--format", "json"], &[first.text()]).await;
    let args = consume(&["--from-offsets", "0:2,1:2", "--until", "end", "--json"]);
    let second = Esker::run(agent.address(), &args, b"").await;
    let lines = |exit: &Exit| {
        let text = exit.text().replace("\"offset\":2", "\"offset\":0");
        let text = text.replace("\"offset\":3", "\"offset\":1");
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    assert_eq!(lines(&first).len(), 4);
    assert_eq!(lines(&first), lines(&second));
    let headers = r#"[{"key":"b"},{"key":"a","value":""},{"key":"b","value_base64":"/w=="}]"#;
    assert!(first.text().contains(headers), "{}", first.text());
}

#[tokio::test]
async fn agent_that_is_away_is_waited_for_and_named() {
    let agent = FakeAgent::start(1).await;
    produce(agent.address(), &[], &["one\n"]).await;
    let away = || FetchFault::Refuse(detail(ErrorKind::ShuttingDown, "restarting"));
    agent.on_fetch((0..1000).map(|_| away()));
    let args = consume(&["--from", "beginning"]);
    let mut esker = Esker::start(agent.address(), &args);
    esker.says("waiting for an agent").await;
    esker.says("restarting").await;
    agent.fetch_well();
    assert_eq!(esker.prints(1).await, "one\n");
    esker.signal(Signal::INT);
    let exit = esker.ended().await;
    exit.assert(
        0,
        &[
            "reading again",
            "stopped by SIGINT; 1 record printed; continue with --from-offsets 0:1",
        ],
    );
}

#[tokio::test]
async fn topic_created_again_ends_its_reader() {
    let agent = FakeAgent::start(1).await;
    produce(agent.address(), &[], &["old\n"]).await;
    let args = consume(&["--from", "beginning"]);
    let mut esker = Esker::start(agent.address(), &args);
    assert_eq!(esker.prints(1).await, "old\n");
    agent.recreate();
    agent.cut();
    let exit = esker.ended().await;
    exit.assert(3, &["topic was deleted and created again", "start over"]);
    assert!(!exit.stderr.contains("--from-offsets"), "{exit:?}");
}

#[tokio::test]
async fn end_beyond_a_partition_is_its_end_and_the_partition_is_named() {
    let agent = FakeAgent::start(2).await;
    produce(agent.address(), &["--partition", "0"], &["a\nb\nc\nd\n"]).await;
    produce(agent.address(), &["--partition", "1"], &["x\n"]).await;
    for command in ["consume", "replay"] {
        let args = ["--from", "0", "--until", "3", "--output", "-"];
        let args = [&[command, "t"], &args[..]].concat();
        let exit = Esker::run(agent.address(), &args, b"").await;
        exit.assert(0, &["partition 1 ends at offset 1, below 3"]);
        assert!(!exit.stderr.contains("partition 0"), "{exit:?}");
        let mut lines: Vec<_> = exit.text().lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["a", "b", "c", "x"], "{command}");
    }
}

#[tokio::test]
async fn removed_records_are_skipped_only_if_asked_for_and_named() {
    let agent = FakeAgent::start(1).await;
    produce(agent.address(), &[], &["a\n", "b\n", "c\n"]).await;
    agent.trim(0, 2);
    let from = ["--from", "1", "--until", "end"];
    let exit = Esker::run(agent.address(), &consume(&from), b"").await;
    exit.assert(1, &["--skip-removed continues"]);
    assert_eq!(exit.text(), "");
    let args = consume(&[&from[..], &["--skip-removed"]].concat());
    let exit = Esker::run(agent.address(), &args, b"").await;
    exit.assert(
        0,
        &["skipped, partition 0 offsets 1..2: the records were removed"],
    );
    assert_eq!(exit.text(), "c\n");
}

#[tokio::test]
async fn damaged_records_are_skipped_only_if_asked_for_and_named() {
    let agent = FakeAgent::start(1).await;
    produce(agent.address(), &[], &["a\n", "b\n", "c\n"]).await;
    agent.damage(0, 1);
    let exit = read(&agent, &[]).await;
    exit.assert(
        5,
        &[
            "offsets=`1..2`; --skip-damaged continues",
            "1 record printed; continue with --from-offsets 0:1",
        ],
    );
    assert_eq!(exit.text(), "a\n");
    let exit = read(&agent, &["--skip-damaged"]).await;
    exit.assert(0, &["skipped, topic t partition 0", "offsets=`1..2`"]);
    assert_eq!(exit.text(), "a\nc\n");
}

#[tokio::test]
async fn end_that_is_not_reached_is_no_success() {
    let agent = FakeAgent::start(1).await;
    produce(agent.address(), &[], &["one\n"]).await;
    let args = consume(&["--from", "beginning", "--max", "2"]);
    let mut esker = Esker::start(agent.address(), &args);
    assert_eq!(esker.prints(1).await, "one\n");
    esker.signal(Signal::TERM);
    let exit = esker.ended().await;
    exit.assert(143, &["stopped by SIGTERM; 1 record printed"]);
}

#[tokio::test]
async fn closed_pipe_ends_the_command_quietly() {
    let agent = FakeAgent::start(1).await;
    produce(agent.address(), &[], &["one\n"]).await;
    for args in [
        &["topic", "describe", "t"][..],
        &["topic", "describe", "t", "--json"],
        &["consume", "t", "--from", "beginning", "--json"],
        &["replay", "t", "--output", "-"],
    ] {
        let exit = Esker::start_unread(agent.address(), args).ended().await;
        assert_eq!(exit.code, Some(141), "{args:?} {exit:?}");
        assert_eq!(exit.stderr, "", "{args:?}");
    }
}

#[tokio::test]
async fn log_that_ends_below_a_saved_position_is_refused_not_empty() {
    let agent = FakeAgent::start(2).await;
    produce(agent.address(), &["--partition", "0"], &["a\nb\n"]).await;
    for command in ["consume", "replay"] {
        let args = [command, "t", "--from-offsets", "0:5", "--until", "end"];
        let exit = Esker::run(agent.address(), &args, b"").await;
        exit.assert(5, &["partition 0 ends at offset 2, below 5", "start over"]);
    }
    let exit = Esker::run(
        agent.address(),
        &consume(&["--from", "1", "--until", "end"]),
        b"",
    )
    .await;
    exit.assert(
        0,
        &["partition 1 ends at offset 0, below 1; not reading it"],
    );
    assert_eq!(exit.text(), "b\n");
}

#[tokio::test]
async fn partition_that_is_offline_ends_the_command_and_is_named() {
    let agent = FakeAgent::start(2).await;
    produce(agent.address(), &["--partition", "1"], &["x\n"]).await;
    let reason = v1::ErrorDetail {
        is_retryable: false,
        ..detail(ErrorKind::Storage, "partition is offline")
    };
    agent.set_offline(0, Some(reason));
    for command in ["consume", "replay"] {
        let args = ["--from", "beginning", "--until", "end", "--output", "-"];
        let args = [&[command, "t"], &args[..]].concat();
        let exit = Esker::run(agent.address(), &args, b"").await;
        exit.assert(1, &["topic t partition 0: partition is offline"]);
        let args = [&args[..], &["--partition", "1"]].concat();
        let exit = Esker::run(agent.address(), &args, b"").await;
        exit.assert(0, &[]);
        assert_eq!(exit.text(), "x\n", "{command}");
    }
}

#[tokio::test]
async fn records_that_a_full_disk_refused_do_not_count_as_printed() {
    let agent = FakeAgent::start(1).await;
    produce(agent.address(), &[], &["one\n", "two\n"]).await;
    let exit = read(&agent, &["--output", "/dev/full"]).await;
    exit.assert(
        1,
        &[
            "0 records printed; continue with --from-offsets 0:0",
            "cannot write the output: No space left",
        ],
    );
}
