//! Append: plain records, for callers that cannot encode batches.

use std::{collections::BTreeMap, num::NonZeroU32};

use esker_proto::{
    batch::{BatchBuilder, BatchError, Compression, RecordBatch, RecordTimes},
    convert::push_wire_record,
    partitioner::partition_for_key,
    types::Offset,
    v1::{
        Acks as WireAcks, AppendRequest, AppendResponse, Appended, ErrorDetail, ErrorKind, Record,
    },
};
use tokio::sync::mpsc;
use tonic::Status;

use super::status::{refusal, status};
use crate::{
    memory::MemoryPermit,
    partition::{Acks, Append, Reply},
    registry::Topic,
    shared::Shared,
};

/// Serves one request: one batch for each partition its records go to.
///
/// A request whose records go to several partitions may be written in part; the error then says
/// that its outcome is unknown.
pub(super) async fn serve(
    shared: &Shared,
    request: AppendRequest,
    mut memory: MemoryPermit,
) -> Result<AppendResponse, Status> {
    let invalid = |text: &str| status(&refusal(ErrorKind::InvalidArgument, text));
    if request.records.is_empty() {
        return Err(invalid("no records to append"));
    }
    // Looked up once: all parts of a request go to one topic, whatever is created meanwhile.
    let topic = shared
        .topic_by_id(&request.topic, &request.topic_id)
        .map_err(|detail| status(&detail))?;
    let acks = match request.acks() {
        WireAcks::Leader => Acks::Leader,
        WireAcks::All | WireAcks::Unspecified => Acks::All,
    };
    let count = request.records.len();
    // A topic never has fewer partitions than one.
    let partition_count = NonZeroU32::new(topic.partition_count()).unwrap_or(NonZeroU32::MIN);
    let parts = spread(shared, request.partition, partition_count, request.records);
    let mut places = vec![Appended::default(); count];
    let mut is_partly_written = false;
    for (partition, part) in parts {
        let at = (&*topic, partition);
        let appended = append(shared, at, acks, &part.records, &mut memory).await;
        let base_offset = appended.map_err(|detail| {
            status(&ErrorDetail {
                has_no_side_effects: detail.has_no_side_effects && !is_partly_written,
                ..detail
            })
        })?;
        is_partly_written = true;
        for (delta, index) in (0u32..).zip(part.indexes) {
            places[index] = Appended {
                partition,
                offset: base_offset.advance(delta).get(),
            };
        }
    }
    Ok(AppendResponse { appended: places })
}

/// The records that go to one partition, and where they stood in the request.
#[derive(Debug, Default)]
struct Part {
    records: Vec<Record>,
    indexes: Vec<usize>,
}

fn spread(
    shared: &Shared,
    fixed: Option<u32>,
    partition_count: NonZeroU32,
    records: Vec<Record>,
) -> BTreeMap<u32, Part> {
    let without_key = shared.next_partition(partition_count.get());
    let mut parts: BTreeMap<u32, Part> = BTreeMap::new();
    for (index, record) in records.into_iter().enumerate() {
        let partition = fixed.unwrap_or_else(|| match &record.key {
            Some(key) => partition_for_key(key, partition_count).get(),
            None => without_key,
        });
        let part = parts.entry(partition).or_default();
        part.records.push(record);
        part.indexes.push(index);
    }
    parts
}

async fn append(
    shared: &Shared,
    (topic, partition): (&Topic, u32),
    acks: Acks,
    records: &[Record],
    memory: &mut MemoryPermit,
) -> Result<Offset, ErrorDetail> {
    let handle = shared.partition_of(topic, partition)?;
    let (batch, times) = batch_of(shared, records)
        .map_err(|error| refusal(ErrorKind::InvalidArgument, error.to_string()))?;
    // Part of what the request took before it was received.
    let memory = memory.split(batch.header().size_bytes);
    let (answers, mut answered) = mpsc::channel(1);
    let slot = answers
        .reserve_owned()
        .await
        .map_err(|_| super::produce::abandoned())?;
    handle
        .append(Append {
            batch,
            times,
            acks,
            memory,
            reply: Reply::new(0, slot),
        })
        .await;
    let answer = answered
        .recv()
        .await
        .ok_or_else(super::produce::abandoned)?;
    answer.outcome.map(|appended| appended.base_offset)
}

fn batch_of(shared: &Shared, records: &[Record]) -> Result<(RecordBatch, RecordTimes), BatchError> {
    let now = shared.clock.now();
    let mut builder = BatchBuilder::new(Compression::None);
    for record in records {
        push_wire_record(&mut builder, record, now)?;
    }
    let batch = RecordBatch::validate(builder.finish(None))?;
    let times = batch.check_records()?;
    Ok((batch, times))
}
