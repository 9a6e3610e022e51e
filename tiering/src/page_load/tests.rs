use std::sync::Arc;

use esker_index::{Manifest, PageRef, Update};
use esker_proto::types::{
    ClusterId, LeaderEpoch, Offset, PartitionId, Position, SegmentId, TimestampMs, TopicId,
    TopicPartition,
};
use futures::{FutureExt, future::join_all};
use object_store::memory::InMemory;
use prometheus::Registry;
use uuid::Uuid;

use super::*;
use esker_index::{EpochHistory, IndexEntry, NewSegment, SegmentMeta};

const KEY: &str = "page";

fn segment(number: u64) -> Update {
    let entry = IndexEntry {
        base_offset: Offset::new(number),
        position: Position::ZERO,
        length: 100,
        record_count: 1,
        min_timestamp: TimestampMs::new(1),
        max_timestamp: TimestampMs::new(2),
    };
    let id = SegmentId::new(Uuid::from_u128(u128::from(number) + 1));
    let mut epochs = EpochHistory::new();
    epochs.push(LeaderEpoch::new(1), Offset::ZERO).unwrap();
    Update::AddSegment(NewSegment {
        meta: SegmentMeta::of_entries(id, LeaderEpoch::new(1), 0, &[entry]).unwrap(),
        entries: vec![entry],
        epochs,
        producers: Bytes::new(),
    })
}

/// A page of some hundred rows in a store.
async fn page() -> (Store, PageRef) {
    let tp = TopicPartition {
        topic_id: TopicId::new(Uuid::from_u128(7)),
        partition: PartitionId::new(0),
    };
    let leader_epoch = LeaderEpoch::new(1);
    let opened = Manifest::create(ClusterId::new(Uuid::from_u128(1)), tp)
        .apply(Update::Open { leader_epoch }, 1)
        .unwrap();
    let filled = Update::All((0..2100).map(segment).collect());
    let next = opened.manifest.apply(filled, 2).unwrap();
    let page = next.new_pages.into_iter().next().unwrap();
    let store = Store::from_object_store(Arc::new(InMemory::new()), "", &Registry::new()).unwrap();
    store.put_object(KEY, page.bytes).await.unwrap();
    (store, page.page_ref)
}

#[tokio::test]
async fn loads_wait_for_each_other_rather_than_exceed_their_memory() {
    let (store, page) = page().await;
    let size_bytes = u32::try_from(page.size_bytes).unwrap();
    let loads = Loads::new(page.row_count * 160 + size_bytes + 1);
    let tasks = TaskSet::new();

    let first = loads.memory(&page).await.unwrap();
    assert!(loads.memory(&page).now_or_never().is_none());
    drop(first);

    let all = (0..16).map(|_| loads.load(&store, &tasks, KEY, &page));
    assert!(join_all(all).await.into_iter().all(|rows| rows.is_ok()));
}

#[tokio::test]
async fn a_page_larger_than_all_the_memory_is_loaded_alone() {
    let (store, page) = page().await;
    let loads = Loads::new(10);

    let tasks = TaskSet::new();
    let all = (0..3).map(|_| loads.load(&store, &tasks, KEY, &page).boxed());
    for rows in all {
        assert_eq!(rows.await.unwrap().len(), page.row_count as usize);
    }
}

#[tokio::test(start_paused = true)]
async fn a_load_that_finds_no_memory_says_so() {
    let (store, page) = page().await;
    let loads = Loads::new(10);
    let _taken = loads.memory(&page).await.unwrap();

    let error = loads
        .load(&store, &TaskSet::new(), KEY, &page)
        .await
        .unwrap_err();

    assert_eq!(error.kind(), crate::error::ErrorKind::Busy);
}
