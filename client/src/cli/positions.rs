//! Where to read on: what `--from-offsets` takes and what `--resume` keeps.

use std::{
    collections::BTreeMap,
    fmt, fs,
    io::{self, Write},
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::files;
use crate::{Client, LeaderEpoch, Offset, PartitionId, SavedPosition, StartAt};

/// Offsets to start from, as people write them: `0:1000,1:2000`, or a file of `--resume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FromOffsets {
    List(Vec<(PartitionId, Offset)>),
    File(PathBuf),
}

impl FromStr for FromOffsets {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pair = |pair: &str| {
            let (partition, offset) = pair.split_once(':')?;
            let partition = PartitionId::new(partition.parse().ok()?);
            Some((partition, Offset::new(offset.parse().ok()?)))
        };
        let pairs: Option<Vec<_>> = text.split(',').map(pair).collect();
        Ok(pairs.map_or_else(|| Self::File(text.into()), Self::List))
    }
}

impl FromOffsets {
    /// Finds the positions.
    pub(super) async fn start(&self, client: &Client, topic: &str) -> anyhow::Result<StartAt> {
        let pairs = match self {
            Self::List(pairs) => pairs,
            Self::File(path) => {
                let checkpoint = Checkpoint::read(path)?;
                let checkpoint =
                    checkpoint.with_context(|| format!("{} does not exist", path.display()))?;
                return checkpoint.start(path, topic);
            }
        };
        let layout = client.topic_layout(topic).await?;
        let saved = pairs.iter().map(|(partition, offset)| {
            anyhow::ensure!(
                (partition.get() as usize) < layout.leaders.len(),
                "topic {topic} has no partition {partition}"
            );
            Ok(SavedPosition {
                topic: topic.to_owned(),
                topic_id: layout.topic_id,
                partition: *partition,
                next_offset: *offset,
                leader_epoch: None,
            })
        });
        Ok(StartAt::Saved(saved.collect::<anyhow::Result<_>>()?))
    }
}

/// The positions behind what was written, by partition.
#[derive(Clone, Debug, Default)]
pub(super) struct Positions(BTreeMap<PartitionId, SavedPosition>);

impl Positions {
    pub(super) fn new(saved: Vec<SavedPosition>) -> Self {
        let by_partition = saved.into_iter().map(|saved| (saved.partition, saved));
        Self(by_partition.collect())
    }

    /// The offset to read on from.
    pub(super) fn next_offset(&self, partition: PartitionId) -> Option<Offset> {
        Some(self.0.get(&partition)?.next_offset)
    }

    /// Everything below this offset is dealt with. The record before it is of this epoch; `None`: it
    /// was not read.
    pub(super) fn advance(
        &mut self,
        partition: PartitionId,
        next_offset: Offset,
        leader_epoch: Option<LeaderEpoch>,
    ) {
        if let Some(saved) = self.0.get_mut(&partition) {
            (saved.next_offset, saved.leader_epoch) = (next_offset, leader_epoch);
        }
    }

    /// Nothing is left below this offset.
    pub(super) fn advance_to_end(&mut self, partition: PartitionId, end: Offset) {
        if self.next_offset(partition) != Some(end) {
            self.advance(partition, end, None);
        }
    }

    pub(super) fn saved(&self) -> Vec<SavedPosition> {
        self.0.values().cloned().collect()
    }
}

/// As `--from-offsets` takes it.
impl fmt::Display for Positions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, saved) in self.0.values().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{}:{}", saved.partition, saved.next_offset)?;
        }
        Ok(())
    }
}

/// How far a replay has come: so many bytes of the output hold what lies before these positions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Checkpoint {
    pub(super) output_bytes: u64,
    pub(super) positions: Vec<SavedPosition>,
}

impl Checkpoint {
    /// Reads a file; `None`: there is none.
    pub(super) fn read(path: &Path) -> anyhow::Result<Option<Self>> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                let context = format!("{} cannot be read", path.display());
                return Err(anyhow::Error::from(error).context(context));
            }
        };
        let read = serde_json::from_slice(&text);
        read.with_context(|| format!("{} holds no positions of a replay", path.display()))
    }

    /// Replaces a file.
    pub(super) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let mut beside = path.as_os_str().to_owned();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        let mut file = files::create(&beside)?;
        let text = serde_json::to_vec(self)?;
        file.write_all(&text)
            .with_context(|| format!("{} cannot be written", beside.display()))?;
        files::put_in_place(&file, &beside, path)
    }

    /// Where to start; the positions must be some of this topic.
    pub(super) fn start(self, path: &Path, topic: &str) -> anyhow::Result<StartAt> {
        anyhow::ensure!(
            self.positions.iter().any(|saved| saved.topic == topic),
            "{} holds positions of another topic than {topic}",
            path.display()
        );
        Ok(StartAt::Saved(self.positions))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_a_list_or_a_file() {
        let at = |partition, offset| (PartitionId::new(partition), Offset::new(offset));
        assert_eq!(
            "0:10,2:5".parse(),
            Ok(FromOffsets::List(vec![at(0, 10), at(2, 5)]))
        );
        for file in ["positions.json", "0:10,1", "c:\\positions"] {
            assert_eq!(file.parse(), Ok(FromOffsets::File(file.into())));
        }
    }
}
