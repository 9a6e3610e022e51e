//! Bad input gets a typed error, and changes nothing.

use bytes::{Bytes, BytesMut};
use esker_agent::agent::Agent;
use esker_proto::{
    batch::{BatchBuilder, Compression, crc32c},
    partitioner::partition_for_key,
    types::{ProducerEpoch, ProducerId, Sequence, TimestampMs, TopicId},
    v1::{
        AlterTopicRequest, AppendRequest, CreateTopicRequest, DescribeTopicRequest, ErrorKind,
        FetchFormat, FetchRequest, ListOffsetsRequest, Record, TimestampKind, TopicSettings,
        TrimPartitionRequest, list_offsets_request::Position,
    },
};
use esker_tests::agent::{Plan, directory_url};
use tempfile::TempDir;
use tonic::Status;

use super::support::{
    Raw, TOPIC, batch, batch_at, batch_of, connect, create, describe, detail, now, seal,
};

/// Where the CRC-32C of a batch stands, and where what it covers begins.
const CRC_AT: usize = 17;
const CRC_FROM: usize = 21;

struct Bench {
    _home: TempDir,
    agent: Agent,
    raw: Raw,
}

impl Bench {
    async fn start() -> Self {
        let home = TempDir::new().unwrap();
        let agent = Plan::new(directory_url(home.path()), home.path());
        let agent = agent.start().await.unwrap();
        create(&connect(agent.grpc_address()).await, 1).await;
        let raw = Raw::connect(agent.grpc_address()).await;
        Self {
            _home: home,
            agent,
            raw,
        }
    }

    async fn log_end(&self) -> u64 {
        describe(&connect(self.agent.grpc_address()).await).await[0].log_end_offset
    }
}

fn patched(batch: &Bytes, at: usize, bytes: &[u8]) -> Bytes {
    let mut patched = BytesMut::from(&batch[..]);
    patched[at..at + bytes.len()].copy_from_slice(bytes);
    patched.freeze()
}

/// Patches a batch and makes its checksum right again.
fn forged(batch: &Bytes, at: usize, bytes: &[u8]) -> Bytes {
    let patched = patched(batch, at, bytes);
    let crc = crc32c(&patched[CRC_FROM..]);
    self::patched(&patched, CRC_AT, &crc.to_be_bytes())
}

fn bad_batches() -> Vec<(&'static str, ErrorKind, Bytes)> {
    use ErrorKind::{BatchTooLarge, CorruptBatch, InvalidArgument};
    let good = batch(&["one", "two"]);
    let large = "x".repeat(100 << 10);
    let hours_2 = TimestampMs::new(now().get() + 2 * 3_600_000);
    let mut last = good.to_vec();
    let end = last.len() - 1;
    last[end] ^= 1;
    vec![
        ("nothing", CorruptBatch, Bytes::new()),
        ("a few bytes", CorruptBatch, Bytes::from_static(b"hello")),
        ("a flipped bit", CorruptBatch, last.into()),
        (
            "a wrong checksum",
            CorruptBatch,
            patched(&good, CRC_AT, &[1, 2, 3, 4]),
        ),
        ("an old magic", CorruptBatch, patched(&good, 16, &[1])),
        (
            "a truncated one",
            CorruptBatch,
            good.slice(..good.len() - 1),
        ),
        ("only a header", CorruptBatch, good.slice(..61)),
        (
            "one and a byte",
            CorruptBatch,
            [&good[..], b"x"].concat().into(),
        ),
        ("two", CorruptBatch, [&good[..], &good[..]].concat().into()),
        (
            "a control batch",
            CorruptBatch,
            forged(&good, 21, &[0, 0x20]),
        ),
        (
            "a transactional one",
            CorruptBatch,
            forged(&good, 21, &[0, 0x10]),
        ),
        (
            "no such compression",
            CorruptBatch,
            forged(&good, 21, &[0, 0x07]),
        ),
        (
            "a length below the header",
            CorruptBatch,
            forged(&good, 8, &[0, 0, 0, 9]),
        ),
        (
            "a negative length",
            CorruptBatch,
            forged(&good, 8, &[0xff; 4]),
        ),
        (
            "two billion records",
            CorruptBatch,
            forged(&good, 57, &[0x7f, 0xff, 0xff, 0xff]),
        ),
        (
            "a count that is not the last delta",
            CorruptBatch,
            forged(&good, 57, &[0, 0, 0, 1]),
        ),
        ("no record", CorruptBatch, forged(&good, 57, &[0; 4])),
        ("too large a batch", BatchTooLarge, batch(&[&large])),
        (
            "a time far ahead",
            InvalidArgument,
            batch_at(&["late"], hours_2),
        ),
        (
            "the end of time",
            InvalidArgument,
            batch_at(&["late"], TimestampMs::new(i64::MAX)),
        ),
        (
            "a time in seconds",
            InvalidArgument,
            batch_at(&["early"], TimestampMs::new(now().get() / 1000)),
        ),
        (
            "a maximum timestamp below that of a record",
            CorruptBatch,
            forged(&good, 35, &10_i64.to_be_bytes()),
        ),
        (
            "a maximum timestamp above that of each record",
            CorruptBatch,
            forged(&good, 35, &(now().get() + 1000).to_be_bytes()),
        ),
        (
            "records that are cut off",
            CorruptBatch,
            forged(&good, 61, &[0x7f]),
        ),
        (
            "records that do not decompress",
            CorruptBatch,
            undecodable(),
        ),
    ]
}

/// A batch whose header claims zstd over records that are not compressed.
fn undecodable() -> Bytes {
    forged(&batch(&["one", "two"]), 21, &[0, 0x04])
}

async fn alter(bench: &mut Bench, settings: TopicSettings) {
    let request = AlterTopicRequest {
        name: TOPIC.to_owned(),
        settings: Some(settings),
        ..AlterTopicRequest::default()
    };
    bench.raw.admin.alter_topic(request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_that_is_too_early_is_taken_where_the_topic_allows_it() {
    let mut bench = Bench::start().await;
    let early = batch_at(&["early"], TimestampMs::new(-5));
    let refused = bench.raw.produce(TOPIC, 0, early.clone()).await;
    let text = refused.unwrap_err().message;
    assert!(text.contains("timestamp_before_max_ms"), "{text}");

    let settings = TopicSettings {
        timestamp_before_max_ms: Some(-1),
        ..TopicSettings::default()
    };
    alter(&mut bench, settings).await;
    bench.raw.produce(TOPIC, 0, early).await.unwrap();
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_batches_are_checked_unless_the_topic_says_otherwise_and_can_be_passed_over() {
    let mut bench = Bench::start().await;
    let refused = bench
        .raw
        .produce(TOPIC, 0, undecodable())
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::CorruptBatch);

    let settings = TopicSettings {
        check_compressed: Some(false),
        ..TopicSettings::default()
    };
    alter(&mut bench, settings).await;
    bench.raw.produce(TOPIC, 0, undecodable()).await.unwrap();
    bench
        .raw
        .produce(TOPIC, 0, batch(&["whole"]))
        .await
        .unwrap();
    let records = |offset| FetchRequest {
        format: FetchFormat::Records.into(),
        ..fetch(TOPIC, 0, offset, Some(3))
    };

    // From the tail, and from the bucket.
    for is_sealed in [false, true] {
        if is_sealed {
            seal(&connect(bench.agent.grpc_address()).await, true).await;
        }
        for from in [0, 1] {
            let refused = bench.raw.fetch(records(from)).await.unwrap_err();
            let error = detail(&refused);
            assert_eq!(error.kind(), ErrorKind::CorruptData, "{error:?}");
            assert_eq!(error.damage_end_offset, Some(2), "{error:?}");
            let named = format!("offsets=`{from}..2`");
            assert!(error.message.ends_with(&named), "{error:?}");
        }
        let behind = bench.raw.fetch(records(2)).await.unwrap();
        assert_eq!(behind[0].records[0].value, Some("whole".into()));
    }
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_of_append_times_takes_any_time_and_keeps_its_own() {
    let mut bench = Bench::start().await;
    let settings = TopicSettings {
        timestamps: Some(TimestampKind::Append.into()),
        ..TopicSettings::default()
    };
    alter(&mut bench, settings).await;
    let before = now().get();
    let wild = batch_at(&["wild", "wilder"], TimestampMs::new(i64::MAX));
    bench.raw.produce(TOPIC, 0, wild).await.unwrap();

    let request = FetchRequest {
        format: FetchFormat::Records.into(),
        ..fetch(TOPIC, 0, 0, Some(2))
    };
    let read = bench.raw.fetch(request).await.unwrap();
    let times = read.iter().flat_map(|response| &response.records);
    let times: Vec<_> = times.map(|record| record.timestamp_ms).collect();
    assert_eq!(times.len(), 2);
    let during = before..=now().get();
    assert!(times.iter().all(|time| during.contains(time)), "{times:?}");
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_retry_of_a_written_batch_gets_its_offset_even_where_it_would_be_refused_now() {
    let mut bench = Bench::start().await;
    let large = "x".repeat(4 << 10);
    let mut builder = BatchBuilder::new(Compression::None);
    let value = Some(large.as_bytes());
    builder.push(now(), None, value, &[]).unwrap();
    let batch = builder.finish(Some((
        ProducerId::new(77),
        ProducerEpoch::new(0),
        Sequence::new(0),
    )));
    bench.raw.produce(TOPIC, 0, batch.clone()).await.unwrap();
    let settings = TopicSettings {
        batch_bytes_max: Some(1 << 10),
        ..TopicSettings::default()
    };
    alter(&mut bench, settings).await;

    let again = bench.raw.produce(TOPIC, 0, batch).await.unwrap();
    assert_eq!((again.base_offset, again.duplicate), (0, true));
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_batch_is_refused_by_kind_and_appends_nothing() {
    let mut bench = Bench::start().await;
    for (what, kind, batch) in bad_batches() {
        let refused = bench.raw.produce(TOPIC, 0, batch).await.unwrap_err();
        assert_eq!(refused.kind(), kind, "{what}: {refused:?}");
        assert!(refused.has_no_side_effects, "{what}: {refused:?}");
        assert!(!refused.is_retryable, "{what}: {refused:?}");
        assert_ne!(refused.message, "", "{what}");
        assert_eq!(bench.log_end().await, 0, "{what}");
    }
    let good = bench.raw.produce(TOPIC, 0, batch(&["good"])).await;
    assert_eq!(good.unwrap().base_offset, 0);
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_batch_does_not_end_its_stream_nor_move_the_others() {
    let mut bench = Bench::start().await;
    let (good, bad) = (batch(&["a", "b"]), Bytes::from_static(b"bad"));
    let answers = bench
        .raw
        .produce_all([
            (TOPIC, 0, good.clone()),
            (TOPIC, 0, bad),
            ("nowhere", 0, good.clone()),
            (TOPIC, 7, good.clone()),
            ("no/name", 0, good.clone()),
            (TOPIC, 0, good),
        ])
        .await;
    let outcomes: Vec<_> = answers
        .iter()
        .map(|answer| match answer {
            Ok(ack) => Ok(ack.base_offset),
            Err(detail) => {
                assert!(detail.has_no_side_effects, "{detail:?}");
                Err(detail.kind())
            }
        })
        .collect();
    assert_eq!(
        outcomes,
        [
            Ok(0),
            Err(ErrorKind::CorruptBatch),
            Err(ErrorKind::UnknownTopic),
            Err(ErrorKind::UnknownPartition),
            Err(ErrorKind::InvalidTopicName),
            Ok(2),
        ]
    );
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sequences_are_held_and_an_old_producer_epoch_is_fenced() {
    let mut bench = Bench::start().await;
    let mut produce = async |epoch, sequence| {
        let answer = bench
            .raw
            .produce(TOPIC, 0, batch_of(77, epoch, sequence))
            .await;
        answer
            .map(|ack| (ack.base_offset, ack.duplicate))
            .map_err(|detail| {
                assert!(detail.has_no_side_effects, "{detail:?}");
                detail.kind()
            })
    };
    assert_eq!(produce(0, 0).await, Ok((0, false)));
    assert_eq!(produce(0, 2).await, Ok((2, false)));
    assert_eq!(produce(0, 2).await, Ok((2, true)), "sent again");
    assert_eq!(produce(0, 0).await, Ok((0, true)), "sent again, late");
    assert_eq!(
        produce(0, 6).await,
        Err(ErrorKind::OutOfOrderSequence),
        "one is missing"
    );
    assert_eq!(
        produce(0, 3).await,
        Err(ErrorKind::OutOfOrderSequence),
        "half of one"
    );
    assert_eq!(
        produce(1, 0).await,
        Ok((4, false)),
        "a newer epoch starts over"
    );
    assert_eq!(produce(0, 4).await, Err(ErrorKind::ProducerFenced));
    assert_eq!(produce(1, 2).await, Ok((6, false)));
    assert_eq!(bench.log_end().await, 8);
    bench.agent.stop().await;
}

fn assert_refused<T: std::fmt::Debug>(what: &str, kind: ErrorKind, answer: Result<T, Status>) {
    let detail = detail(&answer.unwrap_err());
    assert_eq!(detail.kind(), kind, "{what}: {detail:?}");
    assert!(detail.has_no_side_effects, "{what}: {detail:?}");
}

fn fetch(topic: &str, partition: u32, offset: u64, end_offset: Option<u64>) -> FetchRequest {
    FetchRequest {
        topic: topic.to_owned(),
        partition,
        offset,
        end_offset,
        ..FetchRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_of_what_is_not_there_is_refused_by_kind() {
    let mut bench = Bench::start().await;
    bench
        .raw
        .produce(TOPIC, 0, batch(&["a", "b"]))
        .await
        .unwrap();
    for (what, kind, request) in [
        (
            "no topic",
            ErrorKind::UnknownTopic,
            fetch("nowhere", 0, 0, Some(1)),
        ),
        (
            "no name",
            ErrorKind::InvalidTopicName,
            fetch("", 0, 0, Some(1)),
        ),
        (
            "no partition",
            ErrorKind::UnknownPartition,
            fetch(TOPIC, 1, 0, Some(1)),
        ),
        (
            "beyond the end",
            ErrorKind::OffsetOutOfRange,
            fetch(TOPIC, 0, 3, Some(9)),
        ),
        (
            "far beyond",
            ErrorKind::OffsetOutOfRange,
            fetch(TOPIC, 0, u64::MAX - 1, None),
        ),
        (
            "backwards",
            ErrorKind::InvalidArgument,
            fetch(TOPIC, 0, 2, Some(1)),
        ),
    ] {
        assert_refused(what, kind, bench.raw.fetch(request).await);
    }
    // An empty range is no error, and neither is the very end.
    assert!(
        bench
            .raw
            .fetch(fetch(TOPIC, 0, 1, Some(1)))
            .await
            .unwrap()
            .is_empty()
    );
    bench.agent.stop().await;
}

fn out_of_bounds() -> impl Iterator<Item = (&'static str, TopicSettings)> {
    type Change = fn(&mut TopicSettings);
    let changes: [(&str, Change); 8] = [
        ("a segment a millisecond", |s| s.segment_ms = Some(1)),
        ("segments that grow for ever", |s| {
            s.segment_ms = Some(u64::MAX)
        }),
        ("a segment of 100 TiB", |s| {
            s.segment_bytes = Some(100 << 40)
        }),
        ("no batches", |s| s.batch_bytes_max = Some(0)),
        ("batches larger than segments", |s| {
            s.batch_bytes_max = Some(1 << 20)
        }),
        ("no retention", |s| s.retention_ms = Some(0)),
        ("negative retention", |s| s.retention_ms = Some(-2)),
        ("retention of no bytes", |s| s.retention_bytes = Some(0)),
    ];
    changes.into_iter().map(|(what, change)| {
        let mut settings = TopicSettings::default();
        change(&mut settings);
        (what, settings)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_that_cannot_be_are_refused_by_kind() {
    let mut bench = Bench::start().await;
    let create = |name: &str, partitions, settings| CreateTopicRequest {
        name: name.to_owned(),
        partitions,
        settings,
    };
    let long = "x".repeat(250);
    let tiny = TopicSettings {
        segment_bytes: Some(1),
        ..TopicSettings::default()
    };
    let vast = TopicSettings {
        batch_bytes_max: Some(u32::MAX),
        ..TopicSettings::default()
    };
    for (what, kind, request) in [
        ("empty", ErrorKind::InvalidTopicName, create("", 1, None)),
        ("dots", ErrorKind::InvalidTopicName, create("..", 1, None)),
        (
            "a path",
            ErrorKind::InvalidTopicName,
            create("../etc", 1, None),
        ),
        (
            "a blank",
            ErrorKind::InvalidTopicName,
            create("a b", 1, None),
        ),
        (
            "no ascii",
            ErrorKind::InvalidTopicName,
            create("größe", 1, None),
        ),
        (
            "too long",
            ErrorKind::InvalidTopicName,
            create(&long, 1, None),
        ),
        (
            "there already",
            ErrorKind::TopicExists,
            create(TOPIC, 1, None),
        ),
        (
            "too many",
            ErrorKind::InvalidArgument,
            create("many", 10_001, None),
        ),
        (
            "tiny segments",
            ErrorKind::InvalidArgument,
            create("tiny", 1, Some(tiny)),
        ),
        (
            "vast batches",
            ErrorKind::InvalidArgument,
            create("vast", 1, Some(vast)),
        ),
    ]
    .into_iter()
    .chain(out_of_bounds().map(|(what, settings)| {
        let request = create("bounds", 1, Some(settings));
        (what, ErrorKind::InvalidArgument, request)
    })) {
        assert_refused(what, kind, bench.raw.admin.create_topic(request).await);
    }
    let topics = bench
        .raw
        .admin
        .list_topics(esker_proto::v1::ListTopicsRequest {})
        .await;
    assert_eq!(topics.unwrap().into_inner().topics.len(), 1);
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_calls_about_what_is_not_there_are_refused_by_kind() {
    let mut bench = Bench::start().await;
    let described = bench.raw.admin.describe_topic(DescribeTopicRequest {
        name: "nowhere".into(),
    });
    assert_refused("describe", ErrorKind::UnknownTopic, described.await);
    let trim = |partition, offset| TrimPartitionRequest {
        topic: TOPIC.to_owned(),
        partition,
        offset,
    };
    let trimmed = bench.raw.admin.trim_partition(trim(4, 0)).await;
    assert_refused("trim", ErrorKind::UnknownPartition, trimmed);
    let trimmed = bench.raw.admin.trim_partition(trim(0, 1)).await;
    assert_refused("trim above the bucket", ErrorKind::InvalidArgument, trimmed);
    let list = |partitions, position| ListOffsetsRequest {
        topic: TOPIC.to_owned(),
        partitions,
        position,
        ..ListOffsetsRequest::default()
    };
    let listed = bench.raw.log.list_offsets(list(vec![], None)).await;
    assert_refused("list nothing", ErrorKind::InvalidArgument, listed);
    let listed = bench
        .raw
        .log
        .list_offsets(list(vec![0, 9], Some(Position::Latest(true))))
        .await;
    let offsets = listed.unwrap().into_inner().offsets;
    assert_eq!(offsets[0].offset, Some(0));
    let error = offsets[1].error.as_ref().unwrap();
    assert_eq!(error.kind(), ErrorKind::UnknownPartition);
    bench.agent.stop().await;
}

fn plain(value: impl Into<Bytes>) -> Record {
    Record {
        value: Some(value.into()),
        ..Record::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_records_that_cannot_be_are_refused_by_kind() {
    let mut bench = Bench::start().await;
    let append = |topic: &str, partition, records| AppendRequest {
        topic: topic.to_owned(),
        partition,
        records,
        ..AppendRequest::default()
    };
    let late = Record {
        timestamp_ms: i64::MAX,
        ..plain("late")
    };
    let large = plain(vec![0; 100 << 10]);
    let client = connect(bench.agent.grpc_address()).await;
    let described = client.admin().describe_topic(TOPIC).await.unwrap();
    let topic_id: TopicId = described.topic.unwrap().topic_id.parse().unwrap();
    let topic_id = topic_id.to_bytes();
    let of_topic = |topic_id: Bytes| AppendRequest {
        topic_id,
        ..append(TOPIC, None, vec![plain("x")])
    };
    for (what, kind, request) in [
        (
            "none",
            ErrorKind::InvalidArgument,
            append(TOPIC, None, vec![]),
        ),
        (
            "no topic",
            ErrorKind::UnknownTopic,
            append("nowhere", None, vec![plain("x")]),
        ),
        (
            "no partition",
            ErrorKind::UnknownPartition,
            append(TOPIC, Some(1), vec![plain("x")]),
        ),
        (
            "late",
            ErrorKind::InvalidArgument,
            append(TOPIC, None, vec![late]),
        ),
        (
            "large",
            ErrorKind::BatchTooLarge,
            append(TOPIC, None, vec![large]),
        ),
        (
            "a topic's earlier life",
            ErrorKind::UnknownTopicId,
            of_topic(Bytes::from_static(&[7; 16])),
        ),
        (
            "half an id",
            ErrorKind::InvalidArgument,
            of_topic(topic_id.slice(..8)),
        ),
    ] {
        assert_refused(what, kind, bench.raw.log.append(request).await);
    }
    assert_eq!(bench.log_end().await, 0);
    bench.raw.log.append(of_topic(topic_id)).await.unwrap();
    assert_eq!(bench.log_end().await, 1);
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_that_was_written_in_part_does_not_claim_to_have_changed_nothing() {
    let mut bench = Bench::start().await;
    let client = connect(bench.agent.grpc_address()).await;
    client
        .admin()
        .create_topic("two", 2, Default::default())
        .await
        .unwrap();
    let keyed = |key: &str, value: Bytes| Record {
        key: Some(key.to_owned().into()),
        ..plain(value)
    };
    // One key for each partition; the second partition's record is too large.
    let count = std::num::NonZeroU32::new(2).unwrap();
    let key_of = |partition: u32| {
        let mut keys = (0..100).map(|n| format!("key-{n}"));
        let is_there = |key: &String| partition_for_key(key.as_bytes(), count).get() == partition;
        keys.find(is_there).unwrap()
    };
    let records = vec![
        keyed(&key_of(0), "small".into()),
        keyed(&key_of(1), vec![0; 100 << 10].into()),
    ];
    let request = AppendRequest {
        topic: "two".to_owned(),
        records,
        ..AppendRequest::default()
    };
    let refused = detail(&bench.raw.log.append(request).await.unwrap_err());
    assert_eq!(refused.kind(), ErrorKind::BatchTooLarge);
    assert!(!refused.has_no_side_effects, "the first part is in the log");
    bench.agent.stop().await;
}
