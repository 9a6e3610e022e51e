//! The process as a service manager and a container see it: notifications, the watchdog, the steps of
//! a drain, `esker-agent health`.
#![allow(
    clippy::unwrap_used,
    reason = "clippy knows only functions marked as tests to be some"
)]

use std::{
    io::Read,
    net::TcpListener,
    os::unix::net::UnixDatagram,
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_esker-agent");
/// Whatever is waited for comes within this time, or the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// An agent on a directory, and the socket on which it tells how it is.
struct Service {
    home: TempDir,
    http: String,
    told: UnixDatagram,
}

/// The agent's process, which a test that fails must not leave behind.
struct Agent(Child);

impl Agent {
    fn terminate(&self) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
    }

    /// Waits for its end; returns its exit code and what it said.
    fn ended(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        let mut stderr = self.0.stderr.take().unwrap();
        stderr.read_to_string(&mut said).unwrap();
        (self.0.wait().unwrap().code(), said)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Service {
    fn new() -> Self {
        let home = TempDir::new().unwrap();
        std::fs::create_dir(home.path().join("bucket")).unwrap();
        let told = UnixDatagram::bind(home.path().join("notify")).unwrap();
        told.set_read_timeout(Some(PATIENCE)).unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let http = free.local_addr().unwrap().to_string();
        Self { home, http, told }
    }

    fn path(&self, name: &str) -> String {
        self.home.path().join(name).display().to_string()
    }

    fn start(&self) -> Agent {
        let child = Command::new(PROGRAM)
            .args(["run", "--listen=127.0.0.1:0"])
            .arg(format!("--http-listen={}", self.http))
            .arg(format!("--store=file://{}", self.path("bucket")))
            .arg(format!("--data-dir={}", self.path("agent")))
            .env_clear()
            .env("NOTIFY_SOCKET", self.path("notify"))
            .env("WATCHDOG_USEC", "400000")
            .stderr(Stdio::piped())
            .spawn();
        Agent(child.unwrap())
    }

    /// Reads what was told until a message has this beginning; returns its lines.
    fn until_told(&self, wanted: &str) -> String {
        let mut message = [0; 4096];
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < deadline, "never told: {wanted}");
            let len = self.told.recv(&mut message).unwrap();
            let text = String::from_utf8_lossy(&message[..len]);
            if let Some(line) = text.lines().find(|line| line.starts_with(wanted)) {
                return line.to_owned();
            }
        }
    }

    fn health(&self, arguments: &[&str]) -> Output {
        Command::new(PROGRAM)
            .arg("health")
            .args(arguments)
            .env_clear()
            .env("ESKER_HTTP_LISTEN", &self.http)
            .output()
            .unwrap()
    }
}

#[test]
fn a_service_manager_is_told_of_start_life_and_drain() {
    let service = Service::new();
    let agent = service.start();

    service.until_told("STATUS=starting");
    service.until_told("READY=1");
    service.until_told("STATUS=serving");
    service.until_told("WATCHDOG=1");
    service.until_told("WATCHDOG=1");
    agent.terminate();
    service.until_told("STOPPING=1");

    let (code, said) = agent.ended();
    assert_eq!(code, Some(0), "{said}");
    for step in [
        "seal the logs",
        "upload and commit what was sealed",
        "record the drain",
        "close streams and logs",
    ] {
        let line = said.lines().find(|line| line.contains(step));
        assert!(line.is_some_and(|line| line.contains("millis=")), "{said}");
    }
}

#[test]
fn health_tells_whether_the_agent_is_alive() {
    let service = Service::new();
    let before = service.health(&[]);
    assert_eq!(before.status.code(), Some(1), "{before:?}");
    assert!(String::from_utf8_lossy(&before.stderr).contains(&service.http));

    let _agent = service.start();
    service.until_told("READY=1");
    for arguments in [&[][..], &["--ready"]] {
        let answer = service.health(arguments);
        assert_eq!(answer.status.code(), Some(0), "{answer:?}");
        assert_eq!(answer.stdout, b"serving\n");
    }
}

/// The rows of `docs/exit-codes.md` that say `no` to a restart are the unit's.
#[test]
fn the_unit_starts_nothing_again_that_a_start_cannot_mend() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join("docs/exit-codes.md")).unwrap();
    let unit = root.join("agent/packaging/esker-agent.service");
    let unit = std::fs::read_to_string(unit).unwrap();

    let rows = page.lines().map(|line| line.split('|').map(str::trim));
    let final_codes = rows.filter_map(|mut row| {
        let code = row.nth(1)?.parse::<u8>().ok()?;
        (row.nth(1)? == "no").then_some(code.to_string())
    });
    let final_codes: Vec<_> = final_codes.collect();
    assert!(final_codes.len() > 3, "{final_codes:?}");
    let setting = format!("RestartPreventExitStatus={}", final_codes.join(" "));
    assert!(unit.lines().any(|line| line == setting), "{setting}");
}
