//! `ListOffsets`: earliest, latest, or the first at or after a time.

use std::collections::HashSet;

use esker_proto::{
    topic_limits,
    types::{Offset, PartitionId, TimestampMs},
    v1::{
        ErrorDetail, ErrorKind, ListOffsetsRequest, ListOffsetsResponse, PartitionOffset,
        list_offsets_request::Position,
    },
};
use futures::{StreamExt, stream};
use tonic::Status;

use super::{
    REASONS_BYTES_MAX,
    status::{partition_detail, refusal, shortened, status},
};
use crate::{
    partition::{PartitionError, PartitionHandle},
    registry::Topic,
    shared::Shared,
};

/// Partitions of one request that are searched at a time.
const PARTITIONS_AT_A_TIME: usize = 16;

pub(super) async fn serve(
    shared: &Shared,
    request: ListOffsetsRequest,
) -> Result<ListOffsetsResponse, Status> {
    let topic = shared
        .topic_by_id(&request.topic, &request.topic_id)
        .map_err(|detail| status(&detail))?;
    let Some(position) = request.position else {
        let text = "say which offset: earliest, latest or timestamp_ms";
        return Err(status(&refusal(ErrorKind::InvalidArgument, text)));
    };
    let partitions = match request.partitions.is_empty() {
        true => (0..topic.partition_count()).collect(),
        false => distinct(request.partitions).map_err(|detail| status(&detail))?,
    };
    let topic = &topic;
    let reason_bytes = REASONS_BYTES_MAX / partitions.len().max(1);
    let found = partitions.into_iter().map(|number| async move {
        let mut found = offset_of(shared, topic, number, position).await;
        shorten(&mut found, reason_bytes);
        found
    });
    let offsets = stream::iter(found).buffered(PARTITIONS_AT_A_TIME);
    Ok(ListOffsetsResponse {
        offsets: offsets.collect().await,
    })
}

/// Leaves each number once, where it came first: an answer is larger than its number.
fn distinct(mut numbers: Vec<u32>) -> Result<Vec<u32>, ErrorDetail> {
    let mut seen = HashSet::new();
    numbers.retain(|number| seen.insert(*number));
    let most = topic_limits::PARTITIONS.most;
    if numbers.len() as u64 <= most {
        return Ok(numbers);
    }
    let text = format!(
        "more partitions than any topic has. partitions=`{}`, most=`{most}`",
        numbers.len()
    );
    Err(refusal(ErrorKind::InvalidArgument, text))
}

/// Cuts the reason why a partition has no answer: thousands of them must fit into one message.
fn shorten(found: &mut PartitionOffset, reason_bytes: usize) {
    if let Some(error) = &mut found.error {
        error.message = shortened(std::mem::take(&mut error.message), reason_bytes);
    }
}

async fn offset_of(
    shared: &Shared,
    topic: &Topic,
    number: u32,
    position: Position,
) -> PartitionOffset {
    // Thousands that are found at once must not keep other tasks waiting.
    tokio::task::consume_budget().await;
    let Some(partition) = topic.partition(PartitionId::new(number)) else {
        let text = format!("no such partition. partition=`{number}`");
        return failed(number, refusal(ErrorKind::UnknownPartition, text));
    };
    match find(shared, &partition, position).await {
        Ok(found) => located(number, found),
        Err(error) => failed(number, partition_detail(&error)),
    }
}

type Found = Option<(Offset, Option<TimestampMs>)>;

async fn find(
    shared: &Shared,
    partition: &PartitionHandle,
    position: Position,
) -> Result<Found, PartitionError> {
    match position {
        Position::Earliest(_) => Ok(Some((partition.log_start_offset()?, None))),
        Position::Latest(_) => Ok(Some((partition.high_watermark()?, None))),
        Position::TimestampMs(timestamp) => {
            let timestamp = TimestampMs::new(timestamp);
            let found = partition
                .offset_for_timestamp(&shared.reader, timestamp)
                .await?;
            Ok(found.map(|(offset, timestamp)| (offset, Some(timestamp))))
        }
    }
}

fn located(partition: u32, found: Found) -> PartitionOffset {
    PartitionOffset {
        partition,
        offset: found.map(|(offset, _)| offset.get()),
        timestamp_ms: found
            .and_then(|(_, timestamp)| timestamp)
            .map(TimestampMs::get),
        error: None,
    }
}

const fn failed(partition: u32, error: ErrorDetail) -> PartitionOffset {
    PartitionOffset {
        partition,
        offset: None,
        timestamp_ms: None,
        error: Some(error),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn the_reasons_of_the_largest_topic_fit_into_what_clients_take() {
        /// As `tonic` and most others have it.
        const TAKEN_BYTES_MAX: usize = 4 << 20;
        let count = usize::try_from(topic_limits::PARTITIONS.most).unwrap();
        let mut offsets: Vec<_> = (0..)
            .map(|number| failed(number, refusal(ErrorKind::Storage, "x".repeat(1000))))
            .take(count)
            .collect();
        for found in &mut offsets {
            shorten(found, REASONS_BYTES_MAX / count);
        }
        let answer = ListOffsetsResponse { offsets };
        assert!(answer.encoded_len() <= TAKEN_BYTES_MAX);
        let error = answer.offsets[0].error.as_ref().unwrap();
        assert!(error.message.starts_with("xx") && error.message.ends_with("[...]"));
    }
}
