//! Numbered records, their check, and calls without the client library.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    path::Path,
    time::Duration,
};

use bytes::Bytes;
use esker_client::{
    Client, ConsumerConfig, End, FetchSource, Partitions, Producer, ProducerConfig, RecordRef,
    StartAt, TopicSettings,
};
use esker_proto::{
    batch::{BatchBuilder, Compression},
    error::decode_detail,
    types::{ProducerEpoch, ProducerId, Sequence, TimestampMs},
    v1::{
        self, ErrorDetail, FetchRequest, FetchResponse, PartitionDescription, ProduceRequest,
        admin_client::AdminClient, log_client::LogClient, produce_response::Result as Outcome,
    },
};
use esker_tests::{agent::verify, s3::S3Server};
use tonic::{Status, transport::Channel};

use crate::support::BUCKET;

pub(crate) const TOPIC: &str = "orders";
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_esker-test-agent");
const KEYS: u64 = 40;
const FETCH_TIMEOUT: Duration = Duration::from_secs(45);

/// The id of the agent that a data directory belongs to.
pub(crate) fn agent_id_in(data_dir: &Path) -> String {
    let text = std::fs::read_to_string(data_dir.join("agent.json")).unwrap();
    let id = text
        .split('"')
        .skip_while(|part| *part != "agent_id")
        .nth(2);
    id.unwrap().to_owned()
}

pub(crate) fn key(number: u64) -> String {
    format!("key-{}", number % KEYS)
}

/// A value that can be made anew from its number.
pub(crate) fn value(number: u64) -> String {
    let mut value = format!("{number:012} ");
    let mut mixed = number;
    while value.len() < 200 {
        mixed = mixed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        value.push_str(&format!("{mixed:016x}"));
    }
    value
}

pub(crate) fn s3_url(server: &S3Server) -> String {
    let endpoint = server.url();
    format!("s3://{BUCKET}/prefix?endpoint={endpoint}&region=us-east-1")
}

pub(crate) async fn connect(address: SocketAddr) -> Client {
    Client::connect(address.to_string()).await.unwrap()
}

pub(crate) async fn create(client: &Client, partitions: u32) {
    create_with(client, partitions, TopicSettings::default()).await;
}

pub(crate) async fn create_with(client: &Client, partitions: u32, settings: TopicSettings) {
    client
        .admin()
        .create_topic(TOPIC, partitions, settings)
        .await
        .unwrap();
}

/// Batches small enough for many to a segment.
pub(crate) fn small_batches() -> ProducerConfig {
    ProducerConfig {
        batch_bytes: 16 << 10,
        linger: Duration::from_millis(1),
        ..ProducerConfig::default()
    }
}

/// Sends records and waits until all are acknowledged.
pub(crate) async fn publish(client: &Client, numbers: std::ops::Range<u64>) {
    let producer = client.producer(TOPIC, small_batches()).await.unwrap();
    send(&producer, numbers).await;
    producer.close().await.unwrap();
}

pub(crate) async fn send(producer: &Producer, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let (key, value) = (key(number), value(number));
        let record = RecordRef::keyed(key.as_bytes(), value.as_bytes());
        drop(producer.send(record).await.unwrap());
    }
}

pub(crate) async fn seal(client: &Client, drop_local: bool) {
    client
        .admin()
        .seal_topic(TOPIC, drop_local, Duration::from_secs(60))
        .await
        .unwrap();
}

pub(crate) async fn describe(client: &Client) -> Vec<PartitionDescription> {
    let described = client.admin().describe_topic(TOPIC).await.unwrap();
    described.partitions
}

/// What a replay found: where each number is, and how many came from the bucket.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    pub(crate) places: BTreeMap<u64, (u32, u64)>,
    pub(crate) from_bucket: u64,
}

/// Reads everything there is, and checks on the way that offsets are dense, values whole, no number
/// comes twice, and each key's numbers rise.
pub(crate) async fn replay(client: &Client) -> Replay {
    let mut consumer = client.consumer(ConsumerConfig::default());
    consumer
        .assign(TOPIC, Partitions::All, StartAt::Earliest, Some(End::Latest))
        .await
        .unwrap();
    let mut replay = Replay::default();
    let mut next_offset: HashMap<u32, u64> = HashMap::new();
    let mut last_of_key: HashMap<Vec<u8>, u64> = HashMap::new();
    while let Some(fetched) = consumer.next().await.unwrap() {
        let partition = fetched.partition().get();
        if fetched.source() == FetchSource::Bucket {
            replay.from_bucket += fetched.record_count();
        }
        for record in &fetched {
            let record = record.unwrap();
            let text = std::str::from_utf8(record.value.unwrap()).unwrap();
            let number: u64 = text[..12].parse().unwrap();
            assert_eq!(text, value(number), "altered");
            assert_eq!(record.key, Some(key(number).as_bytes()), "altered");
            let offset = record.offset.get();
            let expected = next_offset.entry(partition).or_insert(offset);
            assert_eq!(*expected, offset, "a gap in partition {partition}");
            *expected += 1;
            let doubled = replay.places.insert(number, (partition, offset));
            assert_eq!(doubled, None, "record {number} comes twice");
            let last = last_of_key.insert(record.key.unwrap().to_vec(), number);
            assert!(last < Some(number), "record {number} comes after {last:?}");
        }
    }
    replay
}

/// Replays, and expects exactly the first so many numbers.
pub(crate) async fn replay_all(client: &Client, count: u64) -> Replay {
    let replay = replay(client).await;
    let numbers: Vec<_> = replay.places.keys().copied().collect();
    assert_eq!(numbers, (0..count).collect::<Vec<_>>());
    replay
}

pub(crate) async fn assert_intact(store: &str) {
    let report = verify(store).await.unwrap();
    assert!(report.anomalies.is_empty(), "{report:?}");
}

/// Calls without the client library, which would not let bad input through.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    pub(crate) log: LogClient<Channel>,
    pub(crate) admin: AdminClient<Channel>,
}

pub(crate) type Answer = Result<v1::ProduceAck, ErrorDetail>;

impl Raw {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let url = format!("http://{address}");
        let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
        Self {
            log: LogClient::new(channel.clone()).max_decoding_message_size(64 << 20),
            admin: AdminClient::new(channel),
        }
    }

    /// Sends batches down one stream, and returns the answers in order.
    pub(crate) async fn produce_all<'a>(
        &mut self,
        batches: impl IntoIterator<Item = (&'a str, u32, Bytes)>,
    ) -> Vec<Answer> {
        let requests = batches.into_iter().zip(0..);
        let requests: Vec<_> = requests
            .map(|((topic, partition, batch), request_id)| ProduceRequest {
                request_id,
                topic: topic.to_owned(),
                partition,
                batch,
                ..ProduceRequest::default()
            })
            .collect();
        let count = requests.len();
        let stream = self.log.produce(futures::stream::iter(requests)).await;
        let mut stream = stream.unwrap().into_inner();
        let mut answers = BTreeMap::new();
        while let Some(answer) = stream.message().await.unwrap() {
            let outcome = match answer.result.unwrap() {
                Outcome::Ack(ack) => Ok(ack),
                Outcome::Error(detail) => Err(detail),
            };
            answers.insert(answer.request_id, outcome);
        }
        assert_eq!(answers.len(), count, "an answer to each request");
        answers.into_values().collect()
    }

    pub(crate) async fn produce(&mut self, topic: &str, partition: u32, batch: Bytes) -> Answer {
        let mut answers = self.produce_all([(topic, partition, batch)]).await;
        answers.pop().unwrap()
    }

    pub(crate) async fn fetch(
        &mut self,
        request: FetchRequest,
    ) -> Result<Vec<FetchResponse>, Status> {
        let mut stream = self.log.fetch(request).await?.into_inner();
        let mut responses = Vec::new();
        // A stream without an end ends only by the error that is expected.
        let read = async {
            while let Some(response) = stream.message().await? {
                responses.push(response);
            }
            Ok(())
        };
        let read: Result<(), Status> = tokio::time::timeout(FETCH_TIMEOUT, read)
            .await
            .expect("the stream neither ends nor fails");
        read?;
        Ok(responses)
    }

    /// Returns the bytes of a partition from its first offset to its high watermark, and where they
    /// came from.
    pub(crate) async fn bytes_of(
        &mut self,
        at: &PartitionDescription,
    ) -> (Vec<u8>, Vec<v1::FetchSource>) {
        let request = FetchRequest {
            topic: TOPIC.to_owned(),
            partition: at.partition,
            offset: at.log_start_offset,
            end_offset: Some(at.high_watermark),
            ..FetchRequest::default()
        };
        let responses = self.fetch(request).await.unwrap();
        let mut sources: Vec<_> = responses.iter().map(FetchResponse::source).collect();
        sources.dedup();
        let bytes = responses.iter().flat_map(|r| r.batches.to_vec());
        (bytes.collect(), sources)
    }
}

/// Returns the typed detail of a failed call.
pub(crate) fn detail(status: &Status) -> ErrorDetail {
    decode_detail(status.details()).unwrap_or_else(|| panic!("no detail: {status:?}"))
}

/// A batch of records with these values, at a time that is now for every test.
pub(crate) fn batch(values: &[&str]) -> Bytes {
    batch_at(values, now())
}

pub(crate) fn batch_at(values: &[&str], timestamp: TimestampMs) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    for value in values {
        let value = Some(value.as_bytes());
        builder.push(timestamp, Some(b"key"), value, &[]).unwrap();
    }
    builder.finish(None)
}

/// A batch of two records of an idempotent producer.
pub(crate) fn batch_of(producer: i64, epoch: i16, sequence: i32) -> Bytes {
    let mut builder = BatchBuilder::new(Compression::None);
    for _ in 0..2 {
        builder.push(now(), None, Some(b"value"), &[]).unwrap();
    }
    builder.finish(Some((
        ProducerId::new(producer),
        ProducerEpoch::new(epoch),
        Sequence::new(sequence),
    )))
}

pub(crate) fn now() -> TimestampMs {
    use esker_tiering::env::{Clock, SystemClock};
    SystemClock.now()
}
