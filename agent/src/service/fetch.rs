//! Fetch: a server stream that reads a partition from an offset and follows its tail.
//!
//! The transport asks for one piece after the other, and nothing is read before it does: HTTP/2 flow
//! control holds the reading back. Of a response under way, what the transport has not taken is kept
//! only as long as nobody else needs the memory. A peer that continues after that gets the same bytes:
//! they are read again.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use esker_proto::{
    types::{LeaderEpoch, Offset, OffsetRange},
    v1::{ErrorDetail, ErrorKind, FetchFormat, FetchRequest, FetchResponse, FetchSource},
};
use esker_tiering::reader::{Buffer, Hold, ReadMemory, Taken};
use futures::{Stream, stream};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{
    encode::{self, Decoded, Undecodable},
    status::{partition_detail, refusal, shutting_down, status},
    uncopied::End,
};
use crate::{
    connections::Peer,
    metrics::TrafficMetrics,
    partition::{Chunk, PartitionError, PartitionHandle, Session, Slice, Source},
    shared::Shared,
};

const RESPONSE_BYTES_DEFAULT: u32 = 1 << 20;
const RESPONSE_BYTES_MAX: u32 = 8 << 20;
const WAIT_MS_DEFAULT: u32 = 500;
const WAIT_MS_MAX: u32 = 30_000;
/// The first responses of a stream are small, and each is read after the one before was written to
/// the socket: many a client wants a few records only, and what it leaves has been read for nothing.
const FIRST_BYTES: u32 = 64 << 10;
const SLOW_START_BYTES_MAX: u32 = 256 << 10;
const SLOW_START_BYTES: u64 = 2 << 20;
/// Number of `FetchResponse.batches`.
const BATCHES_FIELD: u32 = 1;

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
    peer: Option<Peer>,
) -> Result<impl Stream<Item = Result<Bytes, End>> + Send + use<>, Status> {
    let partition = shared
        .partition(&request.topic, &request.topic_id, request.partition)
        .map_err(|detail| status(&detail))?;
    let memory = shared.reader.memory().clone();
    let offset = Offset::new(request.offset);
    if let Some(epoch) = request.leader_epoch.filter(|epoch| *epoch > 0) {
        let checked = partition.check_read(offset, LeaderEpoch::new(epoch));
        checked.map_err(|error| failed(&error))?;
    }
    let fetch = Fetch {
        wanted: wanted(&request)?,
        traffic: shared.topics.opening.traffic.clone(),
        session: Session::new(partition.clone(), shared.reader.clone(), offset),
        partition,
        hold: memory.hold(),
        taken: memory.begin(move || {
            if let Some(peer) = &peer {
                peer.close();
            }
        }),
        memory,
        head: None,
        under_way: None,
        delivered_bytes: 0,
        written: Written::default(),
        stopped: shared.tasks.token().clone(),
    };
    Ok(stream::try_unfold(fetch, |mut fetch| async move {
        let piece = fetch.piece().await?;
        Ok(piece.map(|piece| (piece, fetch)))
    }))
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
    wanted: Wanted,
    traffic: TrafficMetrics,
    partition: PartitionHandle,
    session: Session,
    memory: ReadMemory,
    /// What the transport takes before the payload.
    head: Option<Bytes>,
    under_way: Option<UnderWay>,
    /// The rest of its payload, unless others needed the memory.
    hold: Hold<VecDeque<Slice>>,
    taken: Taken,
    delivered_bytes: u64,
    written: Written,
    stopped: CancellationToken,
}

/// Tells when the transport has let go of everything it was given.
#[derive(Debug)]
struct Written {
    /// Each piece has a clone.
    given: mpsc::Sender<()>,
    all_dropped: mpsc::Receiver<()>,
}

impl Default for Written {
    fn default() -> Self {
        let (given, all_dropped) = mpsc::channel(1);
        Self { given, all_dropped }
    }
}

impl Written {
    fn note(&self, bytes: Bytes) -> Bytes {
        let _given = self.given.clone();
        Bytes::from_owner(Noted { bytes, _given })
    }

    async fn wait(&mut self) {
        let Self {
            given,
            mut all_dropped,
        } = std::mem::take(self);
        drop(given);
        // Nothing is ever sent: this ends when the last sender goes.
        let _ = all_dropped.recv().await;
    }
}

struct Noted {
    bytes: Bytes,
    _given: mpsc::Sender<()>,
}

impl AsRef<[u8]> for Noted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A response whose payload the transport has not taken as a whole: that of the offsets in `range`.
#[derive(Clone, Debug)]
struct UnderWay {
    range: OffsetRange,
    size_bytes: usize,
    sent_bytes: usize,
}

impl Fetch {
    /// Returns what the transport takes next; `None` at the end.
    async fn piece(&mut self) -> Result<Option<Bytes>, End> {
        loop {
            if let Some(head) = self.head.take() {
                return Ok(Some(head));
            }
            if let Some(response) = self.under_way.take() {
                let piece = self.cut(response).await.map_err(End::Broken)?;
                return Ok(Some(piece));
            }
            if self.is_done() {
                return Ok(None);
            }
            let stopped = self.stopped.clone();
            tokio::select! {
                biased;
                () = stopped.cancelled() => return Err(End::Status(shutting_down())),
                begun = self.begin() => begun.map_err(End::Status)?,
            }
        }
    }

    fn is_done(&self) -> bool {
        self.wanted
            .end_offset
            .is_some_and(|end| self.session.offset() >= end)
    }

    /// Reads the next response.
    async fn begin(&mut self) -> Result<(), Status> {
        if self.is_starting() {
            self.written.wait().await;
        }
        let from = self.session.offset();
        let Some(chunk) = self.gather().await.map_err(|error| failed(&error))? else {
            self.start(FetchResponse::default(), from, VecDeque::new());
            return Ok(());
        };
        self.traffic.note_fetch(chunk.source, chunk.size_bytes());
        self.delivered_bytes += u64::from(chunk.size_bytes());
        let mut envelope = FetchResponse::default();
        envelope.set_source(match chunk.source {
            Source::Tail => FetchSource::Tail,
            Source::Bucket => FetchSource::Bucket,
        });
        let payload = match self.wanted.format {
            FetchFormat::Records => {
                let end = self.wanted.end_offset.unwrap_or(Offset::MAX);
                let room = u64::from(RESPONSE_BYTES_MAX).min(self.memory.response_bytes());
                let range = from..end;
                let room = usize::try_from(room).unwrap_or(usize::MAX);
                self.records(chunk, range, room).await?
            }
            _ => chunk.slices.into(),
        };
        self.start(envelope, from, payload);
        Ok(())
    }

    fn start(&mut self, mut envelope: FetchResponse, from: Offset, payload: VecDeque<Slice>) {
        let next_offset = self.session.offset();
        envelope.next_offset = next_offset.get();
        envelope.high_watermark = self.partition.view().high_watermark.get();
        envelope.log_start_offset = self.partition.manifest().log_start_offset().get();
        let size_bytes = payload.iter().map(|slice| slice.bytes.len()).sum();
        let field = (self.wanted.format == FetchFormat::Batches).then_some(BATCHES_FIELD);
        self.head = Some(encode::head(&envelope, field, size_bytes));
        if size_bytes > 0 {
            self.under_way = Some(UnderWay {
                range: from..next_offset,
                size_bytes,
                sent_bytes: 0,
            });
            self.memory.keep(&self.hold, payload);
        }
    }

    /// Reads on; at the tail until there are `min_bytes`, but no longer than was asked for.
    async fn gather(&mut self) -> Result<Option<Chunk>, PartitionError> {
        let from = self.session.offset();
        let deadline = Instant::now() + self.wanted.wait;
        let max_bytes = self.max_bytes();
        let min_bytes = self.wanted.min_bytes.min(max_bytes);
        let Some(mut chunk) = self.session.next(max_bytes, self.wanted.wait).await? else {
            return Ok(None);
        };
        while chunk.source == Source::Tail && chunk.size_bytes() < min_bytes {
            // Many small reads in place must not keep other tasks waiting.
            tokio::task::consume_budget().await;
            let room = max_bytes - chunk.size_bytes();
            let left = deadline.saturating_duration_since(Instant::now());
            // Where others can take it, since the wait may be long.
            self.memory.keep(&self.hold, chunk.slices.into());
            let more = self.session.next(room, left).await;
            let Some(kept) = self.hold.take() else {
                self.session.go_back(from);
                return self.session.next(max_bytes, Duration::ZERO).await;
            };
            chunk.slices = kept.into();
            // What is wrong behind these is met by the next read, and hides none of them.
            let Ok(Some(more)) = more else { break };
            chunk.slices.extend(more.slices);
            chunk.next_offset = more.next_offset;
        }
        Ok(Some(chunk))
    }

    const fn is_starting(&self) -> bool {
        self.delivered_bytes < SLOW_START_BYTES
    }

    /// How much to read at a time.
    fn max_bytes(&self) -> u32 {
        let fair = u32::try_from(self.memory.response_bytes()).unwrap_or(u32::MAX);
        let most = self.wanted.max_bytes.min(fair);
        if !self.is_starting() {
            return most;
        }
        let grown = u32::try_from(self.delivered_bytes).unwrap_or(u32::MAX);
        most.min(grown.clamp(FIRST_BYTES, SLOW_START_BYTES_MAX))
    }

    /// Makes plain records of batches. The session goes back to the first that did not fit.
    async fn records(
        &mut self,
        chunk: Chunk,
        range: OffsetRange,
        room: usize,
    ) -> Result<VecDeque<Slice>, Status> {
        let from = range.start;
        let batches = chunk.slices.into_iter().map(|slice| slice.bytes).collect();
        let decoded = encode::decode(batches, range, room).await;
        let Decoded { outcome, turn } = decoded.map_err(|_| shutting_down())?;
        let encoded = match outcome {
            Ok(encoded) => encoded,
            Err(bad) => {
                // What is wrong is read from the disk: nobody else waits for that.
                drop(turn);
                return Err(self.undecodable(chunk.source, from, &bad).await);
            }
        };
        if let Some(next_offset) = encoded.cut_at {
            self.session.go_back(next_offset);
        }
        // Charged afterwards: who waited for memory with batches in hand would keep it from others.
        let bytes = self.memory.overdraw().tie(encoded.into_bytes());
        drop(turn);
        let buffer = Buffer::of(&bytes);
        Ok(VecDeque::from([Slice { bytes, buffer }]))
    }

    /// Says what is wrong with batches that cannot be decoded.
    async fn undecodable(&self, source: Source, from: Offset, bad: &Undecodable) -> Status {
        let examined = match source {
            Source::Tail => self.session.examine(from).await,
            Source::Bucket => None,
        };
        let detail = examined
            .as_ref()
            .map_or_else(|| undecodable_detail(from, bad), partition_detail);
        status(&detail)
    }

    /// Cuts the next piece of a response.
    async fn cut(&mut self, mut response: UnderWay) -> Result<Bytes, Status> {
        let mut rest = self.rest_of(&response).await?;
        let mut slice = rest.front_mut().ok_or_else(|| changed(&response))?;
        let (memory, taken) = (self.memory.clone(), &mut self.taken);
        let piece = match memory.try_piece(&mut slice.bytes, slice.buffer, taken) {
            Some(piece) => piece,
            None => {
                // The wait may be long: others can take the rest meanwhile.
                self.memory.keep(&self.hold, rest);
                let room = memory.room_for_copy(&self.taken).await;
                let room = room.map_err(|error| failed(&PartitionError::Store(Arc::new(error))))?;
                rest = self.rest_of(&response).await?;
                slice = rest.front_mut().ok_or_else(|| changed(&response))?;
                room.copy(&mut slice.bytes)
            }
        };
        response.sent_bytes += piece.len();
        if slice.bytes.is_empty() {
            rest.pop_front();
        }
        if response.sent_bytes < response.size_bytes {
            self.memory.keep(&self.hold, rest);
            self.under_way = Some(response);
        }
        Ok(if self.is_starting() {
            self.written.note(piece)
        } else {
            piece
        })
    }

    async fn rest_of(&mut self, response: &UnderWay) -> Result<VecDeque<Slice>, Status> {
        match self.hold.take() {
            Some(rest) => Ok(rest),
            None => self.read_again(response).await,
        }
    }

    /// Reads the rest of a response that gave way to others. The log never changes, so that it is the
    /// same bytes.
    async fn read_again(&mut self, response: &UnderWay) -> Result<VecDeque<Slice>, Status> {
        let UnderWay {
            range, size_bytes, ..
        } = response.clone();
        self.session.go_back(range.start);
        let mut payload = VecDeque::new();
        let mut bytes = 0;
        while self.session.offset() < range.end && bytes < size_bytes {
            let from = self.session.offset();
            let chunk = self.session.next(self.wanted.max_bytes, Duration::ZERO);
            let chunk = chunk.await.map_err(|error| failed(&error))?;
            let chunk = chunk.ok_or_else(|| changed(response))?;
            let slices = if self.wanted.format == FetchFormat::Records {
                let room = size_bytes - bytes;
                self.records(chunk, from..range.end, room).await?
            } else {
                chunk.slices.into()
            };
            bytes += slices.iter().map(|slice| slice.bytes.len()).sum::<usize>();
            payload.extend(slices);
        }
        self.session.go_back(range.end);
        trim(&mut payload, response.sent_bytes, size_bytes).ok_or_else(|| changed(response))?;
        Ok(payload)
    }
}

/// Leaves of a payload what lies between two of its bytes; `None` if it is shorter.
fn trim(payload: &mut VecDeque<Slice>, start: usize, end: usize) -> Option<()> {
    let mut at = 0;
    for slice in payload.iter_mut() {
        let length = slice.bytes.len();
        let first = start.saturating_sub(at).min(length);
        let last = end.saturating_sub(at).min(length);
        slice.bytes = slice.bytes.slice(first..last);
        at += length;
    }
    payload.retain(|slice| !slice.bytes.is_empty());
    (at >= end).then_some(())
}

fn failed(error: &PartitionError) -> Status {
    status(&ErrorDetail {
        has_no_side_effects: true,
        ..partition_detail(error)
    })
}

/// Batches that are what was produced, and hold no records that can be decoded.
fn undecodable_detail(from: Offset, bad: &Undecodable) -> ErrorDetail {
    let error = &bad.error;
    let text = match bad.end_offset {
        Some(end) => format!("records cannot be decoded: {error}; offsets=`{from}..{end}`"),
        None => format!("records cannot be decoded: {error}; offset=`{from}`"),
    };
    ErrorDetail {
        damage_end_offset: bad.end_offset.map(Offset::get),
        ..refusal(ErrorKind::CorruptData, text)
    }
}

fn changed(response: &UnderWay) -> Status {
    let OffsetRange { start, end } = response.range;
    let text = format!("a response cannot be read again. from=`{start}`, to=`{end}`");
    status(&refusal(ErrorKind::Internal, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(parts: &[&'static [u8]]) -> VecDeque<Slice> {
        let slice = |part: &&'static [u8]| Slice {
            bytes: Bytes::from_static(part),
            buffer: Buffer::of(part),
        };
        parts.iter().map(slice).collect()
    }

    fn content(payload: &VecDeque<Slice>) -> Vec<u8> {
        payload
            .iter()
            .flat_map(|slice| slice.bytes.to_vec())
            .collect()
    }

    #[test]
    fn what_is_read_again_continues_where_the_peer_is() {
        for (start, end, rest) in [
            (0, 9, "abcdefghi"),
            (2, 9, "cdefghi"),
            (3, 8, "defgh"),
            (8, 9, "i"),
        ] {
            let mut read = payload(&[b"abc", b"def", b"ghi"]);
            assert!(trim(&mut read, start, end).is_some());
            assert_eq!(content(&read), rest.as_bytes());
        }
        assert!(trim(&mut payload(&[b"abc"]), 1, 4).is_none());
    }
}
