//! The faulty store does what its troubles say, and no more.

use std::{sync::Arc, time::Duration};

use object_store::{
    ObjectStore, ObjectStoreExt, PutMode, PutOptions, memory::InMemory, path::Path,
};

use super::*;

fn store() -> (FaultyStore, Faults) {
    FaultyStore::new(Arc::new(InMemory::new()), 7)
}

async fn create(store: &FaultyStore, body: &'static str) -> object_store::Result<()> {
    let options = PutOptions {
        mode: PutMode::Create,
        ..PutOptions::default()
    };
    store
        .put_opts(&Path::from("k"), body.into(), options)
        .await
        .map(drop)
}

async fn stored(store: &FaultyStore) -> Option<Vec<u8>> {
    let found = store.get(&Path::from("k")).await.ok()?;
    Some(found.bytes().await.unwrap().to_vec())
}

#[tokio::test]
async fn without_troubles_everything_passes() {
    let (store, faults) = store();

    create(&store, "a").await.unwrap();

    assert!(create(&store, "b").await.is_err());
    assert_eq!(stored(&store).await.unwrap(), b"a");
    assert_eq!(faults.hits(Op::Create), 0);
}

#[tokio::test]
async fn a_lost_reply_leaves_the_object_and_a_failure_before_does_not() {
    for (trouble, is_there) in [(Trouble::FailAfter, true), (Trouble::FailBefore, false)] {
        let (store, faults) = store();
        faults.inject(When::on(Op::Create).times(1), trouble);

        assert!(create(&store, "a").await.is_err());

        assert_eq!(stored(&store).await.is_some(), is_there);
        assert_eq!(faults.hits(Op::Create), 1);
    }
}

#[tokio::test]
async fn a_late_create_lands_only_if_its_place_is_free() {
    let (store, faults) = store();
    faults.inject(When::on(Op::Create).times(1), Trouble::FailThenLand);
    assert!(create(&store, "late").await.is_err());
    create(&store, "early").await.unwrap();

    assert_eq!(faults.land().await, 1);

    assert_eq!(stored(&store).await.unwrap(), b"early");
}

#[tokio::test]
async fn reads_are_cut_short_or_damaged_in_one_bit() {
    let (store, faults) = store();
    create(&store, "0123456789").await.unwrap();
    faults.inject(When::on(Op::Get).times(1), Trouble::ShortRead);
    faults.inject(When::on(Op::Get).times(1), Trouble::FlipBit);

    assert_eq!(stored(&store).await.unwrap(), b"01234");
    let damaged = stored(&store).await.unwrap();
    let wrong: u32 = b"0123456789"
        .iter()
        .zip(&damaged)
        .map(|(a, b)| (a ^ b).count_ones())
        .sum();
    assert_eq!((damaged.len(), wrong), (10, 1));
    assert_eq!(stored(&store).await.unwrap(), b"0123456789");
}

#[tokio::test(start_paused = true)]
async fn a_hanging_call_never_answers() {
    let (store, faults) = store();
    faults.inject(When::any().times(1), Trouble::Hang);

    let reply = tokio::time::timeout(Duration::from_secs(3600), create(&store, "a")).await;

    assert!(reply.is_err());
    assert!(stored(&store).await.is_none());
}
