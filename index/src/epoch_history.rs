//! Which leader epoch wrote which offsets; finds where two logs diverge.

use esker_proto::types::{LeaderEpoch, Offset};
use serde::{Deserialize, Serialize};

use crate::Error;

/// One leader epoch and the first offset it wrote, or would have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(LeaderEpoch, Offset)", into = "(LeaderEpoch, Offset)")]
pub struct EpochStart {
    /// The epoch.
    pub leader_epoch: LeaderEpoch,
    /// Its first offset.
    pub start_offset: Offset,
}

/// Leader epochs in order, each with its first offset. Both rise strictly.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<EpochStart>", into = "Vec<EpochStart>")]
pub struct EpochHistory(Vec<EpochStart>);

impl EpochHistory {
    /// Returns a history without epochs.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Returns the epochs, oldest first.
    pub fn starts(&self) -> &[EpochStart] {
        &self.0
    }

    /// Returns the newest epoch.
    pub fn last(&self) -> Option<EpochStart> {
        self.0.last().copied()
    }

    /// Begins an epoch at `start_offset`. Saying the newest epoch again changes nothing.
    ///
    /// An epoch that wrote nothing, because the next one starts at the same offset, is forgotten:
    /// no batch carries it.
    pub fn push(&mut self, leader_epoch: LeaderEpoch, start_offset: Offset) -> Result<(), Error> {
        if let Some(last) = self.last() {
            if leader_epoch == last.leader_epoch && start_offset >= last.start_offset {
                return Ok(());
            }
            if leader_epoch <= last.leader_epoch || start_offset < last.start_offset {
                return Err(Error::EpochsNotAscending {
                    leader_epoch,
                    start_offset,
                });
            }
            self.truncate_from(start_offset);
        }
        self.0.push(EpochStart {
            leader_epoch,
            start_offset,
        });
        Ok(())
    }

    /// Returns the epoch that wrote `offset`; `None` below the first epoch known.
    pub fn epoch_at(&self, offset: Offset) -> Option<LeaderEpoch> {
        let after = self.0.partition_point(|start| start.start_offset <= offset);
        Some(self.0[..after].last()?.leader_epoch)
    }

    /// Returns the largest epoch not above `leader_epoch` and the offset at which it ended, given
    /// where the log ends; `None` if every epoch known is above it.
    pub fn end_offset_for(
        &self,
        leader_epoch: LeaderEpoch,
        log_end_offset: Offset,
    ) -> Option<(LeaderEpoch, Offset)> {
        let after = self
            .0
            .partition_point(|start| start.leader_epoch <= leader_epoch);
        let found = self.0[..after].last()?;
        let end = self
            .0
            .get(after)
            .map_or(log_end_offset, |next| next.start_offset);
        Some((found.leader_epoch, end))
    }

    /// Returns where a reader's records left this log, if the last one, of `leader_epoch` and directly
    /// before `next_offset`, is not in it. `None` if it is, or if nobody knows its epoch any more.
    pub fn divergence(
        &self,
        leader_epoch: LeaderEpoch,
        next_offset: Offset,
        log_end_offset: Offset,
    ) -> Option<Offset> {
        let last_read = Offset::new(next_offset.get().checked_sub(1)?);
        let is_beyond = last_read >= log_end_offset;
        if !is_beyond && self.epoch_at(last_read)? == leader_epoch {
            return None;
        }
        let end = match self.end_offset_for(leader_epoch, log_end_offset) {
            Some((_, end_offset)) => end_offset,
            None => self.0.first()?.start_offset,
        };
        Some(end.min(last_read).min(log_end_offset))
    }

    /// Forgets epochs that start at or above `offset`.
    pub fn truncate_from(&mut self, offset: Offset) {
        let kept = self.0.partition_point(|start| start.start_offset < offset);
        self.0.truncate(kept);
    }

    /// Forgets epochs that ended at or below `offset`; the one that wrote `offset` starts there.
    pub fn trim_below(&mut self, offset: Offset) {
        let after = self.0.partition_point(|start| start.start_offset <= offset);
        let Some(covering) = after.checked_sub(1) else {
            return;
        };
        self.0.drain(..covering);
        self.0[0].start_offset = offset;
    }

    /// Returns this history of the offsets below `tiered_offset` continued by `newer`, which may
    /// know less of the past but must not contradict it.
    pub(crate) fn extended_by(&self, newer: &Self, tiered_offset: Offset) -> Result<Self, Error> {
        let mut extended = self.clone();
        if let Some(first) = newer.0.first() {
            extended.truncate_from(first.start_offset);
        }
        for start in &newer.0 {
            extended.push(start.leader_epoch, start.start_offset)?;
        }
        let tiered = self
            .0
            .iter()
            .filter(|start| start.start_offset < tiered_offset);
        for &EpochStart {
            leader_epoch,
            start_offset,
        } in tiered
        {
            let starts_elsewhere = extended.epoch_at(start_offset) != Some(leader_epoch)
                && extended
                    .0
                    .first()
                    .is_some_and(|first| first.start_offset <= start_offset);
            if starts_elsewhere {
                return Err(Error::EpochsDiverge { start_offset });
            }
        }
        Ok(extended)
    }
}

impl TryFrom<Vec<EpochStart>> for EpochHistory {
    type Error = Error;

    fn try_from(starts: Vec<EpochStart>) -> Result<Self, Error> {
        let rises = |pair: &[EpochStart]| {
            pair[0].leader_epoch < pair[1].leader_epoch
                && pair[0].start_offset < pair[1].start_offset
        };
        match starts.windows(2).position(|pair| !rises(pair)) {
            None => Ok(Self(starts)),
            Some(at) => {
                let EpochStart {
                    leader_epoch,
                    start_offset,
                } = starts[at + 1];
                Err(Error::EpochsNotAscending {
                    leader_epoch,
                    start_offset,
                })
            }
        }
    }
}

impl From<EpochHistory> for Vec<EpochStart> {
    fn from(history: EpochHistory) -> Self {
        history.0
    }
}

impl From<(LeaderEpoch, Offset)> for EpochStart {
    fn from((leader_epoch, start_offset): (LeaderEpoch, Offset)) -> Self {
        Self {
            leader_epoch,
            start_offset,
        }
    }
}

impl From<EpochStart> for (LeaderEpoch, Offset) {
    fn from(start: EpochStart) -> Self {
        (start.leader_epoch, start.start_offset)
    }
}

#[cfg(test)]
mod tests;
