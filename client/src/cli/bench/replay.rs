//! `esker bench replay`: cold, warm, and from the tail.

use std::time::Duration;

use clap::Args;
use tokio::time::Instant;

use super::{
    Shape,
    agent::BenchAgent,
    limits,
    load::{self, Load},
    outcome::{Outcome, rounded},
    s3::{self, Bucket, MemoryS3},
    transport,
};
use crate::{
    Client, ConsumerConfig, End, FetchSource, Partitions, StartAt, TopicSettings,
    cli::{Common, output::size},
};

/// Size of a response, as a consumer asks for it.
const RESPONSE_BYTES: usize = 1 << 20;
const SEAL_TIMEOUT: Duration = Duration::from_secs(600);

#[derive(Debug, Args)]
pub(in crate::cli) struct ReplayBench {
    /// Records to replay
    #[arg(long, default_value_t = 20_000_000)]
    records: usize,
    /// Where the bucket is
    #[arg(long, value_enum, default_value_t = Bucket::Directory)]
    bucket: Bucket,
    #[command(flatten)]
    shape: Shape,
}

/// What a pass over a topic came to.
struct Pass {
    records: u64,
    bytes: u64,
    seconds: f64,
    from_bucket: u64,
}

impl ReplayBench {
    pub(super) async fn run(&self, common: &Common) -> anyhow::Result<Vec<Outcome>> {
        let s3 = self.bucket.start().await?;
        let agent = BenchAgent::start(common, s3.as_ref().map(MemoryS3::url), &[]).await?;
        let client = agent.client().await?;
        let tail = self.prepare(&client, 1 << 40).await?;
        let sealed = self.prepare(&client, 0).await?;
        client
            .admin()
            .seal_topic(&sealed, true, SEAL_TIMEOUT)
            .await?;

        let cold = pass(&client, &sealed).await?;
        let warm = pass(&client, &sealed).await?;
        let catch_up = pass(&client, &tail).await?;
        anyhow::ensure!(
            cold.from_bucket == cold.records,
            "a cold replay read the tail"
        );
        anyhow::ensure!(catch_up.from_bucket == 0, "a catch-up read the bucket");

        let stream = transport::fetch_rate(RESPONSE_BYTES, cold.bytes.min(4 << 30)).await?;
        let url = s3
            .as_ref()
            .map(|s3| s3.url().to_owned())
            .or_else(|| agent.bucket_url());
        let gets = match url {
            Some(url) => Some(limits::get_rate(&url, s3::options()).await?),
            None => None,
        };
        // Store, agent and client share the cores: each byte costs both legs.
        let both = gets.map_or(stream, |gets| 1.0 / (1.0 / gets + 1.0 / stream));
        let mut outcomes = vec![
            outcome("replay, cold", &cold, both, "store and stream alone"),
            outcome("replay, warm", &warm, stream, "stream alone"),
            outcome("catch-up from the tail", &catch_up, stream, "stream alone"),
        ];
        if let Some(gets) = gets {
            outcomes[0].detail("store_limit", gets, format!("{} MB/s", rounded(gets / 1e6)));
        }
        outcomes[0].detail(
            "stream_limit",
            stream,
            format!("{} MB/s", rounded(stream / 1e6)),
        );
        if let (Some((peak, _)), Some(last)) = (agent.memory_bytes(), outcomes.last_mut()) {
            last.detail("agent_memory_bytes", peak, size(peak));
        }
        agent.stop().await?;
        Ok(outcomes)
    }

    /// Publishes the records to a topic that keeps so much of them on disk.
    async fn prepare(&self, client: &Client, local_bytes: u64) -> anyhow::Result<String> {
        let settings = TopicSettings {
            local_retention_bytes: Some(local_bytes),
            ..TopicSettings::default()
        };
        let topic = load::topic(client, "bench", self.shape, settings).await?;
        let producer = load::producer(client, &topic, self.shape).await?;
        Load::new(self.shape)
            .publish(&producer, self.records)
            .await?;
        Ok(topic)
    }
}

/// Reads a topic from its beginning to its end, looking at each record.
async fn pass(client: &Client, topic: &str) -> anyhow::Result<Pass> {
    let mut consumer = client.consumer(ConsumerConfig::default());
    let started = Instant::now();
    consumer
        .assign(topic, Partitions::All, StartAt::Earliest, Some(End::Latest))
        .await?;
    let mut pass = Pass {
        records: 0,
        bytes: 0,
        seconds: 0.0,
        from_bucket: 0,
    };
    let mut value_bytes = 0;
    while let Some(fetched) = consumer.next().await? {
        for record in &fetched {
            value_bytes += record?.value.map_or(0, <[u8]>::len);
            pass.records += 1;
        }
        pass.bytes += u64::try_from(fetched.size_bytes())?;
        if fetched.source() == FetchSource::Bucket {
            pass.from_bucket += fetched.record_count();
        }
    }
    pass.seconds = started.elapsed().as_secs_f64();
    anyhow::ensure!(value_bytes > 0, "the topic is empty");
    Ok(pass)
}

#[expect(clippy::cast_precision_loss, reason = "rates")]
fn outcome(name: &'static str, pass: &Pass, limit_bytes: f64, limit_is: &'static str) -> Outcome {
    let mut outcome = Outcome::new(name, pass.records as f64 / pass.seconds, "records/s");
    let bytes_per_record = pass.bytes as f64 / pass.records.max(1) as f64;
    (outcome.limit, outcome.limit_is) = (limit_bytes / bytes_per_record, limit_is);
    let rate = pass.bytes as f64 / pass.seconds;
    outcome.detail(
        "bytes_per_second",
        rate,
        format!("{} MB/s", rounded(rate / 1e6)),
    );
    outcome
}
