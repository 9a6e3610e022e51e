//! The `esker` command as a process.

mod bucket;
mod consume;
mod exit;
mod produce;
mod replay;

use std::{process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    time::Instant,
};

/// What is waited for happens within this time, or the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running command. Killed when dropped.
struct Esker {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: BufReader<ChildStderr>,
    said: String,
}

/// How a command ended.
#[derive(Debug)]
struct Exit {
    code: Option<i32>,
    stdout: Vec<u8>,
    stderr: String,
}

impl Esker {
    /// Starts the command against an agent.
    fn start(address: &str, args: &[&str]) -> Self {
        // A test run in the background of a shell would hand on that it ignores SIGINT.
        let before = ["--default-signal=INT,TERM,HUP", env!("CARGO_BIN_EXE_esker")];
        Self::start_under("env", &before, address, args)
    }

    /// Starts the command with a standard output whose reader has closed it.
    fn start_unread(address: &str, args: &[&str]) -> Self {
        let (reader, stdout) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_esker"));
        command.args(args).stdout(stdout);
        Self::spawn(command, address)
    }

    fn start_under(program: &str, before: &[&str], address: &str, args: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(before).args(args).stdout(Stdio::piped());
        Self::spawn(command, address)
    }

    fn spawn(mut command: Command, address: &str) -> Self {
        command.env("ESKER_BOOTSTRAP", address).kill_on_drop(true);
        command.stdin(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        Self {
            stdin: child.stdin.take(),
            stdout: child.stdout.take(),
            stderr: BufReader::new(child.stderr.take().unwrap()),
            said: String::new(),
            child,
        }
    }

    /// Runs the command with this input.
    async fn run(address: &str, args: &[&str], input: &[u8]) -> Exit {
        let mut esker = Self::start(address, args);
        // It may end before it has read everything.
        _ = esker.stdin.as_mut().unwrap().write_all(input).await;
        esker.stdin = None;
        esker.ended().await
    }

    /// Writes to its standard input, and waits until it has read that.
    async fn feed(&mut self, input: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(input.as_bytes()).await.unwrap();
        stdin.flush().await.unwrap();
        until("the input is read", || {
            rustix::io::ioctl_fionread(&*stdin).unwrap() == 0
        })
        .await;
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// Waits until it says this on standard error.
    async fn says(&mut self, text: &str) {
        while !self.said.contains(text) {
            let line = self.stderr.read_line(&mut self.said);
            let read = tokio::time::timeout(PATIENCE, line).await;
            let read = read.unwrap_or_else(|_| panic!("it never says {text}: {}", self.said));
            assert!(read.unwrap() > 0, "it ended without {text}: {}", self.said);
        }
    }

    /// Waits until it has printed so many lines, and returns them.
    async fn prints(&mut self, lines: usize) -> String {
        let mut out = BufReader::new(self.stdout.as_mut().unwrap());
        let mut printed = String::new();
        for _ in 0..lines {
            let line = tokio::time::timeout(PATIENCE, out.read_line(&mut printed)).await;
            let line = line.unwrap_or_else(|_| panic!("it prints nothing: {}", self.said));
            assert!(line.unwrap() > 0, "it ended after {printed}");
        }
        assert!(out.buffer().is_empty(), "more than {printed}");
        printed
    }

    /// Waits until it has ended.
    async fn ended(mut self) -> Exit {
        let mut stdout = Vec::new();
        let ended = async {
            let (out, err, status) = tokio::join!(
                async {
                    match &mut self.stdout {
                        Some(out) => out.read_to_end(&mut stdout).await,
                        None => Ok(0),
                    }
                },
                self.stderr.read_to_string(&mut self.said),
                self.child.wait(),
            );
            (out.unwrap(), err.unwrap(), status.unwrap()).2
        };
        let status = tokio::time::timeout(PATIENCE, ended).await;
        let status = status.unwrap_or_else(|_| panic!("it does not end"));
        Exit {
            code: status.code(),
            stdout,
            stderr: self.said,
        }
    }
}

impl Exit {
    /// What it printed.
    fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }

    /// Checks the exit code, and that all of this was said on standard error.
    #[track_caller]
    fn assert(&self, code: i32, said: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for text in said {
            assert!(self.stderr.contains(text), "{text} is missing: {self:?}");
        }
    }
}

/// Produces lines, each of these a run of its own.
async fn produce(address: &str, args: &[&str], runs: &[&str]) {
    for run in runs {
        let args = [&["produce", "t"], args].concat();
        let exit = Esker::run(address, &args, run.as_bytes()).await;
        exit.assert(0, &["acknowledged"]);
    }
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
