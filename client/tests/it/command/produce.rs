//! What was read from the input is delivered or named, whatever ends the command.

use esker_proto::v1::ErrorKind;
use rustix::process::Signal;

use super::{Esker, until};
use crate::fake_agent::{FakeAgent, ProduceFault, detail};

const PRODUCE: &[&str] = &["produce", "t"];

fn with<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [PRODUCE, args].concat()
}

fn refusal() -> ProduceFault {
    ProduceFault::Refuse(detail(ErrorKind::InvalidArgument, "no thanks"))
}

#[tokio::test]
async fn failed_delivery_ends_the_command_while_its_input_stays_open() {
    let agent = FakeAgent::start(1).await;
    agent.on_produce([refusal()]);
    let mut esker = Esker::start(agent.address(), PRODUCE);
    esker.feed("one\n").await;
    let stdin = esker.stdin.take();
    let exit = esker.ended().await;
    exit.assert(
        1,
        &[
            "line 1 not delivered: no thanks",
            "0 records are in the log",
            "not in the log: line 1",
            "continue with line 2",
        ],
    );
    drop(stdin);
}

#[tokio::test]
async fn kept_going_after_a_failed_delivery_each_line_is_named() {
    let agent = FakeAgent::start(1).await;
    agent.on_produce([refusal()]);
    let args = with(&["--keep-going", "--format", "json"]);
    let mut esker = Esker::start(agent.address(), &args);
    esker.feed("{\"value\":\"one\"}\n").await;
    esker.says("line 1 not delivered: no thanks").await;
    esker.feed("not json\n{\"value\":\"two\"}\n").await;
    esker
        .says("line 2 was not sent: not a record in JSON")
        .await;
    esker.stdin = None;
    let exit = esker.ended().await;
    exit.assert(
        1,
        &["some lines failed, named above; 1 record is in the log"],
    );
    assert_eq!(agent.values(0), ["two"]);
}

#[tokio::test]
async fn good_lines_before_a_bad_one_are_delivered() {
    let agent = FakeAgent::start(1).await;
    let input = b"{\"id\":1}\n{\"id\":2}\nnot json\n";
    let exit = Esker::run(agent.address(), &with(&["--key-field", "id"]), input).await;
    exit.assert(
        1,
        &[
            "line 3 was not sent: not JSON",
            "2 records are in the log",
            "continue with line 3",
        ],
    );
    assert_eq!(agent.values(0), ["{\"id\":1}", "{\"id\":2}"]);
}

#[tokio::test]
async fn bad_last_line_of_many_loses_none_before_it() {
    let agent = FakeAgent::start(4).await;
    let mut input: String = (1..100_000).map(|n| format!("{{\"id\":{n}}}\n")).collect();
    input.push_str("{\"id\":100000");
    let args = with(&["--key-field", "id", "--json"]);
    let exit = Esker::run(agent.address(), &args, input.as_bytes()).await;
    exit.assert(
        1,
        &["99,999 records are in the log; continue with line 100000"],
    );
    let report = String::from_utf8(exit.stdout).unwrap();
    assert!(report.contains("\"records\":99999,"), "{report}");
    assert!(report.contains("\"next_line\":100000,"), "{report}");
    let values = (0..4).map(|partition| agent.values(partition).len());
    assert_eq!(values.sum::<usize>(), 99_999);
}

#[tokio::test]
async fn signal_delivers_what_was_read() {
    for (signal, name, code) in [
        (Signal::INT, "SIGINT", 130),
        (Signal::TERM, "SIGTERM", 143),
        (Signal::HUP, "SIGHUP", 129),
    ] {
        let agent = FakeAgent::start(2).await;
        let mut esker = Esker::start(agent.address(), &with(&["--linger", "10s"]));
        esker.feed("1\n2\n3\n4\n5\nsi").await;
        esker.signal(signal);
        let exit = esker.ended().await;
        exit.assert(
            code,
            &[
                &format!("stopped by {name}; 5 records are in the log"),
                "line 6 was read in part and not sent; continue with line 6",
            ],
        );
        assert_eq!(agent.values(0).len() + agent.values(1).len(), 5);
    }
}

#[tokio::test]
async fn second_signal_ends_at_once_and_names_what_is_in_doubt() {
    let agent = FakeAgent::start(1).await;
    agent.on_produce([ProduceFault::Keep]);
    let mut esker = Esker::start(agent.address(), PRODUCE);
    esker.feed("1\n2\n3\n").await;
    until("the agent has it", || agent.kept() > 0).await;
    esker.signal(Signal::TERM);
    esker.says("SIGTERM: delivering what was read").await;
    esker.signal(Signal::INT);
    let exit = esker.ended().await;
    exit.assert(
        130,
        &[
            "ended at once by a second signal, SIGINT",
            "may or may not be in the log: lines 1 to 3",
            "continue with line 4",
        ],
    );
}

#[tokio::test]
async fn signal_while_the_agent_does_not_answer_names_what_is_in_doubt() {
    let agent = FakeAgent::start(1).await;
    agent.on_produce([ProduceFault::Keep]);
    let mut esker = Esker::start(agent.address(), PRODUCE);
    esker.feed("1\n2\n3\n").await;
    until("the agent has it", || agent.kept() > 0).await;
    esker.signal(Signal::TERM);
    let exit = esker.ended().await;
    exit.assert(
        4,
        &[
            "for 8s at most",
            "may or may not be in the log: lines 1 to 3",
            "continue with line 4",
        ],
    );
}

#[tokio::test]
async fn hangup_that_nohup_ignores_stays_ignored() {
    let agent = FakeAgent::start(1).await;
    let esker = env!("CARGO_BIN_EXE_esker");
    let mut esker = Esker::start_under("nohup", &[esker], agent.address(), PRODUCE);
    esker.feed("one\n").await;
    until("it is sent", || agent.values(0).len() == 1).await;
    esker.signal(Signal::HUP);
    esker.feed("two\n").await;
    esker.signal(Signal::TERM);
    let exit = esker.ended().await;
    exit.assert(143, &["stopped by SIGTERM; 2 records are in the log"]);
}

#[tokio::test]
async fn lines_without_the_key_field_are_counted_or_refused() {
    let agent = FakeAgent::start(1).await;
    let input = b"{\"user.id\":1}\n{\"user\":{\"id\":2}}\n{\"userid\":3}\n";
    let mut args = with(&["--key-field", "user.id"]);
    let exit = Esker::run(agent.address(), &args, input).await;
    exit.assert(
        0,
        &["1 of 3 lines have no field `user.id` and were sent without a key"],
    );
    args.push("--key-required");
    let exit = Esker::run(agent.address(), &args, input).await;
    exit.assert(1, &["line 3 was not sent: the key field is missing"]);
    assert_eq!(agent.values(0).len(), 3 + 2);
}

#[tokio::test]
async fn a_line_that_was_not_sent_is_not_one_without_a_key() {
    let agent = FakeAgent::start(1).await;
    let args = with(&["--key-field", "id", "--partition", "7"]);
    let exit = Esker::run(agent.address(), &args, b"{}\n").await;
    exit.assert(3, &["line 1 was not sent: there is no such partition"]);
    assert!(!exit.stderr.contains("without a key"), "{exit:?}");
}

#[tokio::test]
async fn a_line_that_is_not_json_is_named_by_its_own_number_alone() {
    let agent = FakeAgent::start(1).await;
    for args in [["--key-field", "id"], ["--format", "json"]] {
        let exit = Esker::run(agent.address(), &with(&args), b"{}\n{\"value\":7,}\n").await;
        exit.assert(1, &["line 2 was not sent: not ", " at column "]);
        assert!(!exit.stderr.contains("line 1"), "{exit:?}");
    }
}
