//! The rules one by one, and a history of random leaders in which nothing named is ever deleted.

use std::collections::BTreeSet;

use esker_proto::types::SegmentId;
use proptest::prelude::*;
use uuid::Uuid;

use super::*;

fn name(base: u64, epoch: u32, id: u128) -> SegmentName {
    SegmentName {
        base_offset: Offset::new(base),
        leader_epoch: LeaderEpoch::new(epoch),
        segment_id: SegmentId::new(Uuid::from_u128(id)),
    }
}

fn frontier() -> Frontier {
    Frontier {
        opened_epoch: LeaderEpoch::new(5),
        log_start_offset: Offset::new(100),
        tiered_offset: Offset::new(200),
    }
}

#[test]
fn a_segment_is_judged_by_its_place_and_its_epoch() {
    let orphan = Verdict::Garbage(Reason::Orphan);
    let cases = [
        ("named", name(150, 5, 1), true, Verdict::Named),
        (
            "named, by an earlier leader",
            name(150, 2, 1),
            true,
            Verdict::Named,
        ),
        (
            "below the log start",
            name(99, 5, 1),
            false,
            Verdict::Garbage(Reason::Trimmed),
        ),
        ("own, passed by", name(100, 5, 1), false, orphan),
        ("own, last offset passed by", name(199, 5, 1), false, orphan),
        (
            "own, next to be committed",
            name(200, 5, 1),
            false,
            Verdict::Undecided,
        ),
        (
            "own, still further on",
            name(250, 5, 1),
            false,
            Verdict::Undecided,
        ),
        (
            "a deposed leader's, further on: a lost manifest may name it",
            name(250, 4, 1),
            false,
            Verdict::Undecided,
        ),
        (
            "a newer leader's",
            name(250, 6, 1),
            false,
            Verdict::Undecided,
        ),
        (
            "a newer leader's, low",
            name(10, 6, 1),
            false,
            Verdict::Undecided,
        ),
    ];
    for (case, name, is_named, expected) in cases {
        assert_eq!(
            judge_segment(&name, is_named, &frontier()),
            expected,
            "{case}"
        );
    }
}

#[test]
fn only_the_owner_knows_whether_a_page_of_its_epoch_is_in_flight() {
    let judge = |epoch, is_named| judge_page(LeaderEpoch::new(epoch), is_named, &frontier());
    assert_eq!(judge(3, true), Verdict::Named);
    assert_eq!(judge(4, false), Verdict::Garbage(Reason::Orphan));
    assert_eq!(judge(5, false), Verdict::Undecided);
    assert_eq!(judge(6, false), Verdict::Undecided);
}

/// A manifest, as far as garbage is concerned.
#[derive(Clone, Debug, Default)]
struct Model {
    version: u64,
    epoch: u32,
    named: Vec<SegmentName>,
    tiered: u64,
    log_start: u64,
}

impl Model {
    fn frontier(&self) -> Frontier {
        Frontier {
            opened_epoch: LeaderEpoch::new(self.epoch),
            log_start_offset: Offset::new(self.log_start),
            tiered_offset: Offset::new(self.tiered),
        }
    }
}

/// A leader with the manifest it believes in, and uploads it has not committed.
#[derive(Clone, Debug)]
struct Leader {
    epoch: u32,
    manifest: Model,
    uploads: Vec<SegmentName>,
}

#[derive(Clone, Debug)]
enum Step {
    Elect,
    Upload(usize),
    Commit(usize),
    Trim(usize),
    Collect(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let leader = 0usize..3;
    prop_oneof![
        Just(Step::Elect),
        leader.clone().prop_map(Step::Upload),
        leader.clone().prop_map(Step::Upload),
        leader.clone().prop_map(Step::Commit),
        leader.clone().prop_map(Step::Commit),
        leader.clone().prop_map(Step::Trim),
        leader.prop_map(Step::Collect),
    ]
}

/// The bucket: the newest manifest and the segment objects.
#[derive(Debug, Default)]
struct Bucket {
    latest: Model,
    objects: BTreeSet<SegmentName>,
    leaders: Vec<Leader>,
    next_id: u128,
}

const SEGMENT_RECORDS: u64 = 10;

impl Bucket {
    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Elect => self.elect(),
            Step::Upload(index) => self.with_leader(index, Self::upload),
            Step::Commit(index) => self.with_leader(index, Self::commit),
            Step::Trim(index) => self.with_leader(index, Self::trim),
            Step::Collect(index) => self.with_leader(index, Self::collect),
        }
    }

    /// The newest leaders are the likely ones, but deposed ones act too.
    fn with_leader(&mut self, index: usize, act: fn(&mut Self, &mut Leader)) {
        let Some(place) = self.leaders.len().checked_sub(index + 1) else {
            return;
        };
        let mut leader = self.leaders[place].clone();
        act(self, &mut leader);
        self.leaders[place] = leader;
    }

    fn elect(&mut self) {
        self.latest.version += 1;
        self.latest.epoch += 1;
        let manifest = self.latest.clone();
        self.leaders.push(Leader {
            epoch: manifest.epoch,
            manifest,
            uploads: Vec::new(),
        });
    }

    fn upload(&mut self, leader: &mut Leader) {
        self.next_id += 1;
        let last = leader
            .uploads
            .last()
            .map(|name| name.base_offset.get() + SEGMENT_RECORDS);
        let base = last
            .unwrap_or(leader.manifest.tiered)
            .max(leader.manifest.tiered);
        let upload = name(base, leader.epoch, self.next_id);
        leader.uploads.push(upload);
        self.objects.insert(upload);
    }

    fn replace(&mut self, leader: &mut Leader, mut next: Model) {
        next.version += 1;
        if self.latest.version == leader.manifest.version {
            self.latest = next.clone();
            leader.manifest = next;
        }
    }

    fn commit(&mut self, leader: &mut Leader) {
        let mut next = leader.manifest.clone();
        let fits = |name: &&SegmentName| name.base_offset.get() == next.tiered;
        let Some(upload) = leader.uploads.iter().rfind(fits).copied() else {
            return;
        };
        next.named.push(upload);
        next.tiered += SEGMENT_RECORDS;
        self.replace(leader, next);
    }

    fn trim(&mut self, leader: &mut Leader) {
        let mut next = leader.manifest.clone();
        // Half a segment at a time: the one that holds the log start stays named.
        next.log_start = next.tiered.min(next.log_start + SEGMENT_RECORDS / 2);
        let log_start = next.log_start;
        next.named
            .retain(|name| name.base_offset.get() + SEGMENT_RECORDS > log_start);
        self.replace(leader, next);
    }

    fn collect(&mut self, leader: &mut Leader) {
        let frontier = leader.manifest.frontier();
        self.objects.retain(|name| {
            let is_named = leader.manifest.named.contains(name);
            !matches!(
                judge_segment(name, is_named, &frontier),
                Verdict::Garbage(_)
            )
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn nothing_named_is_deleted_whoever_collects_with_whichever_manifest(
        steps in prop::collection::vec(step(), 0..60),
    ) {
        let mut bucket = Bucket::default();
        for step in &steps {
            bucket.apply(step);
            for name in &bucket.latest.named {
                prop_assert!(bucket.objects.contains(name), "deleted {name:?} at {step:?}");
            }
        }
    }

    #[test]
    fn below_the_tiered_offset_only_named_segments_stay_after_the_next_election(
        steps in prop::collection::vec(step(), 0..60),
    ) {
        let mut bucket = Bucket::default();
        steps.iter().for_each(|step| bucket.apply(step));
        bucket.elect();
        bucket.with_leader(0, Bucket::collect);
        let named: BTreeSet<SegmentName> = bucket.latest.named.iter().copied().collect();
        let tiered_offset = Offset::new(bucket.latest.tiered);
        bucket.objects.retain(|name| name.base_offset < tiered_offset);
        prop_assert_eq!(&bucket.objects, &named);
    }
}
