//! The bucket's identity, and whether the bucket can be trusted.

use std::time::Duration;

use esker_proto::types::{ClusterId, TimestampMs};
use esker_tiering::{
    Error,
    chain::{Put, RetryPolicy, put_definite},
    env::{Clock, IdGenerator},
    keys::{Key, Keys},
    probe::check_store,
    store::Store,
};
use futures::TryStreamExt;
use serde::{Deserialize, Serialize};

use crate::start_error::StartError;

const FORMAT_VERSION: u32 = 1;
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the store is probed when replies get lost.
const PROBES_MAX: u32 = 3;
/// How often `cluster.json` is read before it counts as damaged.
const READS_MAX: u32 = 4;

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
    for tries in 1.. {
        let report = check_store(store, ids, PROBE_TIMEOUT).await;
        match report.is_fit() {
            true => return Ok(()),
            // What the store is does not change; what failed on the way may pass.
            false if report.is_unfit() || report.fault.is_some() || tries >= PROBES_MAX => {
                return Err(StartError::Unfit(report));
            }
            false => tracing::info!(tries, "the probe of the store failed, trying again"),
        }
    }
    unreachable!("the last try returns")
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
    if let Some(cluster_id) = read(store, &key).await? {
        return Ok(cluster_id);
    }
    refuse_topics(store, &key).await?;
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

/// Reads the cluster's identity; bytes that were damaged on their way are read again.
async fn read(store: &Store, key: &str) -> Result<Option<ClusterId>, StartError> {
    let mut reads = 0;
    loop {
        let bytes = match store.get(key).await {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        reads += 1;
        match parse(key, &bytes) {
            Ok(cluster_id) => return Ok(Some(cluster_id)),
            Err(error) if reads >= READS_MAX => return Err(error),
            Err(_) => {}
        }
    }
}

/// Where topics are, there was a cluster: to found another one would seal its loss.
async fn refuse_topics(store: &Store, key: &str) -> Result<(), StartError> {
    match store.list(Keys::TOPICS, None).try_next().await? {
        None => Ok(()),
        Some(object) => Err(StartError::Store(Error::corrupt(
            key,
            format!(
                "it is missing, but the bucket has topics, such as `{}`; restore it from a copy of \
                 the bucket, or name another prefix",
                object.key
            ),
        ))),
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
