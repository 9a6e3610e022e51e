//! `esker bench latency`: from send to acknowledgement, and from send to the consumer.

use std::{process::Stdio, time::Duration};

use anyhow::Context;
use clap::Args;
use hdrhistogram::Histogram;
use tokio::{process::Command, runtime::Handle, sync::mpsc, time::Instant};

use super::{
    Shape,
    agent::BenchAgent,
    limits,
    load::{self, Load},
    outcome::{Latency, Outcome, in_micros, micros},
};
use crate::{
    Client, ConsumerConfig, Delivery, Partitions, Producer, ProducerConfig, RecordRef, StartAt,
    TopicSettings,
    cli::{Common, output::size},
    env,
};

/// Records are sent in so many ticks a second.
const TICKS_PER_SECOND: u32 = 1000;
const SEAL_TIMEOUT: Duration = Duration::from_secs(600);
/// How long after the last acknowledgement the last record may reach the consumer.
const LAST_RECORD_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(in crate::cli) struct LatencyBench {
    /// Records a second
    #[arg(long, default_value_t = 10_000)]
    rate: u32,
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// How long a batch waits for more records
    #[arg(long, default_value = "0ms", value_parser = humantime::parse_duration)]
    linger: Duration,
    /// Measure a second time while a topic of so many records is replayed over and over; 0: do not
    #[arg(long, default_value_t = 10_000_000)]
    replayed_records: usize,
    #[command(flatten)]
    shape: Shape,
}

impl LatencyBench {
    pub(super) async fn run(&self, common: &Common) -> anyhow::Result<Vec<Outcome>> {
        let agent = BenchAgent::start(common, None, &[]).await?;
        let client = agent.client().await?;
        limits::settle(&agent.home())?;
        // A first second that nobody counts: connections, first files, first pages.
        self.measure(&client, Duration::from_secs(1), "").await?;
        let mut outcomes = self.measure(&client, self.duration, "").await?;
        if self.replayed_records > 0 {
            let past = self.past(&client).await?;
            limits::settle(&agent.home())?;
            let replay = replay_over_and_over(agent.address().to_owned(), past);
            let measure = self.measure(&client, self.duration, " beside a replay");
            outcomes.extend(tokio::select! {
                beside = measure => beside?,
                ended = replay => { ended?; Vec::new() }
            });
        }
        if let (Some((peak, _)), Some(last)) = (agent.memory_bytes(), outcomes.last_mut()) {
            last.detail("agent_memory_bytes", peak, size(peak));
        }
        agent.stop().await?;
        Ok(outcomes)
    }

    async fn past(&self, client: &Client) -> anyhow::Result<String> {
        let settings = TopicSettings {
            local_retention_bytes: Some(0),
            ..TopicSettings::default()
        };
        let topic = load::topic(client, "past", self.shape, settings).await?;
        let producer = load::producer(client, &topic, self.shape).await?;
        Load::new(self.shape)
            .publish(&producer, self.replayed_records)
            .await?;
        client
            .admin()
            .seal_topic(&topic, true, SEAL_TIMEOUT)
            .await?;
        Ok(topic)
    }

    async fn measure(
        &self,
        client: &Client,
        duration: Duration,
        beside: &'static str,
    ) -> anyhow::Result<Vec<Outcome>> {
        let topic = load::topic(client, "latency", self.shape, TopicSettings::default()).await?;
        let config = ProducerConfig {
            linger: self.linger,
            ..ProducerConfig::default()
        };
        let producer = client.producer(&topic, config).await?;
        let epoch = Instant::now();
        let per_tick = (self.rate / TICKS_PER_SECOND).max(1);
        let ticks = u32::try_from(duration.as_millis())?;
        let total = u64::from(per_tick) * u64::from(ticks);
        let received = env::spawn(receive(client.clone(), topic, epoch, total));
        let sender = Sender {
            producer,
            epoch,
            per_tick,
            record_bytes: self.shape.record_bytes,
        };
        let (acked, took) = sender.send(ticks).await?;
        let received = tokio::time::timeout(LAST_RECORD_TIMEOUT, received)
            .await
            .context("records that were acknowledged did not reach the consumer")???;
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let rate = total as f64 / took.as_secs_f64();
        let names = match beside {
            "" => ["acknowledgement", "end to end"],
            _ => [
                "acknowledgement, replay beside",
                "end to end, replay beside",
            ],
        };
        Ok(vec![
            timed(names[0], rate, &acked),
            timed(names[1], rate, &received),
        ])
    }
}

fn timed(name: &'static str, rate: f64, histogram: &Histogram<u64>) -> Outcome {
    let mut outcome = Outcome::new(name, rate, "records/s");
    outcome.latency = Some(Latency::of(histogram));
    outcome
}

struct Sender {
    producer: Producer,
    epoch: Instant,
    per_tick: u32,
    record_bytes: usize,
}

impl Sender {
    /// Sends at a steady pace and times each acknowledgement. A tick that comes late is made up for,
    /// and its records count from when they should have been sent: a stall is not left out.
    ///
    /// The pace is kept by a thread of its own, since the runtime's timers are late by up to 2 ms.
    async fn send(self, ticks: u32) -> anyhow::Result<(Histogram<u64>, Duration)> {
        let (deliveries, pending) = mpsc::channel::<(Instant, Delivery)>(1 << 16);
        let acked = env::spawn(acknowledged(pending));
        let started = Instant::now();
        let runtime = Handle::current();
        let pace = move || -> anyhow::Result<()> {
            for tick in 1..=ticks {
                let due = started + Duration::from_secs(1) * tick / TICKS_PER_SECOND;
                #[expect(clippy::disallowed_methods, reason = "a thread of its own")]
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                runtime.block_on(self.send_tick(due, &deliveries))?;
            }
            Ok(())
        };
        tokio::task::spawn_blocking(pace).await??;
        let took = started.elapsed();
        Ok((acked.await??, took))
    }

    async fn send_tick(
        &self,
        due: Instant,
        deliveries: &mpsc::Sender<(Instant, Delivery)>,
    ) -> anyhow::Result<()> {
        let mut value = vec![b'.'; self.record_bytes.max(8)];
        let since = in_micros(due.saturating_duration_since(self.epoch));
        value[..8].copy_from_slice(&since.to_be_bytes());
        for number in 0..self.per_tick {
            let key = number.to_be_bytes();
            let delivery = self.producer.send(RecordRef::keyed(&key, &value)).await?;
            deliveries.send((due, delivery)).await?;
        }
        Ok(())
    }
}

async fn acknowledged(
    mut pending: mpsc::Receiver<(Instant, Delivery)>,
) -> anyhow::Result<Histogram<u64>> {
    let mut histogram = micros()?;
    while let Some((due, delivery)) = pending.recv().await {
        delivery.await?;
        histogram.record(in_micros(due.elapsed()).max(1))?;
    }
    Ok(histogram)
}

async fn receive(
    client: Client,
    topic: String,
    epoch: Instant,
    total: u64,
) -> anyhow::Result<Histogram<u64>> {
    let mut consumer = client.consumer(ConsumerConfig::default());
    consumer
        .assign(&topic, Partitions::All, StartAt::Earliest, None)
        .await?;
    let mut histogram = micros()?;
    let mut seen = 0;
    while seen < total {
        let fetched = consumer.next().await?.context("the topic ended")?;
        let now = in_micros(epoch.elapsed());
        for record in &fetched {
            let value = record?.value.unwrap_or_default();
            let sent = value
                .first_chunk()
                .map_or(now, |bytes| u64::from_be_bytes(*bytes));
            histogram.record(now.saturating_sub(sent).max(1))?;
            seen += 1;
        }
    }
    Ok(histogram)
}

/// Replays a topic again and again with the `esker` command, until it is dropped: in a process of its
/// own as a real reader is, and behind the others in line for a processor, since a real reader would
/// not take the producer's.
async fn replay_over_and_over(bootstrap: String, topic: String) -> anyhow::Result<()> {
    loop {
        let status = Command::new("nice")
            .arg(std::env::current_exe()?)
            .args(["--bootstrap", &bootstrap, "replay", &topic])
            .args(["--output", "/dev/null"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .status()
            .await?;
        anyhow::ensure!(status.success(), "the replay beside failed: {status}");
    }
}
