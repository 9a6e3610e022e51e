//! Random histories of leaders on a bucket that fails at random: after each step nothing named is
//! missing, and once the bucket is well again, nothing else is left over.

use std::collections::BTreeMap;

use esker_proto::types::Offset;
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::fixture::{Fixture, never};
use crate::{
    archive::Archive,
    error::{Error, ErrorKind},
    testing::{Trouble, When},
};

const STEPS: usize = 40;

/// What leaders were told, against which the bucket is held.
#[derive(Default)]
struct Oracle {
    tiered_offset: Offset,
    log_start_offset: Offset,
    epoch: u32,
}

struct History {
    bucket: Fixture,
    rng: StdRng,
    leaders: BTreeMap<u32, Archive>,
    oracle: Oracle,
}

impl History {
    fn new(seed: u64) -> Self {
        let bucket = Fixture::new(seed);
        let mut rng = StdRng::seed_from_u64(seed);
        let probability = rng.random_range(0.0..0.2);
        for trouble in [
            Trouble::FailBefore,
            Trouble::FailAfter,
            Trouble::FailThenLand,
        ] {
            bucket
                .faults
                .inject(When::any().probability(probability), trouble);
        }
        Self {
            bucket,
            rng,
            leaders: BTreeMap::new(),
            oracle: Oracle::default(),
        }
    }

    async fn step(&mut self) {
        match self.rng.random_range(0..10) {
            0 => self.elect().await,
            1 => drop(self.bucket.faults.land().await),
            2 => self.crash(),
            3 | 4 => self.trim().await,
            5 | 6 => self.collect().await,
            _ => self.upload().await,
        }
        self.bucket.assert_nothing_dangles_if_any().await;
    }

    async fn elect(&mut self) {
        self.oracle.epoch += 1;
        if let Ok(leader) = self.bucket.open(self.oracle.epoch).await {
            self.check(&leader);
            self.leaders.insert(self.oracle.epoch, leader);
        }
    }

    /// Deposed leaders go on as long as nobody tells them.
    fn crash(&mut self) {
        if self.leaders.len() > 2 {
            self.leaders.pop_first();
        }
    }

    fn any_leader(&mut self) -> Option<Archive> {
        let epochs: Vec<u32> = self.leaders.keys().copied().collect();
        let epoch = *epochs.get(self.rng.random_range(0..epochs.len().max(1)))?;
        self.leaders.remove(&epoch)
    }

    fn put_back(&mut self, leader: Archive, outcome: Result<(), Error>) {
        match outcome {
            Ok(()) => self.note(&leader),
            Err(error) => {
                let known = [
                    ErrorKind::Fenced,
                    ErrorKind::Unavailable,
                    ErrorKind::Unknown,
                ];
                assert!(known.contains(&error.kind()), "{error}");
                if error.kind() == ErrorKind::Fenced {
                    return;
                }
            }
        }
        self.leaders.insert(leader.leader_epoch().get(), leader);
    }

    fn note(&mut self, leader: &Archive) {
        let manifest = leader.manifest();
        self.oracle.tiered_offset = self.oracle.tiered_offset.max(manifest.tiered_offset());
        self.oracle.log_start_offset = self
            .oracle
            .log_start_offset
            .max(manifest.log_start_offset());
    }

    /// A new leader knows all that any leader was told.
    fn check(&self, leader: &Archive) {
        let manifest = leader.manifest();
        assert!(manifest.tiered_offset() >= self.oracle.tiered_offset);
        assert!(manifest.log_start_offset() >= self.oracle.log_start_offset);
    }

    async fn upload(&mut self) {
        let Some(mut leader) = self.any_leader() else {
            return;
        };
        let (base, count) = (
            leader.manifest().tiered_offset().get(),
            self.rng.random_range(1..4),
        );
        let segments = self
            .bucket
            .segments(base, count, leader.leader_epoch().get());
        let outcome = leader.upload_many(&segments, &never()).await;
        if outcome.is_ok() {
            assert!(leader.manifest().tiered_offset() >= segments.last().unwrap().next_offset);
        }
        self.put_back(leader, outcome);
    }

    async fn trim(&mut self) {
        let Some(mut leader) = self.any_leader() else {
            return;
        };
        let manifest = leader.manifest();
        let (start, end) = (
            manifest.log_start_offset().get(),
            manifest.tiered_offset().get(),
        );
        let offset = Offset::new(self.rng.random_range(start..=end));
        let outcome = leader.trim_below(offset).await.map(drop);
        self.put_back(leader, outcome);
    }

    async fn collect(&mut self) {
        let Some(mut leader) = self.any_leader() else {
            return;
        };
        if self.rng.random() {
            leader.request_scan();
        }
        let outcome = leader.collect_garbage().await.map(drop);
        self.put_back(leader, outcome);
    }

    async fn heal(mut self) {
        self.bucket.faults.land().await;
        self.bucket.faults.heal();
        self.leaders.clear();
        let mut leader = self.bucket.open(self.oracle.epoch + 1).await.unwrap();
        self.check(&leader);
        let base = leader.manifest().tiered_offset().get();
        // Far enough to pass whatever deposed leaders left above.
        leader
            .upload(
                &self.bucket.segment(base, base + 200, self.oracle.epoch + 1),
                &never(),
            )
            .await
            .unwrap();
        leader.request_scan();
        while leader.collect_garbage().await.unwrap().has_more {}
        self.bucket.assert_nothing_is_left_over().await;
    }
}

#[tokio::test]
async fn nothing_named_is_ever_missing_and_nothing_is_left_over_in_the_end() {
    for seed in 0..24 {
        let mut history = History::new(seed);
        for _ in 0..STEPS {
            history.step().await;
        }
        history.heal().await;
    }
}
