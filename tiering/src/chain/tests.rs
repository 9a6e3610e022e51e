//! Chains on a store that fails in every way that leaves doubt.

use std::{sync::Arc, time::Duration};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::{FutureExt, TryStreamExt};
use object_store::memory::InMemory;
use prometheus::Registry;

use super::{
    boundary::{Boundary, BoundaryCursor},
    *,
};
use crate::{
    env::{IdGenerator, SeededIds},
    error::{Error, ErrorKind},
    store::{Requests, Store, Verb},
    testing::{Faults, FaultyStore, Op, Trouble, When},
};

/// A body with nothing but what a chain needs and one number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Note {
    slot: u64,
    epoch: u64,
    nonce: u128,
    prev_sha256: [u8; 32],
    value: u64,
}

impl ChainBody for Note {
    fn slot(&self) -> u64 {
        self.slot
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn nonce(&self) -> u128 {
        self.nonce
    }

    fn prev_sha256(&self) -> [u8; 32] {
        self.prev_sha256
    }

    fn check_follows(&self, previous: &Self) -> Result<(), String> {
        if self.value >= previous.value {
            Ok(())
        } else {
            Err("the value fell".to_owned())
        }
    }

    fn encode(&self, prev_sha256: [u8; 32]) -> Bytes {
        let mut bytes = BytesMut::new();
        bytes.put_u128(self.nonce);
        bytes.put_u64(self.slot);
        bytes.put_u64(self.epoch);
        bytes.put_u64(self.value);
        bytes.put_slice(&prev_sha256);
        bytes.freeze()
    }

    fn decode(key: &str, mut bytes: Bytes) -> Result<Self, Error> {
        if bytes.len() != 72 {
            return Err(Error::corrupt(key, "not a note"));
        }
        let (nonce, slot) = (bytes.get_u128(), bytes.get_u64());
        let (epoch, value) = (bytes.get_u64(), bytes.get_u64());
        let prev_sha256 = bytes[..].try_into().unwrap();
        Ok(Self {
            slot,
            epoch,
            nonce,
            prev_sha256,
            value,
        })
    }

    fn nonce_of(bytes: &[u8]) -> Option<u128> {
        Some(u128::from_be_bytes(bytes.get(..16)?.try_into().unwrap()))
    }
}

struct Bench {
    store: Store,
    faults: Faults,
    ids: SeededIds,
}

impl Bench {
    fn new() -> Self {
        let (objects, faults) = FaultyStore::new(Arc::new(InMemory::new()), 1);
        let store = Store::from_object_store(Arc::new(objects), "p", &Registry::new()).unwrap();
        Self {
            store,
            faults,
            ids: SeededIds::new(1),
        }
    }

    async fn open(&self, epoch: u64) -> Result<Chain<Note>, Error> {
        let open_with = |tip: Option<&Entry<Note>>| {
            Ok(Note {
                slot: tip.map_or(1, |tip| tip.slot + 1),
                epoch,
                nonce: opening_nonce(&self.ids),
                prev_sha256: [0; 32],
                value: tip.map_or(0, |tip| tip.body.value),
            })
        };
        let (store, policy) = (self.store.clone(), policy());
        Chain::open(store, ChainName::Metadata, epoch, policy, open_with).await
    }

    fn note(&self, chain: &Chain<Note>, value: u64) -> Note {
        Note {
            slot: chain.next_slot(),
            epoch: chain.epoch(),
            nonce: next_nonce(&self.ids),
            prev_sha256: [0; 32],
            value,
        }
    }

    async fn append(&self, chain: &mut Chain<Note>, value: u64) -> Result<u64, Error> {
        let note = self.note(chain, value);
        chain.append(note).await.map(|entry| entry.slot)
    }

    async fn collect(&self, chain: &mut Chain<Note>, floor: u64) -> Result<(), Error> {
        chain.collect(floor, self.ids.nonce()).await
    }

    fn reader(&self) -> ChainReader {
        ChainReader::new(self.store.clone(), ChainName::Metadata)
    }

    async fn latest(&self) -> Result<Option<u64>, Error> {
        let newest = self.reader().latest::<Note>(None).await?;
        Ok(newest.map(|entry| entry.body.value))
    }

    async fn slots(&self) -> Vec<u64> {
        let listed: Vec<_> = self
            .store
            .list("meta/log", None)
            .try_collect()
            .await
            .unwrap();
        listed
            .iter()
            .filter_map(|object| ChainName::number_in(&object.key))
            .collect()
    }

    /// An object put by hand, as a stalled writer's late put would.
    async fn put_ghost(&self, slot: u64, epoch: u64, value: u64) {
        let nonce = opening_nonce(&self.ids);
        let ghost = Note {
            slot,
            epoch,
            nonce,
            prev_sha256: [0; 32],
            value,
        };
        let key = ChainName::Metadata.slot(slot);
        self.store
            .put_object(&key, ghost.encode([0; 32]))
            .await
            .unwrap();
    }
}

fn policy() -> RetryPolicy {
    let (backoff, backoff_max) = (Duration::from_millis(10), Duration::from_millis(100));
    RetryPolicy {
        deadline: Duration::from_secs(5),
        backoff,
        backoff_max,
    }
}

#[tokio::test]
async fn what_is_appended_is_what_a_reader_finds() {
    let bench = Bench::new();
    let mut chain = bench.open(1).await.unwrap();

    for value in 1..=5 {
        assert_eq!(bench.append(&mut chain, value).await.unwrap(), value + 1);
    }

    assert_eq!(bench.latest().await.unwrap(), Some(5));
    let Tail::Entries(entries) = bench.reader().tail::<Note>(3, 2).await.unwrap() else {
        panic!("nothing was collected");
    };
    assert_eq!(
        entries.iter().map(|entry| entry.slot).collect::<Vec<_>>(),
        [3, 4]
    );
}

#[tokio::test]
async fn a_plain_commit_costs_one_request_and_an_idle_chain_none() {
    let bench = Bench::new();
    let mut chain = bench.open(1).await.unwrap();
    let before: Requests = bench.store.requests();

    bench.append(&mut chain, 1).await.unwrap();

    let spent = bench.store.requests().since(&before);
    assert_eq!((spent.of(Verb::Create), spent.total()), (1, 1));
}

#[tokio::test]
async fn a_newer_owner_stops_the_older_one_for_good() {
    let bench = Bench::new();
    let mut old = bench.open(1).await.unwrap();
    bench.append(&mut old, 1).await.unwrap();

    let mut new = bench.open(2).await.unwrap();

    let fenced = bench.append(&mut old, 2).await.unwrap_err();
    assert!(
        matches!(
            fenced,
            Error::Fenced {
                ours: 1,
                theirs: 2,
                ..
            }
        ),
        "{fenced}"
    );
    let again = bench.append(&mut old, 2).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Fenced);
    bench.append(&mut new, 3).await.unwrap();
    assert_eq!(bench.latest().await.unwrap(), Some(3));
}

#[tokio::test]
async fn a_second_owner_of_the_same_epoch_fences_the_first() {
    let bench = Bench::new();
    let mut first = bench.open(7).await.unwrap();
    let mut second = bench.open(7).await.unwrap();

    bench.append(&mut second, 1).await.unwrap();

    assert_eq!(
        bench.append(&mut first, 9).await.unwrap_err().kind(),
        ErrorKind::Fenced
    );
    assert_eq!(bench.latest().await.unwrap(), Some(1));
}

#[tokio::test]
async fn an_older_epoch_cannot_be_opened() {
    let bench = Bench::new();
    bench.open(5).await.unwrap();

    let refused = bench.open(4).await.unwrap_err();

    assert!(
        matches!(
            refused,
            Error::Fenced {
                ours: 4,
                theirs: 5,
                ..
            }
        ),
        "{refused}"
    );
    assert_eq!(bench.slots().await, [1]);
}

#[tokio::test(start_paused = true)]
async fn doubtful_replies_end_in_the_truth() {
    for trouble in [
        Trouble::FailBefore,
        Trouble::FailAfter,
        Trouble::HangAfter,
        Trouble::Hang,
        Trouble::SlowDown,
        Trouble::ConflictWithoutEffect,
        Trouble::LandTwice,
        Trouble::FailThenLand,
    ] {
        let bench = Bench::new();
        let mut chain = bench.open(1).await.unwrap();
        bench.faults.inject(When::on(Op::Create).times(1), trouble);

        // A hang outlasts the deadline, and the handle knows that it does not know. All else is
        // settled within the call.
        match bench.append(&mut chain, 1).await {
            Ok(_) => assert!(!chain.is_in_doubt()),
            Err(error) => {
                let hung = matches!(trouble, Trouble::Hang | Trouble::HangAfter);
                assert!(hung, "{trouble:?}: {error}");
                assert_eq!(error.kind(), ErrorKind::Unknown, "{trouble:?}: {error}");
                assert!(chain.settle().await.unwrap(), "{trouble:?}");
            }
        }

        bench.faults.land().await;
        assert_eq!(bench.append(&mut chain, 2).await.unwrap(), 3, "{trouble:?}");
        assert_eq!(bench.latest().await.unwrap(), Some(2), "{trouble:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_else_is_put_while_an_outcome_is_in_doubt() {
    let bench = Bench::new();
    let mut chain = bench.open(1).await.unwrap();
    bench.faults.inject(When::any(), Trouble::FailBefore);
    let unknown = bench.append(&mut chain, 1).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::Unknown);
    bench.faults.heal();

    let refused = bench.append(&mut chain, 2).await.unwrap_err();

    assert_eq!(refused.kind(), ErrorKind::Unknown);
    assert_eq!(bench.slots().await, [1]);
    assert!(chain.settle().await.unwrap());
    assert_eq!(bench.latest().await.unwrap(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_append_is_settled_by_the_same_body() {
    let bench = Bench::new();
    let mut chain = bench.open(1).await.unwrap();
    bench
        .faults
        .inject(When::on(Op::Create).times(1), Trouble::HangAfter);

    let note = bench.note(&chain, 1);
    let dropped = tokio::time::timeout(Duration::from_millis(1), chain.append(note)).await;

    assert!(dropped.is_err());
    assert!(chain.is_in_doubt());
    assert!(chain.settle().await.unwrap());
    assert_eq!(chain.tip().body.value, 1);
    assert!(!chain.settle().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_without_effect_leaves_the_handle_usable() {
    let bench = Bench::new();
    let mut chain = bench.open(1).await.unwrap();
    bench
        .faults
        .inject(When::on(Op::Create).times(1), Trouble::Forbid);

    let refused = bench.append(&mut chain, 1).await.unwrap_err();

    assert_eq!(refused.kind(), ErrorKind::Forbidden);
    assert_eq!(bench.append(&mut chain, 2).await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_commit_waits_until_the_clock_is_set() {
    let bench = Bench::new();
    let mut chain = bench.open(1).await.unwrap();
    bench
        .faults
        .inject(When::on(Op::Create).times(3), Trouble::Skew);

    assert_eq!(bench.append(&mut chain, 1).await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_after_a_doubtful_try_stays_doubtful() {
    let bench = Bench::new();
    let mut chain = bench.open(1).await.unwrap();
    bench
        .faults
        .inject(When::on(Op::Create).times(1), Trouble::FailThenLand);
    bench
        .faults
        .inject(When::on(Op::Create).times(1), Trouble::Forbid);

    let unknown = bench.append(&mut chain, 1).await.unwrap_err();

    assert_eq!(unknown.kind(), ErrorKind::Unknown);
    bench.faults.land().await;
    assert!(chain.settle().await.unwrap());
}

#[tokio::test]
async fn collection_keeps_openings_and_all_from_the_floor_on() {
    let bench = Bench::new();
    let mut first = bench.open(1).await.unwrap();
    for value in 1..=3 {
        bench.append(&mut first, value).await.unwrap();
    }
    let mut second = bench.open(2).await.unwrap();
    for value in 4..=6 {
        bench.append(&mut second, value).await.unwrap();
    }

    bench.collect(&mut second, 7).await.unwrap();

    // Slots 1 and 5 opened epochs.
    assert_eq!(bench.slots().await, [1, 5, 7, 8]);
    assert_eq!(bench.latest().await.unwrap(), Some(6));
    let behind = bench.reader().tail::<Note>(2, 9).await.unwrap();
    assert_eq!(behind, Tail::Behind { floor: 7 });
}

#[tokio::test]
async fn collection_never_passes_the_tip() {
    let bench = Bench::new();
    let mut chain = bench.open(1).await.unwrap();
    bench.append(&mut chain, 1).await.unwrap();

    bench.collect(&mut chain, u64::MAX).await.unwrap();

    assert_eq!(bench.latest().await.unwrap(), Some(1));
    assert_eq!(bench.append(&mut chain, 2).await.unwrap(), 3);
}

#[tokio::test]
async fn a_later_collection_takes_up_what_a_failed_one_left() {
    let bench = Bench::new();
    let mut first = bench.open(1).await.unwrap();
    for value in 1..=4 {
        bench.append(&mut first, value).await.unwrap();
    }
    bench
        .faults
        .inject(When::on(Op::Delete).times(4), Trouble::FailBefore);
    assert!(bench.collect(&mut first, 4).await.is_err());
    assert_eq!(bench.slots().await, [1, 2, 3, 4, 5]);

    bench.faults.heal();
    let mut second = bench.open(2).await.unwrap();
    bench.collect(&mut second, 5).await.unwrap();

    assert_eq!(bench.slots().await, [1, 5, 6]);
}

#[tokio::test]
async fn nothing_is_deleted_before_the_boundary_is_durable() {
    let bench = Bench::new();
    let mut chain = bench.open(1).await.unwrap();
    for value in 1..=3 {
        bench.append(&mut chain, value).await.unwrap();
    }
    bench
        .faults
        .inject(When::on(Op::Create).key("boundary"), Trouble::Forbid);

    let refused = bench.collect(&mut chain, 3).await.unwrap_err();

    assert_eq!(refused.kind(), ErrorKind::Forbidden);
    assert_eq!(bench.slots().await, [1, 2, 3, 4]);
}

#[tokio::test]
async fn a_deposed_collector_deletes_nothing_of_its_successor() {
    let bench = Bench::new();
    let mut old = bench.open(1).await.unwrap();
    bench.append(&mut old, 1).await.unwrap();
    let mut new = bench.open(2).await.unwrap();
    bench.append(&mut new, 2).await.unwrap();

    bench.collect(&mut old, u64::MAX).await.unwrap();

    assert_eq!(bench.slots().await, [1, 2, 3, 4]);
    assert_eq!(bench.latest().await.unwrap(), Some(2));
}

/// Given a candidate that read the tip and then slept while the slot it meant was used and
/// collected: its put succeeds, and proves nothing.
#[tokio::test]
async fn an_opening_below_the_floor_does_not_stand() {
    let bench = Bench::new();
    let mut owner = bench.open(1).await.unwrap();
    let mut collected = false;
    let open_with = |tip: Option<&Entry<Note>>| {
        let slot = tip.map_or(1, |tip| tip.slot + 1);
        if !std::mem::replace(&mut collected, true) {
            // All this happens while the candidate sleeps, after it read the tip.
            let meanwhile = async {
                for value in 1..=3 {
                    bench.append(&mut owner, value).await.unwrap();
                }
                bench.collect(&mut owner, 4).await.unwrap();
            };
            meanwhile
                .now_or_never()
                .expect("a store in memory answers at once");
        }
        let (nonce, prev_sha256) = (opening_nonce(&bench.ids), [0; 32]);
        Ok(Note {
            slot,
            epoch: 2,
            nonce,
            prev_sha256,
            value: tip.map_or(0, |tip| tip.body.value),
        })
    };

    let store = bench.store.clone();
    let candidate = Chain::open(store, ChainName::Metadata, 2, policy(), open_with)
        .await
        .unwrap();

    assert_eq!(candidate.opened_at(), 5);
    assert_eq!(candidate.tip().body.value, 3);
    assert_eq!(
        bench.append(&mut owner, 9).await.unwrap_err().kind(),
        ErrorKind::Fenced
    );
}

#[tokio::test]
async fn a_reader_applies_no_ghost() {
    let bench = Bench::new();
    let mut owner = bench.open(1).await.unwrap();
    bench.append(&mut owner, 1).await.unwrap();
    let mut reader = bench.reader();
    let known = reader.latest::<Note>(None).await.unwrap().unwrap();
    for value in 2..=4 {
        bench.append(&mut owner, value).await.unwrap();
    }
    bench.collect(&mut owner, 5).await.unwrap();
    bench.put_ghost(3, 9, 99).await;

    let newest = reader.latest(Some(&known)).await.unwrap().unwrap();
    let tail = bench.reader().tail::<Note>(3, 9).await.unwrap();

    assert_eq!(newest.body.value, 4);
    assert_eq!(tail, Tail::Behind { floor: 5 });
}

#[tokio::test]
async fn a_collected_chain_is_never_taken_for_an_empty_one() {
    let bench = Bench::new();
    let mut owner = bench.open(1).await.unwrap();
    for value in 1..=3 {
        bench.append(&mut owner, value).await.unwrap();
    }
    bench.collect(&mut owner, 4).await.unwrap();
    bench
        .store
        .delete((1..=4).map(|slot| ChainName::Metadata.slot(slot)))
        .await
        .unwrap();

    assert_eq!(bench.latest().await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(bench.open(2).await.unwrap_err().kind(), ErrorKind::Corrupt);
}

#[tokio::test]
async fn an_old_listing_only_makes_the_reader_slower() {
    let bench = Bench::new();
    let mut owner = bench.open(1).await.unwrap();
    for value in 1..=6 {
        bench.append(&mut owner, value).await.unwrap();
        bench.collect(&mut owner, value).await.unwrap();
    }

    for missing in [1, 2, 100] {
        bench.faults.heal();
        bench
            .faults
            .inject(When::on(Op::List), Trouble::StaleList(missing));
        assert_eq!(bench.latest().await.unwrap(), Some(6), "{missing} missing");
    }
}

#[tokio::test]
async fn damage_is_reported_and_never_applied() {
    let bench = Bench::new();
    let mut owner = bench.open(1).await.unwrap();
    bench.append(&mut owner, 5).await.unwrap();
    bench.put_ghost(3, 1, 6).await;
    let tail = bench.reader().tail::<Note>(1, 9).await.unwrap_err();
    assert_eq!(tail.kind(), ErrorKind::Corrupt);
    assert!(tail.to_string().contains("00003"), "{tail}");

    let key = ChainName::Metadata.slot(3);
    bench
        .store
        .put_object(&key, Bytes::from_static(b"rubbish"))
        .await
        .unwrap();
    assert_eq!(bench.latest().await.unwrap_err().kind(), ErrorKind::Corrupt);
}

#[tokio::test]
async fn two_collectors_never_let_the_boundary_fall() {
    let bench = Bench::new();
    let cursor = || BoundaryCursor::new(bench.store.clone(), ChainName::Metadata);
    let (mut slow, mut fast) = (cursor(), cursor());
    slow.refresh().await.unwrap();
    let at = |floor| Boundary {
        floor,
        swept_below: 1,
    };
    fast.raise(at(20), 1, policy()).await.unwrap();

    let settled = slow.raise(at(12), 2, policy()).await.unwrap();

    assert_eq!(settled.floor, 20);
    assert_eq!(cursor().refresh().await.unwrap().floor, 20);
}

#[test]
fn a_boundary_reads_back_and_damage_is_seen() {
    let boundary = Boundary {
        floor: 7,
        swept_below: 5,
    };
    let bytes = boundary.encode(42);

    assert_eq!(Boundary::decode("k", &bytes).unwrap(), boundary);
    assert_eq!(Boundary::nonce_of(&bytes), Some(42));
    for at in 0..bytes.len() {
        let mut damaged = bytes.to_vec();
        damaged[at] ^= 4;
        assert!(Boundary::decode("k", &damaged).is_err(), "byte {at}");
        assert!(Boundary::decode("k", &bytes[..at]).is_err(), "cut at {at}");
    }
}

/// One bit of a reply in ten is flipped, or of each reply for a while.
#[tokio::test]
async fn bytes_flipped_on_their_way_are_read_again_and_depose_nobody() {
    for seed in 0..50 {
        let (objects, faults) = FaultyStore::new(Arc::new(InMemory::new()), seed);
        let store = Store::from_object_store(Arc::new(objects), "p", &Registry::new()).unwrap();
        let name = ChainName::Manifest(crate::keys::Keys::new(
            crate::archive::tests::fixture::PARTITION,
        ));
        faults.inject(When::on(Op::Get).probability(0.2), Trouble::FlipBit);
        faults.inject(When::on(Op::Create).probability(0.3), Trouble::FailAfter);
        let mut boundary = BoundaryCursor::new(store.clone(), name);
        for floor in 2..12 {
            let raised = Boundary {
                floor,
                swept_below: 1,
            };
            let raised = boundary
                .raise(raised, u128::from(floor) * 2, policy())
                .await
                .unwrap();
            assert_eq!(raised.floor, floor);
        }
        let mut fresh = BoundaryCursor::new(store, name);
        assert_eq!(fresh.refresh().await.unwrap().floor, 11);
    }
}

#[tokio::test]
async fn a_damaged_boundary_is_passed_over_once_another_follows_it() {
    let bench = Bench::new();
    let name = ChainName::Metadata;
    let raise = |floor| Boundary {
        floor,
        swept_below: 1,
    };
    let mut cursor = BoundaryCursor::new(bench.store.clone(), name);
    cursor.raise(raise(3), 2, policy()).await.unwrap();
    cursor.raise(raise(5), 4, policy()).await.unwrap();
    let key = name.boundary(2);
    bench.store.delete([&key]).await.unwrap();
    bench.store.put_object(&key, "damaged").await.unwrap();
    let error = BoundaryCursor::new(bench.store.clone(), name)
        .refresh()
        .await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Corrupt);
    let mut behind = BoundaryCursor::new(bench.store.clone(), name);

    let reader = ChainReader::new(bench.store.clone(), name);
    reader
        .replace_damaged_boundary(9, 6, policy())
        .await
        .unwrap();

    assert_eq!(behind.refresh().await.unwrap().floor, 9);
    assert_eq!(cursor.refresh().await.unwrap().floor, 9);
}
