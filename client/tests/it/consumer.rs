//! What a consumer promises.

use std::time::Duration;

use esker_client::{
    Client, ClientConfig, Compression, Consumer, ConsumerConfig, End, ErrorKind, Offset, OnDamage,
    OutOfRange, PartitionId, Partitions, ProducerConfig, RecordRef, RetryPolicy, StartAt,
    TimestampMs,
};
use esker_proto::{
    batch::BatchBuilder,
    v1::{self, ErrorKind as Wire},
};

use crate::{
    clock::pass,
    fake_agent::{FakeAgent, FetchFault, detail},
};

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
    client.consumer(ConsumerConfig {
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
async fn error_that_may_pass_is_handed_out_at_the_time_given_and_nothing_is_skipped() {
    let (agent, client) = filled(1).await;
    let refuse = || FetchFault::Refuse(detail(Wire::BucketUnavailable, "bucket is away"));
    agent.on_fetch([refuse()]);
    let mut consumer = client.consumer(ConsumerConfig {
        give_up_after: Some(Duration::ZERO),
        ..ConsumerConfig::default()
    });
    consumer
        .assign("t", P0, StartAt::Earliest, Some(End::Latest))
        .await
        .unwrap();

    let error = consumer.next().await.unwrap_err();

    assert!(error.is_retryable());
    assert_eq!((error.topic(), error.partition()), (Some("t"), Some(P0)));
    assert_eq!(error.offsets(), None, "nothing is damaged");
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

#[tokio::test]
async fn idle_follower_outlives_any_number_of_breaks() {
    let (agent, client) = filled(1).await;
    // Longer than each of them takes, and shorter than all of them.
    let mut consumer = client.consumer(ConsumerConfig {
        give_up_after: Some(Duration::from_secs(5)),
        ..ConsumerConfig::default()
    });
    consumer
        .assign("t", P0, StartAt::Latest, None)
        .await
        .unwrap();
    let breaks = async {
        for _ in 0..10 {
            // Once there is a second one, the first has arrived.
            agent.idle_answer().await;
            agent.idle_answer().await;
            pass(Duration::from_secs(4)).await;
            agent.cut();
        }
        agent.idle_answer().await;
    };
    tokio::select! {
        next = consumer.next() => panic!("ended after {} fetches: {next:?}", agent.fetches()),
        () = breaks => {}
    }
}

#[tokio::test]
async fn silent_fetch_is_resumed_over_another_connection_once_its_bound_is_reached() {
    let (agent, client) = filled(1).await;
    agent.on_fetch([FetchFault::HangAfter(1)]);
    let mut consumer = client.consumer(ConsumerConfig {
        wait_ms_max: 30_000,
        ..ConsumerConfig::default()
    });
    consumer
        .assign("t", P0, StartAt::Earliest, Some(End::Latest))
        .await
        .unwrap();
    let first = consumer.next().await.unwrap().unwrap();
    let connections = agent.connections();
    // The bound is 5 minutes and the wait.
    let (almost, rest) = (Duration::from_secs(301), Duration::from_secs(60));
    tokio::select! {
        biased;
        next = consumer.next() => panic!("it ended before its bound: {next:?}"),
        () = pass(almost) => {}
    }
    assert_eq!(agent.fetches(), 1);
    let reading = tokio::time::timeout(Duration::from_secs(180), read(&mut consumer));
    let (read, ()) = tokio::join!(reading, pass(rest));
    let read = read.expect("the agent is waited for in vain").unwrap();
    assert_eq!(read, expected(0, first.next_offset().get()..20));
    assert_eq!(agent.fetches(), 2);
    assert_eq!(agent.connections(), connections + 1);
}

#[tokio::test]
async fn saved_positions_are_where_another_consumer_continues() {
    let (_agent, client) = filled(2).await;
    let mut first = consumer(&client, OutOfRange::Error);
    first
        .assign("t", Partitions::All, StartAt::Earliest, None)
        .await
        .unwrap();
    first.pause("t", PartitionId::new(1)).unwrap();
    let fetched = first.next().await.unwrap().unwrap();
    let (read, saved) = (fetched.next_offset(), first.saved_positions());
    assert_eq!(saved.len(), 2);
    assert_eq!(saved[0], fetched.saved_position());
    assert!(saved[0].leader_epoch.is_some());
    drop(first);

    let mut second = consumer(&client, OutOfRange::Error);
    let start = StartAt::Saved(saved.clone());
    second
        .assign("t", Partitions::All, start, Some(End::Latest))
        .await
        .unwrap();
    assert_eq!(second.saved_positions(), saved);
    let rest = [expected(0, read.get()..20), expected(1, 0..20)].concat();
    assert_eq!(self::read(&mut second).await.unwrap(), rest);
}

#[tokio::test]
async fn partition_without_a_saved_position_is_read_from_its_start() {
    let (_agent, client) = filled(2).await;
    let mut first = consumer(&client, OutOfRange::Error);
    let at = StartAt::Offset(Offset::new(15));
    first.assign("t", P0, at, None).await.unwrap();
    let mut second = consumer(&client, OutOfRange::Error);
    let start = StartAt::Saved(first.saved_positions());
    second
        .assign("t", Partitions::All, start, Some(End::Latest))
        .await
        .unwrap();
    let all = [expected(0, 15..20), expected(1, 0..20)].concat();
    assert_eq!(read(&mut second).await.unwrap(), all);
}

#[tokio::test]
async fn position_saved_for_a_deleted_topic_is_refused_in_the_next_of_its_name() {
    let (agent, client) = filled(1).await;
    let mut before = consumer(&client, OutOfRange::Error);
    before.assign("t", P0, StartAt::Latest, None).await.unwrap();
    agent.recreate();
    let mut after = consumer(&client, OutOfRange::Error);
    let start = StartAt::Saved(before.saved_positions());
    let error = after.assign("t", P0, start, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TopicRecreated);
    assert!(error.to_string().contains("deleted and created again"));
}

/// 20 records of which all but 10 were lost, and 15 others that another leader appended.
async fn truncated(agent: &FakeAgent, client: &Client) {
    agent.truncate(0, 10);
    fill(client, 1, 100..115).await;
}

#[tokio::test]
async fn position_saved_before_the_log_was_truncated_is_refused_and_the_error_says_where_to_continue()
 {
    let (agent, client) = filled(1).await;
    let mut before = consumer(&client, OutOfRange::Error);
    let until = Some(End::Latest);
    let assigned = before.assign("t", P0, StartAt::Earliest, until);
    assigned.await.unwrap();
    read(&mut before).await.unwrap();
    let saved = StartAt::Saved(before.saved_positions());
    truncated(&agent, &client).await;

    let mut after = consumer(&client, OutOfRange::Error);
    after.assign("t", P0, saved.clone(), until).await.unwrap();
    let error = after.next().await.unwrap_err();

    assert_eq!(error.kind(), ErrorKind::Truncated, "{error:?}");
    assert!(!error.is_retryable());
    assert_eq!(error.partition(), Some(P0));
    assert_eq!(error.divergent_offset(), Some(Offset::new(10)));
    for (policy, count) in [(OutOfRange::Earliest, 15), (OutOfRange::Latest, 0)] {
        let mut after = consumer(&client, policy);
        after.assign("t", P0, saved.clone(), until).await.unwrap();
        let records = read(&mut after).await.unwrap();
        assert_eq!(records.len(), count, "{policy:?}");
        let first = records
            .first()
            .map(|(_, offset, value)| (*offset, value.as_str()));
        assert_eq!(first, (count > 0).then_some((10, "0/100")), "{policy:?}");
    }
}

#[tokio::test]
async fn log_that_lost_what_was_read_does_not_pass_for_one_that_has_nothing_new() {
    // It ends below the position, or at it, with other records before.
    for others in [0, 10] {
        let (agent, client) = filled(1).await;
        let until = Some(End::Latest);
        let mut before = consumer(&client, OutOfRange::Error);
        let assigned = before.assign("t", P0, StartAt::Earliest, until);
        assigned.await.unwrap();
        read(&mut before).await.unwrap();
        let saved = StartAt::Saved(before.saved_positions());
        let mut same = consumer(&client, OutOfRange::Error);
        same.assign("t", P0, saved.clone(), until).await.unwrap();
        assert!(same.next().await.unwrap().is_none(), "nothing is new");
        agent.truncate(0, 10);
        fill(&client, 1, 100..100 + others).await;

        let mut after = consumer(&client, OutOfRange::Error);
        after.assign("t", P0, saved, until).await.unwrap();
        let error = after.next().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Truncated, "{error:?}");
    }
}

#[tokio::test]
async fn reader_whose_fetch_breaks_does_not_read_on_in_a_truncated_log() {
    let (agent, client) = filled(1).await;
    let mut consumer = consumer(&client, OutOfRange::Error);
    let assigned = consumer.assign("t", P0, StartAt::Earliest, None);
    assigned.await.unwrap();
    while consumer.position("t", P0) != Some(Offset::new(20)) {
        consumer.next().await.unwrap().unwrap();
    }
    truncated(&agent, &client).await;
    agent.cut();
    let error = consumer.next().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Truncated, "{error:?}");
    assert_eq!(error.wire_kind(), Wire::LogTruncated);
}

#[tokio::test]
async fn paused_partition_does_not_read_on_in_a_truncated_log() {
    let (agent, client) = filled(1).await;
    let mut consumer = consumer(&client, OutOfRange::Error);
    let until = Some(End::Offset(Offset::new(25)));
    let assigned = consumer.assign("t", P0, StartAt::Earliest, until);
    assigned.await.unwrap();
    while consumer.position("t", P0) != Some(Offset::new(20)) {
        consumer.next().await.unwrap().unwrap();
    }
    consumer.pause("t", P0).unwrap();
    truncated(&agent, &client).await;
    consumer.resume("t", P0).unwrap();
    let error = consumer.next().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Truncated, "{error:?}");
    let again = StartAt::Offset(error.divergent_offset().unwrap());
    consumer.seek("t", P0, again).await.unwrap();
    assert_eq!(read(&mut consumer).await.unwrap().len(), 15);
}

#[tokio::test]
async fn reader_never_steps_into_another_topic_of_the_same_name() {
    let (agent, client) = filled(1).await;
    let mut consumer = consumer(&client, OutOfRange::Earliest);
    let at = StartAt::Offset(Offset::new(3));
    consumer.assign("t", P0, at, None).await.unwrap();
    agent.recreate();
    fill(&client, 1, 0..20).await;
    agent.cut();
    let error = read(&mut consumer).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TopicRecreated, "{error:?}");
    assert_eq!(error.wire_kind(), Wire::UnknownTopicId);
    assert_eq!(error.partition(), Some(P0));
}

/// 20 records in batches of 5, of which `damaged` are; all in one response.
async fn with_damage(damaged: &[usize]) -> (FakeAgent, Client) {
    let (agent, client) = filled(1).await;
    agent.set_batches_per_response(4);
    for batch in damaged {
        agent.damage(0, *batch);
    }
    (agent, client)
}

#[tokio::test]
async fn records_before_damage_are_read_and_the_error_says_what_is_lost() {
    let (_agent, client) = with_damage(&[2]).await;
    let mut consumer = consumer(&client, OutOfRange::Error);
    consumer
        .assign("t", P0, StartAt::Earliest, Some(End::Latest))
        .await
        .unwrap();
    let before = consumer.next().await.unwrap().unwrap();
    assert_eq!(before.next_offset().get(), 10);

    let error = consumer.next().await.unwrap_err();

    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!((error.topic(), error.partition()), (Some("t"), Some(P0)));
    let lost = error.offsets().unwrap();
    assert_eq!((lost.start.get(), lost.end.get()), (10, 15));
    assert_eq!(consumer.position("t", P0), Some(lost.start));
    assert!(consumer.next().await.unwrap().is_none(), "it is stopped");
    let behind = StartAt::Offset(lost.end);
    consumer.seek("t", P0, behind).await.unwrap();
    assert_eq!(read(&mut consumer).await.unwrap(), expected(0, 15..20));
}

#[tokio::test]
async fn range_that_ends_before_the_damage_is_read() {
    let (_agent, client) = with_damage(&[2]).await;
    let mut consumer = consumer(&client, OutOfRange::Error);
    let until = Some(End::Offset(Offset::new(10)));
    consumer
        .assign("t", P0, StartAt::Earliest, until)
        .await
        .unwrap();
    assert_eq!(read(&mut consumer).await.unwrap(), expected(0, 0..10));
}

#[tokio::test]
async fn damage_is_skipped_only_if_asked_for_and_never_silently() {
    let (_agent, client) = with_damage(&[1, 3]).await;
    let mut consumer = client.consumer(ConsumerConfig {
        on_damage: OnDamage::Skip,
        ..ConsumerConfig::default()
    });
    consumer
        .assign("t", P0, StartAt::Earliest, Some(End::Latest))
        .await
        .unwrap();
    let (mut records, mut skipped) = (Vec::new(), Vec::new());
    while let Some(fetched) = consumer.next().await.unwrap() {
        let lost = fetched.skipped().iter().map(|error| {
            let lost = error.offsets().unwrap();
            (lost.start.get(), lost.end.get())
        });
        skipped.extend(lost);
        records.extend(fetched.records().map(|record| record.unwrap().offset.get()));
    }
    assert_eq!(records, [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]);
    assert_eq!(skipped, [(5, 10), (15, 20)]);
    assert_eq!(consumer.position("t", P0), Some(Offset::new(20)));
}

#[tokio::test]
async fn record_appended_while_a_start_by_time_is_looked_up_is_read() {
    let agent = FakeAgent::start(1).await;
    let client = Client::connect(agent.address()).await.unwrap();
    let mut builder = BatchBuilder::new(Compression::None);
    let timestamp = TimestampMs::new(5_000);
    builder.push(timestamp, None, Some(b"late"), &[]).unwrap();
    agent.append_after_search(builder.finish(None));
    let mut consumer = consumer(&client, OutOfRange::Error);
    let start = StartAt::Timestamp(TimestampMs::new(1_000));
    consumer.assign("t", P0, start, None).await.unwrap();
    assert_eq!(agent.values(0), ["late"]);
    assert_eq!(consumer.position("t", P0), Some(Offset::ZERO));
}

#[tokio::test]
async fn partition_is_read_on_after_an_error_that_may_pass_while_its_offset_is_reset() {
    let (agent, _) = filled(1).await;
    agent.trim(0, 10);
    agent.on_list([detail(Wire::ShuttingDown, "agent restarts")]);
    let config = ClientConfig {
        // A call fails with its first error.
        retry: RetryPolicy {
            attempts_max: 1,
            ..RetryPolicy::default()
        },
        ..ClientConfig::default()
    };
    let client = Client::connect_with(agent.address(), config).await.unwrap();
    let mut consumer = client.consumer(ConsumerConfig {
        out_of_range: OutOfRange::Earliest,
        ..ConsumerConfig::default()
    });
    let start = StartAt::Offset(Offset::ZERO);
    let until = Some(End::Offset(Offset::new(20)));
    consumer.assign("t", P0, start, until).await.unwrap();
    assert_eq!(read(&mut consumer).await.unwrap(), expected(0, 10..20));
}

#[tokio::test]
async fn partition_that_cannot_tell_its_offset_for_the_moment_is_asked_again() {
    let (agent, client) = filled(2).await;
    agent.on_offset([detail(Wire::BucketUnavailable, "store does not answer")]);
    let mut consumer = client.consumer(ConsumerConfig::default());
    let until = Some(End::Latest);
    let assigned = consumer.assign("t", Partitions::All, StartAt::Earliest, until);
    assigned.await.unwrap();
    assert_eq!(read(&mut consumer).await.unwrap().len(), 40);
}

#[tokio::test]
async fn partition_that_is_offline_is_told_of_and_the_others_are_read() {
    let (agent, client) = filled(2).await;
    let reason = v1::ErrorDetail {
        is_retryable: false,
        ..detail(Wire::Storage, "partition is offline")
    };
    agent.set_offline(0, Some(reason));
    let mut consumer = consumer(&client, OutOfRange::Error);
    let until = Some(End::Latest);
    let assigned = consumer.assign("t", Partitions::All, StartAt::Earliest, until);
    assigned.await.unwrap();
    let (mut errors, mut records) = (Vec::new(), 0);
    loop {
        match consumer.next().await {
            Ok(Some(fetched)) => records += fetched.record_count(),
            Ok(None) => break,
            Err(error) => errors.push(error),
        }
    }

    let [error] = &errors[..] else {
        panic!("{errors:?}");
    };
    assert_eq!((error.topic(), error.partition()), (Some("t"), Some(P0)));
    assert!(error.to_string().contains("is offline"), "{error}");
    assert_eq!(records, 20, "the other partition");
    assert_eq!(consumer.position("t", P0), None);
    let saved = consumer.saved_positions();
    let saved: Vec<_> = saved.iter().map(|saved| saved.partition.get()).collect();
    assert_eq!(saved, [1], "nobody knows where the other one starts");

    agent.set_offline(0, None);
    let again = StartAt::Offset(Offset::new(5));
    consumer.seek("t", P0, again).await.unwrap();
    assert_eq!(read(&mut consumer).await.unwrap(), expected(0, 5..20));
    assert_eq!(consumer.assignment()[0].2, Some(Offset::new(20)));
}

#[tokio::test]
async fn partition_that_comes_back_is_read_from_the_start_and_to_the_end_it_was_assigned_with() {
    let (agent, _) = filled(2).await;
    let away = detail(Wire::BucketUnavailable, "store does not answer");
    agent.set_offline(0, Some(away));
    let config = ClientConfig {
        // A call fails with its first error.
        retry: RetryPolicy {
            attempts_max: 1,
            ..RetryPolicy::default()
        },
        ..ClientConfig::default()
    };
    let client = Client::connect_with(agent.address(), config).await.unwrap();
    let mut consumer = consumer(&client, OutOfRange::Error);
    let start = StartAt::Timestamp(TimestampMs::new(3));
    let until = Some(End::Timestamp(TimestampMs::new(18)));
    let assigned = consumer.assign("t", Partitions::All, start, until);
    assigned.await.unwrap();
    while consumer.position("t", PartitionId::new(1)) != Some(Offset::new(18)) {
        consumer.next().await.unwrap().unwrap();
    }
    agent.set_offline(0, None);
    assert_eq!(read(&mut consumer).await.unwrap(), expected(0, 3..18));
    assert_eq!(consumer.saved_positions().len(), 2);
}

#[tokio::test]
async fn partitions_assigned_together_share_the_buffer() {
    let (agent, client) = filled(8).await;
    let config = ConsumerConfig {
        buffer_bytes: 1 << 20,
        ..ConsumerConfig::default()
    };
    let mut consumer = client.consumer(config);
    let until = Some(End::Latest);
    let assigned = consumer.assign("t", Partitions::All, StartAt::Earliest, until);
    assigned.await.unwrap();
    read(&mut consumer).await.unwrap();
    assert_eq!(agent.max_bytes(), [(1 << 20) / 8; 8]);
}
