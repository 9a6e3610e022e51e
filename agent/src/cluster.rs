//! The bucket's identity, and whether the bucket can be trusted.

use std::time::Duration;

use esker_proto::types::{ClusterId, TimestampMs};
use esker_tiering::{
    Error,
    chain::{Put, RetryPolicy, put_definite},
    env::{Clock, IdGenerator},
    keys::Key,
    probe::check_store,
    store::Store,
};
use serde::{Deserialize, Serialize};

use crate::start_error::StartError;

const FORMAT_VERSION: u32 = 1;
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// `cluster.json`: created once, never changed.
#[derive(Debug, Serialize, Deserialize)]
struct ClusterFile {
    format_version: u32,
    cluster_id: ClusterId,
    created: TimestampMs,
}

/// Probes the store.
///
/// # Errors
///
/// If it cannot be reached, or loses in the probe.
pub(crate) async fn probe(store: &Store, ids: &dyn IdGenerator) -> Result<(), StartError> {
    let report = check_store(store, ids, PROBE_TIMEOUT).await;
    if report.is_fit() {
        Ok(())
    } else {
        Err(StartError::Unfit(report))
    }
}

/// Returns the cluster that owns the bucket's prefix, founding one if there is none.
///
/// # Errors
///
/// If the store does not answer, or `cluster.json` is not ours to read.
pub(crate) async fn identify(
    store: &Store,
    ids: &dyn IdGenerator,
    clock: &dyn Clock,
) -> Result<ClusterId, StartError> {
    let key = Key::Cluster.to_string();
    match store.get(&key).await {
        Ok(bytes) => return parse(&key, &bytes),
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error.into()),
    }
    let founded = ClusterFile {
        format_version: FORMAT_VERSION,
        cluster_id: ClusterId::new(ids.uuid()),
        created: clock.now(),
    };
    let body = serde_json::to_vec_pretty(&founded).expect("an identity has only plain fields");
    match put_definite(store, &key, body.into(), nonce_of, RetryPolicy::default()).await {
        Put::Won => {
            tracing::info!(cluster_id = %founded.cluster_id, store = store.name(), "cluster founded");
            Ok(founded.cluster_id)
        }
        Put::Lost(theirs) => parse(&key, &theirs),
        Put::Refused(error) | Put::Unknown(error) => Err(error.into()),
    }
}

fn parse(key: &str, bytes: &[u8]) -> Result<ClusterId, StartError> {
    let corrupt = |reason: String| StartError::Store(Error::corrupt(key, reason));
    let file: ClusterFile =
        serde_json::from_slice(bytes).map_err(|error| corrupt(error.to_string()))?;
    match file.format_version {
        FORMAT_VERSION => Ok(file.cluster_id),
        other => Err(corrupt(format!(
            "format version {other} is not known; run a newer esker-agent"
        ))),
    }
}

/// The cluster's id is drawn by whoever founds it: it tells whose body stands there.
fn nonce_of(bytes: &[u8]) -> Option<u128> {
    let file: ClusterFile = serde_json::from_slice(bytes).ok()?;
    Some(file.cluster_id.get().as_u128())
}
