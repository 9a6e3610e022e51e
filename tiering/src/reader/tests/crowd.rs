//! Many readers at once, live and stalled, and what they cost.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use esker_index::Update;
use esker_proto::types::Offset;
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::fixture::{Bench, Fault, KIB, Log, Shape, read, read_all, timestamp_of};
use crate::{
    error::ErrorKind,
    reader::{Buffer, Cursor, Hold, Read, ReadMemory, Taken, borrowers::STALLED_AFTER},
};

/// As the agent's defaults of 96 MiB and 96 MiB are to chunks of 4 MiB.
const MEMORY: u64 = 24 * CHUNK_BYTES;
const CHUNK_BYTES: u64 = 128 * KIB;

/// Four entries in a chunk, of two batches each.
fn shape(segments: usize) -> Shape {
    Shape {
        segments,
        entries: 16,
        batches: 2,
        records: 1,
        value_bytes: 16_100,
        chunk_bytes: CHUNK_BYTES,
    }
}

async fn bench(segments: usize) -> Bench {
    Bench::with(Log::new(shape(segments)).await, |options| {
        options.cache_memory_bytes = MEMORY;
        options.budget_bytes = MEMORY;
    })
    .await
}

fn fetched_bytes(bench: &Bench) -> u64 {
    let gets = bench.log.objects.gets();
    gets.iter().map(|(_, range)| range.end - range.start).sum()
}

/// A reader whose peer takes nothing: the transport has two pieces, the rest waits for it.
struct Stalled {
    _cursor: Option<Cursor>,
    _taken: Taken,
    _pieces: Vec<Bytes>,
    _rest: Hold<Bytes>,
}

async fn stall_at(
    bench: &Bench,
    mut rest: Bytes,
    buffer: Buffer,
    cursor: Option<Cursor>,
) -> Stalled {
    let memory = bench.reader.memory();
    let mut taken = memory.begin(|| {});
    let mut pieces = Vec::new();
    while pieces.len() < 2 && !rest.is_empty() {
        let piece = memory.try_piece(&mut rest, buffer, &mut taken);
        pieces.push(piece.expect("room for a copy"));
    }
    let hold = memory.hold();
    memory.keep(&hold, rest);
    Stalled {
        _cursor: cursor,
        _taken: taken,
        _pieces: pieces,
        _rest: hold,
    }
}

async fn stall_in_the_bucket(bench: &Bench, offset: Offset) -> Stalled {
    let mut cursor = bench.cursor(offset);
    let Read::Batches { bytes, buffer, .. } = cursor.next(40_000).await.unwrap() else {
        panic!("nothing at {offset}");
    };
    stall_at(bench, bytes[0].clone(), buffer, Some(cursor)).await
}

async fn stall_in_the_tail(bench: &Bench) -> Stalled {
    let charge = bench.reader.memory().charge(40_000).await.unwrap();
    let bytes = charge.tie(vec![7; 40_000].into());
    let buffer = Buffer::of(&bytes);
    stall_at(bench, bytes, buffer, None).await
}

/// Fetches under way at a time for a replay on a store that takes its time.
async fn parallelism_of_a_replay(bench: &Bench) -> usize {
    for key in (0..bench.log.segments.len()).map(|index| bench.log.segment_key(index)) {
        let slow = Fault::Delay(Duration::from_millis(50));
        bench.log.objects.strike(key, slow, usize::MAX);
    }
    let bytes = read_all(&mut bench.cursor(Offset::ZERO), 40_000)
        .await
        .unwrap();
    assert!(bytes == bench.log.expected_from(Offset::ZERO));
    bench.log.objects.in_flight_max()
}

#[tokio::test(start_paused = true)]
async fn stalled_readers_of_any_kind_leave_another_the_memory_it_would_have_alone() {
    let alone = parallelism_of_a_replay(&bench(20).await).await;
    let bench = bench(20).await;
    let end = bench.log.end().get();

    let mut stalled = Vec::new();
    for index in 0..100 {
        let offset = Offset::new(index * 7 % end);
        stalled.push(stall_in_the_bucket(&bench, offset).await);
        stalled.push(stall_in_the_tail(&bench).await);
        assert!(bench.reader.0.fetcher.budget().held_bytes() <= 2 * MEMORY);
    }
    bench.settle().await;
    tokio::time::advance(Duration::from_secs(10)).await;

    let beside = parallelism_of_a_replay(&bench).await;
    assert!(beside * 2 >= alone, "alone {alone}, beside {beside}");
    assert!(stall_in_the_tail(&bench).await._pieces.len() == 2);
    drop(stalled);
    bench.settle().await;
    bench.reader.0.fetcher.memory().clear();
    assert_eq!(bench.reader.0.fetcher.budget().held_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn readers_that_take_turns_fetch_at_most_twice_what_they_deliver() {
    for readers in [8, 32, 48, 100] {
        let bench = bench(readers).await;
        let start = |index: usize| bench.log.segments[index].base_offset;
        let mut cursors: Vec<_> = (0..readers)
            .map(|index| bench.cursor(start(index)))
            .collect();
        let mut delivered = 0;
        for _ in 0..32 {
            for cursor in &mut cursors {
                delivered += read(cursor, 1).await.unwrap().len() as u64;
            }
        }
        bench.settle().await;

        let fetched = fetched_bytes(&bench);
        assert!(
            fetched <= 2 * delivered,
            "{readers}: {fetched} for {delivered}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn readers_that_run_at_once_fetch_at_most_twice_what_they_deliver() {
    let bench = bench(100).await;
    let readers = bench.log.segments.iter().map(|segment| {
        let mut cursor = bench.cursor(segment.base_offset);
        async move {
            let mut delivered = 0;
            for _ in 0..32 {
                delivered += read(&mut cursor, 1).await.unwrap().len() as u64;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            delivered
        }
    });
    let delivered: u64 = join_all(readers).await.into_iter().sum();
    bench.settle().await;

    let fetched = fetched_bytes(&bench);
    assert!(fetched <= 2 * delivered, "{fetched} for {delivered}");
}

#[tokio::test]
async fn one_record_costs_one_fetch_of_half_a_chunk_at_most() {
    let bench = bench(2).await;

    let mut cursor = bench.cursor(Offset::new(3));
    read(&mut cursor, 1).await.unwrap();
    read(&mut cursor, 1).await.unwrap();
    bench.settle().await;

    assert_eq!(bench.log.objects.gets().len(), 1);
    assert!(fetched_bytes(&bench) <= CHUNK_BYTES / 2);
}

#[tokio::test]
async fn a_search_by_time_fetches_one_index_entry() {
    let bench = bench(2).await;
    let found = bench
        .reader
        .offset_for_timestamp(&bench.log.manifest, timestamp_of(Offset::new(6)))
        .await
        .unwrap();

    assert!(found.is_some());
    assert!(fetched_bytes(&bench) <= CHUNK_BYTES / 4);
}

#[tokio::test(start_paused = true)]
async fn a_search_by_an_old_manifest_says_what_is_gone_and_a_newer_one_finds() {
    let mut bench = bench(3).await;
    let old = bench.log.manifest.clone();
    let log_start_offset = bench.log.segments[1].base_offset;
    let trim = Update::TrimBelow {
        log_start_offset,
        page: None,
    };
    bench.log.apply(trim).await;
    bench.log.objects.remove(bench.log.segment_key(0)).await;

    let timestamp = timestamp_of(Offset::new(2));
    let error = bench.reader.offset_for_timestamp(&old, timestamp).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::NotFound);
    let manifest = &bench.log.manifest;
    let found = bench.reader.offset_for_timestamp(manifest, timestamp).await;
    assert_eq!(found.unwrap().unwrap().0, log_start_offset);
}

/// Streams that have taken all the room there is for copies. Each is ended by number.
fn copied(memory: &ReadMemory, ended: &Arc<Mutex<Vec<usize>>>) -> Vec<(Taken, Bytes)> {
    let large = Bytes::from_static(&[7; 40_000]);
    let buffer = Buffer::of(&large);
    let mut streams = Vec::new();
    loop {
        let (number, ended) = (streams.len(), Arc::clone(ended));
        let mut taken = memory.begin(move || ended.lock().push(number));
        // So little of a buffer is copied.
        match memory.try_piece(&mut large.slice(..1000), buffer, &mut taken) {
            Some(piece) => streams.push((taken, piece)),
            None => return streams,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_finds_no_room_gets_that_of_the_one_that_stood_still_for_longest() {
    let bench = bench(2).await;
    let memory = bench.reader.memory();
    let ended = Arc::<Mutex<Vec<_>>>::default();
    let mut streams = copied(memory, &ended);
    let waiting = memory.begin(|| panic!("whoever waits does not stand still"));

    tokio::time::advance(STALLED_AFTER / 2).await;
    // All but one go on.
    for (index, (taken, piece)) in streams.iter_mut().enumerate() {
        if index != 3 {
            let mut rest = piece.clone();
            let buffer = Buffer::of(piece);
            drop(memory.try_piece(&mut rest, buffer, taken));
        }
    }
    let before = Instant::now();
    let (room, _) = tokio::join!(memory.room_for_copy(&waiting), async {
        while ended.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(streams.remove(3));
    });

    assert!(room.is_ok());
    assert_eq!(*ended.lock(), [3]);
    assert!(before.elapsed() >= STALLED_AFTER / 2 && before.elapsed() < STALLED_AFTER);
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_which_only_pieces_are_left_is_ended_too() {
    let bench = bench(2).await;
    let memory = bench.reader.memory();
    let ended = Arc::<Mutex<Vec<_>>>::default();
    let mut pieces: Vec<_> = copied(memory, &ended)
        .into_iter()
        .map(|(_, piece)| piece)
        .collect();
    let waiting = memory.begin(|| {});
    let (room, _) = tokio::join!(memory.room_for_copy(&waiting), async {
        while ended.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        pieces.pop();
    });
    assert!(room.is_ok());
    assert_eq!(ended.lock().len(), 1);
}
