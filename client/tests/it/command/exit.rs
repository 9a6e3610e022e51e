//! Exit codes are what `docs/exit-codes.md` says.

use super::{Esker, produce};
use crate::fake_agent::FakeAgent;

#[tokio::test]
async fn exit_code_says_what_kind_of_end_it_was() {
    let agent = FakeAgent::start(1).await;
    produce(agent.address(), &[], &["a\n", "b\n"]).await;
    let replay = ["replay", "t"];
    let cases: [(&[&str], i32); 4] = [
        (&replay, 0),
        (&["replay", "t", "--output", "/missing/file"], 1),
        (&["replay", "--nonsense"], 2),
        (&["replay", "another"], 3),
    ];
    for (args, code) in cases {
        Esker::run(agent.address(), args, b"")
            .await
            .assert(code, &[]);
    }
    agent.damage(0, 1);
    let exit = Esker::run(agent.address(), &replay, b"").await;
    exit.assert(5, &["records cannot be read"]);
    agent.stop().await;
    let exit = Esker::run(agent.address(), &replay, b"").await;
    exit.assert(4, &["cannot reach the agent"]);
}
