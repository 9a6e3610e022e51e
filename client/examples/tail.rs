//! Follows the end of a topic: `tail TOPIC [ADDRESS]`.

use esker_client::{Client, ConsumerConfig, Partitions, StartAt};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let topic = arguments.next().ok_or("usage: tail TOPIC [ADDRESS]")?;
    let address = arguments
        .next()
        .unwrap_or_else(|| "127.0.0.1:7771".to_owned());

    let client = Client::connect(address).await?;
    let mut consumer = client.consumer(ConsumerConfig::default());
    consumer
        .assign(&topic, Partitions::All, StartAt::Latest, None)
        .await?;
    // Agents that restart are waited for. What cannot be read is an error that says where.
    while let Some(fetched) = consumer.next().await? {
        let lag = fetched.high_watermark().since(fetched.next_offset());
        println!(
            "{}: {} records, {lag} behind",
            fetched.partition(),
            fetched.record_count()
        );
    }
    Ok(())
}
