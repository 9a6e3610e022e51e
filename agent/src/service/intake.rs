//! What clients send takes room before it is received.
//!
//! A gRPC message announces its length in the five bytes before it. The rest of a message is read only once
//! so many bytes are free in a budget of the agent, all of them at once, so that messages that are half
//! received never wait for each other. Producers have a budget of their own, and their room goes with the
//! batch until it is on the disk. All other requests are small; they share another budget, in which their
//! room is held while they are received. A client that stops in the middle of a message gives its room back
//! by losing its stream, and so does one that is slow while others wait for room.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use esker_proto::v1::{ErrorDetail, ErrorKind};
use http_body::Frame;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};
use tonic::{
    Status,
    body::Body,
    codegen::{BoxFuture, Service, http},
    server::NamedService,
};

use super::status::{RETRY_AFTER_MS, refusal, status};
use crate::{
    memory::{MemoryBudget, MemoryPermit},
    shared::Shared,
};

/// A flag for compression and a length come before each message.
const PREFIX_BYTES: usize = 5;
/// From when a message has its room, all of it has to come within this time.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// While others wait for room, a message has so long to begin with...
const GRACE: Duration = Duration::from_secs(1);
/// ...and has to come at this pace: bytes in a second.
const PACE_MIN: u64 = 256 << 10;
/// How often the pace of an incomplete message is checked.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Largest request of other kinds than those of producers: it names all partitions of the largest topic.
pub(super) const REQUEST_BYTES_MAX: u32 = 64 << 10;
/// Memory of all such requests that are being received.
pub(crate) const REQUESTS_BYTES_MAX: u64 = 16 << 20;

type Queue = Mutex<VecDeque<MemoryPermit>>;

/// The room of one stream's messages that were received, in their order. Taken by whoever decodes them,
/// and given back if nobody does.
#[derive(Clone, Debug, Default)]
pub(super) struct Rooms(Arc<Queue>);

impl Rooms {
    /// Those of the stream of this request.
    pub(super) fn of<T>(request: &tonic::Request<T>) -> Self {
        request.extensions().get().cloned().unwrap_or_default()
    }

    /// Takes the room of the message that was decoded last.
    pub(super) fn take(&self) -> Option<MemoryPermit> {
        self.0.lock().pop_front()
    }
}

/// Whether a request carries records.
pub(super) fn is_of_producer<B>(request: &http::Request<B>) -> bool {
    let path = request.uri().path();
    ["/Produce", "/Append"]
        .iter()
        .any(|method| path.ends_with(method))
}

/// A body of gRPC messages that waits for room before each.
struct Intake {
    body: Body,
    budget: MemoryBudget,
    /// Larger messages are refused by their announcement.
    bytes_max: u32,
    rooms: Weak<Queue>,
    /// That of the current message.
    room: Option<MemoryPermit>,
    /// Received and not passed on.
    received: Bytes,
    prefix: BytesMut,
    /// Length of the current message, and what is missing of it.
    announced_bytes: u32,
    missing: usize,
    waiting: Option<Pin<Box<dyn Future<Output = MemoryPermit> + Send>>>,
    /// When the current message had its room.
    begun_at: Instant,
    look: Pin<Box<Sleep>>,
}

impl Intake {
    fn new(body: Body, budget: MemoryBudget, bytes_max: u32, rooms: &Rooms) -> Self {
        Self {
            body,
            budget,
            bytes_max,
            rooms: Arc::downgrade(&rooms.0),
            room: None,
            received: Bytes::new(),
            prefix: BytesMut::with_capacity(PREFIX_BYTES),
            announced_bytes: 0,
            missing: 0,
            waiting: None,
            begun_at: Instant::now(),
            look: Box::pin(tokio::time::sleep(LOOK_INTERVAL)),
        }
    }

    /// Returns the next bytes to pass on, if any were received and have room.
    fn next_part(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(waiting) = &mut self.waiting {
            let room = ready!(waiting.as_mut().poll(context));
            return Poll::Ready(Some(self.begin(room)));
        }
        if self.missing > 0 && !self.received.is_empty() {
            let length = self.missing.min(self.received.len());
            self.missing -= length;
            self.hand_over_room();
            return Poll::Ready(Some(self.received.split_to(length)));
        }
        let length = (PREFIX_BYTES - self.prefix.len()).min(self.received.len());
        self.prefix
            .extend_from_slice(&self.received.split_to(length));
        if self.prefix.len() < PREFIX_BYTES {
            return Poll::Ready(None);
        }
        let bytes = self.announced();
        if bytes > self.bytes_max {
            return Poll::Ready(Some(self.prefix.split().freeze()));
        }
        if let Some(room) = self.budget.try_acquire(bytes) {
            return Poll::Ready(Some(self.begin(room)));
        }
        let budget = self.budget.clone();
        self.waiting = Some(Box::pin(async move { budget.acquire(bytes).await }));
        self.next_part(context)
    }

    /// The length of the message that the prefix announces.
    fn announced(&self) -> u32 {
        let mut length = [0; 4];
        length.copy_from_slice(&self.prefix[1..PREFIX_BYTES]);
        u32::from_be_bytes(length)
    }

    /// Passes the prefix on, which lets the message be read.
    fn begin(&mut self, room: MemoryPermit) -> Bytes {
        self.waiting = None;
        self.announced_bytes = self.announced();
        self.missing = usize::try_from(self.announced_bytes).unwrap_or(usize::MAX);
        self.room = Some(room);
        self.hand_over_room();
        self.begun_at = Instant::now();
        self.look.as_mut().reset(self.begun_at + LOOK_INTERVAL);
        self.prefix.split().freeze()
    }

    /// Leaves the room of a message that is whole to who decodes it.
    fn hand_over_room(&mut self) {
        if self.missing > 0 {
            return;
        }
        if let (Some(room), Some(rooms)) = (self.room.take(), self.rooms.upgrade()) {
            rooms.lock().push_back(room);
        }
    }

    /// Whether a message that has its room is late. If not, the next check is set.
    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        while self.missing > 0 && self.look.as_mut().poll(context).is_ready() {
            if self.lateness() {
                return true;
            }
            let next = Instant::now() + LOOK_INTERVAL;
            self.look.as_mut().reset(next);
        }
        false
    }

    fn lateness(&self) -> bool {
        let since = self.begun_at.elapsed();
        if since >= MESSAGE_TIMEOUT {
            return true;
        }
        let received = u64::from(self.announced_bytes) - self.missing as u64;
        let expected = since.as_secs_f64() * PACE_MIN as f64;
        self.budget.is_waited_for() && since >= GRACE && (received as f64) < expected
    }
}

impl http_body::Body for Intake {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some(part) = ready!(self.next_part(context)) {
                return Poll::Ready(Some(Ok(Frame::data(part))));
            }
            let frame = match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Pending if self.is_late(context) => {
                    return Poll::Ready(Some(Err(late())));
                }
                frame => ready!(frame),
            };
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.received = data,
                Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }
}

/// Ends the stream of a message that did not arrive in time. It changed nothing.
fn late() -> Status {
    let text = "a message was not received as a whole in time";
    status(&ErrorDetail {
        retry_after_ms: Some(RETRY_AFTER_MS),
        ..refusal(ErrorKind::TimedOut, text)
    })
}

/// A gRPC service that takes room for what clients send. How large messages of producers may be follows
/// the limit of batches.
#[derive(Clone, Debug)]
pub(super) struct Bounded<S> {
    pub(super) service: S,
    pub(super) shared: Arc<Shared>,
}

impl<S> Service<http::Request<Body>> for Bounded<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> S::Future {
        let (budget, bytes_max) = match is_of_producer(&request) {
            true => (&self.shared.produce_memory, self.shared.message_bytes_max()),
            false => (&self.shared.request_memory, REQUEST_BYTES_MAX),
        };
        let rooms = Rooms::default();
        let intake = |body| Body::new(Intake::new(body, budget.clone(), bytes_max, &rooms));
        let mut request = request.map(intake);
        request.extensions_mut().insert(rooms);
        self.service.call(request)
    }
}

impl<S: NamedService> NamedService for Bounded<S> {
    const NAME: &'static str = S::NAME;
}

/// A service that is made anew for each call, for messages as large as are allowed then.
#[derive(Clone)]
pub(super) struct Remade<F>(pub(super) F);

impl<F> std::fmt::Debug for Remade<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Remade")
    }
}

impl<F, S> Service<http::Request<Body>> for Remade<F>
where
    F: Fn(bool) -> S,
    S: Service<
            http::Request<Body>,
            Future = BoxFuture<http::Response<Body>, std::convert::Infallible>,
        >,
    S: Service<
            http::Request<Body>,
            Response = http::Response<Body>,
            Error = std::convert::Infallible,
        >,
{
    type Response = http::Response<Body>;
    type Error = std::convert::Infallible;
    type Future = BoxFuture<http::Response<Body>, std::convert::Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        (self.0)(is_of_producer(&request)).call(request)
    }
}

impl<F, S: NamedService> NamedService for Remade<F>
where
    F: Fn(bool) -> S,
{
    const NAME: &'static str = S::NAME;
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, SinkExt, channel::mpsc};
    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    type Sender = mpsc::Sender<Result<Frame<Bytes>, Status>>;

    fn stream(budget: &MemoryBudget, bytes_max: u32) -> (Sender, Intake, Rooms) {
        let (sender, frames) = mpsc::channel(16);
        let rooms = Rooms::default();
        let body = Body::new(StreamBody::new(frames));
        let intake = Intake::new(body, budget.clone(), bytes_max, &rooms);
        (sender, intake, rooms)
    }

    async fn send(sender: &mut Sender, bytes: &[u8]) {
        let frame = Frame::data(Bytes::copy_from_slice(bytes));
        sender.send(Ok(frame)).await.unwrap();
    }

    fn message(bytes: u8) -> Vec<u8> {
        [vec![0, 0, 0, 0, bytes], vec![7; usize::from(bytes)]].concat()
    }

    /// Passes on what can be now.
    fn passed(intake: &mut Intake) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(Some(Ok(frame))) = intake.frame().now_or_never() {
            all.extend_from_slice(&frame.into_data().unwrap());
        }
        all
    }

    #[tokio::test]
    async fn messages_arrive_as_they_were_sent_however_they_are_cut() {
        let sent = [message(40), message(0), message(3)].concat();
        for length in [1, 2, 5, 6, 100] {
            let budget = MemoryBudget::new(100);
            let (mut sender, mut intake, rooms) = stream(&budget, 50);
            let mut got = Vec::new();
            for part in sent.chunks(length) {
                send(&mut sender, part).await;
                got.extend(passed(&mut intake));
            }
            assert_eq!(got, sent);
            assert_eq!(budget.in_use(), 43);
            while rooms.take().is_some() {}
            assert_eq!(budget.in_use(), 0);
        }
    }

    #[tokio::test]
    async fn a_message_is_received_only_once_there_is_room_for_all_of_it() {
        let budget = MemoryBudget::new(100);
        let (mut first, mut first_intake, rooms) = stream(&budget, 80);
        let (mut second, mut second_intake, _rooms) = stream(&budget, 80);
        send(&mut first, &message(60)[..50]).await;
        send(&mut second, &message(60)[..50]).await;
        assert_eq!(passed(&mut first_intake).len(), 50);
        assert_eq!(passed(&mut second_intake).len(), 0);

        send(&mut first, &message(60)[50..]).await;
        assert_eq!(passed(&mut first_intake).len(), 15);
        drop(rooms.take());
        assert_eq!(passed(&mut second_intake).len(), 50);
    }

    #[tokio::test]
    async fn room_that_nobody_will_take_is_given_back_with_the_end_of_its_message() {
        let budget = MemoryBudget::new(100);
        let (mut sender, mut intake, rooms) = stream(&budget, 80);
        drop(rooms);
        send(&mut sender, &message(60)[..50]).await;
        assert_eq!(passed(&mut intake).len(), 50);
        assert_eq!(budget.in_use(), 60);

        send(&mut sender, &message(60)[50..]).await;
        assert_eq!(passed(&mut intake).len(), 15);
        assert_eq!(budget.in_use(), 0);
    }

    #[tokio::test]
    async fn a_message_above_the_limit_takes_no_room() {
        let budget = MemoryBudget::new(100);
        let (mut sender, mut intake, _) = stream(&budget, 50);
        send(&mut sender, &message(51)[..5]).await;
        assert_eq!(passed(&mut intake), [0, 0, 0, 0, 51]);
        assert_eq!(budget.in_use(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stops_within_a_message_loses_its_stream_and_its_room() {
        let budget = MemoryBudget::new(100);
        let (mut sender, mut intake, rooms) = stream(&budget, 80);
        send(&mut sender, &message(60)[..50]).await;
        assert_eq!(passed(&mut intake).len(), 50);
        let late = intake.frame().await.unwrap().unwrap_err();
        assert_eq!(late.code(), tonic::Code::DeadlineExceeded);
        drop((intake, rooms));
        assert_eq!(budget.in_use(), 0);
    }

    /// Sends half a message, then single bytes; returns how long the stream lasts.
    async fn trickle(budget: &MemoryBudget) -> Duration {
        let (mut sender, mut intake, _rooms) = stream(budget, 80);
        send(&mut sender, &message(60)[..30]).await;
        let begun = Instant::now();
        let received = async {
            while let Some(frame) = intake.frame().await {
                if let Err(late) = frame {
                    assert_eq!(late.code(), tonic::Code::DeadlineExceeded);
                    return begun.elapsed();
                }
            }
            panic!("no end");
        };
        let trickle = async {
            for _ in 0..20 {
                tokio::time::sleep(Duration::from_millis(700)).await;
                if sender
                    .send(Ok(Frame::data(Bytes::from_static(&[7]))))
                    .await
                    .is_err()
                {
                    break;
                }
            }
            std::future::pending().await
        };
        tokio::select! {
            lasted = received => lasted,
            () = trickle => unreachable!(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_trickles_in_loses_its_room_once_others_wait_for_it() {
        let budget = MemoryBudget::new(100);
        assert!(trickle(&budget).await >= MESSAGE_TIMEOUT, "nobody waits");
        assert_eq!(budget.in_use(), 0);

        let other = async {
            // Comes after the slow one.
            tokio::time::sleep(Duration::from_millis(1)).await;
            budget.acquire(60).await;
        };
        let (lasted, ()) = tokio::join!(trickle(&budget), other);
        assert!(lasted >= GRACE && lasted < 2 * GRACE, "{lasted:?}");
    }
}
