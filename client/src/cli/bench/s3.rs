//! Where a bench has its bucket: a directory, or an S3 server in memory, `esker-test-s3`, as a child
//! process.

use std::process::Stdio;

use anyhow::Context;
use clap::ValueEnum;
use esker_tiering::store::{S3Credentials, StoreOptions};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use super::agent::sibling;

/// Where the bucket of a bench is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Bucket {
    /// A directory on the disk of the agent
    Directory,
    /// An S3 server in memory, on the same cores
    S3,
}

impl Bucket {
    /// Starts the server, if it takes one.
    pub(super) async fn start(self) -> anyhow::Result<Option<MemoryS3>> {
        Ok(match self {
            Self::Directory => None,
            Self::S3 => Some(MemoryS3::start().await?),
        })
    }
}

/// The keys it takes.
pub(super) const ACCESS_KEY_ID: &str = "test";
pub(super) const SECRET_ACCESS_KEY: &str = "test-secret";

/// How its bucket is opened; other stores ask for no keys of S3.
pub(super) fn options() -> StoreOptions {
    let keys = S3Credentials {
        access_key_id: ACCESS_KEY_ID.to_owned(),
        secret_access_key: SECRET_ACCESS_KEY.to_owned(),
        session_token: None,
    };
    StoreOptions {
        s3_credentials: Some(keys),
        ..StoreOptions::default()
    }
}

/// The server; it ends with this value.
pub(super) struct MemoryS3 {
    _child: Child,
    url: String,
}

impl MemoryS3 {
    /// Starts one with an empty bucket.
    pub(super) async fn start() -> anyhow::Result<Self> {
        let mut child = Command::new(sibling("esker-test-s3")?)
            .args(["--listen", "127.0.0.1:0", "--bucket", "bench"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("esker-test-s3 cannot be started")?;
        let output = child.stdout.take().context("its output is not at hand")?;
        let line = BufReader::new(output)
            .lines()
            .next_line()
            .await?
            .unwrap_or_default();
        let endpoint = line
            .strip_prefix("listening on ")
            .context("it does not say where it listens")?;
        let url = format!("s3://bench/esker?endpoint={endpoint}&region=us-east-1");
        Ok(Self { _child: child, url })
    }

    /// The URL of its bucket.
    pub(super) fn url(&self) -> &str {
        &self.url
    }
}
