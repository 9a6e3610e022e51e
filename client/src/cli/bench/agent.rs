//! The agent under test: a child process on a directory of its own, or one that runs already.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::Context;
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::{Child, Command},
};

use super::s3;
use crate::{Client, cli::Common};

/// How long a child may take to serve.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Ticks of the kernel's process clock each second, on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// An agent to measure.
pub(super) struct BenchAgent {
    address: String,
    http: Option<String>,
    child: Option<Child>,
    /// The child's bucket and tail.
    home: Option<TempDir>,
}

impl BenchAgent {
    /// Starts an agent, or takes the one that `--bootstrap` names. `store` is the child's bucket, by
    /// default a directory.
    pub(super) async fn start(
        common: &Common,
        store: Option<&str>,
        settings: &[&str],
    ) -> anyhow::Result<Self> {
        if let Some(address) = &common.bootstrap {
            let address = address.clone();
            return Ok(Self {
                address,
                http: None,
                child: None,
                home: None,
            });
        }
        let home = tempfile::Builder::new().prefix("esker-bench-").tempdir()?;
        let bucket = home.path().join("bucket");
        std::fs::create_dir(&bucket)?;
        let url = store.map_or_else(|| format!("file://{}", bucket.display()), str::to_owned);
        let mut child = Command::new(sibling("esker-agent")?)
            .args(["run", "--log-format", "json", "--listen", "127.0.0.1:0"])
            .args([
                "--http-listen",
                "127.0.0.1:0",
                "--disk-reserve",
                "0%",
                "--store",
                &url,
            ])
            .arg("--data-dir")
            .arg(home.path().join("agent"))
            .args(settings)
            .env("AWS_ACCESS_KEY_ID", s3::ACCESS_KEY_ID)
            .env("AWS_SECRET_ACCESS_KEY", s3::SECRET_ACCESS_KEY)
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("esker-agent cannot be started")?;
        let (address, http) = tokio::time::timeout(START_TIMEOUT, serving(&mut child))
            .await
            .context("esker-agent does not serve after a minute")??;
        Ok(Self {
            address,
            http: Some(http),
            child: Some(child),
            home: Some(home),
        })
    }

    /// Connects.
    pub(super) async fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(&self.address).await?)
    }

    /// Where it listens.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// The directory the child lives in; the current one for an agent that runs already.
    pub(super) fn home(&self) -> PathBuf {
        self.home
            .as_ref()
            .map_or_else(|| PathBuf::from("."), |home| home.path().to_owned())
    }

    /// The child's bucket, if it is a directory.
    pub(super) fn bucket_url(&self) -> Option<String> {
        let home = self.home.as_ref()?;
        Some(format!("file://{}", home.path().join("bucket").display()))
    }

    /// Processor seconds used so far, of a child.
    pub(super) fn cpu_seconds(&self) -> Option<f64> {
        let stat = self.proc_file("stat")?;
        // The name in parentheses may hold blanks; what counts comes after it.
        let fields: Vec<_> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let ticks: f64 =
            fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
        Some(ticks / TICKS_PER_SECOND)
    }

    /// Bytes resident at most so far, and now, of a child.
    pub(super) fn memory_bytes(&self) -> Option<(u64, u64)> {
        let status = self.proc_file("status")?;
        let read = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace()
                .nth(1)?
                .parse::<u64>()
                .ok()
                .map(|kib| kib << 10)
        };
        Some((read("VmHWM:")?, read("VmRSS:")?))
    }

    fn proc_file(&self, name: &str) -> Option<String> {
        let pid = self.child.as_ref()?.id()?;
        std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join(name)).ok()
    }

    /// Requests to the bucket so far, of a child.
    pub(super) async fn bucket_requests(&self) -> anyhow::Result<Option<u64>> {
        let Some(http) = &self.http else {
            return Ok(None);
        };
        let mut socket = TcpStream::connect(http).await?;
        let request = format!("GET /metrics HTTP/1.0\r\nHost: {http}\r\n\r\n");
        socket.write_all(request.as_bytes()).await?;
        let mut page = String::new();
        socket.read_to_string(&mut page).await?;
        let lines = page
            .lines()
            .filter(|line| line.starts_with("esker_tiering_store_requests_total{"));
        let counts = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count"
        )]
        Ok(Some(counts.sum::<f64>() as u64))
    }

    /// Ends a child, at once: what it holds goes with its directory.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        if let Some(child) = &mut self.child {
            child.kill().await?;
        }
        Ok(())
    }
}

/// Waits for the line that says where the child serves, then lets the rest of its log go by.
async fn serving(child: &mut Child) -> anyhow::Result<(String, String)> {
    let log = child
        .stderr
        .take()
        .context("the child's log is not at hand")?;
    let mut lines = BufReader::new(log).lines();
    let mut seen = String::new();
    while let Some(line) = lines.next_line().await? {
        let event: Value = serde_json::from_str(&line).unwrap_or_default();
        if let (Some(grpc), Some(http)) = (
            event["grpc_address"].as_str(),
            event["http_address"].as_str(),
        ) {
            let addresses = (grpc.to_owned(), http.to_owned());
            crate::env::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return Ok(addresses);
        }
        seen.push_str(&line);
        seen.push('\n');
    }
    anyhow::bail!("esker-agent ended before it served:\n{seen}")
}

/// Finds a program that is built beside this one.
pub(super) fn sibling(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let beside = own.with_file_name(name);
    if beside.is_file() {
        return Ok(beside);
    }
    anyhow::bail!(
        "{} is not there; build it with: cargo build --release --workspace --bins",
        beside.display()
    )
}
