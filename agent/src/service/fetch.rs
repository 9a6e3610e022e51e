//! Fetch: a server stream that reads a partition from an offset and follows its tail.
//!
//! One task reads ahead of the client by [`RESPONSES_AHEAD`] responses; the rest of the way HTTP/2
//! flow control holds it back.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use esker_proto::{
    batch::{BatchError, Batches},
    convert::wire_records,
    types::{Offset, OffsetRange},
    v1::{ErrorDetail, ErrorKind, FetchFormat, FetchRequest, FetchResponse, FetchSource, Record},
};
use futures::{Stream, StreamExt, stream};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::{
    status::{partition_detail, refusal, shutting_down, status},
    uncopied::FetchMessage,
};
use crate::{
    metrics::TrafficMetrics,
    partition::{Chunk, PartitionError, PartitionHandle, Session, Source},
    shared::Shared,
};

/// Responses read ahead of what the transport has taken.
const RESPONSES_AHEAD: usize = 2;
const RESPONSE_BYTES_DEFAULT: u32 = 1 << 20;
const RESPONSE_BYTES_MAX: u32 = 8 << 20;
const WAIT_MS_DEFAULT: u32 = 500;
const WAIT_MS_MAX: u32 = 30_000;

/// What a stream was asked for, within the agent's limits.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    end_offset: Option<Offset>,
    max_bytes: u32,
    min_bytes: u32,
    wait: Duration,
    format: FetchFormat,
}

/// Serves one stream.
///
/// # Errors
///
/// A status, if the request names nothing that could be read.
pub(super) fn serve(
    shared: &Arc<Shared>,
    request: FetchRequest,
) -> Result<impl Stream<Item = Result<FetchMessage, Status>> + Send + use<>, Status> {
    let partition = shared
        .partition(&request.topic, &request.topic_id, request.partition)
        .map_err(|detail| status(&detail))?;
    let wanted = wanted(&request)?;
    let (responses, read) = mpsc::channel(RESPONSES_AHEAD);
    let (cut_off, is_cut_off) = oneshot::channel();
    let offset = Offset::new(request.offset);
    let session = Session::new(partition.clone(), shared.reader.clone(), offset);
    let traffic = shared.topics.opening.traffic.clone();
    let fetch = Fetch {
        traffic,
        partition,
        session,
        wanted,
        responses,
    };
    let stopped = shared.tasks.token().clone();
    shared.tasks.spawn("fetch stream", async move {
        tokio::select! {
            biased;
            // If nobody listens the client has gone.
            () = stopped.cancelled() => drop(cut_off.send(())),
            () = fetch.run() => {}
        }
    });
    let last = stream::once(is_cut_off);
    let last = last.filter_map(async |cut_off| cut_off.ok().map(|()| Err(shutting_down())));
    Ok(ReceiverStream::new(read).chain(last))
}

fn wanted(request: &FetchRequest) -> Result<Wanted, Status> {
    let or =
        |value: u32, default: u32, most: u32| if value == 0 { default } else { value.min(most) };
    let max_bytes = or(
        request.max_bytes,
        RESPONSE_BYTES_DEFAULT,
        RESPONSE_BYTES_MAX,
    );
    let format = match request.format() {
        FetchFormat::Unspecified => FetchFormat::Batches,
        format => format,
    };
    if request.end_offset.is_some_and(|end| end < request.offset) {
        let text = "end_offset is below offset";
        return Err(status(&refusal(ErrorKind::InvalidArgument, text)));
    }
    Ok(Wanted {
        end_offset: request.end_offset.map(Offset::new),
        max_bytes,
        min_bytes: request.min_bytes.min(max_bytes),
        wait: Duration::from_millis(or(request.max_wait_ms, WAIT_MS_DEFAULT, WAIT_MS_MAX).into()),
        format,
    })
}

struct Fetch {
    traffic: TrafficMetrics,
    partition: PartitionHandle,
    session: Session,
    wanted: Wanted,
    responses: mpsc::Sender<Result<FetchMessage, Status>>,
}

impl Fetch {
    async fn run(mut self) {
        while !self.is_done() {
            // A place first, the read after: what is read is never held back by a slow client.
            let Ok(place) = self.responses.clone().reserve_owned().await else {
                return;
            };
            match self.next().await {
                Ok(response) => drop(place.send(Ok(response))),
                Err(status) => {
                    place.send(Err(status));
                    return;
                }
            }
        }
    }

    fn is_done(&self) -> bool {
        self.wanted
            .end_offset
            .is_some_and(|end| self.session.offset() >= end)
    }

    async fn next(&mut self) -> Result<FetchMessage, Status> {
        let from = self.session.offset();
        let chunk = self.gather().await.map_err(|error| {
            status(&ErrorDetail {
                has_no_side_effects: true,
                ..partition_detail(&error)
            })
        })?;
        let envelope = FetchResponse {
            next_offset: self.session.offset().get(),
            high_watermark: self.partition.view().high_watermark.get(),
            log_start_offset: self.partition.manifest().log_start_offset().get(),
            ..FetchResponse::default()
        };
        let mut message = FetchMessage {
            envelope,
            batches: Vec::new(),
        };
        if let Some(chunk) = chunk {
            self.traffic.note_fetch(chunk.source, chunk.size_bytes());
            self.fill(&mut message, chunk, from).await?;
        }
        Ok(message)
    }

    /// Reads on; at the tail until there are `min_bytes`, but no longer than was asked for.
    async fn gather(&mut self) -> Result<Option<Chunk>, PartitionError> {
        let Wanted {
            max_bytes,
            min_bytes,
            wait,
            ..
        } = self.wanted;
        let deadline = Instant::now() + wait;
        let Some(mut chunk) = self.session.next(max_bytes, wait).await? else {
            return Ok(None);
        };
        while chunk.source == Source::Tail && chunk.size_bytes() < min_bytes {
            // Many small reads in place must not keep other tasks waiting.
            tokio::task::consume_budget().await;
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(more) = self
                .session
                .next(max_bytes - chunk.size_bytes(), left)
                .await?
            else {
                break;
            };
            chunk.bytes.extend(more.bytes);
            chunk.next_offset = more.next_offset;
        }
        Ok(Some(chunk))
    }

    async fn fill(
        &mut self,
        message: &mut FetchMessage,
        chunk: Chunk,
        from: Offset,
    ) -> Result<(), Status> {
        let envelope = &mut message.envelope;
        envelope.set_source(match chunk.source {
            Source::Tail => FetchSource::Tail,
            Source::Bucket => FetchSource::Bucket,
        });
        if self.wanted.format == FetchFormat::Batches {
            message.batches = chunk.bytes;
            return Ok(());
        }
        let end = self.wanted.end_offset.unwrap_or(Offset::MAX);
        let decoded = match decode(chunk.bytes, from..end) {
            Ok(decoded) => decoded,
            Err(error) => return Err(self.undecodable(chunk.source, from, &error).await),
        };
        envelope.records = decoded.records;
        if let Some(next_offset) = decoded.cut_at {
            self.session.go_back(next_offset);
            envelope.next_offset = next_offset.get();
        }
        Ok(())
    }
}

impl Fetch {
    /// Says what is wrong with batches that cannot be decoded.
    async fn undecodable(&self, source: Source, from: Offset, error: &BatchError) -> Status {
        let examined = match source {
            Source::Tail => self.session.examine(from).await,
            Source::Bucket => None,
        };
        let detail = examined.as_ref().map_or_else(
            || refusal(ErrorKind::CorruptData, error.to_string()),
            partition_detail,
        );
        status(&detail)
    }
}

/// Plain records, out of batches that may have had more of them.
#[derive(Debug, Default)]
struct Decoded {
    records: Vec<Record>,
    /// Where to go on, if not all were wanted or fit.
    cut_at: Option<Offset>,
}

/// Decodes the records in `wanted`, about [`RESPONSE_BYTES_MAX`] of them: a few batches of well
/// compressed records could otherwise fill the memory. Those before a bad batch come first, and it is
/// met by the next read.
fn decode(slices: Vec<Bytes>, wanted: OffsetRange) -> Result<Decoded, BatchError> {
    let mut decoded = Decoded::default();
    let mut room = usize::try_from(RESPONSE_BYTES_MAX).unwrap_or(usize::MAX);
    let mut next_offset = wanted.start;
    for batch in slices.into_iter().flat_map(Batches::new) {
        let records =
            match batch.and_then(|batch| Ok((batch.header().next_offset(), batch.records()?))) {
                Ok((end, records)) => {
                    next_offset = end;
                    records
                }
                Err(_) if next_offset > wanted.start => {
                    decoded.cut_at = Some(next_offset);
                    return Ok(decoded);
                }
                Err(error) => return Err(error),
            };
        for record in wire_records(&records, wanted.start) {
            let record = record?;
            let offset = Offset::new(record.offset);
            if offset >= wanted.end || room == 0 {
                decoded.cut_at = Some(offset);
                return Ok(decoded);
            }
            room = room.saturating_sub(weight(&record));
            decoded.records.push(record);
        }
    }
    Ok(decoded)
}

/// Returns about how many bytes a record takes in a response.
fn weight(record: &Record) -> usize {
    const ENVELOPE_BYTES: usize = 32;
    let length = |part: &Option<Bytes>| part.as_ref().map_or(0, Bytes::len);
    let headers = record.headers.iter();
    let headers = headers.map(|header| ENVELOPE_BYTES + header.key.len() + length(&header.value));
    ENVELOPE_BYTES + length(&record.key) + length(&record.value) + headers.sum::<usize>()
}
