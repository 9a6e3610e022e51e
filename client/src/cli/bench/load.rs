//! Records to publish.

use super::Shape;
use crate::{Client, Producer, ProducerConfig, RecordRef, TopicSettings};

/// Makes records of one shape; their bytes hardly matter, so a few are used over and over.
#[derive(Debug)]
pub(super) struct Load {
    keys: Vec<Vec<u8>>,
    value: Vec<u8>,
}

/// Keys in use.
const KEYS: usize = 4096;

impl Load {
    pub(super) fn new(shape: Shape) -> Self {
        let key = |number: usize| {
            let mut text = format!("{number:0width$x}", width = shape.key_bytes).into_bytes();
            text.truncate(shape.key_bytes);
            text
        };
        let keys = if shape.key_bytes == 0 {
            Vec::new()
        } else {
            (0..KEYS).map(key).collect()
        };
        let value = (0..shape.record_bytes).map(|i| b'a' + u8::try_from(i % 26).unwrap_or(0));
        Self {
            keys,
            value: value.collect(),
        }
    }

    /// The record of a number.
    pub(super) fn record(&self, number: usize) -> RecordRef<'_> {
        match self.keys.is_empty() {
            true => RecordRef::new(&self.value),
            false => RecordRef::keyed(&self.keys[number % KEYS], &self.value),
        }
    }

    /// Publishes so many records, and waits until all are acknowledged.
    pub(super) async fn publish(&self, producer: &Producer, records: usize) -> anyhow::Result<()> {
        for number in 0..records {
            drop(producer.send(self.record(number)).await?);
        }
        Ok(producer.flush().await?)
    }
}

/// Creates a topic of its own for a bench.
pub(super) async fn topic(
    client: &Client,
    name: &str,
    shape: Shape,
    settings: TopicSettings,
) -> anyhow::Result<String> {
    let name = format!("{name}-{:08x}", rand::random::<u32>());
    client
        .admin()
        .create_topic(&name, shape.partitions, settings)
        .await?;
    Ok(name)
}

/// Opens a producer of the shape's batches.
pub(super) async fn producer(
    client: &Client,
    topic: &str,
    shape: Shape,
) -> anyhow::Result<Producer> {
    let batch_bytes = usize::try_from(shape.batch_bytes.as_u64())?;
    let config = ProducerConfig {
        batch_bytes,
        ..ProducerConfig::default()
    };
    Ok(client.producer(topic, config).await?)
}
