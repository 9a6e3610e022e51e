//! Chooses, from the segments found in a bucket, the ones a rebuilt manifest shall name.
//!
//! Pure. A bucket may hold several uploads of the same offsets: a crash between the upload and its
//! commit leaves one, and so does a deposed leader. The choice is one gapless run of segments
//! without overlap and with leader epochs that never fall.
//!
//! Some uploads are ruled out first, since no manifest can have named them for good:
//!
//! - What overlaps a segment that the last readable manifest names. Of two uploads of the same
//!   offsets, the owner may have given up the other one, and be about to delete it.
//! - What a later leader overtook: a leader commits at the end of what its predecessors committed,
//!   so whatever an earlier leader uploaded at or above that was never committed, or not before the
//!   later one took over. The epoch history of the last readable manifest tells, and so does an
//!   upload of the later leader.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashSet},
};

use esker_index::EpochHistory;
use esker_proto::types::{LeaderEpoch, Offset, OffsetRange, SegmentId};

use crate::archive::beyond::is_overtaken;

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
    /// Whether the last readable manifest names it.
    pub is_named: bool,
}

impl Candidate {
    fn overlaps(&self, other: &Self) -> bool {
        self.base_offset < other.next_offset && other.base_offset < self.next_offset
    }
}

/// What a rebuilt manifest would name, and what it would leave out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Choice {
    /// The chosen segments in offset order.
    pub chain: Vec<Candidate>,
    /// Segments whose offsets the chain has from elsewhere, or that lie below the log start.
    pub spare: Vec<Candidate>,
    /// Offsets at or above the log start that some segment holds, or the last readable manifest says
    /// exist, and the chain does not hold.
    pub lost: Vec<OffsetRange>,
}

/// Chooses the chain that ends highest; among those the one that starts lowest; and among those,
/// step by step from the start, the one with the higher leader epoch.
///
/// Nothing wholly below the start of `known` is chosen: it was trimmed. `known` and `history` are the
/// offsets and the epochs of the last readable manifest.
pub(super) fn choose(
    mut candidates: Vec<Candidate>,
    known: &OffsetRange,
    history: &EpochHistory,
) -> Choice {
    let log_start_offset = known.start;
    candidates.retain(|candidate| candidate.base_offset < candidate.next_offset);
    candidates.sort_by_key(|candidate| (candidate.base_offset, candidate.segment_id));
    candidates.dedup_by_key(|candidate| candidate.segment_id);
    let (live, mut spare): (Vec<_>, Vec<_>) = candidates
        .into_iter()
        .partition(|candidate| candidate.next_offset > log_start_offset);
    let (live, dead) = split_dead(live, history);
    spare.extend(dead);
    let (contenders, overtaken) = split_overtaken(live.clone());
    let chain = longest_chain(&contenders);
    let chosen: HashSet<SegmentId> = chain.iter().map(|candidate| candidate.segment_id).collect();
    let lost = lost(&live, &chain, known);
    let left_out = contenders
        .into_iter()
        .filter(|candidate| !chosen.contains(&candidate.segment_id));
    spare.extend(left_out.chain(overtaken));
    Choice { chain, spare, lost }
}

/// Takes out what the last readable manifest rules out.
fn split_dead(live: Vec<Candidate>, history: &EpochHistory) -> (Vec<Candidate>, Vec<Candidate>) {
    // Named ones do not overlap each other, so both of their ends rise.
    let named: Vec<Candidate> = live.iter().copied().filter(|c| c.is_named).collect();
    let is_kept = |candidate: &Candidate| {
        let after = named.partition_point(|named| named.next_offset <= candidate.base_offset);
        let is_taken = named
            .get(after)
            .is_some_and(|named| named.overlaps(candidate));
        let (epoch, base) = (candidate.leader_epoch, candidate.base_offset);
        candidate.is_named || !(is_taken || is_overtaken(history, epoch, base))
    };
    live.into_iter().partition(is_kept)
}

/// Takes out what lies at or above the beginning of an upload of a later leader. Sorted by base.
fn split_overtaken(live: Vec<Candidate>) -> (Vec<Candidate>, Vec<Candidate>) {
    let mut newest_at: BTreeMap<Offset, LeaderEpoch> = BTreeMap::new();
    let mut newest = LeaderEpoch::default();
    for candidate in &live {
        newest = newest.max(candidate.leader_epoch);
        newest_at.insert(candidate.base_offset, newest);
    }
    live.into_iter().partition(|candidate| {
        let newest = newest_at.get(&candidate.base_offset).copied();
        candidate.is_named || newest.is_none_or(|newest| newest <= candidate.leader_epoch)
    })
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

/// Offsets at or above the log start that a candidate holds, or that are known, and the chain does not
/// hold.
fn lost(live: &[Candidate], chain: &[Candidate], known: &OffsetRange) -> Vec<OffsetRange> {
    let log_start_offset = known.start;
    let ends = chain.first().zip(chain.last());
    let (start, end) = ends.map_or((log_start_offset, log_start_offset), |(first, last)| {
        (first.base_offset, last.next_offset)
    });
    let held = live.iter().map(|held| held.base_offset..held.next_offset);
    let mut ranges: Vec<OffsetRange> = Vec::new();
    for wanted in held.chain([known.clone()]) {
        let base = wanted.start.max(log_start_offset);
        for (base, next) in [(base, wanted.end.min(start)), (base.max(end), wanted.end)] {
            if base < next {
                ranges.push(base..next);
            }
        }
    }
    ranges.sort_by_key(|range| range.start);
    ranges.into_iter().fold(Vec::new(), |mut merged, range| {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
        merged
    })
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
            is_named: false,
        }
    }

    fn choose(candidates: Vec<Candidate>, log_start_offset: Offset) -> Choice {
        let known = log_start_offset..log_start_offset;
        super::choose(candidates, &known, &EpochHistory::new())
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
        let choice = choose(found, Offset::ZERO);
        assert_eq!(ids(&choice.chain), [1]);
        // The later leader began where the others had uploaded: they had committed none of it.
        assert_eq!(choice.lost, [Offset::new(10)..Offset::new(20)]);
    }

    #[test]
    fn what_the_last_manifest_names_is_chosen_and_its_doubles_are_not() {
        for named in [1, 2] {
            let mut found = vec![
                candidate(1, 1, 0, 10),
                candidate(2, 1, 0, 10),
                candidate(3, 1, 5, 40),
                candidate(4, 1, 10, 20),
            ];
            found[named - 1].is_named = true;
            let choice = choose(found, Offset::ZERO);
            assert_eq!(ids(&choice.chain), [named as u128, 4]);
            assert!(choice.lost.is_empty(), "{choice:?}");
        }
    }

    #[test]
    fn what_a_deposed_leader_uploaded_above_its_successor_is_passed_over() {
        let mut named = candidate(1, 2, 0, 10);
        named.is_named = true;
        let found = vec![named, candidate(2, 1, 10, 30), candidate(3, 2, 10, 20)];
        let mut history = EpochHistory::new();
        history.push(LeaderEpoch::new(1), Offset::ZERO).unwrap();
        history.push(LeaderEpoch::new(2), Offset::new(5)).unwrap();

        let choice = super::choose(found, &(Offset::ZERO..Offset::new(10)), &history);

        assert_eq!(ids(&choice.chain), [1, 3]);
        assert!(choice.lost.is_empty(), "{choice:?}");
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
    fn what_a_manifest_knows_and_no_segment_holds_is_lost_at_either_end() {
        let found = vec![candidate(1, 1, 10, 20), candidate(2, 1, 20, 30)];
        let known = Offset::new(5)..Offset::new(40);

        let choice = super::choose(found, &known, &EpochHistory::new());

        assert_eq!(ids(&choice.chain), [1, 2]);
        let lost = [
            Offset::new(5)..Offset::new(10),
            Offset::new(30)..Offset::new(40),
        ];
        assert_eq!(choice.lost, lost);
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

    fn sorted(found: &[Candidate]) -> Vec<Candidate> {
        let mut sorted = found.to_vec();
        sorted.sort_by_key(|candidate| (candidate.base_offset, candidate.segment_id));
        sorted
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
            let best = all_chains(&split_overtaken(sorted(&found)).0, None).into_iter().max_by_key(|(base, end)| (*end, Reverse(*base)));
            let chosen = choice
                .chain
                .first()
                .zip(choice.chain.last())
                .map(|(first, last)| (first.base_offset, last.next_offset));
            prop_assert_eq!(chosen, best);
        }
    }
}
