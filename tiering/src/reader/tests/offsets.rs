//! Every offset, by whatever way, and the edges of the log.

use esker_index::Update;
use esker_proto::{
    batch::{BatchHeaders, HEADER_BYTES},
    types::{Offset, TimestampMs},
};

use super::fixture::{Bench, Fault, KIB, Log, Shape, read, read_all, timestamp_of};
use crate::{
    env::TaskSet,
    error::{Error, ErrorKind},
    keys::{Key, PageName},
    reader::{Read, Reader, ReaderOptions},
    store::Store,
};

const ANY: usize = 1 << 30;

#[tokio::test]
async fn every_offset_yields_its_bytes() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;

    for offset in 0..bench.log.end().get() {
        let offset = Offset::new(offset);
        let mut cursor = bench.cursor(offset);
        let bytes = read(&mut cursor, 1).await.unwrap();

        let headers: Vec<_> = BatchHeaders::new(&bytes).map(Result::unwrap).collect();
        assert_eq!(
            headers.len(),
            1,
            "one batch, for a caller who wants one byte"
        );
        assert!(headers[0].offsets().contains(&offset));
        let expected = bench.log.expected_from(offset);
        assert_eq!(bytes, expected[..bytes.len()]);
        assert_eq!(cursor.offset(), headers[0].next_offset());
    }
}

#[tokio::test]
async fn a_replay_gives_the_log_whatever_the_size_of_its_reads() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;

    for max_bytes in [1, HEADER_BYTES, 3000, 5000, 9000, 64 << 10, ANY] {
        for start in [0, 1, 7, 59, 60, 61, 119] {
            let start = Offset::new(start);
            let bytes = read_all(&mut bench.cursor(start), max_bytes).await.unwrap();
            assert!(
                bytes == bench.log.expected_from(start),
                "{start} by {max_bytes}"
            );
        }
    }
}

#[tokio::test]
async fn a_read_is_not_longer_than_asked_unless_one_batch_is() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;
    let batch_bytes = bench.log.batches[0].bytes().len();

    let mut cursor = bench.cursor(Offset::ZERO);
    for max_bytes in [
        1,
        batch_bytes,
        2 * batch_bytes - 1,
        2 * batch_bytes,
        3 * batch_bytes,
    ] {
        let bytes = read(&mut cursor, max_bytes).await.unwrap();
        assert!(
            bytes.len() <= max_bytes.max(batch_bytes),
            "{} of {max_bytes}",
            bytes.len()
        );
    }
}

#[tokio::test]
async fn the_bytes_are_slices_of_the_cached_chunk() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;

    let slices = |read| match read {
        Read::Batches { bytes, .. } => bytes,
        Read::AtEnd => Vec::new(),
    };
    let first = slices(bench.cursor(Offset::ZERO).next(ANY).await.unwrap());
    let second = slices(bench.cursor(Offset::ZERO).next(ANY).await.unwrap());

    assert_eq!(first[0].as_ptr(), second[0].as_ptr());
}

#[tokio::test]
async fn a_reader_at_the_end_is_told_so_and_goes_on_when_more_is_tiered() {
    let mut bench = Bench::new(Log::new(Shape::default()).await).await;
    let end = bench.log.end();
    let mut cursor = bench.cursor(end);
    assert_eq!(cursor.next(ANY).await.unwrap(), Read::AtEnd);
    assert_eq!(cursor.next(ANY).await.unwrap(), Read::AtEnd);

    let segment = bench.log.put_segment().await;
    bench.log.apply(Update::AddSegment(segment)).await;

    assert!(read_all(&mut cursor, ANY).await.unwrap() == bench.log.expected_from(end));
    assert_eq!(cursor.offset(), bench.log.end());
}

#[tokio::test]
async fn a_trimmed_offset_is_out_of_range_at_once() {
    let mut bench = Bench::new(Log::new(Shape::default()).await).await;
    let mut cursor = bench.cursor(Offset::new(3));
    read(&mut cursor, 1).await.unwrap();

    let log_start_offset = bench.log.segments[1].base_offset;
    bench
        .log
        .apply(Update::TrimBelow {
            log_start_offset,
            page: None,
        })
        .await;

    let error = cursor.next(ANY).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    let error = bench.cursor(Offset::ZERO).next(ANY).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    let bytes = read_all(&mut bench.cursor(log_start_offset), ANY)
        .await
        .unwrap();
    assert!(bytes == bench.log.expected_from(log_start_offset));
}

#[tokio::test]
async fn a_log_whose_index_is_in_pages_reads_like_any_other() {
    let shape = Shape {
        segments: 1100,
        entries: 2,
        batches: 1,
        records: 1,
        ..Shape::default()
    };
    let shape = Shape {
        value_bytes: 10,
        chunk_bytes: 4 * KIB,
        ..shape
    };
    let bench = Bench::new(Log::new(shape).await).await;
    assert!(!bench.log.manifest.pages().is_empty());

    let bytes = read_all(&mut bench.cursor(Offset::ZERO), ANY)
        .await
        .unwrap();

    assert!(bytes == bench.log.expected_from(Offset::ZERO));
    assert_eq!(
        bench.metric("page_misses_total"),
        bench.log.manifest.pages().len() as u64
    );
}

/// Two segments' rows in the head, the others in a page.
async fn paged() -> Bench {
    let shape = Shape {
        segments: 1100,
        entries: 2,
        batches: 1,
        records: 1,
        value_bytes: 10,
        chunk_bytes: 4 * KIB,
    };
    Bench::new(Log::new(shape).await).await
}

fn page_key(bench: &Bench) -> Key {
    Key::Page(bench.log.tp, PageName::from(&bench.log.manifest.pages()[0]))
}

#[tokio::test(start_paused = true)]
async fn a_damaged_page_is_not_fetched_again_for_a_while() {
    let bench = paged().await;
    let key = page_key(&bench);
    bench
        .log
        .objects
        .strike(key, Fault::FlipAt(100), usize::MAX);

    for _ in 0..10 {
        let error = read(&mut bench.cursor(Offset::ZERO), ANY)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains(&key.to_string()), "{error}");
    }
    assert_eq!(bench.log.objects.gets().len(), 2, "and once to be sure");

    // An operator repairs it.
    bench.log.objects.strike(key, Fault::FlipAt(100), 0);
    tokio::time::advance(std::time::Duration::from_secs(600)).await;
    assert!(read(&mut bench.cursor(Offset::ZERO), ANY).await.is_ok());
}

#[tokio::test]
async fn a_page_damaged_on_its_way_is_fetched_again() {
    let bench = paged().await;
    let key = page_key(&bench);
    bench.log.objects.strike(key, Fault::FlipAnywhere, 3);

    assert!(read(&mut bench.cursor(Offset::ZERO), ANY).await.is_ok());
}

#[tokio::test]
async fn a_timestamp_finds_the_first_record_not_older() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;
    let end = bench.log.end().get();

    for timestamp in (900..timestamp_of(Offset::new(end)).get() + 30).step_by(5) {
        let timestamp = TimestampMs::new(timestamp);
        let found = bench
            .reader
            .offset_for_timestamp(&bench.log.manifest, timestamp)
            .await
            .unwrap();

        let expected = (0..end)
            .map(|offset| (Offset::new(offset), timestamp_of(Offset::new(offset))))
            .find(|(_, at)| *at >= timestamp);
        assert_eq!(found, expected, "{timestamp}");
    }
}

#[tokio::test]
async fn a_timestamp_finds_nothing_below_the_log_start() {
    let mut bench = Bench::new(Log::new(Shape::default()).await).await;
    let log_start_offset = Offset::new(17); // inside a batch of the first entry
    bench
        .log
        .apply(Update::TrimBelow {
            log_start_offset,
            page: None,
        })
        .await;

    let found = bench
        .reader
        .offset_for_timestamp(&bench.log.manifest, TimestampMs::new(0))
        .await;

    assert_eq!(
        found.unwrap(),
        Some((log_start_offset, timestamp_of(log_start_offset)))
    );
}

#[tokio::test]
async fn a_timestamp_is_found_across_pages() {
    let shape = Shape {
        segments: 1100,
        entries: 2,
        batches: 1,
        records: 1,
        ..Shape::default()
    };
    let bench = Bench::new(
        Log::new(Shape {
            value_bytes: 10,
            ..shape
        })
        .await,
    )
    .await;

    for offset in [0, 1000, 2046, 2048, 2198] {
        let (offset, timestamp) = (Offset::new(offset), timestamp_of(Offset::new(offset)));
        let found = bench
            .reader
            .offset_for_timestamp(&bench.log.manifest, timestamp)
            .await
            .unwrap();
        assert_eq!(found, Some((offset, timestamp)));
    }
}

#[tokio::test]
async fn one_registry_counts_one_reader() {
    let bench = Bench::new(Log::new(Shape::default()).await).await;
    let options = ReaderOptions::default();

    let second = Reader::open(Store::in_memory(), options, &bench.registry, TaskSet::new()).await;

    assert!(matches!(second, Err(Error::MetricsTaken)));
}
