//! Puts the records of several partitions back into the order of the lines they came from.
//!
//! Within a partition lines come in order, so a merge of the partitions restores the whole. It holds
//! what was fetched of a partition until the others have caught up: the memory of a few responses
//! each, however long the topic.

use std::collections::{BTreeMap, VecDeque};

use crate::{Fetched, LeaderEpoch, Offset, PartitionId};

use super::source::{HEADER, Line};

/// One record on its way out: its place, and its value.
#[derive(Debug)]
struct Waiting {
    offset: Offset,
    leader_epoch: Option<LeaderEpoch>,
    line: Option<Line>,
    value: Vec<u8>,
}

/// Merges partitions by line.
#[derive(Debug, Default)]
pub(super) struct Merge {
    waiting: BTreeMap<PartitionId, VecDeque<Waiting>>,
}

/// A value whose turn it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) partition: PartitionId,
    pub(super) offset: Offset,
    pub(super) leader_epoch: Option<LeaderEpoch>,
    pub(super) value: Vec<u8>,
    /// Whether a line feed follows.
    pub(super) is_terminated: bool,
}

impl Merge {
    /// Starts a merge of partitions none of which has been read.
    pub(super) fn of(partitions: impl IntoIterator<Item = PartitionId>) -> Self {
        Self {
            waiting: partitions
                .into_iter()
                .map(|at| (at, VecDeque::new()))
                .collect(),
        }
    }

    /// Takes what was fetched; what precedes an error is taken.
    pub(super) fn push(&mut self, fetched: &Fetched) -> crate::Result<()> {
        let waiting = self.waiting.entry(fetched.partition()).or_default();
        for record in fetched {
            let record = record?;
            let place = record
                .headers
                .filter_map(Result::ok)
                .find(|h| h.key == HEADER);
            let line = place.and_then(|header| Line::decode(header.value?));
            waiting.push_back(Waiting {
                offset: record.offset,
                leader_epoch: fetched.leader_epoch_at(record.offset),
                line,
                value: record.value.unwrap_or_default().to_vec(),
            });
        }
        Ok(())
    }

    /// Notes that nothing more comes of a partition.
    pub(super) fn end(&mut self, partition: PartitionId) {
        if self.waiting.get(&partition).is_some_and(VecDeque::is_empty) {
            self.waiting.remove(&partition);
        }
    }

    /// Returns a partition that has to be read before the next value is known.
    pub(super) fn lacking(&self) -> Option<PartitionId> {
        self.waiting
            .iter()
            .find(|(_, waiting)| waiting.is_empty())
            .map(|(at, _)| *at)
    }

    /// Takes the next value, once no partition is lacking. Records without a place come first.
    pub(super) fn pop(&mut self) -> Option<Next> {
        let first = self
            .waiting
            .iter()
            .min_by_key(|(at, waiting)| (waiting.front().and_then(|front| front.line), **at));
        let partition = *first?.0;
        let Waiting {
            offset,
            leader_epoch,
            line,
            value,
        } = self.waiting.get_mut(&partition)?.pop_front()?;
        let is_terminated = line.is_none_or(|line| !line.is_unterminated);
        Some(Next {
            partition,
            offset,
            leader_epoch,
            value,
            is_terminated,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(partition: u32, lines: &[u64]) -> (PartitionId, VecDeque<Waiting>) {
        let waiting = lines.iter().map(|number| Waiting {
            offset: Offset::new(*number),
            leader_epoch: None,
            line: Some(Line {
                run: 1,
                number: *number,
                is_unterminated: *number == 9,
            }),
            value: number.to_string().into_bytes(),
        });
        (PartitionId::new(partition), waiting.collect())
    }

    #[test]
    fn lines_come_back_in_order() {
        let mut merge = Merge {
            waiting: [at(0, &[0, 3, 9]), at(1, &[1, 2])].into(),
        };
        let mut seen = Vec::new();
        while merge.lacking().is_none() {
            seen.push(merge.pop().unwrap());
        }
        assert_eq!(
            merge.lacking(),
            Some(PartitionId::new(1)),
            "partition 1 has to be read on"
        );
        merge.end(PartitionId::new(1));
        seen.extend(std::iter::from_fn(|| merge.pop()));

        let values: Vec<_> = seen.iter().map(|next| next.value.as_slice()).collect();
        assert_eq!(values, [b"0", b"1", b"2", b"3", b"9"]);
        assert!(!seen[4].is_terminated && seen[3].is_terminated);
    }
}
