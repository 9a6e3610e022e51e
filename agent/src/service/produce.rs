//! Produce: a pipelined stream of batches.
//!
//! One task reads requests in order and hands each to its partition together with a reserved slot
//! in the stream's answers; the partition answers into that slot. So a stream has at most
//! [`IN_FLIGHT_MAX`] requests unanswered, the agent at most `produce-buffer-bytes`, and neither a
//! slow disk nor a slow client makes anything grow.

use std::sync::Arc;

use esker_proto::{
    batch::RecordBatch,
    v1::{
        Acks as WireAcks, ErrorDetail, ErrorKind, ProduceAck, ProduceRequest, ProduceResponse,
        produce_response::Result as Outcome,
    },
};
use futures::{Stream, StreamExt};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::status::{partition_detail, refusal};
use crate::{
    partition::{Acks, Answer, Append, PartitionError, Reply},
    shared::Shared,
};

/// Requests of one stream that may be unanswered.
const IN_FLIGHT_MAX: usize = 512;

/// Serves one stream of requests.
pub(super) fn serve(
    shared: &Arc<Shared>,
    requests: Streaming<ProduceRequest>,
) -> impl Stream<Item = Result<ProduceResponse, Status>> + Send + use<> {
    let (answers, stream) = mpsc::channel(IN_FLIGHT_MAX);
    let pump = pump(Arc::clone(shared), requests, answers);
    shared.tasks.spawn("produce stream", pump);
    ReceiverStream::new(stream).map(|answer| Ok(response(answer)))
}

async fn pump(
    shared: Arc<Shared>,
    mut requests: Streaming<ProduceRequest>,
    answers: mpsc::Sender<Answer>,
) {
    loop {
        let next = tokio::select! {
            biased;
            () = shared.tasks.token().cancelled() => return,
            next = requests.message() => next,
        };
        // An error here is the client's connection going away: there is nobody to tell.
        let Ok(Some(request)) = next else { return };
        let Ok(slot) = answers.clone().reserve_owned().await else {
            return;
        };
        let bytes = u32::try_from(request.batch.len()).unwrap_or(u32::MAX);
        let memory = shared.produce_memory.acquire(bytes).await;
        let reply = Reply::new(request.request_id, slot, memory);
        handle(&shared, request, reply).await;
    }
}

async fn handle(shared: &Shared, request: ProduceRequest, reply: Reply) {
    let acks = match request.acks() {
        WireAcks::Leader => Acks::Leader,
        WireAcks::All | WireAcks::Unspecified => Acks::All,
    };
    let partition = match shared.partition(&request.topic, &request.topic_id, request.partition) {
        Ok(partition) => partition,
        Err(detail) => return reply.refuse(detail),
    };
    match RecordBatch::validate(request.batch) {
        Ok(batch) => partition.append(Append { batch, acks, reply }).await,
        Err(error) => reply.send(Err(PartitionError::Batch(Arc::new(error)))),
    }
}

fn response(answer: Answer) -> ProduceResponse {
    let outcome = match answer.outcome {
        Ok(appended) => Outcome::Ack(ProduceAck {
            base_offset: appended.base_offset.get(),
            duplicate: appended.is_duplicate,
            throttle_ms: appended.throttle_ms,
        }),
        Err(detail) => Outcome::Error(detail),
    };
    ProduceResponse {
        request_id: answer.request_id,
        result: Some(outcome),
    }
}

/// What a reply says when the partition went away without answering.
pub(crate) fn abandoned() -> ErrorDetail {
    ErrorDetail {
        has_no_side_effects: false,
        ..refusal(
            ErrorKind::ShuttingDown,
            "the partition stopped before it answered",
        )
    }
}

/// Encodes a partition's error for an in-band answer.
pub(crate) fn detail(error: &PartitionError) -> ErrorDetail {
    partition_detail(error)
}
