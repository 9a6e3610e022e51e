//! The settings as values. What each means is said once, in [`KEYS`](super::KEYS).

use std::{net::SocketAddr, path::PathBuf, str::FromStr};

use esker_proto::types::AgentId;
use esker_tiering::store::StoreUrl;

use super::value::{ByteCount, DiskReserve, Millis};
use crate::{log::FlushPolicy, partition::TimestampKind};

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("`{text}` is neither text nor json")),
        }
    }
}

/// Everything an agent can be told.
#[derive(Clone, Debug)]
pub struct Settings {
    pub store: Option<StoreUrl>,
    pub data_dir: PathBuf,
    pub listen: SocketAddr,
    pub advertise: Option<String>,
    pub http_listen: SocketAddr,
    pub zone: String,
    pub take_over: Vec<AgentId>,
    pub flush: FlushPolicy,
    pub partitions: u32,
    pub retention: Option<Millis>,
    pub retention_bytes: Option<ByteCount>,
    pub local_retention_bytes: ByteCount,
    pub segment_bytes: ByteCount,
    pub segment_age: Millis,
    pub batch_bytes_max: ByteCount,
    pub timestamps: TimestampKind,
    pub timestamp_before_max: Option<Millis>,
    pub timestamp_after_max: Option<Millis>,
    pub check_compressed: bool,
    pub produce_buffer_bytes: ByteCount,
    pub cache_memory_bytes: ByteCount,
    pub cache_disk_bytes: ByteCount,
    pub read_budget_bytes: ByteCount,
    pub connections_max: u32,
    pub unuploaded_bytes_max: ByteCount,
    pub disk_reserve: DiskReserve,
    pub upload_memory_bytes: ByteCount,
    pub store_requests_max: u32,
    pub store_stall_timeout: Millis,
    pub retention_interval: Millis,
    pub metadata_poll: Millis,
    pub drain_timeout: Millis,
    pub log_format: LogFormat,
    pub log_level: String,
}

impl Settings {
    /// Returns the address that clients are told to use, given the one that was bound.
    pub fn advertised_address(&self, bound: SocketAddr) -> String {
        self.advertise.clone().unwrap_or_else(|| bound.to_string())
    }

    /// Checks the sizes of a topic against each other and against what the agent has.
    pub(crate) fn faults_of_sizes(&self, segment_bytes: u64, batch_bytes_max: u64) -> Vec<String> {
        let mut faults = Vec::new();
        if batch_bytes_max > segment_bytes {
            faults.push("batch-bytes-max is larger than segment-bytes".to_owned());
        }
        if batch_bytes_max > self.produce_buffer_bytes.get() {
            faults.push("batch-bytes-max is larger than produce-buffer-bytes".to_owned());
        }
        if segment_bytes > self.unuploaded_bytes_max.get() / 2 {
            faults.push("segment-bytes is more than half of unuploaded-bytes-max".to_owned());
        }
        faults
    }

    /// Checks what no single key can see; returns every fault.
    pub(super) fn faults(&self) -> Vec<String> {
        let mut faults = self.faults_of_sizes(self.segment_bytes.get(), self.batch_bytes_max.get());
        if self.listen == self.http_listen && self.listen.port() != 0 {
            faults.push("listen and http-listen are the same address".to_owned());
        }
        faults
    }
}
