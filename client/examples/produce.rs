//! Sends keyed records and prints where they went: `produce TOPIC [ADDRESS]`.

use esker_client::{Client, ProducerConfig, RecordRef};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let topic = arguments.next().ok_or("usage: produce TOPIC [ADDRESS]")?;
    let address = arguments
        .next()
        .unwrap_or_else(|| "127.0.0.1:7771".to_owned());

    let client = Client::connect(address).await?;
    let producer = client.producer(&topic, ProducerConfig::default()).await?;
    let mut deliveries = Vec::new();
    for number in 0..10 {
        let (key, value) = (format!("key-{}", number % 3), format!("value {number}"));
        deliveries.push(
            producer
                .send(RecordRef::keyed(key.as_bytes(), value.as_bytes()))
                .await?,
        );
    }
    for delivery in deliveries {
        let delivered = delivery.await?;
        println!(
            "partition {} offset {}",
            delivered.partition, delivered.offset
        );
    }
    producer.close().await?;
    Ok(())
}
