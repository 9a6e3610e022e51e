//! Chooses, from the segments found in a bucket, the ones a rebuilt manifest shall name.
//!
//! Pure. A bucket may hold several uploads of the same offsets: a crash between the upload and its
//! commit leaves one, and so does a deposed leader. The choice is one gapless run of segments
//! without overlap and with leader epochs that never fall.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashSet},
};

use esker_proto::types::{LeaderEpoch, Offset, OffsetRange, SegmentId};

/// A segment object whose trailer could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The upload attempt.
    pub segment_id: SegmentId,
    /// The epoch under which it was uploaded.
    pub leader_epoch: LeaderEpoch,
    /// First offset in it.
    pub base_offset: Offset,
    /// One past its last offset.
    pub next_offset: Offset,
}

/// What a rebuilt manifest would name, and what it would leave out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Choice {
    /// The chosen segments in offset order.
    pub chain: Vec<Candidate>,
    /// Segments whose offsets the chain has from elsewhere, or that lie below the log start.
    pub spare: Vec<Candidate>,
    /// Offsets at or above the log start that some segment holds and the chain does not.
    pub lost: Vec<OffsetRange>,
}

/// Chooses the chain that ends highest; among those the one that starts lowest; and among those,
/// step by step from the start, the one with the higher leader epoch.
///
/// Nothing wholly below `log_start_offset` is chosen: it was trimmed.
pub(super) fn choose(mut candidates: Vec<Candidate>, log_start_offset: Offset) -> Choice {
    candidates.retain(|candidate| candidate.base_offset < candidate.next_offset);
    candidates.sort_by_key(|candidate| (candidate.base_offset, candidate.segment_id));
    candidates.dedup_by_key(|candidate| candidate.segment_id);
    let (live, trimmed): (Vec<_>, Vec<_>) = candidates
        .into_iter()
        .partition(|candidate| candidate.next_offset > log_start_offset);
    let chain = longest_chain(&live);
    let chosen: HashSet<SegmentId> = chain.iter().map(|candidate| candidate.segment_id).collect();
    let chain_start = chain
        .first()
        .map_or(log_start_offset, |first| first.base_offset);
    let lost = union_below(&live, chain_start, log_start_offset);
    let spare = live
        .into_iter()
        .filter(|candidate| !chosen.contains(&candidate.segment_id));
    Choice {
        spare: trimmed.into_iter().chain(spare).collect(),
        chain,
        lost,
    }
}

/// How far a candidate leads, and through which candidate next.
#[derive(Clone, Copy)]
struct Step {
    end_offset: Offset,
    successor: Option<usize>,
}

/// Walks from the highest base down, so that every successor is known before it is asked for.
fn longest_chain(candidates: &[Candidate]) -> Vec<Candidate> {
    let by_base = index_by_base(candidates);
    let mut steps = vec![
        Step {
            end_offset: Offset::ZERO,
            successor: None
        };
        candidates.len()
    ];
    for (index, candidate) in candidates.iter().enumerate().rev() {
        let successors = by_base
            .get(&candidate.next_offset)
            .map_or(&[][..], Vec::as_slice);
        let successor = successors
            .iter()
            .copied()
            .filter(|next| candidates[*next].leader_epoch >= candidate.leader_epoch)
            .max_by_key(|next| preference(&candidates[*next], steps[*next].end_offset));
        let end_offset = successor.map_or(candidate.next_offset, |next| steps[next].end_offset);
        steps[index] = Step {
            end_offset,
            successor,
        };
    }
    let start = (0..candidates.len()).max_by_key(|index| {
        let (candidate, end_offset) = (&candidates[*index], steps[*index].end_offset);
        let (_, epoch, segment_id) = preference(candidate, end_offset);
        (
            end_offset,
            Reverse(candidate.base_offset),
            epoch,
            segment_id,
        )
    });
    std::iter::successors(start, |index| steps[*index].successor)
        .map(|index| candidates[index])
        .collect()
}

fn index_by_base(candidates: &[Candidate]) -> BTreeMap<Offset, Vec<usize>> {
    let mut by_base = BTreeMap::<Offset, Vec<usize>>::new();
    for (index, candidate) in candidates.iter().enumerate() {
        by_base
            .entry(candidate.base_offset)
            .or_default()
            .push(index);
    }
    by_base
}

/// The id only makes the choice the same each time.
const fn preference(candidate: &Candidate, end_offset: Offset) -> (Offset, LeaderEpoch, SegmentId) {
    (end_offset, candidate.leader_epoch, candidate.segment_id)
}

/// Offsets in `[log_start_offset, chain_start)` that some candidate holds. The chain ends highest of
/// all, so nothing can be lost above it.
fn union_below(
    candidates: &[Candidate],
    chain_start: Offset,
    log_start_offset: Offset,
) -> Vec<OffsetRange> {
    let mut ranges: Vec<OffsetRange> = Vec::new();
    for candidate in candidates {
        let base = candidate.base_offset.max(log_start_offset);
        let next = candidate.next_offset.min(chain_start);
        match ranges.last_mut() {
            _ if base >= next => {}
            Some(last) if base <= last.end => last.end = last.end.max(next),
            _ => ranges.push(base..next),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn candidate(id: u128, epoch: u32, base: u64, next: u64) -> Candidate {
        Candidate {
            segment_id: SegmentId::new(Uuid::from_u128(id)),
            leader_epoch: LeaderEpoch::new(epoch),
            base_offset: Offset::new(base),
            next_offset: Offset::new(next),
        }
    }

    fn ids(chain: &[Candidate]) -> Vec<u128> {
        chain
            .iter()
            .map(|candidate| candidate.segment_id.get().as_u128())
            .collect()
    }

    #[test]
    fn a_second_upload_of_the_same_offsets_gives_way_to_the_higher_epoch() {
        let found = vec![
            candidate(9, 1, 0, 10),
            candidate(1, 2, 0, 10),
            candidate(3, 2, 10, 20),
        ];
        let choice = choose(found, Offset::ZERO);
        assert_eq!(ids(&choice.chain), [1, 3]);
        assert_eq!(ids(&choice.spare), [9]);
        assert!(choice.lost.is_empty());
    }

    #[test]
    fn a_longer_orphan_that_leads_nowhere_is_passed_over() {
        let found = vec![
            candidate(1, 2, 0, 15),
            candidate(2, 2, 0, 10),
            candidate(3, 2, 10, 20),
        ];
        assert_eq!(ids(&choose(found, Offset::ZERO).chain), [2, 3]);
    }

    #[test]
    fn leader_epochs_never_fall_along_the_chain() {
        let found = vec![
            candidate(1, 5, 0, 10),
            candidate(2, 3, 10, 20),
            candidate(3, 3, 0, 10),
        ];
        assert_eq!(ids(&choose(found, Offset::ZERO).chain), [3, 2]);
    }

    #[test]
    fn a_hole_is_reported_as_lost_and_the_newest_run_is_kept() {
        let found = vec![
            candidate(1, 1, 0, 10),
            candidate(2, 1, 5, 12),
            candidate(3, 1, 20, 30),
        ];
        let choice = choose(found, Offset::new(3));
        assert_eq!(ids(&choice.chain), [3]);
        assert_eq!(choice.lost, [Offset::new(3)..Offset::new(12)]);
    }

    #[test]
    fn trimmed_segments_stay_trimmed() {
        let found = vec![candidate(1, 1, 0, 10), candidate(2, 1, 10, 20)];
        let choice = choose(found, Offset::new(10));
        assert_eq!(ids(&choice.chain), [2]);
        assert_eq!(ids(&choice.spare), [1]);
        assert!(choice.lost.is_empty());
    }

    /// Every valid chain, the slow way.
    fn all_chains(candidates: &[Candidate], tail: Option<&Candidate>) -> Vec<(Offset, Offset)> {
        let mut ranges = Vec::new();
        for candidate in candidates {
            let follows = tail.is_none_or(|tail| {
                tail.next_offset == candidate.base_offset
                    && tail.leader_epoch <= candidate.leader_epoch
            });
            if follows {
                ranges.push((candidate.base_offset, candidate.next_offset));
                let longer = all_chains(candidates, Some(candidate));
                ranges.extend(
                    longer
                        .into_iter()
                        .map(|(_, end)| (candidate.base_offset, end)),
                );
            }
        }
        ranges
    }

    proptest! {
        #[test]
        fn the_choice_is_a_chain_and_none_reaches_further(
            raw in prop::collection::vec((1u32..4, 0u64..6, 1u64..4), 0..9),
        ) {
            let found: Vec<Candidate> = raw
                .iter()
                .zip(0u128..)
                .map(|((epoch, base, length), id)| candidate(id, *epoch, *base, base + length))
                .collect();
            let choice = choose(found.clone(), Offset::ZERO);
            for pair in choice.chain.windows(2) {
                prop_assert_eq!(pair[0].next_offset, pair[1].base_offset);
                prop_assert!(pair[0].leader_epoch <= pair[1].leader_epoch);
            }
            prop_assert_eq!(choice.chain.len() + choice.spare.len(), found.len());
            let best = all_chains(&found, None).into_iter().max_by_key(|(base, end)| (*end, Reverse(*base)));
            let chosen = choice
                .chain
                .first()
                .zip(choice.chain.last())
                .map(|(first, last)| (first.base_offset, last.next_offset));
            prop_assert_eq!(chosen, best);
        }
    }
}
