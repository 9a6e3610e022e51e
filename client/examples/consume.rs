//! Prints everything a topic holds by now: `consume TOPIC [ADDRESS]`.

use esker_client::{Client, ConsumerConfig, End, Partitions, StartAt};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let topic = arguments.next().ok_or("usage: consume TOPIC [ADDRESS]")?;
    let address = arguments
        .next()
        .unwrap_or_else(|| "127.0.0.1:7771".to_owned());

    let client = Client::connect(address).await?;
    let mut consumer = client.consumer(ConsumerConfig::default());
    consumer
        .assign(
            &topic,
            Partitions::All,
            StartAt::Earliest,
            Some(End::Latest),
        )
        .await?;
    while let Some(fetched) = consumer.next().await? {
        for record in &fetched {
            let record = record?;
            let value = String::from_utf8_lossy(record.value.unwrap_or_default());
            println!("{}/{} {value}", fetched.partition(), record.offset);
        }
    }
    Ok(())
}
