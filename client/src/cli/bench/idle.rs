//! `esker bench idle`.

use std::time::Duration;

use bytesize::ByteSize;
use clap::Args;

use super::{Shape, agent::BenchAgent, load, outcome::Outcome};
use crate::{
    TopicSettings,
    cli::{Common, output::size},
};

#[derive(Debug, Args)]
pub(in crate::cli) struct IdleBench {
    /// Partitions that nobody uses
    #[arg(long, default_value_t = 1000)]
    partitions: u32,
    /// How long to watch them
    #[arg(long, default_value = "20s", value_parser = humantime::parse_duration)]
    duration: Duration,
}

impl IdleBench {
    pub(super) async fn run(&self, common: &Common) -> anyhow::Result<Vec<Outcome>> {
        anyhow::ensure!(
            common.bootstrap.is_none(),
            "this bench watches an agent of its own"
        );
        let agent = BenchAgent::start(common, None, &[]).await?;
        let client = agent.client().await?;
        let before = agent.memory_bytes().map_or(0, |(_, now)| now);
        let shape = Shape {
            record_bytes: 100,
            key_bytes: 0,
            partitions: self.partitions,
            batch_bytes: ByteSize::kib(512),
        };
        load::topic(&client, "idle", shape, TopicSettings::default()).await?;
        let (cpu, requests) = (agent.cpu_seconds(), agent.bucket_requests().await?);
        tokio::time::sleep(self.duration).await;
        let after = agent.memory_bytes().map_or(0, |(_, now)| now);
        let sent = agent
            .bucket_requests()
            .await?
            .zip(requests)
            .map_or(0, |(now, then)| now - then);
        let used = agent
            .cpu_seconds()
            .zip(cpu)
            .map_or(0.0, |(now, then)| now - then);
        let cost = after.saturating_sub(before);
        #[expect(clippy::cast_precision_loss, reason = "a size for people")]
        let mut outcome = Outcome::new("idle partitions", cost as f64 / 1048576.0, "MiB of memory");
        outcome.detail("partitions", self.partitions, self.partitions.to_string());
        outcome.detail("agent_memory_bytes", after, size(after));
        outcome.detail(
            "bucket_requests",
            sent,
            format!("{sent} in {} s", self.duration.as_secs()),
        );
        let share = used / self.duration.as_secs_f64();
        outcome.detail("agent_cores", share, format!("{share:.3}"));
        agent.stop().await?;
        Ok(vec![outcome])
    }
}
