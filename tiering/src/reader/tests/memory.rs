//! The one budget: never exceeded, always given back, enough for everybody to go on.

use std::time::Duration;

use esker_proto::types::Offset;
use futures::{FutureExt, future::join_all};

use super::fixture::{Bench, Fault, KIB, Log, Shape, read, read_all};
use crate::reader::Read;

/// As much as any chunk holds.
const CHUNK: usize = 9000;

/// Held by everything at any moment, as far as a look between all steps can tell.
async fn watched<T>(bench: &Bench, limit: u64, work: impl Future<Output = T>) -> T {
    let watching = async {
        loop {
            assert!(bench.reader.0.fetcher.budget().held_bytes() <= limit);
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        done = work => done,
        () = watching => unreachable!("watches for ever"),
    }
}

#[tokio::test]
async fn the_budget_holds_under_many_replays() {
    let shape = Shape {
        segments: 10,
        ..Shape::default()
    };
    let bench = Bench::with(Log::new(shape).await, |options| {
        options.cache_memory_bytes = 32 * KIB;
        options.budget_bytes = 32 * KIB;
    })
    .await;

    let replays = (0..30).map(|index| {
        let mut cursor = bench.cursor(Offset::new(index * 20));
        async move { read_all(&mut cursor, 3000).await.unwrap() }
    });
    let all = watched(&bench, 64 * KIB, join_all(replays)).await;

    assert!(all.iter().all(|bytes| !bytes.is_empty()));
}

#[tokio::test]
async fn slices_in_a_callers_hands_count_until_they_are_dropped() {
    let bench = Bench::with(Log::new(Shape::default()).await, |options| {
        options.cache_memory_bytes = 9 * KIB;
        options.budget_bytes = 64 * KIB;
    })
    .await;
    let mut cursor = bench.cursor(Offset::ZERO);
    let mut slices = Vec::new();
    for _ in 0..3 {
        slices.push(cursor.next(CHUNK).await.unwrap());
    }
    bench.settle().await;
    bench.reader.0.fetcher.memory().clear();
    drop(cursor);

    let held = bench.reader.0.fetcher.budget().held_bytes();
    assert!(held >= 15 * KIB, "{held}");
    drop(slices);

    assert_eq!(bench.reader.0.fetcher.budget().held_bytes(), 0);
    assert_eq!(bench.metric("chunk_memory_bytes"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_reader_gives_its_memory_back_and_its_fetch_is_kept() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;
    let slow = Fault::Delay(Duration::from_secs(5));
    bench.log.objects.strike(bench.log.segment_key(0), slow, 1);

    // A caller whose patience is a tenth of the store's latency.
    let mut cursor = bench.cursor(Offset::ZERO);
    let mut patience = 0;
    let bytes = loop {
        let waiting = tokio::time::timeout(Duration::from_millis(500), read(&mut cursor, CHUNK));
        match waiting.await {
            Ok(bytes) => break bytes.unwrap(),
            Err(_) => patience += 1,
        }
    };

    assert!((9..=10).contains(&patience), "{patience}");
    assert!(!bytes.is_empty());
    assert_eq!(bench.log.objects.gets().len(), 1);
    drop((cursor, bytes));
    bench.reader.0.fetcher.memory().clear();
    assert_eq!(bench.reader.0.fetcher.budget().held_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_reader_goes_on_though_others_sit_on_their_chunks() {
    let shape = Shape {
        segments: 10,
        ..Shape::default()
    };
    let bench = Bench::with(Log::new(shape).await, |options| {
        options.cache_memory_bytes = 9 * KIB;
        options.budget_bytes = 18 * KIB;
    })
    .await;
    // Idle, each in the middle of a chunk of its own.
    let mut idle: Vec<_> = (0..10)
        .map(|index| bench.cursor(Offset::new(index * 40)))
        .collect();
    for cursor in &mut idle {
        read(cursor, 1).await.unwrap();
    }

    let bytes = read_all(&mut bench.cursor(Offset::ZERO), CHUNK)
        .await
        .unwrap();

    assert!(bytes == bench.log.expected_from(Offset::ZERO));
    for cursor in &mut idle {
        assert!(!read(cursor, 1).await.unwrap().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_without_memory_is_told_in_time_and_others_go_on() {
    let bench = Bench::with(Log::new(Shape::default()).await, |options| {
        options.cache_memory_bytes = 0;
        options.budget_bytes = 9 * KIB;
    })
    .await;
    let hoarded = bench.cursor(Offset::ZERO).next(CHUNK).await.unwrap();
    assert!(matches!(hoarded, Read::Batches { .. }));

    let error = bench.cursor(Offset::new(50)).next(CHUNK).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");

    drop(hoarded);
    assert!(
        !read(&mut bench.cursor(Offset::new(50)), CHUNK)
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test(start_paused = true)]
async fn a_chunk_larger_than_what_the_cache_leaves_is_read_all_the_same() {
    let bench = Bench::with(Log::new(Shape::default()).await, |options| {
        options.cache_memory_bytes = 20 * KIB;
        options.budget_bytes = KIB;
    })
    .await;

    let bytes = read_all(&mut bench.cursor(Offset::ZERO), CHUNK)
        .await
        .unwrap();

    assert!(bytes == bench.log.expected_from(Offset::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_demand_goes_before_what_is_fetched_ahead() {
    let shape = Shape {
        segments: 10,
        ..Shape::default()
    };
    let bench = Bench::with(Log::gated(shape).await, |options| {
        options.cache_memory_bytes = 32 * KIB;
        options.budget_bytes = 32 * KIB;
    })
    .await;
    // A replay that has everything under way that it may.
    let mut replay = bench.cursor(Offset::ZERO);
    bench.log.objects.let_through(1);
    read(&mut replay, 1).await.unwrap();
    for _ in 0..4 {
        let _ = read(&mut replay, CHUNK).now_or_never();
    }
    yield_often().await;
    let before = bench.log.objects.gets();
    assert!(before.len() > 2, "fetched ahead: {before:?}");

    // The next reader's fetch starts although none of the replay's has ended.
    let mut other = bench.cursor(Offset::new(400));
    assert!(read(&mut other, 1).now_or_never().is_none());
    yield_often().await;

    let gets = bench.log.objects.gets();
    assert_eq!(gets.len(), before.len() + 1);
    assert!(!before.contains(&gets[before.len()]));
}

#[tokio::test(start_paused = true)]
async fn a_reader_keeps_nothing_for_later_while_another_waits_for_memory() {
    let bench = Bench::with(Log::gated(Shape::default()).await, |options| {
        options.cache_memory_bytes = 0;
        options.budget_bytes = 9 * KIB;
    })
    .await;
    // One has the whole budget and waits for the store; the other waits for the budget.
    let (mut first, mut second) = (bench.cursor(Offset::ZERO), bench.cursor(Offset::new(50)));
    let mut reading = Box::pin(read(&mut first, 1));
    assert!(reading.as_mut().now_or_never().is_none());
    yield_often().await;
    let mut waiting = Box::pin(read(&mut second, 1));
    assert!(waiting.as_mut().now_or_never().is_none());
    yield_often().await;
    assert!(bench.reader.0.fetcher.budget().is_short());
    bench.log.objects.let_through(10);

    // The first gets a batch amid its chunk, and does not come back for the next.
    assert!(!reading.await.unwrap().is_empty());

    assert!(!waiting.await.unwrap().is_empty());
    drop(second);
    assert!(
        !read(&mut first, 1).await.unwrap().is_empty(),
        "it reads on"
    );
}

/// Lets every task run that can.
async fn yield_often() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}
