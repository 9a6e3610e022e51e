//! The agent's data directory: its lock, its identity, its layout.
//!
//! ```text
//! {data-dir}/LOCK                                   held while an agent runs on it
//! {data-dir}/agent.json                             who this directory is: written once
//! {data-dir}/starts                                 the newest start of the agent on it
//! {data-dir}/run                                    whether the last run ended in order
//! {data-dir}/offset-checkpoint                      how far each log is flushed
//! {data-dir}/log/{topic_id}/{partition:06}/...      the hot tail
//! {data-dir}/log/spare/                             space that is kept back for a start on a full disk
//! {data-dir}/manifests/{topic_id}/{partition:06}    the newest manifest, where it is known
//! {data-dir}/aside/{topic_id}/{partition:06}-{n}/   what repairs have cut off
//! {data-dir}/cache/                                 the disk cache of bucket data
//! ```
//!
//! An agent's identity lives and dies with its directory: a replica on an emptied disk must never
//! pass for the one that held the data (KIP-966 and KIP-858 have the reasons).

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use esker_proto::types::{
    AgentEpoch, AgentId, ClusterId, Offset, PartitionId, TopicId, TopicPartition,
};
use esker_tiering::{archive::ManifestFile, env::IdGenerator};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::{spare::Spare, starts::Starts};

const FORMAT_VERSION: u32 = 1;

/// A data directory that no other agent can run on.
#[derive(Debug)]
pub(crate) struct LockedDir {
    root: PathBuf,
    lock: File,
}

impl LockedDir {
    /// Takes the lock of a directory, making the directory if need be.
    ///
    /// # Errors
    ///
    /// [`DataDirError::InUse`] if another agent has it, `Io` if it cannot be written to.
    pub(crate) fn take(root: &Path) -> Result<Self, DataDirError> {
        let io = |source| DataDirError::Io {
            path: root.to_owned(),
            source,
        };
        fs::create_dir_all(root.join("log")).map_err(io)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(root.join("LOCK"))
            .map_err(io)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| DataDirError::InUse(root.to_owned()))?;
        let root = root.to_owned();
        Ok(Self { root, lock })
    }

    /// Gives a start on a full disk the space that was kept back for it.
    ///
    /// # Errors
    ///
    /// If that fails.
    pub(crate) fn make_room(&self) -> Result<(), DataDirError> {
        let logs = self.root.join("log");
        let released = Spare::of(&logs).release_if_full();
        released.map_err(|source| DataDirError::Io { path: logs, source })
    }

    /// Returns the directory itself.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the directory of a partition's log.
    pub(crate) fn partition(&self, at: TopicPartition) -> PathBuf {
        partition_dir(&self.root, at)
    }

    /// Returns the offset below which everything of a partition is in the bucket, by the local copy of
    /// its manifest: none while an upload was under way when the agent was killed.
    pub(crate) fn tiered_offset(&self, at: TopicPartition) -> Option<Offset> {
        let known = manifest_file(&self.root, at).read()?;
        let is_its_own = known.manifest.header().topic_partition == at;
        is_its_own.then(|| known.manifest.tiered_offset())
    }

    /// Returns the partitions that have a directory.
    ///
    /// # Errors
    ///
    /// If the directory cannot be read.
    pub(crate) fn partitions(&self) -> io::Result<Vec<TopicPartition>> {
        let mut found = Vec::new();
        for topic in fs::read_dir(self.root.join("log"))? {
            let topic = topic?;
            let Some(topic_id) = topic
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            let names = fs::read_dir(topic.path())?.map(|entry| Ok(entry?.file_name()));
            for name in names.collect::<io::Result<Vec<_>>>()? {
                let number = name.to_str().and_then(|name| name.parse().ok());
                found.extend(
                    number
                        .map(PartitionId::new)
                        .map(|partition| TopicPartition {
                            topic_id,
                            partition,
                        }),
                );
            }
        }
        Ok(found)
    }
}

/// An open, locked data directory.
#[derive(Debug)]
pub(crate) struct DataDir {
    root: PathBuf,
    agent_id: AgentId,
    starts: Starts,
    /// The lock goes with the file, unless it is let go before.
    lock: File,
}

/// `agent.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Identity {
    format_version: u32,
    agent_id: AgentId,
    cluster_id: ClusterId,
}

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// It cannot be made, or not be written to.
    #[error(
        "data directory cannot be used; {}. data_dir=`{path}`: {source}",
        advice(.source)
    )]
    Io {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process holds its lock.
    #[error(
        "data directory is in use by another agent; stop that one, or set another data-dir. data_dir=`{0}`"
    )]
    InUse(PathBuf),
    /// It has no log of the partition.
    #[error(
        "no log of partition {at} in the data directory; run `esker-agent log verify` to list its logs. data_dir=`{path}`"
    )]
    NoLog {
        /// The directory.
        path: PathBuf,
        /// The partition.
        at: TopicPartition,
    },
    /// It belongs to another bucket.
    #[error(
        "data directory belongs to another cluster; use an empty one, or the bucket it was made with. data_dir=`{path}`, its_cluster=`{own}`, bucket_cluster=`{bucket}`"
    )]
    OtherCluster {
        /// The directory.
        path: PathBuf,
        /// Whose tail it holds.
        own: ClusterId,
        /// What the bucket says.
        bucket: ClusterId,
    },
    /// Its identity file is damaged or from a later version.
    #[error("data directory has an unreadable agent.json. data_dir=`{path}`: {reason}")]
    BadIdentity {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl DataDir {
    /// Opens a directory for the agent of `cluster_id`, making its identity if need be.
    ///
    /// # Errors
    ///
    /// [`DataDirError`]; the directory is then as it was, apart from being made.
    pub(crate) fn open(
        locked: LockedDir,
        cluster_id: ClusterId,
        ids: &dyn IdGenerator,
    ) -> Result<Self, DataDirError> {
        let LockedDir { root, lock } = locked;
        let io = |source| DataDirError::Io {
            path: root.clone(),
            source,
        };
        let identity = match read_identity(&root)? {
            Some(identity) => identity,
            None if has_logs(&root) => {
                let reason = "it is missing, and the directory holds logs; restore it, or set another \
                              data-dir";
                return Err(DataDirError::BadIdentity {
                    path: root,
                    reason: reason.to_owned(),
                });
            }
            None => {
                let agent_id = AgentId::new(ids.uuid());
                let identity = Identity {
                    format_version: FORMAT_VERSION,
                    agent_id,
                    cluster_id,
                };
                write_identity(&root, &identity).map_err(io)?;
                identity
            }
        };
        let starts = Starts::open(&root.join("starts")).map_err(io)?;
        if identity.cluster_id != cluster_id {
            let (path, own, bucket) = (root, identity.cluster_id, cluster_id);
            return Err(DataDirError::OtherCluster { path, own, bucket });
        }
        Ok(Self {
            root,
            agent_id: identity.agent_id,
            starts,
            lock,
        })
    }

    /// Lets another agent have the directory: nothing of this one writes to it any more.
    pub(crate) fn unlock(&self) {
        if let Err(error) = flock(&self.lock, FlockOperation::Unlock) {
            tracing::debug!(%error, "the data directory stays locked until the process ends");
        }
    }

    /// Returns who this directory is.
    pub(crate) const fn agent_id(&self) -> AgentId {
        self.agent_id
    }

    /// Returns the newest start of this agent that the directory knows of. One that is older than
    /// what the metadata says was copied or restored, and may lack what was acknowledged since.
    pub(crate) const fn agent_epoch(&self) -> AgentEpoch {
        self.starts.newest()
    }

    /// Notes a start that is about to be recorded in the metadata.
    ///
    /// # Errors
    ///
    /// If the directory cannot be written to.
    pub(crate) fn note_start(&self, agent_epoch: AgentEpoch) -> Result<(), DataDirError> {
        let noted = self.starts.note(agent_epoch);
        noted.map_err(|source| DataDirError::Io {
            path: self.root.clone(),
            source,
        })
    }

    /// Returns the directory itself.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the directory of all logs, which may be a volume of its own.
    pub(crate) fn logs(&self) -> PathBuf {
        self.root.join("log")
    }

    /// Makes the directory of the disk cache, and checks that files can be made in it.
    ///
    /// # Errors
    ///
    /// If that fails, such as where a file has its name.
    pub(crate) fn prepare_cache(&self) -> Result<(), DataDirError> {
        let path = self.cache();
        let probe = path.join("probe");
        let prepared = fs::create_dir_all(&path)
            .and_then(|()| File::create(&probe))
            .and_then(|_| fs::remove_file(&probe));
        prepared.map_err(|source| DataDirError::Io { path, source })
    }

    /// Returns where the disk cache lives.
    pub(crate) fn cache(&self) -> PathBuf {
        self.root.join("cache")
    }

    /// Returns the directory of a topic's logs.
    pub(crate) fn topic(&self, topic_id: TopicId) -> PathBuf {
        self.logs().join(topic_id.to_string())
    }

    /// Returns the topics that have logs here.
    ///
    /// # Errors
    ///
    /// If the directory cannot be read.
    pub(crate) fn topics(&self) -> io::Result<Vec<TopicId>> {
        let names = fs::read_dir(self.root.join("log"))?;
        let names = names.map(|entry| Ok(entry?.file_name()));
        let names = names.collect::<io::Result<Vec<_>>>()?;
        let topics = names.iter().filter_map(|name| name.to_str()?.parse().ok());
        Ok(topics.collect())
    }

    /// Returns where the local copies of a topic's manifests are.
    pub(crate) fn manifests(&self, topic_id: TopicId) -> PathBuf {
        manifests(&self.root, topic_id)
    }

    /// Returns where the local copy of a partition's manifest is.
    pub(crate) fn manifest_file(&self, at: TopicPartition) -> ManifestFile {
        manifest_file(&self.root, at)
    }

    /// Makes everything written to the directory's file system durable.
    ///
    /// # Errors
    ///
    /// If the disk fails.
    pub(crate) fn sync_all(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(File::open(&self.root)?)?)
    }

    /// Returns the directory of a partition's log.
    pub(crate) fn partition(&self, at: TopicPartition) -> PathBuf {
        partition_dir(&self.root, at)
    }

    /// Whether any topic has a directory.
    pub(crate) fn has_logs(&self) -> bool {
        has_logs(&self.root)
    }
}

fn has_logs(root: &Path) -> bool {
    let is_topic = |entry: io::Result<fs::DirEntry>| {
        let name = entry.map(|entry| entry.file_name()).unwrap_or_default();
        name.to_str()
            .is_some_and(|name| name.parse::<TopicId>().is_ok())
    };
    fs::read_dir(root.join("log")).is_ok_and(|mut entries| entries.any(is_topic))
}

fn manifests(root: &Path, topic_id: TopicId) -> PathBuf {
    root.join("manifests").join(topic_id.to_string())
}

fn manifest_file(root: &Path, at: TopicPartition) -> ManifestFile {
    let name = format!("{:06}", at.partition.get());
    ManifestFile::new(manifests(root, at.topic_id).join(name))
}

fn partition_dir(root: &Path, at: TopicPartition) -> PathBuf {
    let topic = root.join("log").join(at.topic_id.to_string());
    topic.join(format!("{:06}", at.partition.get()))
}

fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "its disk is full: free some space there, or enlarge it"
        }
        io::ErrorKind::PermissionDenied => {
            "let the agent's user write to it, or set another data-dir"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "its file system is read-only: mend it, or set another data-dir"
        }
        _ => "check the path and its permissions",
    }
}

fn read_identity(root: &Path) -> Result<Option<Identity>, DataDirError> {
    let bad = |reason: String| DataDirError::BadIdentity {
        path: root.to_owned(),
        reason,
    };
    let text = match fs::read_to_string(root.join("agent.json")) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(bad(error.to_string())),
    };
    let identity: Identity = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
    if identity.format_version != FORMAT_VERSION {
        return Err(bad(format!(
            "format version {} is not known",
            identity.format_version
        )));
    }
    Ok(Some(identity))
}

/// Writes the identity so that after a crash it is there whole or not at all.
fn write_identity(root: &Path, identity: &Identity) -> io::Result<()> {
    let temporary = root.join("agent.json.new");
    let mut file = File::create(&temporary)?;
    file.write_all(serde_json::to_string_pretty(identity)?.as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, root.join("agent.json"))?;
    File::open(root)?.sync_all()
}

#[cfg(test)]
mod tests {
    use esker_tiering::env::SeededIds;
    use tempfile::TempDir;
    use uuid::Uuid;

    use super::*;

    const CLUSTER: ClusterId = ClusterId::new(Uuid::from_u128(1));

    fn open(dir: &TempDir, at: ClusterId, ids: &SeededIds) -> Result<DataDir, DataDirError> {
        DataDir::open(LockedDir::take(dir.path())?, at, ids)
    }

    #[test]
    fn identity_stays_with_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let ids = SeededIds::new(1);
        let first = open(&dir, CLUSTER, &ids).unwrap().agent_id();
        let again = open(&dir, CLUSTER, &ids).unwrap().agent_id();
        assert_eq!(first, again);

        let emptied = tempfile::tempdir().unwrap();
        assert_ne!(open(&emptied, CLUSTER, &ids).unwrap().agent_id(), first);
    }

    #[test]
    fn any_change_to_the_identity_is_refused_or_makes_another_agent() {
        let dir = tempfile::tempdir().unwrap();
        let ids = SeededIds::new(1);
        let own = open(&dir, CLUSTER, &ids).unwrap().agent_id();
        let path = dir.path().join("agent.json");
        let whole = fs::read(&path).unwrap();
        for byte in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[byte] ^= 1 << (byte % 8);
            fs::write(&path, flipped).unwrap();
            match open(&dir, CLUSTER, &ids) {
                Err(DataDirError::BadIdentity { .. } | DataDirError::OtherCluster { .. }) => {}
                Err(error) => panic!("byte {byte}: {error}"),
                // The metadata does not know that agent, or says that it has not drained.
                Ok(opened) => assert!(is_space(&whole, byte) || opened.agent_id() != own, "{byte}"),
            }
        }
        fs::create_dir_all(dir.path().join("log").join(Uuid::from_u128(3).to_string())).unwrap();
        fs::remove_file(&path).unwrap();
        let missing = open(&dir, CLUSTER, &ids);
        assert!(matches!(missing, Err(DataDirError::BadIdentity { .. })));
    }

    /// Whether a byte is white space, or a letter whose case means nothing.
    fn is_space(text: &[u8], byte: usize) -> bool {
        text[byte].is_ascii_whitespace() || text[byte].is_ascii_alphabetic()
    }

    #[test]
    fn one_agent_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let ids = SeededIds::new(1);
        let held = open(&dir, CLUSTER, &ids).unwrap();
        let second = open(&dir, CLUSTER, &ids);
        assert!(matches!(second, Err(DataDirError::InUse(_))));
        drop(held);
        assert!(open(&dir, CLUSTER, &ids).is_ok());
    }

    #[test]
    fn a_directory_of_another_cluster_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let ids = SeededIds::new(1);
        drop(open(&dir, CLUSTER, &ids).unwrap());
        let other = ClusterId::new(Uuid::from_u128(2));
        let opened = open(&dir, other, &ids);
        assert!(matches!(opened, Err(DataDirError::OtherCluster { .. })));
    }
}
