//! A damaged object is named in a typed error; everything else can be read, and nobody spins.

use esker_client::{Client, ConsumerConfig, End, OnDamage, Partitions, StartAt};
use esker_proto::v1::{ErrorKind, FetchRequest};
use esker_tests::{
    agent::Plan,
    s3::{S3Server, Verb},
};
use tempfile::TempDir;

use super::support::{Raw, TOPIC, connect, create, detail, publish, s3_url};
use crate::support::BUCKET;

const RECORDS: u64 = 4000;

struct Bench {
    server: S3Server,
    /// Keys of the segments and their first offsets.
    segments: Vec<(String, u64)>,
    disk: TempDir,
}

impl Bench {
    async fn start() -> Self {
        let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
        let home = TempDir::new().unwrap();
        let agent = Plan::new(s3_url(&server), home.path())
            .start()
            .await
            .unwrap();
        let client = connect(agent.grpc_address()).await;
        create(&client, 1).await;
        publish(&client, 0..RECORDS).await;
        assert!(agent.drain().await.is_complete);
        let segments = server.keys(BUCKET).into_iter().filter_map(|key| {
            let (_, name) = key.split_once("/segments/")?;
            let base = name.split('-').next()?.parse().ok()?;
            Some((key, base))
        });
        let segments: Vec<_> = segments.collect();
        assert!(segments.len() >= 3, "{segments:?}");
        Self {
            segments,
            server,
            disk: TempDir::new().unwrap(),
        }
    }

    /// Reads all around the second segment, and expects an error there and nowhere else.
    async fn reads_all_but_the_second_segment(&self) {
        let agent = Plan::new(s3_url(&self.server), self.disk.path());
        let agent = agent.start().await.unwrap();
        let mut raw = Raw::connect(agent.grpc_address()).await;
        let (bad, after) = (self.segments[1].1, self.segments[2].1);
        let range = |offset, end| FetchRequest {
            topic: TOPIC.to_owned(),
            offset,
            end_offset: Some(end),
            ..FetchRequest::default()
        };
        let before = self.server.counts();

        let status = raw.fetch(range(bad, after)).await.unwrap_err();

        let error = detail(&status);
        assert_eq!(error.kind(), ErrorKind::CorruptData, "{error:?}");
        let name = self.segments[1].0.rsplit('/').next().unwrap();
        assert!(
            error.message.contains(name),
            "{error:?} does not name {name}"
        );
        assert!(!error.is_retryable, "{error:?}");
        let behind = error.damage_end_offset.unwrap();
        assert!(bad < behind && behind <= after, "{bad} {behind} {after}");
        // A few looks at the object and around it, and that was all.
        let gets = self.server.counts().of(Verb::Get) - before.of(Verb::Get);
        assert!(gets < 24, "{gets}");
        for (from, end) in [(0, bad), (after, RECORDS)] {
            let responses = raw.fetch(range(from, end)).await.unwrap();
            assert_eq!(responses.last().unwrap().next_offset, end);
        }
        self.skips_the_damage_only(&connect(agent.grpc_address()).await)
            .await;
        agent.stop().await;
    }

    /// Reads everything with a consumer that skips what is damaged.
    async fn skips_the_damage_only(&self, client: &Client) {
        let (bad, after) = (self.segments[1].1, self.segments[2].1);
        let mut consumer = client.consumer(ConsumerConfig {
            on_damage: OnDamage::Skip,
            ..ConsumerConfig::default()
        });
        let (start, until) = (StartAt::Earliest, Some(End::Latest));
        let assigned = consumer.assign(TOPIC, Partitions::All, start, until).await;
        assigned.unwrap();
        let (mut read, mut lost) = (0, 0);
        while let Some(fetched) = consumer.next().await.unwrap() {
            for error in fetched.skipped() {
                let offsets = error.offsets().unwrap();
                assert!(bad <= offsets.start.get() && offsets.end.get() <= after);
                lost += offsets.end.since(offsets.start);
            }
            read += fetched.record_count();
        }
        assert_eq!(read + lost, RECORDS);
        assert!(lost > 0);
    }

    fn plant(&self, damage: impl FnOnce(&mut Vec<u8>)) {
        let key = &self.segments[1].0;
        let mut bytes = self.server.object(BUCKET, key).unwrap().to_vec();
        damage(&mut bytes);
        assert!(self.server.plant(BUCKET, key, bytes));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_with_a_flipped_bit_is_named_and_the_others_are_read() {
    let bench = Bench::start().await;
    bench.plant(|bytes| bytes[5000] ^= 4);
    bench.reads_all_but_the_second_segment().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncated_segment_is_named_and_the_others_are_read() {
    let bench = Bench::start().await;
    bench.plant(|bytes| bytes.truncate(5000));
    bench.reads_all_but_the_second_segment().await;
    // Nothing left: now the store itself refuses the range.
    bench.plant(Vec::clear);
    bench.reads_all_but_the_second_segment().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_that_is_gone_is_named_and_the_others_are_read() {
    let bench = Bench::start().await;
    assert!(bench.server.remove(BUCKET, &bench.segments[1].0));
    bench.reads_all_but_the_second_segment().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_metadata_record_keeps_an_agent_from_starting_and_is_named() {
    let bench = Bench::start().await;
    let keys = bench.server.keys(BUCKET);
    let key = keys.iter().find(|key| key.contains("meta/log/")).unwrap();
    let mut bytes = bench.server.object(BUCKET, key).unwrap().to_vec();
    bytes[40] ^= 1;
    assert!(bench.server.plant(BUCKET, key, bytes));
    let agent = Plan::new(s3_url(&bench.server), bench.disk.path());
    let refused = agent.start().await.unwrap_err();
    assert_eq!(refused.exit_code(), 75);
    let name = key.rsplit('/').next().unwrap();
    assert!(refused.to_string().contains(name), "{refused}");
}
