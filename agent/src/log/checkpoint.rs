//! How far this agent has flushed each log: one small file for all of them, outside their directories.
//!
//! A log cannot tell what it has lost with its files. The checkpoint can: it says how far each log was
//! flushed when it was written last, which is after the flush it speaks of. So it never claims too
//! much; it claims too little by what was flushed since. A log that ends below it has lost records that
//! were acknowledged.
//!
//! It is a frame as other small files are (see `files`), replaced as a whole. One that is damaged
//! claims nothing, and is kept for an operator to inspect.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::{Buf, BufMut};
use esker_proto::types::{LeaderEpoch, Offset, PartitionId, TopicId, TopicPartition};
use parking_lot::Mutex;
use uuid::Uuid;

use super::{
    disk::{Disk, OsDisk},
    error::{Error, failed},
    files::{self, Kind, frame},
    pool::FlushPool,
};

/// Bytes of one log in the file.
const LOG_BYTES: usize = 32;

/// How far a log is flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flushed {
    /// The epoch this agent led it in.
    pub leader_epoch: LeaderEpoch,
    /// Offset after the last flushed record.
    pub offset: Offset,
}

/// What the checkpoint says of one log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Everything below was flushed.
    pub flushed_offset: Offset,
    /// Nothing was flushed since: the agent had ended in order.
    pub is_final: bool,
}

/// What was found where the file should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A checkpoint.
    Whole,
    /// No file.
    Nothing,
    /// A file that does not hold, now under this name.
    Damaged(PathBuf),
}

/// The checkpoint of one data directory.
#[derive(Debug)]
pub struct OffsetCheckpoint {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    content: Mutex<Content>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Content {
    is_final: bool,
    logs: BTreeMap<TopicPartition, Flushed>,
}

impl OffsetCheckpoint {
    /// Opens the checkpoint of an agent's data directory. Blocks.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn open(pool: &FlushPool, data_dir: &Path) -> Result<(Self, Found), Error> {
        Self::open_on(pool.disk().clone(), data_dir)
    }

    /// As [`OffsetCheckpoint::open`], without an agent. Blocks.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn open_at_rest(data_dir: &Path) -> Result<(Self, Found), Error> {
        let disk = OsDisk::open(data_dir).map_err(failed("open", data_dir))?;
        Self::open_on(Arc::new(disk), data_dir)
    }

    pub(super) fn open_on(disk: Arc<dyn Disk>, data_dir: &Path) -> Result<(Self, Found), Error> {
        let path = data_dir.join("offset-checkpoint");
        let payload = files::read(&*disk, Kind::Offsets, &path)?;
        let content = payload.and_then(|payload| Content::decode(&payload));
        let found = match (&content, disk.open(&path)) {
            (Some(_), _) => Found::Whole,
            (None, Err(_)) => Found::Nothing,
            (None, Ok(_)) => {
                let aside = path.with_added_extension("damaged");
                disk.rename(&path, &aside)
                    .map_err(failed("rename", &path))?;
                Found::Damaged(aside)
            }
        };
        let checkpoint = Self {
            disk,
            path,
            content: Mutex::new(content.unwrap_or_default()),
        };
        Ok((checkpoint, found))
    }

    /// Returns what was known of a log when the file was written last, if this agent has led it without
    /// a break since: another leader may have cut it.
    pub fn known(&self, at: TopicPartition, led_since: LeaderEpoch) -> Option<Known> {
        let content = self.content.lock();
        let flushed = content.logs.get(&at)?;
        (flushed.leader_epoch >= led_since).then_some(Known {
            flushed_offset: flushed.offset,
            is_final: content.is_final,
        })
    }

    /// Returns every log the checkpoint knows.
    pub fn logs(&self) -> Vec<TopicPartition> {
        self.content.lock().logs.keys().copied().collect()
    }

    /// Writes down how far logs are flushed, if that is news. Others stay as they were. Blocks.
    ///
    /// # Errors
    ///
    /// If it cannot be written: the one before stands.
    pub fn advance(
        &self,
        logs: impl IntoIterator<Item = (TopicPartition, Flushed)>,
        is_final: bool,
    ) -> Result<(), Error> {
        let mut content = self.content.lock();
        let mut next = content.clone();
        next.logs.extend(logs);
        next.is_final = is_final;
        self.replace(&mut content, next)
    }

    /// Lowers what is known of a log to `offset`, durably: an operator gave up what was above. Blocks.
    ///
    /// # Errors
    ///
    /// If it cannot be written: the one before stands.
    pub fn lower(&self, at: TopicPartition, offset: Offset) -> Result<(), Error> {
        let mut content = self.content.lock();
        let mut next = content.clone();
        if let Some(flushed) = next.logs.get_mut(&at) {
            flushed.offset = flushed.offset.min(offset);
        }
        self.replace(&mut content, next)
    }

    /// Forgets logs, durably: they are deleted. Blocks.
    ///
    /// # Errors
    ///
    /// If it cannot be written: the one before stands.
    pub fn forget(&self, is_gone: impl Fn(TopicPartition) -> bool) -> Result<(), Error> {
        let mut content = self.content.lock();
        let mut next = content.clone();
        next.logs.retain(|at, _| !is_gone(*at));
        self.replace(&mut content, next)
    }

    fn replace(&self, content: &mut Content, next: Content) -> Result<(), Error> {
        if *content != next {
            files::replace(&*self.disk, &self.path, &next.encode())?;
            *content = next;
        }
        Ok(())
    }
}

impl Content {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1 + self.logs.len() * LOG_BYTES);
        out.put_u8(u8::from(self.is_final));
        for (at, flushed) in &self.logs {
            out.put_slice(at.topic_id.get().as_bytes());
            out.put_u32_le(at.partition.get());
            out.put_u32_le(flushed.leader_epoch.get());
            out.put_u64_le(flushed.offset.get());
        }
        frame(Kind::Offsets, &out)
    }

    fn decode(payload: &[u8]) -> Option<Self> {
        let (is_final, logs) = payload.split_first()?;
        let logs = logs.chunks(LOG_BYTES).map(|mut log| {
            let topic_id = TopicId::new(Uuid::from_u128(log.try_get_u128().ok()?));
            let partition = PartitionId::new(log.try_get_u32_le().ok()?);
            let leader_epoch = LeaderEpoch::new(log.try_get_u32_le().ok()?);
            let offset = Offset::new(log.try_get_u64_le().ok()?);
            let at = TopicPartition {
                topic_id,
                partition,
            };
            Some((
                at,
                Flushed {
                    leader_epoch,
                    offset,
                },
            ))
        });
        Some(Self {
            is_final: *is_final != 0,
            logs: logs.collect::<Option<_>>()?,
        })
    }
}
