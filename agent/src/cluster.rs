//! The bucket's identity, and whether the bucket can be trusted.

use std::time::Duration;

use esker_proto::{
    batch::crc32c,
    types::{ClusterId, TimestampMs},
};
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

/// The first version had no checksum.
const UNCHECKED_VERSION: u32 = 1;
const FORMAT_VERSION: u32 = 2;
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the store is probed when replies get lost.
const PROBES_MAX: u32 = 3;
const PROBE_PAUSE: Duration = Duration::from_secs(1);
/// How often `cluster.json` is read before it counts as damaged.
const READS_MAX: u32 = 4;

/// `cluster.json`: created once, never changed. The checksum is there because an id with a flipped bit would
/// name another cluster, to which nothing in the bucket belongs.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterFile {
    format_version: u32,
    cluster_id: ClusterId,
    created: TimestampMs,
    /// CRC-32C of the other fields, see [`Self::checksum`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crc32c: Option<u32>,
}

impl ClusterFile {
    fn new(cluster_id: ClusterId, created: TimestampMs) -> Self {
        let unchecked = Self {
            format_version: FORMAT_VERSION,
            cluster_id,
            created,
            crc32c: None,
        };
        Self {
            crc32c: Some(unchecked.checksum()),
            ..unchecked
        }
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let file: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        match (file.format_version, file.crc32c) {
            (UNCHECKED_VERSION, None) => Ok(file),
            (FORMAT_VERSION, Some(crc)) if crc == file.checksum() => Ok(file),
            (UNCHECKED_VERSION | FORMAT_VERSION, _) => Err("its checksum does not match".into()),
            (other, _) => Err(format!(
                "format version {other} is not known; run a newer esker-agent"
            )),
        }
    }

    fn checksum(&self) -> u32 {
        let Self {
            format_version,
            cluster_id,
            created,
            crc32c: _,
        } = self;
        crc32c(format!("{format_version} {cluster_id} {}", created.get()).as_bytes())
    }
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
            false if !report.may_pass() || tries >= PROBES_MAX => {
                return Err(StartError::Unfit(report));
            }
            false => {
                let fault = report.first_fault().unwrap_or_default();
                tracing::info!(tries, fault, "the probe of the store failed, trying again");
                tokio::time::sleep(PROBE_PAUSE).await;
            }
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
    let founded = ClusterFile::new(ClusterId::new(ids.uuid()), clock.now());
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
    match ClusterFile::parse(bytes) {
        Ok(file) => Ok(file.cluster_id),
        Err(reason) => Err(StartError::Store(Error::corrupt(key, reason))),
    }
}

/// The cluster's id is drawn by whoever founds it: it tells whose body stands there.
fn nonce_of(bytes: &[u8]) -> Option<u128> {
    let file = ClusterFile::parse(bytes).ok()?;
    Some(file.cluster_id.get().as_u128())
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn founded() -> ClusterFile {
        ClusterFile::new(
            ClusterId::new(Uuid::from_u128(0x1234_5678)),
            TimestampMs::new(1_700_000_000_000),
        )
    }

    #[test]
    fn no_flipped_bit_names_another_cluster() {
        let whole = serde_json::to_vec_pretty(&founded()).unwrap();

        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok(file) = ClusterFile::parse(&flipped) {
                // The case of a hexadecimal digit, or white space.
                assert_eq!(file.cluster_id, founded().cluster_id, "bit {bit}");
            }
        }
        for length in 0..whole.len() {
            assert!(
                ClusterFile::parse(&whole[..length]).is_err(),
                "{length} bytes"
            );
        }
    }

    #[test]
    fn an_identity_without_a_checksum_is_read_in_the_first_version_only() {
        let unchecked = |version: u32| {
            let id = founded().cluster_id;
            format!(r#"{{"format_version":{version},"cluster_id":"{id}","created":1}}"#)
        };

        let first = ClusterFile::parse(unchecked(1).as_bytes()).unwrap();
        assert_eq!(first.cluster_id, founded().cluster_id);
        assert!(ClusterFile::parse(unchecked(2).as_bytes()).is_err());
        assert!(
            ClusterFile::parse(unchecked(3).as_bytes())
                .unwrap_err()
                .contains("newer")
        );
    }
}
