//! Append: plain records, for callers that cannot encode batches.

use std::{collections::BTreeMap, num::NonZeroU32};

use bytes::Bytes;
use esker_proto::{
    batch::{BatchBuilder, BatchError, Compression, RecordBatch, RecordTimes},
    convert::push_wire_record,
    partitioner::partition_for_key,
    types::{Offset, TimestampMs},
    v1::{Acks as WireAcks, AppendResponse, Appended, ErrorDetail, ErrorKind},
};
use prost::{DecodeError, Message};
use tokio::sync::mpsc;
use tonic::Status;

use super::{
    plain::{Counts, Envelope, records},
    status::{refusal, shutting_down, status},
};
use crate::{
    memory::MemoryPermit,
    partition::{Acks, Append, Reply},
    registry::Topic,
    shared::Shared,
};

/// Records and headers of one request. In a request of a few MiB there could be millions.
const ITEMS_MAX: usize = 100_000;
/// What one of them takes at most, beside its bytes, until its batch is built.
const ITEM_BYTES: usize = 256;
/// And from then on, until it is answered: its place in the batch, in the request and in the answer.
const ITEM_BYTES_BUILT: usize = 64;

/// Serves one request, which takes room for what decoding makes of it first: one batch for each
/// partition its records go to.
///
/// A request whose records go to several partitions may be written in part; the error then says
/// that its outcome is unknown.
pub(super) async fn serve(
    shared: &Shared,
    request: Bytes,
    mut memory: MemoryPermit,
) -> Result<AppendResponse, Status> {
    let refused = |detail: ErrorDetail| status(&detail);
    let envelope =
        Envelope::decode(request.clone()).map_err(|error| refused(unreadable(&error)))?;
    // Looked up once: all parts of a request go to one topic, whatever is created meanwhile.
    let topic = shared
        .topic_by_id(&envelope.topic, &envelope.topic_id)
        .map_err(refused)?;
    let acks = match envelope.acks() {
        WireAcks::Leader => Acks::Leader,
        WireAcks::All | WireAcks::Unspecified => Acks::All,
    };
    let bytes = request.len();
    let counted = request.clone();
    let items = blocking(shared, move || count(&counted))
        .await?
        .map_err(refused)?;
    let mut room = shared
        .check_memory
        .acquire(cost(bytes, items, ITEM_BYTES))
        .await;
    let spread = Spread::new(shared, envelope.partition, &topic);
    let built = blocking(shared, move || spread.build(request)).await?;
    let Built { parts, count } = built.map_err(refused)?;
    room.shrink_to(cost(0, items, ITEM_BYTES_BUILT));

    let mut places = vec![Appended::default(); count];
    let mut is_partly_written = false;
    for (partition, part) in parts {
        let at = (&*topic, partition);
        let appended = append(shared, at, acks, part.batch, part.times, &mut memory).await;
        let base_offset = appended.map_err(|detail| {
            status(&ErrorDetail {
                has_no_side_effects: detail.has_no_side_effects && !is_partly_written,
                ..detail
            })
        })?;
        is_partly_written = true;
        for (delta, index) in (0u32..).zip(part.indexes) {
            places[index as usize] = Appended {
                partition,
                offset: base_offset.advance(delta).get(),
            };
        }
    }
    Ok(AppendResponse { appended: places })
}

/// Does the work on a thread that no other request waits for.
async fn blocking<T: Send + 'static>(
    shared: &Shared,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    let done = shared.tasks.spawn_blocking(work).await;
    done.map_err(|_| shutting_down())
}

fn count(request: &Bytes) -> Result<usize, ErrorDetail> {
    let counts = Counts::of(request, ITEMS_MAX).map_err(|error| unreadable(&error))?;
    let invalid = |text: String| Err(refusal(ErrorKind::InvalidArgument, text));
    if counts.records == 0 {
        return invalid("no records to append".to_owned());
    }
    if counts.sum() > ITEMS_MAX {
        return invalid(format!(
            "more records and headers than a request may have, send several. most=`{ITEMS_MAX}`"
        ));
    }
    Ok(counts.sum())
}

/// What a request takes beside itself: its batches, which grow by doubling, and so much for each item.
fn cost(bytes: usize, items: usize, item_bytes: usize) -> u32 {
    let cost = bytes.saturating_mul(2).saturating_add(items * item_bytes);
    u32::try_from(cost).unwrap_or(u32::MAX)
}

fn unreadable(error: &DecodeError) -> ErrorDetail {
    refusal(
        ErrorKind::InvalidArgument,
        format!("request cannot be read: {error}"),
    )
}

/// Where records go.
struct Spread {
    fixed: Option<u32>,
    partition_count: NonZeroU32,
    without_key: u32,
    now: TimestampMs,
}

/// The batches of a request, by their partition, and how many records they have.
struct Built {
    parts: Vec<(u32, Part)>,
    count: usize,
}

/// The batch that goes to one partition, and where its records stood in the request.
struct Part {
    batch: RecordBatch,
    times: RecordTimes,
    indexes: Vec<u32>,
}

impl Spread {
    fn new(shared: &Shared, fixed: Option<u32>, topic: &Topic) -> Self {
        let count = topic.partition_count();
        Self {
            fixed,
            // A topic never has fewer partitions than one.
            partition_count: NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN),
            without_key: shared.next_partition(count),
            now: shared.clock.now(),
        }
    }

    fn partition(&self, key: Option<&Bytes>) -> u32 {
        self.fixed.unwrap_or_else(|| match key {
            Some(key) => partition_for_key(key, self.partition_count).get(),
            None => self.without_key,
        })
    }

    fn build(&self, request: Bytes) -> Result<Built, ErrorDetail> {
        let invalid = |error: BatchError| refusal(ErrorKind::InvalidArgument, error.to_string());
        let mut parts: BTreeMap<u32, (BatchBuilder, Vec<u32>)> = BTreeMap::new();
        let mut count = 0;
        for (index, record) in (0u32..).zip(records(request)) {
            let record = record.map_err(|error| unreadable(&error))?;
            let (builder, indexes) = parts
                .entry(self.partition(record.key.as_ref()))
                .or_insert_with(|| (BatchBuilder::new(Compression::None), Vec::new()));
            push_wire_record(builder, &record, self.now).map_err(invalid)?;
            indexes.push(index);
            count += 1;
        }
        let parts = parts
            .into_iter()
            .map(|(partition, (mut builder, indexes))| {
                let batch = RecordBatch::validate(builder.finish(None)).map_err(invalid)?;
                let times = batch.check_records().map_err(invalid)?;
                Ok((
                    partition,
                    Part {
                        batch,
                        times,
                        indexes,
                    },
                ))
            });
        let parts = parts.collect::<Result<_, _>>()?;
        Ok(Built { parts, count })
    }
}

async fn append(
    shared: &Shared,
    (topic, partition): (&Topic, u32),
    acks: Acks,
    batch: RecordBatch,
    times: RecordTimes,
    memory: &mut MemoryPermit,
) -> Result<Offset, ErrorDetail> {
    let handle = shared.partition_of(topic, partition)?;
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
