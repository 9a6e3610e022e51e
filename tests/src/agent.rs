//! Agents under test: in this process, or as a process of their own that can be killed.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use esker_agent::{
    StartError,
    agent::{Agent, Surroundings},
    config::{self, Settings, Sources},
};
use esker_tiering::{
    env::{RandomIds, TaskSet},
    keys::Keys,
    scrub::{Depth, RebuildOptions, Scrubber, VerifyReport},
    store::{S3Credentials, Store, StoreOptions, StoreUrl},
};
use futures::TryStreamExt;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};

use crate::s3::{ACCESS_KEY, SECRET_KEY};

/// Whatever is waited for comes within this time, or the test fails.
const PATIENCE: Duration = Duration::from_secs(150);

/// How an agent under test is started: with small segments, on free ports.
#[derive(Clone, Debug)]
pub struct Plan {
    flags: BTreeMap<String, String>,
    around: Surroundings,
}

impl Plan {
    /// An agent on this store and this data directory.
    pub fn new(store: impl Into<String>, data_dir: &Path) -> Self {
        let around = Surroundings {
            store_options: store_options(),
            store_is_probed: true,
            ..Surroundings::default()
        };
        let plan = Self {
            flags: BTreeMap::new(),
            around,
        };
        plan.with("store", store)
            .on(data_dir)
            .with("listen", "127.0.0.1:0")
            .with("http-listen", "127.0.0.1:0")
            .with("disk-reserve", "0B")
            .with("segment-bytes", "256KiB")
            .with("batch-bytes-max", "64KiB")
            .with("retention", "forever")
            .with("cache-memory-bytes", "8MiB")
            .with("read-budget-bytes", "16MiB")
            .with("log-level", "info")
    }

    /// Sets one setting.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<String>) -> Self {
        self.flags.insert(key.to_owned(), value.into());
        self
    }

    /// Moves the agent to another data directory.
    #[must_use]
    pub fn on(self, data_dir: &Path) -> Self {
        self.with("data-dir", data_dir.display().to_string())
    }

    /// Has other surroundings.
    #[must_use]
    pub fn around(mut self, change: impl FnOnce(&mut Surroundings)) -> Self {
        change(&mut self.around);
        self
    }

    /// Returns the settings.
    ///
    /// # Errors
    ///
    /// If they contradict each other.
    pub fn settings(&self) -> Result<Settings, config::ConfigError> {
        config::load(&Sources {
            flags: self.flags.clone(),
            ..Sources::default()
        })
    }

    /// Starts the agent in this process.
    ///
    /// # Errors
    ///
    /// Those of [`Agent::start`].
    pub async fn start(&self) -> Result<Agent, StartError> {
        Agent::start(self.settings()?, self.around.clone()).await
    }

    /// Starts the agent as a process. It serves when this returns.
    ///
    /// # Errors
    ///
    /// If it ends before it serves; the text has its exit code and what it said.
    pub async fn spawn(&self, program: &str) -> anyhow::Result<AgentProcess> {
        let mut command = Command::new(program);
        command.arg("run").env_clear();
        command.env("AWS_ACCESS_KEY_ID", ACCESS_KEY);
        command.env("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
        for (key, value) in &self.flags {
            command.arg(format!("--{key}={value}"));
        }
        command.arg("--log-format=json");
        AgentProcess::start(&mut command).await
    }
}

fn store_options() -> StoreOptions {
    StoreOptions {
        s3_credentials: Some(S3Credentials {
            access_key_id: ACCESS_KEY.to_owned(),
            secret_access_key: SECRET_KEY.to_owned(),
            session_token: None,
        }),
        ..StoreOptions::default()
    }
}

/// Opens a store as an agent would.
///
/// # Errors
///
/// If the URL is none, or the store cannot be opened.
pub async fn open_store(url: &str) -> anyhow::Result<Store> {
    let url: StoreUrl = url.parse()?;
    let registry = esker_tiering::MetricsRegistry::new();
    Ok(Store::open(&url, store_options(), &registry).await?)
}

/// Compares every byte in a bucket with its manifests.
///
/// # Errors
///
/// Those of the store.
pub async fn verify(url: &str) -> anyhow::Result<VerifyReport> {
    let scrubber = Scrubber::new(open_store(url).await?, TaskSet::new());
    Ok(scrubber.verify(None, Depth::Bytes).await?)
}

/// Repairs every damaged partition of a bucket, as `esker bucket repair --apply` does.
///
/// # Errors
///
/// Those of the store, and a repair that was refused.
pub async fn repair(url: &str) -> anyhow::Result<()> {
    let scrubber = Scrubber::new(open_store(url).await?, TaskSet::new());
    let report = scrubber.verify(None, Depth::Sizes).await?;
    let anomalies = report.anomalies.iter();
    let mut damaged: Vec<_> = anomalies.map(|anomaly| anomaly.topic_partition).collect();
    damaged.dedup();
    for partition in damaged {
        let report = scrubber
            .rebuild_index(partition, &RandomIds, RebuildOptions::default())
            .await?;
        anyhow::ensure!(report.refusal.is_none(), "{:?}", report.refusal);
    }
    Ok(())
}

/// Repairs every partition of a bucket, whatever is lost by it, as `--force` does.
///
/// # Errors
///
/// Those of the store, and a repair that was refused all the same.
pub async fn give_up(url: &str) -> anyhow::Result<()> {
    let store = open_store(url).await?;
    let objects: Vec<_> = store.list(Keys::TOPICS, None).try_collect().await?;
    let partitions = objects
        .iter()
        .filter_map(|object| Keys::partition_of(&object.key));
    let partitions: BTreeSet<_> = partitions.collect();
    let scrubber = Scrubber::new(store, TaskSet::new());
    for partition in partitions {
        let options = RebuildOptions {
            force: true,
            ..RebuildOptions::default()
        };
        let report = scrubber
            .rebuild_index(partition, &RandomIds, options)
            .await?;
        anyhow::ensure!(report.refusal.is_none(), "{:?}", report.refusal);
    }
    Ok(())
}

/// How a process ended.
#[derive(Clone, Debug)]
pub struct Exit {
    /// The exit code; none after a signal.
    pub code: Option<i32>,
    /// What it wrote to standard error.
    pub said: Vec<String>,
}

/// An agent in a process of its own. Killed when dropped.
#[derive(Debug)]
pub struct AgentProcess {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
    /// Address of its gRPC service.
    pub grpc: SocketAddr,
    /// Address of its HTTP side.
    pub http: SocketAddr,
}

impl AgentProcess {
    async fn start(command: &mut Command) -> anyhow::Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("the agent's process cannot be started")?;
        let said = Arc::new(Mutex::new(Vec::new()));
        let stderr = child.stderr.take().context("standard error is piped")?;
        let lines = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                lines.lock().push(line);
            }
        });
        let unknown = SocketAddr::from(([0; 4], 0));
        let mut process = Self {
            child,
            said,
            grpc: unknown,
            http: unknown,
        };
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some((grpc, http)) = process.addresses() {
                (process.grpc, process.http) = (grpc, http);
                return Ok(process);
            }
            if process.child.try_wait()?.is_some() {
                let exit = process.ended().await?;
                anyhow::bail!("exit code {:?}: {}", exit.code, exit.said.join("\n"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        anyhow::bail!("agent does not serve: {}", process.said.lock().join("\n"))
    }

    fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        let said = self.said.lock();
        let line = said.iter().find(|line| line.contains("agent is serving"))?;
        let field = |name: &str| {
            let (_, rest) = line.split_once(&format!("\"{name}\":\""))?;
            rest.split_once('"')?.0.parse().ok()
        };
        Some((field("grpc_address")?, field("http_address")?))
    }

    /// Returns the bytes of memory it holds now, and the most it ever held.
    ///
    /// # Errors
    ///
    /// If it is gone.
    pub fn memory(&self) -> anyhow::Result<(u64, u64)> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let bytes = |name: &str| {
            let mut lines = status.lines();
            let text = lines.find_map(|line| line.strip_prefix(name));
            let text = text.with_context(|| format!("no {name} in the status of a process"))?;
            let kib: u64 = text.trim().trim_end_matches(" kB").parse()?;
            anyhow::Ok(kib << 10)
        };
        Ok((bytes("VmRSS:")?, bytes("VmHWM:")?))
    }

    /// Kills it as `kill -9` does, and waits until it is gone.
    ///
    /// # Errors
    ///
    /// If it cannot be killed.
    pub fn kill(mut self) -> std::io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Sends SIGTERM.
    ///
    /// # Errors
    ///
    /// If it is gone.
    pub fn terminate(&self) -> anyhow::Result<()> {
        let pid = i32::try_from(self.child.id())?;
        let pid = Pid::from_raw(pid).context("a process has a number")?;
        Ok(kill_process(pid, Signal::TERM)?)
    }

    /// Waits until it has ended by itself.
    ///
    /// # Errors
    ///
    /// If it does not end.
    pub async fn ended(mut self) -> anyhow::Result<Exit> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                // The reader of its last lines ends with it.
                while Arc::strong_count(&self.said) > 1 && Instant::now() < deadline {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                let said = self.said.lock().clone();
                return Ok(Exit {
                    code: status.code(),
                    said,
                });
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        anyhow::bail!("agent does not end: {}", self.said.lock().join("\n"))
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Looks again and again until `is_so`, and fails the test if it never is.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Asks the HTTP side for a page; returns its status and text.
///
/// # Errors
///
/// If nobody answers.
pub async fn page(address: SocketAddr, path: &str) -> anyhow::Result<(u16, String)> {
    let mut socket = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no http answer")?;
    let code = head.split(' ').nth(1).context("no status")?.parse()?;
    Ok((code, body.to_owned()))
}

/// Returns where a path lies, for stores that are directories.
pub fn directory_url(path: &Path) -> String {
    let path = PathBuf::from(path).join("bucket");
    // An empty directory is a bucket.
    drop(std::fs::create_dir_all(&path));
    format!("file://{}", path.display())
}
