//! What a consumer promises.

use std::time::Duration;

use esker_client::{
    Client, Compression, Consumer, ConsumerConfig, End, ErrorKind, Offset, OutOfRange, PartitionId,
    Partitions, ProducerConfig, RecordRef, RetryPolicy, StartAt, TimestampMs,
};
use esker_proto::v1::ErrorKind as Wire;

use crate::fake_agent::{FakeAgent, FetchFault, detail};

const P0: PartitionId = PartitionId::new(0);

/// Fills each partition with 20 records in 4 batches; record n has timestamp n.
async fn filled(partitions: usize) -> (FakeAgent, Client) {
    let agent = FakeAgent::start(partitions).await;
    let client = Client::connect(agent.address()).await.unwrap();
    fill(&client, partitions, 0..20).await;
    (agent, client)
}

async fn fill(client: &Client, partitions: usize, numbers: std::ops::Range<i64>) {
    let config = ProducerConfig {
        compression: Compression::Lz4,
        linger: Duration::from_secs(60),
        ..ProducerConfig::default()
    };
    let producer = client.producer("t", config).await.unwrap();
    for number in numbers {
        for partition in 0..u32::try_from(partitions).unwrap() {
            let value = format!("{partition}/{number}");
            let record = RecordRef {
                key: Some(b"key"),
                value: Some(value.as_bytes()),
                headers: &[("name", Some(b"header")), ("none", None)],
                timestamp: Some(TimestampMs::new(number)),
                partition: Some(PartitionId::new(partition)),
            };
            _ = producer.send(record).await.unwrap();
        }
        if number % 5 == 4 {
            producer.flush().await.unwrap();
        }
    }
    producer.close().await.unwrap();
}

fn consumer(client: &Client, out_of_range: OutOfRange) -> Consumer {
    let retry = RetryPolicy {
        attempts_max: 3,
        delay_first: Duration::from_millis(1),
        delay_max: Duration::from_millis(1),
    };
    client.consumer(ConsumerConfig {
        retry,
        out_of_range,
        ..ConsumerConfig::default()
    })
}

/// Reads to the end of everything, or to the first error.
async fn read(consumer: &mut Consumer) -> esker_client::Result<Vec<(u32, u64, String)>> {
    let mut records = Vec::new();
    while let Some(fetched) = consumer.next().await? {
        let before = records.len() as u64;
        for record in &fetched {
            let record = record?;
            let value = String::from_utf8(record.value.unwrap().to_vec()).unwrap();
            records.push((fetched.partition().get(), record.offset.get(), value));
        }
        assert_eq!(fetched.record_count(), records.len() as u64 - before);
    }
    records.sort();
    Ok(records)
}

fn expected(partition: u32, offsets: std::ops::Range<u64>) -> Vec<(u32, u64, String)> {
    offsets
        .map(|offset| (partition, offset, format!("{partition}/{offset}")))
        .collect()
}

#[tokio::test]
async fn every_record_of_every_partition_is_read_once() {
    let (_agent, client) = filled(3).await;
    let mut consumer = consumer(&client, OutOfRange::Error);
    let (start, end) = (StartAt::Earliest, Some(End::Latest));
    consumer
        .assign("t", Partitions::All, start, end)
        .await
        .unwrap();
    let all = [expected(0, 0..20), expected(1, 0..20), expected(2, 0..20)].concat();
    assert_eq!(read(&mut consumer).await.unwrap(), all);
    assert_eq!(consumer.position("t", P0), Some(Offset::new(20)));
    assert_eq!(consumer.high_watermark("t", P0), Some(Offset::new(20)));
}

#[tokio::test]
async fn record_comes_back_as_it_was_sent() {
    let (_agent, client) = filled(1).await;
    let mut consumer = consumer(&client, OutOfRange::Error);
    let start = StartAt::Offset(Offset::new(7));
    consumer.assign("t", P0, start, None).await.unwrap();
    let fetched = consumer.next().await.unwrap().unwrap();
    let record = fetched.records().next().unwrap().unwrap();
    assert_eq!((record.offset.get(), record.timestamp.get()), (7, 7));
    assert_eq!(
        (record.key, record.value),
        (Some(&b"key"[..]), Some(&b"0/7"[..]))
    );
    let headers: Vec<_> = record.headers.map(Result::unwrap).collect();
    assert_eq!(
        (headers[0].key, headers[0].value),
        ("name", Some(&b"header"[..]))
    );
    assert_eq!((headers[1].key, headers[1].value), ("none", None));
}

#[tokio::test]
async fn bounds_within_a_batch_are_kept() {
    let (_agent, client) = filled(1).await;
    let mut consumer = consumer(&client, OutOfRange::Error);
    let (start, end) = (
        StartAt::Offset(Offset::new(7)),
        End::Offset(Offset::new(13)),
    );
    consumer.assign("t", P0, start, Some(end)).await.unwrap();
    assert_eq!(read(&mut consumer).await.unwrap(), expected(0, 7..13));
}

#[tokio::test]
async fn times_are_resolved_to_offsets() {
    let (_agent, client) = filled(1).await;
    let mut consumer = consumer(&client, OutOfRange::Error);
    let at = TimestampMs::new;
    let (start, end) = (StartAt::Timestamp(at(3)), End::Timestamp(at(1000)));
    consumer.assign("t", P0, start, Some(end)).await.unwrap();
    assert_eq!(read(&mut consumer).await.unwrap(), expected(0, 3..20));
}

#[tokio::test]
async fn broken_fetch_goes_on_at_the_exact_offset() {
    let (agent, client) = filled(1).await;
    let faults = [
        FetchFault::BreakAfter(1),
        FetchFault::EndAfter(1),
        FetchFault::BreakAfter(0),
    ];
    agent.on_fetch(faults);
    let mut consumer = consumer(&client, OutOfRange::Error);
    consumer
        .assign("t", P0, StartAt::Offset(Offset::new(2)), Some(End::Latest))
        .await
        .unwrap();
    assert_eq!(read(&mut consumer).await.unwrap(), expected(0, 2..20));
    assert_eq!(agent.fetches(), 4);
}

#[tokio::test]
async fn cut_connection_goes_on_at_the_exact_offset() {
    let (agent, client) = filled(1).await;
    let mut consumer = consumer(&client, OutOfRange::Error);
    consumer
        .assign("t", P0, StartAt::Earliest, Some(End::Latest))
        .await
        .unwrap();
    let first = consumer.next().await.unwrap().unwrap();
    agent.cut();
    let rest = read(&mut consumer).await.unwrap();
    assert_eq!(first.next_offset().get(), rest[0].1);
    assert_eq!(rest, expected(0, first.next_offset().get()..20));
}

#[tokio::test]
async fn flipped_bit_is_an_error_and_other_partitions_go_on() {
    let (agent, client) = filled(2).await;
    agent.on_fetch([FetchFault::FlipBit]);
    let mut consumer = consumer(&client, OutOfRange::Error);
    let (start, end) = (StartAt::Earliest, Some(End::Latest));
    consumer
        .assign("t", Partitions::All, start, end)
        .await
        .unwrap();
    let (mut errors, mut records) = (Vec::new(), 0);
    loop {
        match consumer.next().await {
            Ok(Some(fetched)) => records += fetched.record_count(),
            Ok(None) => break,
            Err(error) => errors.push(error),
        }
    }
    assert_eq!(
        errors
            .iter()
            .map(esker_client::Error::kind)
            .collect::<Vec<_>>(),
        [ErrorKind::Corrupt]
    );
    assert_eq!(records, 20, "the other partition");
}

#[tokio::test]
async fn records_left_out_are_an_error() {
    let (agent, client) = filled(1).await;
    agent.on_fetch([FetchFault::Skip]);
    let mut consumer = consumer(&client, OutOfRange::Error);
    consumer
        .assign("t", P0, StartAt::Earliest, Some(End::Latest))
        .await
        .unwrap();
    assert_eq!(
        read(&mut consumer).await.unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    assert_eq!(consumer.position("t", P0), Some(Offset::ZERO));
}

#[tokio::test]
async fn error_that_may_pass_is_handed_out_in_the_end_and_nothing_is_skipped() {
    let (agent, client) = filled(1).await;
    let refuse = || FetchFault::Refuse(detail(Wire::BucketUnavailable, "bucket is away"));
    agent.on_fetch([refuse(), refuse(), refuse()]);
    let mut consumer = consumer(&client, OutOfRange::Error);
    consumer
        .assign("t", P0, StartAt::Earliest, Some(End::Latest))
        .await
        .unwrap();

    let error = consumer.next().await.unwrap_err();

    assert!(error.is_retryable());
    assert_eq!(agent.fetches(), 3);
    assert_eq!(read(&mut consumer).await.unwrap(), expected(0, 0..20));
}

#[tokio::test]
async fn offset_out_of_range_is_an_error_unless_told_otherwise() {
    let (agent, client) = filled(1).await;
    agent.trim(0, 10);
    let cases = [(OutOfRange::Earliest, 10), (OutOfRange::Latest, 20)];
    for (policy, from) in cases {
        let mut consumer = consumer(&client, policy);
        consumer
            .assign("t", P0, StartAt::Offset(Offset::ZERO), Some(End::Latest))
            .await
            .unwrap();
        assert_eq!(read(&mut consumer).await.unwrap(), expected(0, from..20));
    }
    let mut consumer = consumer(&client, OutOfRange::Error);
    consumer
        .assign("t", P0, StartAt::Offset(Offset::ZERO), None)
        .await
        .unwrap();
    assert_eq!(
        consumer.next().await.unwrap_err().kind(),
        ErrorKind::OutOfRange
    );

    consumer.seek("t", P0, StartAt::Earliest).await.unwrap();

    assert_eq!(
        consumer.next().await.unwrap().unwrap().base_offset().get(),
        10
    );
}

#[tokio::test]
async fn seek_moves_and_drops_what_was_fetched() {
    let (_agent, client) = filled(1).await;
    let mut consumer = consumer(&client, OutOfRange::Error);
    consumer
        .assign("t", P0, StartAt::Earliest, Some(End::Latest))
        .await
        .unwrap();
    consumer.next().await.unwrap().unwrap();
    let cases = [
        (StartAt::Offset(Offset::new(12)), 12),
        (StartAt::Timestamp(TimestampMs::new(6)), 6),
        (StartAt::Earliest, 0),
        (StartAt::Latest, 20),
        (StartAt::Offset(Offset::new(19)), 19),
    ];
    for (to, from) in cases {
        consumer.seek("t", P0, to).await.unwrap();
        assert_eq!(consumer.position("t", P0), Some(Offset::new(from)));
        assert_eq!(read(&mut consumer).await.unwrap(), expected(0, from..20));
    }
    let elsewhere = consumer
        .seek("t", PartitionId::new(1), StartAt::Earliest)
        .await;
    assert_eq!(elsewhere.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn paused_partition_waits_at_its_place() {
    let (_agent, client) = filled(2).await;
    let mut consumer = consumer(&client, OutOfRange::Error);
    let (start, end) = (StartAt::Earliest, Some(End::Latest));
    consumer
        .assign("t", Partitions::All, start, end)
        .await
        .unwrap();
    consumer.pause("t", P0).unwrap();
    assert_eq!(read(&mut consumer).await.unwrap(), expected(1, 0..20));
    consumer.resume("t", P0).unwrap();
    assert_eq!(read(&mut consumer).await.unwrap(), expected(0, 0..20));
}

#[tokio::test]
async fn tail_is_followed() {
    let (_agent, client) = filled(1).await;
    let mut consumer = consumer(&client, OutOfRange::Error);
    consumer
        .assign("t", P0, StartAt::Latest, None)
        .await
        .unwrap();
    let (fetched, ()) = tokio::join!(consumer.next(), fill(&client, 1, 20..25));
    let fetched = fetched.unwrap().unwrap();
    assert_eq!(fetched.base_offset().get(), 20);
}

#[tokio::test]
async fn unknown_partition_is_not_assigned() {
    let (_agent, client) = filled(1).await;
    let mut consumer = consumer(&client, OutOfRange::Error);
    let assigned = consumer
        .assign("t", PartitionId::new(1), StartAt::Earliest, None)
        .await;
    assert_eq!(assigned.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(consumer.assignment().is_empty());
}
