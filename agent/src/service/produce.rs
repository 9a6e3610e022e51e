//! Produce: a pipelined stream of batches.
//!
//! One task reads requests in order and hands each to its partition together with a reserved slot
//! in the stream's answers; the partition answers into that slot. Room for a request is taken before it is
//! received (see `intake`). So a stream has at most
//! [`IN_FLIGHT_MAX`] requests unanswered, the agent at most `produce-buffer-bytes`, and neither a
//! slow disk nor a slow client makes anything grow.

use std::sync::Arc;

use esker_proto::v1::{
    Acks as WireAcks, ErrorDetail, ErrorKind, ProduceAck, ProduceRequest, ProduceResponse,
    produce_response::Result as Outcome,
};
use futures::{Stream, StreamExt, stream};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::check::{Checked, check};
use super::intake::Rooms;
use super::status::{partition_detail, refusal, shutting_down, unreadable};
use crate::{
    memory::MemoryPermit,
    partition::{Acks, Answer, Append, PartitionError, Reply},
    shared::Shared,
};

/// Requests of one stream that may be unanswered.
const IN_FLIGHT_MAX: usize = 512;

/// Serves one stream of requests.
pub(super) fn serve(
    shared: &Arc<Shared>,
    requests: Streaming<ProduceRequest>,
    rooms: Rooms,
) -> impl Stream<Item = Result<ProduceResponse, Status>> + Send + use<> {
    let (answers, answered) = mpsc::channel(IN_FLIGHT_MAX);
    let (cut_off, is_cut_off) = oneshot::channel();
    let pump = pump(Arc::clone(shared), requests, rooms, answers);
    shared.tasks.spawn("produce stream", async move {
        if let Err(status) = pump.await {
            // If nobody listens the client has gone.
            _ = cut_off.send(status);
        }
    });
    // Comes after every answer: each request taken holds the channel open until it is answered.
    let last = stream::once(is_cut_off).filter_map(async |cut_off| cut_off.ok().map(Err));
    ReceiverStream::new(answered)
        .map(|answer| Ok(response(answer)))
        .chain(last)
}

/// Takes requests until the client ends the stream, or goes away.
///
/// # Errors
///
/// How the stream ends if it is the agent that ends it.
async fn pump(
    shared: Arc<Shared>,
    mut requests: Streaming<ProduceRequest>,
    rooms: Rooms,
    answers: mpsc::Sender<Answer>,
) -> Result<(), Status> {
    loop {
        let next = tokio::select! {
            biased;
            () = shared.tasks.token().cancelled() => return Err(shutting_down()),
            next = receive(&mut requests, &answers) => next,
        };
        let Some((request, slot)) = next.map_err(in_our_terms)? else {
            return Ok(());
        };
        // Each message has taken its room before it was received.
        let Some(memory) = rooms.take() else {
            return Err(Status::internal("a request came without its room"));
        };
        let reply = Reply::new(request.request_id, slot);
        handle(&shared, request, memory, reply).await;
    }
}

fn in_our_terms(error: Status) -> Status {
    unreadable(&error, ErrorKind::BatchTooLarge).unwrap_or(error)
}

/// Receives the next request, once its answer has a place: a client that takes no answers holds no room.
async fn receive<T>(
    requests: &mut (impl Stream<Item = Result<T, Status>> + Unpin),
    answers: &mpsc::Sender<Answer>,
) -> Result<Option<(T, mpsc::OwnedPermit<Answer>)>, Status> {
    let Ok(slot) = answers.clone().reserve_owned().await else {
        // The client has gone.
        return Ok(None);
    };
    let request = requests.next().await.transpose()?;
    Ok(request.map(|request| (request, slot)))
}

async fn handle(shared: &Shared, request: ProduceRequest, memory: MemoryPermit, reply: Reply) {
    let acks = match request.acks() {
        WireAcks::Leader => Acks::Leader,
        WireAcks::All | WireAcks::Unspecified => Acks::All,
    };
    let partition = match shared.partition(&request.topic, &request.topic_id, request.partition) {
        Ok(partition) => partition,
        Err(detail) => return reply.refuse(detail),
    };
    match check(shared, request.batch, partition.is_compressed_checked()).await {
        Ok(Checked { batch, times }) => {
            let append = Append {
                batch,
                times,
                acks,
                memory,
                reply,
            };
            partition.append(append).await;
        }
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

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_request_is_not_received_before_its_answer_has_a_place() {
        let (answers, _answered) = mpsc::channel::<Answer>(1);
        let _unanswered = answers.clone().reserve_owned().await.unwrap();
        let mut received = 0;
        let mut requests = stream::iter([Ok(())]).inspect(|_| received += 1);
        assert!(receive(&mut requests, &answers).now_or_never().is_none());
        drop(requests);
        assert_eq!(received, 0);
    }
}
