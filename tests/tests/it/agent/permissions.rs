//! What is asked of the bucket is what the table beside the object keys lists, no more and no less.

use std::{collections::BTreeSet, process::Command, sync::Arc};

use esker_agent::agent::Agent;
use esker_client::{Client, RecordRef, TopicSettings};
use esker_proto::types::{LeaderEpoch, Offset, SegmentId, TopicPartition};
use esker_tests::{
    agent::{Plan, open_store, until},
    s3::{ACCESS_KEY, Permission, S3Server, SECRET_KEY},
};
use esker_tiering::{
    env::{IdGenerator as _, RandomIds, TaskSet},
    keys::{
        Key, Keys, SegmentName,
        actions::{Action, BUCKET_ACTIONS, OBJECT_ACTIONS, is_listed},
    },
    scrub::{Depth, RebuildOptions, Scrubber},
};
use futures::stream;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::support::{
    PROGRAM, TOPIC, connect, create, publish, replay, replay_all, s3_url, seal, small_batches,
};
use crate::support::{BUCKET, server};

/// A topic with segments enough for an older part of its index, and with commits enough for old
/// versions of its manifest to be let go.
const LONG: &str = "long";
const RECORDS: u64 = 2000;
const LONG_RECORDS_MAX: usize = 20_000;

/// A row of the table, or with an empty pattern an action on the bucket.
type Row = (&'static str, &'static str);

/// What was wanted so far, and what of it the table does not have.
#[derive(Debug, Default)]
struct Wanted {
    rows: BTreeSet<Row>,
    refused: BTreeSet<Permission>,
}

/// A bucket that grants what the table lists, and nothing else.
struct Bench {
    server: S3Server,
    wanted: Arc<Mutex<Wanted>>,
}

impl Bench {
    async fn start() -> Self {
        let (server, wanted) = (server().await, Arc::<Mutex<Wanted>>::default());
        let noted = Arc::clone(&wanted);
        server.set_policy(move |permission| noted.lock().judge(permission));
        Self { server, wanted }
    }

    async fn start_agent(&self, home: &TempDir) -> Agent {
        let plan = Plan::new(s3_url(&self.server), home.path())
            .around(|around| around.store_is_probed = false)
            .with("segment-bytes", "64KiB")
            .with("retention-interval", "100ms");
        let agent = plan.start().await;
        self.assert_nothing_refused();
        agent.unwrap()
    }

    async fn scrubber(&self) -> Scrubber {
        let store = open_store(&s3_url(&self.server)).await.unwrap();
        Scrubber::new(store, TaskSet::new())
    }

    /// An upload in parts whose file turns out to be damaged: its parts are taken back.
    async fn give_up_a_large_segment(&self, topic_partition: TopicPartition) {
        let store = open_store(&s3_url(&self.server)).await.unwrap();
        let key = Keys::new(topic_partition).segment(SegmentName {
            base_offset: Offset::ZERO,
            leader_epoch: LeaderEpoch::new(1),
            segment_id: SegmentId::new(RandomIds.uuid()),
        });
        let damaged = Err(esker_tiering::Error::corrupt(&key, "damaged"));
        let parts = stream::iter([Ok(vec![7; 5 << 20].into()), damaged]);
        let never = CancellationToken::new();
        let put = store.put_parts(&key, parts, &never);
        put.await.unwrap_err();
    }

    fn keys_with(&self, part: &str) -> usize {
        let keys = self.server.keys(BUCKET);
        keys.iter().filter(|key| key.contains(part)).count()
    }

    /// Waits, and fails as soon as something was refused: what is waited for may never come then.
    async fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        until(what, async || {
            self.assert_nothing_refused();
            is_so()
        })
        .await;
    }

    fn assert_nothing_refused(&self) {
        let refused = self.wanted.lock().refused.clone();
        assert!(refused.is_empty(), "not in the table: {refused:#?}");
    }
}

impl Wanted {
    fn judge(&mut self, permission: &Permission) -> bool {
        let row = row(permission);
        match row {
            Some(row) => self.rows.insert(row),
            None => self.refused.insert(permission.clone()),
        };
        row.is_some()
    }
}

/// The row that grants the permission.
fn row(permission: &Permission) -> Option<Row> {
    let Permission { action, key } = permission;
    let action = Action::ALL.into_iter().find(|one| one.name() == *action)?;
    if key.is_empty() {
        let is_granted = BUCKET_ACTIONS.contains(&action);
        return is_granted.then_some(("", action.name()));
    }
    let key = key.strip_prefix("prefix/")?;
    let class = Key::parse(key)?.class();
    is_listed(key, action).then_some((class.pattern(), action.name()))
}

fn table() -> BTreeSet<Row> {
    let on_objects = OBJECT_ACTIONS.iter();
    let on_objects = on_objects.map(|(class, action)| (class.pattern(), action.name()));
    let on_bucket = BUCKET_ACTIONS.iter().map(|action| ("", action.name()));
    on_objects.chain(on_bucket).collect()
}

async fn check_store(url: String) {
    let checking = tokio::task::spawn_blocking(move || {
        let mut command = Command::new(PROGRAM);
        command.args(["check-store", "--store", &url]).env_clear();
        command.env("AWS_ACCESS_KEY_ID", ACCESS_KEY);
        command.env("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
        command.output()
    });
    let output = checking.await.unwrap().unwrap();
    assert!(output.status.success(), "{output:?}");
}

async fn topic_partition(client: &Client, topic: &str) -> TopicPartition {
    let described = client.admin().describe_topic(topic).await.unwrap();
    let topic_id = described.topic.unwrap().topic_id.parse().unwrap();
    TopicPartition {
        topic_id,
        partition: esker_client::PartitionId::new(0),
    }
}

/// In memory: nothing here is about disks, and it flushes often.
fn empty_home() -> TempDir {
    TempDir::new_in("/dev/shm")
        .or_else(|_| TempDir::new())
        .unwrap()
}

/// Sends records, about one to a segment, until both have happened.
async fn fill_long_topic(bench: &Bench, client: &Client) {
    // Two of them are larger than a segment.
    let value = vec![b'x'; 33 << 10];
    let settings = TopicSettings::default();
    let admin = client.admin();
    admin.create_topic(LONG, 1, settings).await.unwrap();
    let producer = client.producer(LONG, small_batches()).await.unwrap();
    for _ in 0..LONG_RECORDS_MAX {
        let sent = producer.send(RecordRef::new(&value)).await.unwrap();
        sent.await.unwrap();
        bench.assert_nothing_refused();
        if bench.keys_with("/pages/") > 0 && bench.keys_with("/boundary/") > 0 {
            return producer.close().await.unwrap();
        }
    }
    panic!("{LONG_RECORDS_MAX} records make no page, or no boundary");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_asked_of_the_bucket_is_what_the_table_lists() {
    let bench = Bench::start().await;
    check_store(s3_url(&bench.server)).await;
    bench.assert_nothing_refused();

    // The main job.
    let home = empty_home();
    let agent = bench.start_agent(&home).await;
    let client = connect(agent.grpc_address()).await;
    create(&client, 1).await;
    publish(&client, 0..RECORDS).await;
    seal(&client, true).await;
    let replayed = replay_all(&client, RECORDS).await;
    assert_eq!(replayed.from_bucket, RECORDS);
    fill_long_topic(&bench, &client).await;
    let long = topic_partition(&client, LONG).await;
    let orders = topic_partition(&client, TOPIC).await;
    assert!(agent.drain().await.is_complete);

    // Without an agent.
    let scrubber = bench.scrubber().await;
    let report = scrubber.verify(None, Depth::Bytes).await.unwrap();
    assert!(report.is_intact(), "{report:?}");
    let garbage = scrubber.plan_garbage(None).await.unwrap();
    scrubber.delete_garbage(&garbage).await.unwrap();
    let options = RebuildOptions {
        force: true,
        ..RebuildOptions::default()
    };
    for topic_partition in [orders, long] {
        let rebuilt = scrubber.rebuild_index(topic_partition, &RandomIds, options);
        assert_eq!(rebuilt.await.unwrap().refusal, None);
    }
    bench.assert_nothing_refused();

    // On an empty disk, where retention and deletions then leave nothing.
    let home = empty_home();
    let agent = bench.start_agent(&home).await;
    let client = connect(agent.grpc_address()).await;
    replay_all(&client, RECORDS).await;
    let before = bench.keys_with("/segments/");
    let request = esker_client::AlterTopicRequest {
        name: TOPIC.to_owned(),
        settings: Some(TopicSettings {
            retention_bytes: Some(100 << 10),
            ..TopicSettings::default()
        }),
        ..Default::default()
    };
    client.admin().alter_topic(request).await.unwrap();
    bench
        .until("the oldest go", || bench.keys_with("/segments/") < before)
        .await;
    assert!(!replay(&client).await.places.is_empty());
    for topic in [TOPIC, LONG] {
        client.admin().delete_topic(topic).await.unwrap();
    }
    bench
        .until("all objects go", || bench.keys_with("/topics/") == 0)
        .await;
    agent.stop().await;
    bench.give_up_a_large_segment(orders).await;

    let unasked: Vec<_> = {
        let wanted = bench.wanted.lock();
        table().difference(&wanted.rows).copied().collect()
    };
    assert!(
        unasked.is_empty(),
        "in the table, and never asked: {unasked:#?}"
    );
    bench.assert_nothing_refused();
    assert_eq!(bench.server.counts().refused, 0);
}
