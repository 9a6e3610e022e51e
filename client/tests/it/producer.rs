//! What a producer promises.

use std::time::Duration;

use esker_client::{
    Client, ClientConfig, Compression, ConsumerConfig, Delivery, ErrorKind, PartitionId, Producer,
    ProducerConfig, RecordRef, StartAt,
};
use esker_proto::v1::{self, ErrorKind as Wire};

use crate::{
    clock::{pass, while_time_passes},
    fake_agent::{FakeAgent, ProduceFault, Reserved, detail},
};

/// Every record is a batch of its own.
fn one_by_one() -> ProducerConfig {
    ProducerConfig {
        batch_bytes: 1,
        linger: Duration::ZERO,
        ..ProducerConfig::default()
    }
}

async fn producer(agent: &FakeAgent, config: ProducerConfig) -> Producer {
    let client = Client::connect(agent.address()).await.unwrap();
    client.producer("t", config).await.unwrap()
}

async fn send(producer: &Producer, values: &[&str]) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    for value in values {
        deliveries.push(
            producer
                .send(RecordRef::new(value.as_bytes()))
                .await
                .unwrap(),
        );
    }
    deliveries
}

async fn offsets(deliveries: Vec<Delivery>) -> Vec<u64> {
    let mut offsets = Vec::new();
    for delivery in deliveries {
        offsets.push(delivery.await.unwrap().offset.get());
    }
    offsets
}

/// Makes the agent know the producer, so that the whole window is used from here on.
async fn warm_up(producer: &Producer) {
    _ = offsets(send(producer, &["first"]).await).await;
}

#[tokio::test]
async fn each_record_learns_its_offset() {
    let agent = FakeAgent::start(1).await;
    let producer = producer(&agent, ProducerConfig::default()).await;
    let deliveries = send(&producer, &["a", "b", "c"]).await;
    assert_eq!(offsets(deliveries).await, [0, 1, 2]);
    assert_eq!(agent.values(0), ["a", "b", "c"]);
    assert_eq!(agent.batches(0), 1, "they share a batch");
}

#[tokio::test]
async fn records_of_a_key_stay_together_and_in_order() {
    let agent = FakeAgent::start(4).await;
    let producer = producer(&agent, one_by_one()).await;
    for index in 0..200 {
        let (key, value) = (format!("key-{}", index % 10), format!("{index}"));
        let record = RecordRef::keyed(key.as_bytes(), value.as_bytes());
        _ = producer.send(record).await.unwrap();
    }
    producer.flush().await.unwrap();
    let mut used = 0;
    for partition in 0..4 {
        let numbers: Vec<u32> = agent
            .values(partition)
            .iter()
            .map(|value| value.parse().unwrap())
            .collect();
        assert!(numbers.is_sorted(), "{numbers:?}");
        used += usize::from(!numbers.is_empty());
    }
    assert!(used > 1);
}

#[tokio::test]
async fn records_without_a_key_are_spread_batch_by_batch() {
    let agent = FakeAgent::start(4).await;
    let producer = producer(&agent, one_by_one()).await;
    let values: Vec<String> = (0..40).map(|index| index.to_string()).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    _ = offsets(send(&producer, &values).await).await;
    assert_eq!(
        (0..4)
            .map(|partition| agent.batches(partition))
            .collect::<Vec<_>>(),
        [10; 4]
    );
}

#[tokio::test]
async fn record_whose_answer_was_lost_is_not_doubled() {
    let agent = FakeAgent::start(1).await;
    let producer = producer(&agent, one_by_one()).await;
    agent.on_produce([
        ProduceFault::WriteAndBreak,
        ProduceFault::Break,
        ProduceFault::WriteAndBreak,
    ]);
    let deliveries = send(&producer, &["a", "b", "c"]).await;
    assert_eq!(offsets(deliveries).await, [0, 1, 2]);
    assert_eq!(agent.values(0), ["a", "b", "c"]);
}

#[tokio::test]
async fn order_holds_when_a_batch_in_the_middle_is_refused() {
    let agent = FakeAgent::start(1).await;
    let producer = producer(&agent, one_by_one()).await;
    warm_up(&producer).await;
    let throttled = || ProduceFault::Refuse(detail(Wire::Throttled, "slow down"));
    agent.on_produce([
        ProduceFault::None,
        throttled(),
        ProduceFault::None,
        throttled(),
    ]);
    let deliveries = send(&producer, &["a", "b", "c", "d", "e", "f", "g"]).await;
    assert_eq!(offsets(deliveries).await, [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(
        agent.values(0),
        ["first", "a", "b", "c", "d", "e", "f", "g"]
    );
}

/// The time to send again comes while the producer is to pause: it must wait, and not spin.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_batch_waits_for_the_end_of_a_pause() {
    let agent = FakeAgent::start(1).await;
    let producer = producer(&agent, one_by_one()).await;
    warm_up(&producer).await;
    let refusal = v1::ErrorDetail {
        retry_after_ms: Some(10),
        ..detail(Wire::Throttled, "slow down")
    };
    agent.on_produce([ProduceFault::Throttle(300), ProduceFault::Refuse(refusal)]);
    let deliveries = send(&producer, &["a", "b"]).await;
    let delivered = tokio::time::timeout(Duration::from_secs(10), offsets(deliveries));
    assert_eq!(delivered.await.expect("it goes on after the pause"), [1, 2]);
}

#[tokio::test]
async fn order_holds_when_connections_are_cut_again_and_again() {
    let agent = FakeAgent::start(2).await;
    let producer = producer(&agent, one_by_one()).await;
    let values: Vec<String> = (0..300).map(|index| index.to_string()).collect();
    for (index, value) in values.iter().enumerate() {
        let partition = Some(PartitionId::new(u32::try_from(index % 2).unwrap()));
        let record = RecordRef {
            partition,
            ..RecordRef::new(value.as_bytes())
        };
        let delivery = producer.send(record).await.unwrap();
        if index % 50 == 49 {
            agent.cut();
            delivery.await.unwrap();
        }
    }
    producer.close().await.unwrap();
    for partition in 0..2 {
        let expected: Vec<_> = values.iter().skip(partition).step_by(2).cloned().collect();
        assert_eq!(agent.values(partition), expected);
    }
}

#[tokio::test]
async fn batches_behind_a_refused_one_are_delivered_in_order_and_once() {
    let agent = FakeAgent::start(1).await;
    let producer = producer(&agent, one_by_one()).await;
    warm_up(&producer).await;
    agent.on_produce([ProduceFault::Refuse(detail(
        Wire::BatchTooLarge,
        "too large",
    ))]);
    let mut deliveries = send(&producer, &["a", "b", "c", "d"]).await;

    let error = deliveries.remove(0).await.unwrap_err();

    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.has_no_side_effects());
    assert_eq!(offsets(deliveries).await, [1, 2, 3]);
    assert_eq!(agent.values(0), ["first", "b", "c", "d"]);
}

#[tokio::test]
async fn record_without_an_answer_has_an_unknown_outcome_and_cannot_come_late() {
    let agent = FakeAgent::start(1).await;
    // Below the time after which a silent agent is given up, and far above what the others take.
    let delivery_timeout = Duration::from_secs(20);
    let config = ProducerConfig {
        delivery_timeout,
        ..one_by_one()
    };
    let producer = producer(&agent, config).await;
    warm_up(&producer).await;
    agent.on_produce([ProduceFault::Keep]);
    let lost = send(&producer, &["lost"]).await.remove(0);
    agent.until_kept(1).await;
    pass(delivery_timeout).await;

    let error = lost.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(!error.has_no_side_effects());

    assert_eq!(offsets(send(&producer, &["next"]).await).await, [1]);
    let late = agent.release().remove(0);
    assert_eq!(late.unwrap_err().kind(), Wire::ProducerFenced);
    assert_eq!(agent.values(0), ["first", "next"]);
}

#[tokio::test]
async fn record_that_never_left_surely_is_not_in_the_log() {
    let agent = FakeAgent::start(1).await;
    let producer = producer(&agent, one_by_one()).await;
    agent.stop().await;
    let delivery = send(&producer, &["a"]).await.remove(0);
    let error = while_time_passes(delivery).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.has_no_side_effects(), "{error:?}");
    assert!(
        error.to_string().contains("cannot reach the agent"),
        "{error}"
    );
}

#[tokio::test]
async fn producer_that_the_agent_forgot_goes_on_without_doubling() {
    let agent = FakeAgent::start(1).await;
    let producer = producer(&agent, one_by_one()).await;
    assert_eq!(offsets(send(&producer, &["a", "b"]).await).await, [0, 1]);
    agent.forget_producers();
    assert_eq!(
        offsets(send(&producer, &["c", "d", "e"]).await).await,
        [2, 3, 4]
    );
    assert_eq!(agent.values(0), ["a", "b", "c", "d", "e"]);
}

#[tokio::test]
async fn fenced_producer_takes_no_more_records() {
    let agent = FakeAgent::start(1).await;
    let producer = producer(&agent, one_by_one()).await;
    agent.on_produce([ProduceFault::Refuse(detail(Wire::ProducerFenced, "fenced"))]);
    let delivery = send(&producer, &["a"]).await.remove(0);
    assert_eq!(delivery.await.unwrap_err().kind(), ErrorKind::Fenced);
    let refused = producer.send(RecordRef::new(b"b")).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Fenced);
}

#[tokio::test]
async fn batch_goes_to_the_leader_that_the_refusal_names() {
    let (agent, leader) = (FakeAgent::start(1).await, FakeAgent::start(1).await);
    let producer = producer(&agent, one_by_one()).await;
    let mut error = detail(Wire::NotLeader, "not the leader");
    error.leader = Some(leader.address().to_owned());
    agent.on_produce([ProduceFault::Refuse(error)]);
    assert_eq!(offsets(send(&producer, &["a", "b"]).await).await, [0, 1]);
    assert_eq!(leader.values(0), ["a", "b"]);
    assert!(agent.values(0).is_empty());
}

#[tokio::test]
async fn leader_that_cannot_be_reached_is_asked_for_elsewhere() {
    let agent = FakeAgent::start(1).await;
    let gone = FakeAgent::start(1).await;
    gone.stop().await;
    agent.set_leader(gone.address());
    let producer = producer(&agent, one_by_one()).await;
    assert_eq!(offsets(send(&producer, &["a", "b"]).await).await, [0, 1]);
}

#[tokio::test]
async fn full_buffer_makes_senders_wait_and_loses_nothing() {
    let agent = FakeAgent::start(1).await;
    let config = ProducerConfig {
        buffer_bytes: 2000,
        batch_bytes: 500,
        linger: Duration::from_secs(60),
        ..ProducerConfig::default()
    };
    let producer = producer(&agent, config).await;
    let value = "x".repeat(100);
    let mut refused = 0;
    for _ in 0..200 {
        let record = RecordRef::new(value.as_bytes());
        match producer.try_send(record).unwrap() {
            Some(_) => {}
            None => {
                refused += 1;
                _ = producer.send(record).await.unwrap();
            }
        }
    }
    producer.close().await.unwrap();
    assert!(refused > 0);
    assert_eq!(agent.values(0).len(), 200);
}

#[tokio::test]
async fn oversized_record_is_refused_before_it_is_sent() {
    let agent = FakeAgent::start(1).await;
    let config = ProducerConfig {
        buffer_bytes: 1 << 20,
        ..ProducerConfig::default()
    };
    let producer = producer(&agent, config).await;
    let value = vec![0; 2 << 20];
    let error = producer.send(RecordRef::new(&value)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.has_no_side_effects());
    assert_eq!(offsets(send(&producer, &["a"]).await).await, [0]);
}

#[tokio::test]
async fn without_idempotence_one_batch_is_under_way_at_a_time() {
    let agent = FakeAgent::start(1).await;
    let producer = producer(
        &agent,
        ProducerConfig {
            idempotent: false,
            ..one_by_one()
        },
    )
    .await;
    agent.on_produce([ProduceFault::Refuse(detail(Wire::Throttled, "slow down"))]);
    assert_eq!(
        offsets(send(&producer, &["a", "b", "c"]).await).await,
        [0, 1, 2]
    );
    assert_eq!(agent.values(0), ["a", "b", "c"]);
    assert_eq!(agent.unanswered_max(), 1);
}

#[tokio::test]
async fn flush_sends_what_lingers() {
    let agent = FakeAgent::start(2).await;
    let config = ProducerConfig {
        linger: Duration::from_secs(60),
        ..ProducerConfig::default()
    };
    let producer = producer(&agent, config).await;
    let delivery = send(&producer, &["a"]).await.remove(0);
    producer.flush().await.unwrap();
    assert!(delivery.try_result().unwrap().is_ok());
}

#[tokio::test]
async fn closed_producer_refuses_and_has_delivered() {
    let agent = FakeAgent::start(1).await;
    let config = ProducerConfig {
        linger: Duration::from_secs(60),
        ..ProducerConfig::default()
    };
    let producer = producer(&agent, config).await;
    _ = send(&producer, &["a", "b"]).await;
    producer.close().await.unwrap();
    assert_eq!(agent.values(0), ["a", "b"]);
    let refused = producer.send(RecordRef::new(b"c")).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn dropped_producer_delivers_in_the_background() {
    let agent = FakeAgent::start(1).await;
    let config = ProducerConfig {
        linger: Duration::from_secs(60),
        ..ProducerConfig::default()
    };
    let producer = producer(&agent, config).await;
    let deliveries = send(&producer, &["a", "b"]).await;
    drop(producer);
    assert_eq!(offsets(deliveries).await, [0, 1]);
}

#[tokio::test]
async fn compressed_batches_keep_order_and_sequences() {
    for compression in [
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ] {
        let agent = FakeAgent::start(1).await;
        let producer = producer(
            &agent,
            ProducerConfig {
                compression,
                ..one_by_one()
            },
        )
        .await;
        agent.on_produce([ProduceFault::None, ProduceFault::WriteAndBreak]);
        assert_eq!(
            offsets(send(&producer, &["a", "b", "c", "d"]).await).await,
            [0, 1, 2, 3]
        );
        assert_eq!(agent.values(0), ["a", "b", "c", "d"], "{compression}");
    }
}

#[tokio::test]
async fn unknown_topic_and_partition_are_not_found() {
    let agent = FakeAgent::start(2).await;
    let client = Client::connect(agent.address()).await.unwrap();
    let missing = client.producer("missing", ProducerConfig::default()).await;
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    let producer = producer(&agent, ProducerConfig::default()).await;
    let record = RecordRef {
        partition: Some(PartitionId::new(2)),
        ..RecordRef::new(b"a")
    };
    assert_eq!(
        producer.send(record).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
}

#[tokio::test]
async fn unreachable_agent_is_named() {
    let nobody = Reserved::new();
    let address = nobody.address().to_string();
    let error = Client::connect(&address).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains(&address), "{error}");
    assert!(error.has_no_side_effects());
}

/// Bytes of values that a producer takes while nothing is acknowledged.
fn room(producer: &Producer, value: &[u8]) -> usize {
    let taken = || producer.try_send(RecordRef::new(value)).unwrap();
    std::iter::from_fn(taken).take(1_000).count() * value.len()
}

#[tokio::test]
async fn room_is_the_same_after_records_without_a_key_waited_for_it() {
    let agent = FakeAgent::start(2).await;
    let config = ProducerConfig {
        buffer_bytes: 20_000,
        batch_bytes: 5_000,
        ..ProducerConfig::default()
    };
    let producer = producer(&agent, config).await;
    let value = vec![7; 1_000];
    for _ in 0..500 {
        drop(producer.send(RecordRef::new(&value)).await.unwrap());
    }
    producer.flush().await.unwrap();
    agent.stop().await;
    let bytes = room(&producer, &value);
    assert!(bytes <= 20_000, "takes {bytes} bytes");
}

#[tokio::test]
async fn every_clone_s_flush_tells_of_a_record_that_failed() {
    let agent = FakeAgent::start(1).await;
    let producer = producer(&agent, ProducerConfig::default()).await;
    let too_large = || ProduceFault::Refuse(detail(Wire::BatchTooLarge, "too large"));
    let other = producer.clone();
    // While they wait for it, and after it has failed.
    for has_failed in [false, true] {
        agent.on_produce([too_large()]);
        let delivery = producer.send(RecordRef::new(b"a")).await.unwrap();
        if has_failed {
            delivery.await.unwrap_err();
        }
        let (one, two) = tokio::join!(producer.flush(), other.flush());
        assert!(one.is_err() && two.is_err(), "{one:?} {two:?}");
        producer.flush().await.unwrap();
        other.flush().await.unwrap();
    }
}

#[tokio::test]
async fn any_bootstrap_address_leads_to_the_partitions() {
    let agent = FakeAgent::start(1).await;
    let dead = FakeAgent::start(1).await;
    dead.stop().await;
    // Who leads is not told, and once told wrongly.
    for leader in ["", dead.address()] {
        agent.set_leader(leader);
        let addresses = format!("{},{}", dead.address(), agent.address());
        let client = Client::connect(addresses).await.unwrap();
        let config = ProducerConfig::default();
        let producer = client.producer("t", config).await.unwrap();
        let delivery = producer.send(RecordRef::new(b"a")).await.unwrap();
        delivery.await.unwrap();
        let mut consumer = client.consumer(ConsumerConfig::default());
        let partition = PartitionId::new(0);
        let assigned = consumer.assign("t", partition, StartAt::Earliest, None);
        assigned.await.unwrap();
        assert!(consumer.next().await.unwrap().is_some());
    }
}

#[tokio::test]
async fn producer_never_writes_into_another_topic_of_the_same_name() {
    let agent = FakeAgent::start(2).await;
    let producer = producer(&agent, ProducerConfig::default()).await;
    agent.recreate();
    let delivery = producer.send(RecordRef::new(b"a")).await.unwrap();
    let error = delivery.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TopicRecreated, "{error:?}");
    let refused = producer.send(RecordRef::new(b"b")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TopicRecreated, "{refused:?}");
}

#[tokio::test]
async fn records_without_a_key_go_elsewhere_when_a_partition_is_fenced() {
    let agent = FakeAgent::start(2).await;
    let config = ProducerConfig {
        batch_bytes: 1,
        linger: Duration::ZERO,
        ..ProducerConfig::default()
    };
    let producer = producer(&agent, config).await;
    agent.on_produce([ProduceFault::Refuse(detail(Wire::ProducerFenced, "fenced"))]);
    let fenced = producer.send(RecordRef::new(b"a")).await.unwrap();
    assert_eq!(fenced.await.unwrap_err().kind(), ErrorKind::Fenced);
    for _ in 0..20 {
        let delivery = producer.send(RecordRef::new(b"b")).await.unwrap();
        delivery.await.unwrap();
    }
}

#[tokio::test]
async fn producer_follows_the_topic_s_limit_when_it_is_lowered() {
    const ROUNDS_MAX: usize = 1_000;
    let agent = FakeAgent::start(1).await;
    let producer = producer(&agent, ProducerConfig::default()).await;
    agent.set_batch_bytes_max(2_000);
    let value = vec![7; 500];
    let mut delivered = false;
    // Batches built before it was known fail, and say why.
    for _ in 0..ROUNDS_MAX {
        let mut deliveries = Vec::new();
        for _ in 0..100 {
            deliveries.push(producer.send(RecordRef::new(&value)).await.unwrap());
        }
        let outcomes = futures::future::join_all(deliveries).await;
        for outcome in &outcomes {
            let refused = outcome.as_ref().err().map(esker_client::Error::wire_kind);
            assert!(
                matches!(refused, None | Some(Wire::BatchTooLarge)),
                "{outcome:?}"
            );
        }
        delivered = outcomes.iter().all(Result::is_ok);
        if delivered {
            break;
        }
    }
    assert!(delivered, "the limit is never followed");
    assert!(agent.batches(0) >= 25);
}

#[tokio::test]
async fn durations_of_never_are_taken_as_that() {
    let agent = FakeAgent::start(1).await;
    let client_config = ClientConfig {
        connect_timeout: Duration::MAX,
        request_timeout: Duration::MAX,
        ..ClientConfig::default()
    };
    let client = Client::connect_with(agent.address(), client_config)
        .await
        .unwrap();
    let config = ProducerConfig {
        delivery_timeout: Duration::MAX,
        buffer_bytes: 2_000,
        batch_bytes: 1_000,
        ..ProducerConfig::default()
    };
    let producer = client.producer("t", config).await.unwrap();
    for _ in 0..50 {
        drop(producer.send(RecordRef::new(&[7; 500])).await.unwrap());
    }
    producer.flush().await.unwrap();
    let config = ProducerConfig {
        linger: Duration::from_secs(u64::MAX - 1),
        delivery_timeout: Duration::MAX,
        ..ProducerConfig::default()
    };
    let lingering = client.producer("t", config).await.unwrap();
    drop(lingering.send(RecordRef::new(b"a")).await.unwrap());
    lingering.close().await.unwrap();
}

#[test]
fn no_delivery_is_left_open_when_the_runtime_ends_while_its_batch_is_compressed() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let others = builder.worker_threads(1).enable_all().build().unwrap();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let clients = builder
        .max_blocking_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let agent = others.block_on(FakeAgent::start(1));
    let (release, released) = std::sync::mpsc::channel::<()>();
    let mut delivery = None;
    clients.block_on(async {
        let config = ProducerConfig {
            compression: Compression::Lz4,
            linger: Duration::ZERO,
            ..ProducerConfig::default()
        };
        let producer = producer(&agent, config).await;
        let first = producer.send(RecordRef::new(b"a")).await.unwrap();
        first.await.unwrap();
        // The only thread for compression is busy.
        drop(tokio::task::spawn_blocking(move || _ = released.recv()));
        delivery = Some(producer.send(RecordRef::new(b"b")).await.unwrap());
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    });
    clients.shutdown_background();
    drop(release);
    let told = others.block_on(async {
        let patience = Duration::from_secs(30);
        tokio::time::timeout(patience, delivery.unwrap()).await
    });
    let error = told.expect("the delivery is left open").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}
