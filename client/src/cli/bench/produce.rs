//! `esker bench produce`.

use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use esker_proto::batch::BatchBuilder;
use tokio::time::Instant;

use super::{
    Shape,
    agent::BenchAgent,
    limits,
    load::{self, Load},
    outcome::{Outcome, rounded},
    s3::{Bucket, MemoryS3},
    transport,
};
use crate::{Compression, TimestampMs, TopicSettings, cli::Common, cli::output::size};

const SEAL_TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Debug, Args)]
pub(in crate::cli) struct ProduceBench {
    /// Records to publish
    #[arg(long, default_value_t = 20_000_000)]
    records: usize,
    /// Records published before the clock starts
    #[arg(long, default_value_t = 1_000_000)]
    warm_up: usize,
    /// Where the bucket is
    #[arg(long, value_enum, default_value_t = Bucket::Directory)]
    bucket: Bucket,
    #[command(flatten)]
    shape: Shape,
}

impl ProduceBench {
    pub(super) async fn run(&self, common: &Common) -> anyhow::Result<Vec<Outcome>> {
        let s3 = self.bucket.start().await?;
        let agent = BenchAgent::start(common, s3.as_ref().map(MemoryS3::url), &[]).await?;
        let client = agent.client().await?;
        limits::settle(&agent.home())?;
        let load = Load::new(self.shape);
        let topic = load::topic(&client, "bench", self.shape, TopicSettings::default()).await?;
        let producer = load::producer(&client, &topic, self.shape).await?;
        load.publish(&producer, self.warm_up).await?;
        // The partitions' chains are opened by now: what follows is what a GiB costs from here on.
        client
            .admin()
            .seal_topic(&topic, false, SEAL_TIMEOUT)
            .await?;

        let (cpu, requests) = (agent.cpu_seconds(), agent.bucket_requests().await?);
        let started = Instant::now();
        load.publish(&producer, self.records).await?;
        let seconds = started.elapsed().as_secs_f64();
        let used = agent
            .cpu_seconds()
            .zip(cpu)
            .map(|(after, before)| after - before);
        client
            .admin()
            .seal_topic(&topic, false, SEAL_TIMEOUT)
            .await?;
        let sent = agent
            .bucket_requests()
            .await?
            .zip(requests)
            .map(|(after, before)| after - before);

        let batch = self.batch(&load)?;
        let bytes_per_record = self.bytes_per_record(&load)?;
        let disk = limits::append_rate(&agent.home())? / bytes_per_record;
        let total = self.wire_bytes(bytes_per_record);
        let bare = transport::produce_rate(batch, total.min(4 << 30)).await? / bytes_per_record;
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let mut outcome = Outcome::new("produce", self.records as f64 / seconds, "records/s");
        (outcome.limit, outcome.limit_is) = if disk < bare {
            (disk, "append and flush alone")
        } else {
            (bare, "transport alone")
        };
        outcome.detail("disk_limit", disk, format!("{} records/s", rounded(disk)));
        outcome.detail(
            "transport_limit",
            bare,
            format!("{} records/s", rounded(bare)),
        );
        let rate = outcome.rate * bytes_per_record;
        outcome.detail(
            "bytes_per_second",
            rate,
            format!("{} MB/s", rounded(rate / 1e6)),
        );
        self.costs(&mut outcome, used, sent, total, &agent);
        agent.stop().await?;
        Ok(vec![outcome])
    }

    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn costs(
        &self,
        outcome: &mut Outcome,
        cpu_seconds: Option<f64>,
        requests: Option<u64>,
        bytes: u64,
        agent: &BenchAgent,
    ) {
        if let Some(seconds) = cpu_seconds {
            let per_million = seconds / (self.records as f64 / 1e6);
            outcome.detail(
                "agent_cpu_s_per_million",
                per_million,
                format!("{per_million:.3} s"),
            );
        }
        if let Some((peak, _)) = agent.memory_bytes() {
            outcome.detail("agent_memory_bytes", peak, size(peak));
        }
        if let Some(requests) = requests {
            let gib = (bytes as f64) / f64::from(1 << 30);
            let per_gib = requests as f64 / gib;
            outcome.detail("requests_per_gib", per_gib, format!("{per_gib:.1}"));
        }
    }

    /// A batch as the producer makes them.
    fn batch(&self, load: &Load) -> anyhow::Result<Bytes> {
        let limit = usize::try_from(self.shape.batch_bytes.as_u64())?;
        let mut builder = BatchBuilder::with_capacity(Compression::None, limit);
        let mut number = 0;
        while builder.size_bytes() < limit {
            let record = load.record(number);
            builder.push(TimestampMs::new(0), record.key, record.value, &[])?;
            number += 1;
        }
        Ok(builder.finish(None))
    }

    #[expect(clippy::cast_precision_loss, reason = "an average")]
    fn bytes_per_record(&self, load: &Load) -> anyhow::Result<f64> {
        let batch = self.batch(load)?;
        let header = esker_proto::batch::BatchHeader::parse(&batch)?;
        Ok(batch.len() as f64 / f64::from(header.record_count))
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a size"
    )]
    fn wire_bytes(&self, bytes_per_record: f64) -> u64 {
        (self.records as f64 * bytes_per_record) as u64
    }
}
