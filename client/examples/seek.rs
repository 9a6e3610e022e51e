//! Reads the last hour of one partition, then its first record: `seek TOPIC [ADDRESS]`.

use esker_client::{Client, ConsumerConfig, End, PartitionId, StartAt, TimestampMs};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let topic = arguments.next().ok_or("usage: seek TOPIC [ADDRESS]")?;
    let address = arguments
        .next()
        .unwrap_or_else(|| "127.0.0.1:7771".to_owned());
    let partition = PartitionId::new(0);

    let client = Client::connect(address).await?;
    let (_, latest) = client.admin().latest_offsets(&topic).await?[0];
    let since_epoch = std::time::UNIX_EPOCH.elapsed()?;
    let hour_ago = TimestampMs::new(i64::try_from(since_epoch.as_millis())? - 3_600_000);

    let mut consumer = client.consumer(ConsumerConfig::default());
    let start = StartAt::Timestamp(hour_ago);
    consumer
        .assign(&topic, partition, start, Some(End::Offset(latest)))
        .await?;
    let mut count = 0;
    while let Some(fetched) = consumer.next().await? {
        count += fetched.record_count();
    }
    println!("{count} records in the last hour");

    consumer.seek(&topic, partition, StartAt::Earliest).await?;
    if let Some(fetched) = consumer.next().await? {
        println!("the log starts at offset {}", fetched.base_offset());
    }
    Ok(())
}
