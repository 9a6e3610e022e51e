//! Damaged, missing and misbehaving objects.

use std::time::Duration;

use esker_index::Update;
use esker_proto::types::Offset;
use futures::future::join_all;

use super::fixture::{Bench, Fault, Log, Shape, read, read_all};
use crate::{
    error::{Error, ErrorKind},
    reader::{
        chunk::{FlawReason, check},
        plan::ChunkPlan,
    },
};

/// As much as any chunk holds.
const CHUNK: usize = 9000;

fn assert_names(error: &Error, key: &impl ToString) {
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains(&key.to_string()), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("at position") || text.contains("for range"),
        "{text}"
    );
}

#[tokio::test]
async fn a_flipped_bit_is_an_error_that_names_the_object_and_other_offsets_stay_readable() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;
    let key = bench.log.segment_key(1);
    // In the second chunk of the second segment: in a batch's records, then in a header: its count,
    // its length, and its base offset, which no CRC covers.
    for position in [9000 + 1500, 8300, 8283, 8224 + 10, 8224 + 6] {
        bench
            .log
            .objects
            .strike(key, Fault::FlipAt(position), usize::MAX);
        bench.reader.0.fetcher.memory().clear();
        bench.log.objects.forget_gets();

        let mut cursor = bench.cursor(bench.log.segments[1].base_offset);
        let mut before = Vec::new();
        let error = loop {
            match read(&mut cursor, CHUNK).await {
                Ok(bytes) => before.extend(bytes),
                Err(error) => break error,
            }
        };
        bench.settle().await;

        assert!(!before.is_empty());
        assert_names(&error, &key);
        let bad = cursor.offset();
        let behind = Offset::new(bad.get() + 20);
        assert!(
            read_all(&mut bench.cursor(behind), CHUNK).await.unwrap()
                == bench.log.expected_from(behind)
        );
        assert!(
            bench.log.objects.gets().len() < 40,
            "no spin: {}",
            bench.log.objects.gets().len()
        );
    }
}

#[tokio::test]
async fn a_corrupt_chunk_is_fetched_twice_and_never_cached() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;
    let key = bench.log.segment_key(0);
    bench.log.objects.strike(key, Fault::FlipAt(100), 2);

    let error = read(&mut bench.cursor(Offset::ZERO), CHUNK)
        .await
        .unwrap_err();
    assert_names(&error, &key);
    assert_eq!(bench.log.objects.gets().len(), 2);
    assert_eq!(bench.metric("corrupt_chunks_total"), 2);

    let bytes = read(&mut bench.cursor(Offset::ZERO), CHUNK).await.unwrap();
    assert_eq!(bytes, bench.log.expected_from(Offset::ZERO)[..bytes.len()]);
}

#[tokio::test]
async fn damage_that_differs_each_time_is_worth_a_retry() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;
    let key = bench.log.segment_key(0);
    bench.log.objects.strike(key, Fault::FlipAnywhere, 4);

    let error = read(&mut bench.cursor(Offset::ZERO), CHUNK)
        .await
        .unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(error.to_string().contains(&key.to_string()), "{error}");
    assert_eq!(bench.log.objects.gets().len(), 4);

    bench.log.objects.strike(key, Fault::FlipAnywhere, 3);
    let bytes = read(&mut bench.cursor(Offset::ZERO), CHUNK).await.unwrap();
    assert_eq!(bytes, bench.log.expected_from(Offset::ZERO)[..bytes.len()]);
}

#[tokio::test]
async fn damage_on_the_way_is_mended_by_the_second_fetch() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;
    bench
        .log
        .objects
        .strike(bench.log.segment_key(0), Fault::FlipAt(100), 1);

    let bytes = read_all(&mut bench.cursor(Offset::ZERO), CHUNK)
        .await
        .unwrap();

    assert!(bytes == bench.log.expected_from(Offset::ZERO));
}

#[tokio::test]
async fn a_truncated_object_is_an_error_that_names_it_wherever_it_ends() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;
    let key = bench.log.segment_key(0);
    let whole = bench.log.objects.content(key).await;
    // At the chunk's begin, inside it, one byte short; and empty.
    for length in [bench.log.batches[0].bytes().len() * 4, 10_000, 16_000, 0] {
        bench.log.objects.replace(key, whole.slice(..length)).await;
        bench.reader.0.fetcher.memory().clear();
        bench.log.objects.forget_gets();

        let error = read_all(&mut bench.cursor(Offset::ZERO), CHUNK)
            .await
            .unwrap_err();
        bench.settle().await;

        assert_names(&error, &key);
        assert!(bench.log.objects.gets().len() < 20);
        let next = bench.log.segments[1].base_offset;
        let bytes = read_all(&mut bench.cursor(next), CHUNK).await.unwrap();
        assert!(bytes == bench.log.expected_from(next));
    }
}

#[tokio::test]
async fn batches_that_end_at_another_offset_than_the_index_says_are_corrupt() {
    let log = Log::new(Shape::default()).await;
    let mut plan = ChunkPlan::around(log.manifest.head(), 0, log.shape.chunk_bytes);
    let bytes = log
        .objects
        .content(log.segment_key(0))
        .await
        .slice(..plan.id.length as usize);
    assert_eq!(check(&plan, &bytes), Ok(()));

    plan.entries[1].record_count += 1;

    let flaw = check(&plan, &bytes).unwrap_err();
    assert_eq!(
        (flaw.position, flaw.reason),
        (plan.entries[1].position, FlawReason::Index)
    );
}

#[tokio::test]
async fn swapped_segments_are_not_taken_for_each_other() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;
    let key = bench.log.segment_key(0);
    let other = bench.log.objects.content(bench.log.segment_key(1)).await;
    bench.log.objects.replace(key, other).await;

    let error = read(&mut bench.cursor(Offset::ZERO), CHUNK)
        .await
        .unwrap_err();

    assert_names(&error, &key);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_fetch_reaches_all_its_readers_and_the_next_request_works() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;
    bench
        .log
        .objects
        .strike(bench.log.segment_key(0), Fault::Panic, 1);
    let mut cursors: Vec<_> = (0..5).map(|_| bench.cursor(Offset::ZERO)).collect();

    let reads = join_all(cursors.iter_mut().map(|cursor| read(cursor, CHUNK))).await;

    assert!(
        reads
            .iter()
            .all(|read| read.as_ref().unwrap_err().is_retryable())
    );
    let bytes = read_all(&mut cursors[0], CHUNK).await.unwrap();
    assert!(bytes == bench.log.expected_from(Offset::ZERO));
    assert_eq!(bench.metric("in_flight_bytes"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_store_is_an_error_within_the_deadline() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;
    bench
        .log
        .objects
        .strike(bench.log.segment_key(0), Fault::Hang, 1);
    let start = tokio::time::Instant::now();

    let error = read(&mut bench.cursor(Offset::ZERO), CHUNK)
        .await
        .unwrap_err();

    assert!(error.is_retryable(), "{error}");
    assert!(start.elapsed() <= Duration::from_secs(31));
    assert!(
        !read(&mut bench.cursor(Offset::ZERO), CHUNK)
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_retryable_and_never_out_of_range() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;
    bench
        .log
        .objects
        .strike(bench.log.segment_key(0), Fault::Fail, 3);

    let error = read(&mut bench.cursor(Offset::ZERO), CHUNK)
        .await
        .unwrap_err();

    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_reader_whose_object_is_gone_resolves_by_the_newest_manifest() {
    let mut bench = Bench::new(Log::new(Shape::default()).await).await;
    let mut stale = bench.cursor(Offset::new(3));
    let mut kept = bench.cursor(bench.log.segments[1].base_offset);
    let key = bench.log.segment_key(0);
    bench.log.objects.remove(key).await;

    // The manifest that trims it comes while the reader waits for one.
    let log_start_offset = bench.log.segments[1].base_offset;
    let trimming = async {
        tokio::time::sleep(Duration::from_millis(120)).await;
        bench
            .log
            .apply(Update::TrimBelow {
                log_start_offset,
                page: None,
            })
            .await;
    };
    let (error, ()) = tokio::join!(stale.next(CHUNK), trimming);

    assert_eq!(error.unwrap_err().kind(), ErrorKind::OutOfRange);
    assert!(read_all(&mut kept, CHUNK).await.unwrap() == bench.log.expected_from(log_start_offset));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_stays_gone_is_an_error_after_a_bounded_number_of_tries() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;
    bench.log.objects.remove(bench.log.segment_key(0)).await;

    let error = read(&mut bench.cursor(Offset::ZERO), CHUNK)
        .await
        .unwrap_err();

    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(
        error
            .to_string()
            .contains(&bench.log.segment_key(0).to_string())
    );
    assert!(bench.log.objects.gets().len() <= 6);
    let next = bench.log.segments[1].base_offset;
    assert!(
        read_all(&mut bench.cursor(next), CHUNK).await.unwrap() == bench.log.expected_from(next)
    );
}

#[tokio::test]
async fn shutdown_ends_fetches_and_tells_their_readers() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;
    bench
        .log
        .objects
        .strike(bench.log.segment_key(0), Fault::Hang, 1);
    let mut cursor = bench.cursor(Offset::ZERO);

    let stopping = async {
        tokio::task::yield_now().await;
        bench.tasks.shutdown(Duration::from_secs(10)).await
    };
    let (outcome, has_stopped) = tokio::join!(cursor.next(CHUNK), stopping);

    assert!(outcome.unwrap_err().is_retryable());
    assert!(has_stopped);
}

#[tokio::test]
async fn what_memory_has_forgotten_comes_back_from_disk_and_rotten_files_from_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    let with_disk = |log| {
        let path = path.clone();
        Bench::with(log, |options| options.cache_disk = Some((path, 256 << 20)))
    };
    let bench = with_disk(Log::new(Shape::default()).await).await;
    let bytes = read_all(&mut bench.cursor(Offset::ZERO), CHUNK)
        .await
        .unwrap();
    bench.settle().await;
    let gets = bench.log.objects.gets().len();
    bench.reader.close().await;

    // A new process finds what the old one wrote.
    let bench = with_disk(bench.log).await;
    let again = read_all(&mut bench.cursor(Offset::ZERO), CHUNK)
        .await
        .unwrap();
    bench.settle().await;
    assert!(again == bytes);
    assert_eq!(bench.log.objects.gets().len(), gets, "all from disk");
    assert_eq!(bench.metric("fetched_bytes_total"), 0);
    assert!(bench.metric("chunk_hits_total") > 0);
    bench.reader.close().await;

    for file in std::fs::read_dir(&path).unwrap() {
        let file = file.unwrap().path();
        let mut content = std::fs::read(&file).unwrap();
        content
            .iter_mut()
            .skip(6000)
            .step_by(997)
            .for_each(|byte| *byte ^= 0x40);
        std::fs::write(&file, content).unwrap();
    }
    let bench = with_disk(bench.log).await;
    let again = read_all(&mut bench.cursor(Offset::ZERO), CHUNK)
        .await
        .unwrap();
    assert!(again == bytes);
}
