//! What is fetched, when, and how often.

use std::sync::Arc;

use esker_proto::types::Offset;
use futures::future::join_all;

use super::fixture::{Bench, KIB, Log, Shape, read, read_all};

/// As much as any chunk holds.
const CHUNK: usize = 9000;

#[tokio::test(start_paused = true)]
async fn a_chunk_is_fetched_once_however_many_readers_want_it() {
    let bench = Bench::new(Log::gated(Shape::default()).await).await;
    let mut cursors: Vec<_> = (0..50).map(|_| bench.cursor(Offset::ZERO)).collect();

    let reads = join_all(cursors.iter_mut().map(|cursor| read(cursor, CHUNK)));
    let (reads, ()) = tokio::join!(reads, async { bench.log.objects.let_through(1) });

    let first = reads[0].as_ref().unwrap();
    assert!(!first.is_empty());
    assert!(reads.iter().all(|read| read.as_ref().unwrap() == first));
    assert_eq!(bench.log.objects.gets().len(), 1);
}

#[tokio::test]
async fn each_byte_of_a_replay_is_fetched_once_and_no_trailer_is() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;

    let bytes = read_all(&mut bench.cursor(Offset::ZERO), CHUNK)
        .await
        .unwrap();
    bench.settle().await;

    let fetched: u64 = bench
        .log
        .objects
        .gets()
        .iter()
        .map(|(_, range)| range.end - range.start)
        .sum();
    assert_eq!(fetched, bytes.len() as u64);
    assert_eq!(bench.metric("fetched_bytes_total"), fetched);
    assert_eq!(bench.metric("in_flight_bytes"), 0);
    let again = read_all(&mut bench.cursor(Offset::ZERO), CHUNK)
        .await
        .unwrap();
    assert!(again == bytes);
    assert_eq!(
        bench.metric("fetched_bytes_total"),
        fetched,
        "the second time from memory"
    );
}

#[tokio::test]
async fn a_single_read_fetches_nothing_ahead() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;

    read(&mut bench.cursor(Offset::new(3)), CHUNK)
        .await
        .unwrap();
    bench.settle().await;

    assert_eq!(bench.log.objects.gets().len(), 1);
}

#[tokio::test]
async fn the_window_crosses_segments() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;
    let last_chunk_of_first = Offset::new(bench.log.segments[1].base_offset.get() - 1);
    let mut cursor = bench.cursor(last_chunk_of_first);

    read(&mut cursor, 1).await.unwrap();
    bench.log.objects.forget_gets();
    assert_eq!(cursor.offset(), bench.log.segments[1].base_offset);
    read(&mut cursor, 1).await.unwrap();
    bench.settle().await;

    let gets = bench.log.objects.gets();
    let second = bench.log.segment_key(1).to_string();
    assert!(
        gets.len() >= 2,
        "demanded one, fetched more ahead: {gets:?}"
    );
    assert!(gets.iter().all(|(key, _)| *key == second));
}

#[tokio::test]
async fn a_reader_in_the_last_chunk_of_a_segment_has_the_next_segment_fetched() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;
    let before_last = Offset::new(bench.log.segments[1].base_offset.get() - 12);
    let mut cursor = bench.cursor(before_last);

    read(&mut cursor, 1).await.unwrap();
    read(&mut cursor, 1).await.unwrap();
    bench.settle().await;

    let second = bench.log.segment_key(1).to_string();
    assert!(
        bench
            .log
            .objects
            .gets()
            .iter()
            .any(|(key, _)| *key == second)
    );
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_waits_gets_more_fetched_at_once_up_to_its_share() {
    let shape = Shape {
        segments: 20,
        ..Shape::default()
    };
    let bench = Bench::with(Log::new(shape).await, |options| {
        options.cache_memory_bytes = 128 * KIB;
        options.budget_bytes = 128 * KIB;
    })
    .await;
    for index in 0..20 {
        bench.log.objects.strike(
            bench.log.segment_key(index),
            super::fixture::Fault::Delay(std::time::Duration::from_millis(20)),
            usize::MAX,
        );
    }

    let bytes = read_all(&mut bench.cursor(Offset::ZERO), CHUNK)
        .await
        .unwrap();

    assert!(bytes == bench.log.expected_from(Offset::ZERO));
    // Half of 128 KiB in chunks of 8 KiB, and the one that is waited for.
    let in_flight_max = bench.log.objects.in_flight_max();
    assert!((6..=9).contains(&in_flight_max), "{in_flight_max}");
    assert_eq!(bench.metric("prefetch_wasted_bytes_total"), 0);
}

#[tokio::test(start_paused = true)]
async fn many_readers_share_the_window_and_all_finish() {
    let shape = Shape {
        segments: 10,
        ..Shape::default()
    };
    let bench = Arc::new(Bench::new(Log::new(shape).await).await);
    let expected = bench.log.expected_from(Offset::ZERO);

    // Each at a place of its own, more readers than the budget has chunks.
    let readers = (0..40).map(|index| {
        let (bench, expected) = (bench.clone(), &expected);
        async move {
            let start = Offset::new(index * 10);
            let bytes = read_all(&mut bench.cursor(start), CHUNK).await.unwrap();
            assert!(expected.ends_with(&bytes) && !bytes.is_empty());
        }
    });
    join_all(readers).await;

    assert_eq!(bench.metric("cold_readers"), 0);
}

#[tokio::test]
async fn a_reader_at_the_end_does_not_count_as_active() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;
    let mut cursor = bench.cursor(Offset::ZERO);
    read(&mut cursor, 1).await.unwrap();
    assert_eq!(bench.metric("cold_readers"), 1);

    read_all(&mut cursor, CHUNK).await.unwrap();

    assert_eq!(bench.metric("cold_readers"), 0);
}

#[tokio::test]
async fn active_readers_share_the_window_evenly_and_none_is_left_without() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;
    let mut cursors = Vec::new();
    let mut shares = Vec::new();
    for index in 0..20 {
        let mut cursor = bench.cursor(Offset::new(index));
        read(&mut cursor, 1).await.unwrap();
        cursors.push(cursor);
        shares.push(bench.reader.0.share_chunks(8 * KIB));
    }

    // Half of 256 KiB in chunks of 8 KiB.
    assert_eq!((shares[0], shares[1], shares[3], shares[19]), (16, 8, 4, 1));
    drop(cursors);
    assert_eq!(bench.reader.0.share_chunks(8 * KIB), 16);
}
