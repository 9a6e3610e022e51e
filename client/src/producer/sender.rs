//! The task that sends batches and takes in the answers. It owns everything that is under way.
//!
//! One task per producer, whatever the number of partitions and agents: it works per batch, and a
//! decision about one partition is a call on its [`InFlight`]. Each partition is a lane; each agent
//! that leads one of them has a link, one produce stream.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use esker_proto::{types::Offset, v1};
use futures::{
    FutureExt,
    future::BoxFuture,
    stream::{FuturesUnordered, SelectAll, StreamExt},
};
use tokio::{
    task::JoinError,
    time::{Instant, sleep_until},
};

use super::{
    accumulator::{Accumulator, Filled, Take},
    delivery::runtime_ended,
    in_flight::{Answer, Attempt, Batch, InFlight, Settled, delivery_timed_out},
    link::{Event, Events, LinkId},
    links::{Links, Ready},
};
use crate::{
    client::TopicLayout,
    error::{Error, ErrorKind},
    retry::ASKED_MAX,
    transport::Address,
};

/// Bits of a request id that count tries; the ones above are the partition.
const ATTEMPT_BITS: u32 = 40;
/// How long to wait when a link takes no more requests.
const FULL_DELAY: Duration = Duration::from_millis(10);

/// What the requests of this producer have in common.
#[derive(Clone, Debug)]
pub(crate) struct Heading {
    pub(crate) topic: String,
    pub(crate) topic_id: Bytes,
    pub(crate) acks: v1::Acks,
}

/// What became of a batch that was to be compressed.
struct Encoded {
    lane: usize,
    /// Room it holds of the budget.
    reserved: usize,
    batch: Result<Batch, JoinError>,
}

/// What is under way, everywhere.
pub(crate) struct Sender {
    heading: Heading,
    accumulator: Arc<Accumulator>,
    lanes: Vec<Lane>,
    links: Links,
    events: SelectAll<Events>,
    /// Batches being compressed on another thread.
    encodings: FuturesUnordered<BoxFuture<'static, Encoded>>,
    /// The topic as it is now, if its limit was found to have changed: at most one is asked for.
    layouts: FuturesUnordered<BoxFuture<'static, Result<TopicLayout, Error>>>,
    /// When to look at a lane again though nothing happens.
    timers: BTreeSet<(Instant, usize)>,
    attempts: u64,
}

/// One partition.
#[derive(Debug)]
pub(crate) struct Lane {
    in_flight: InFlight,
    /// Where its leader is said to be.
    route: Address,
    /// The link that awaited answers come from.
    sent_on: Option<LinkId>,
    /// The agent asked for a pause until then.
    hold_until: Option<Instant>,
    is_encoding: bool,
    timer: Option<Instant>,
}

impl Lane {
    pub(crate) const fn new(in_flight: InFlight, route: Address) -> Self {
        let (sent_on, hold_until, timer) = (None, None, None);
        Self {
            in_flight,
            route,
            sent_on,
            hold_until,
            is_encoding: false,
            timer,
        }
    }
}

impl Sender {
    pub(crate) fn new(
        heading: Heading,
        accumulator: Arc<Accumulator>,
        lanes: Vec<Lane>,
        links: Links,
    ) -> Self {
        Self {
            heading,
            accumulator,
            lanes,
            links,
            events: SelectAll::new(),
            encodings: FuturesUnordered::new(),
            layouts: FuturesUnordered::new(),
            timers: BTreeSet::new(),
            attempts: 0,
        }
    }

    /// Runs until the accumulator is closed and nothing is left to deliver.
    pub(crate) async fn run(mut self) {
        let accumulator = Arc::clone(&self.accumulator);
        while !self.is_done() {
            let timer = self.next_timer();
            // Answers first: they make room. All of these may be dropped and made again.
            tokio::select! {
                biased;
                Some((link, event)) = self.events.next() => self.on_event(link, event),
                Some(encoded) = self.encodings.next() => self.on_encoded(encoded),
                Some(layout) = self.layouts.next() => self.on_layout(layout),
                () = accumulator.wake.notified() => self.on_wake(),
                () = sleep_until(timer.unwrap_or_else(Instant::now)), if timer.is_some() => {
                    self.on_timer();
                }
            }
        }
    }

    fn is_done(&self) -> bool {
        self.accumulator.is_closed()
            && self
                .lanes
                .iter()
                .all(|lane| lane.in_flight.is_empty() && !lane.is_encoding)
            && self.accumulator.is_empty()
    }

    fn next_timer(&self) -> Option<Instant> {
        let lane = self.timers.first().map(|(at, _)| *at);
        let link = self.links.next_timeout();
        lane.into_iter().chain(link).min()
    }

    fn on_wake(&mut self) {
        let now = Instant::now();
        let listed = self.accumulator.take_listed();
        // Short of room: whatever lingers anywhere is sent.
        let lanes = match self.accumulator.budget.is_short() {
            true => (0..self.lanes.len()).collect(),
            false => listed,
        };
        for lane in lanes {
            self.pump(lane, now);
        }
    }

    fn on_timer(&mut self) {
        let now = Instant::now();
        while let Some(link) = self.links.silent(now) {
            let error = Error::new(ErrorKind::TimedOut, "agent left a batch unanswered");
            self.on_broken(link, error.with_side_effects(false), now);
        }
        // Taken first: a lane whose timer is set to now again must not keep events from coming in.
        let later = self.timers.split_off(&(now, usize::MAX));
        for (_, lane) in std::mem::replace(&mut self.timers, later) {
            self.lanes[lane].timer = None;
            self.pump(lane, now);
        }
    }

    fn on_encoded(&mut self, encoded: Encoded) {
        let lane = &mut self.lanes[encoded.lane];
        lane.is_encoding = false;
        match encoded.batch {
            Ok(batch) => lane.in_flight.push_encoded(batch),
            Err(error) => {
                // Its deliveries have been told: the batch is dropped. Flushes look here.
                tracing::error!(%error, "compressing a batch failed");
                self.accumulator.failures.note(&runtime_ended());
                self.accumulator.budget.give_back(encoded.reserved);
            }
        }
        self.pump(encoded.lane, Instant::now());
    }

    fn on_event(&mut self, link: LinkId, event: Event) {
        let now = Instant::now();
        match event {
            Event::Opened => {
                self.links.on_opened(link);
                self.pump_all(now);
            }
            Event::Answered(response) => self.on_answered(link, response, now),
            Event::Broken(error) => self.on_broken(link, error, now),
        }
    }

    fn pump_all(&mut self, now: Instant) {
        for lane in 0..self.lanes.len() {
            self.pump(lane, now);
        }
    }

    fn on_broken(&mut self, link: LinkId, error: Error, now: Instant) {
        tracing::info!(%error, "produce stream broke");
        let fallback = self.links.on_broken(link, &error, now);
        for lane in &mut self.lanes {
            if lane.sent_on == Some(link) {
                lane.in_flight.on_broken(&error);
                lane.sent_on = None;
            }
            // An agent that cannot be reached may lead no more: another one knows.
            if let Some((gone, other)) = &fallback
                && lane.route == *gone
            {
                lane.route = other.clone();
            }
        }
        self.pump_all(now);
    }

    fn on_answered(&mut self, link: LinkId, response: v1::ProduceResponse, now: Instant) {
        self.links.on_answered(link, now);
        let lane = usize::try_from(response.request_id >> ATTEMPT_BITS).unwrap_or(usize::MAX);
        if lane >= self.lanes.len() {
            tracing::warn!(
                request_id = response.request_id,
                "agent answered what was never asked"
            );
            return;
        }
        let answer = self.read_answer(lane, response.result, now);
        let attempt = Attempt(response.request_id);
        let refusal = match &answer {
            Answer::Refused(error) => Some(error.clone()),
            Answer::Written(_) => None,
        };
        if let Some(settled) = self.lanes[lane].in_flight.on_answer(attempt, answer, now) {
            self.settle(settled);
            if let Some(error) = refusal {
                self.on_refused(lane, &error);
            }
        }
        self.pump(lane, now);
    }

    /// A batch failed for good: does that say something about the next ones?
    fn on_refused(&mut self, lane: usize, error: &Error) {
        match error.wire_kind() {
            // Another producer goes by this one's name.
            v1::ErrorKind::ProducerFenced => self.end_lane(lane, error),
            v1::ErrorKind::UnknownTopicId => {
                (0..self.lanes.len()).for_each(|lane| self.end_lane(lane, error));
            }
            v1::ErrorKind::BatchTooLarge => self.ask_for_layout(),
            _ => {}
        }
    }

    fn ask_for_layout(&self) {
        if self.layouts.is_empty() {
            let (client, topic) = (self.links.client(), self.heading.topic.clone());
            let layout = async move { client.topic_layout(&topic).await };
            self.layouts.push(layout.boxed());
        }
    }

    fn on_layout(&self, layout: Result<TopicLayout, Error>) {
        match layout {
            Ok(layout) => self.accumulator.set_batch_bytes_max(layout.batch_bytes_max),
            Err(error) => tracing::warn!(%error, "cannot read the topic's limits"),
        }
    }

    fn read_answer(
        &mut self,
        lane: usize,
        result: Option<v1::produce_response::Result>,
        now: Instant,
    ) -> Answer {
        let lane = &mut self.lanes[lane];
        match result {
            Some(v1::produce_response::Result::Ack(ack)) => {
                if ack.throttle_ms > 0 {
                    let asked = Duration::from_millis(ack.throttle_ms.into());
                    lane.hold_until = Some(now + asked.min(ASKED_MAX));
                }
                Answer::Written(Offset::new(ack.base_offset))
            }
            Some(v1::produce_response::Result::Error(detail)) => {
                let error = Error::from_detail(detail);
                if let Some(leader) = error.leader().and_then(|leader| leader.parse().ok()) {
                    lane.route = leader;
                }
                Answer::Refused(error)
            }
            None => {
                let error = Error::new(ErrorKind::Internal, "agent's answer is empty");
                Answer::Refused(error.with_side_effects(false))
            }
        }
    }

    /// Does for one lane whatever can be done now, and notes when to come back.
    fn pump(&mut self, index: usize, now: Instant) {
        self.expire(index, now);
        if self.lanes[index].in_flight.is_exhausted() {
            let error = Error::new(ErrorKind::Fenced, "producer has used up its epochs");
            self.end_lane(index, &error);
        }
        let again = self.send_all(index, now);
        let lane = &self.lanes[index];
        let deadline = lane
            .in_flight
            .deadline()
            .or_else(|| self.accumulator.deadline(index));
        // Once that time has come, `again` or an event says what is still waited for.
        let resend_at = lane.in_flight.resend_at().filter(|at| *at > now);
        let next = [again, resend_at, deadline].into_iter().flatten().min();
        self.set_timer(index, next);
    }

    fn set_timer(&mut self, index: usize, next: Option<Instant>) {
        let timer = &mut self.lanes[index].timer;
        if *timer == next {
            return;
        }
        if let Some(old) = std::mem::replace(timer, next) {
            self.timers.remove(&(old, index));
        }
        if let Some(next) = next {
            self.timers.insert((next, index));
        }
    }

    fn expire(&mut self, index: usize, now: Instant) {
        let timeout = self.accumulator.limits().delivery_timeout;
        while let Some(settled) = self.lanes[index].in_flight.expire(timeout, now) {
            self.settle(settled);
        }
        while let Some(filled) = self.accumulator.take_expired(index, now) {
            let last_error = self.links.last_error(&self.lanes[index].route);
            self.fail(filled, delivery_timed_out(timeout, last_error));
        }
    }

    /// Sends what the window, the link and the agent allow. Returns when more may be possible, if
    /// that is a matter of time.
    fn send_all(&mut self, index: usize, now: Instant) -> Option<Instant> {
        if self.has_nothing(index) {
            return None;
        }
        if let Some(until) = self.lanes[index].hold_until.filter(|until| *until > now) {
            return Some(until);
        }
        let route = &self.lanes[index].route;
        let link = match self.links.ready(route, now, &mut self.events) {
            Ready::Open(link) => link,
            Ready::At(at) => return at,
        };
        // Answers from elsewhere are awaited first: two agents would not keep the order.
        let lane = &self.lanes[index];
        if lane.sent_on.is_some_and(|sent_on| sent_on != link) && lane.in_flight.awaited() > 0 {
            return None;
        }
        self.send_on(index, link, now)
    }

    fn has_nothing(&self, index: usize) -> bool {
        self.lanes[index].in_flight.is_empty() && self.accumulator.deadline(index).is_none()
    }

    fn send_on(&mut self, index: usize, link: LinkId, now: Instant) -> Option<Instant> {
        loop {
            if self.links.is_full(link) {
                return Some(now + FULL_DELAY);
            }
            let attempt = self.next_attempt(index);
            let lane = &mut self.lanes[index];
            if let Some(batch) = lane.in_flight.send(attempt, now) {
                lane.sent_on = Some(link);
                let request = self.heading.request(attempt, index);
                self.links.send(link, &request, batch, now);
                continue;
            }
            if lane.is_encoding || !lane.in_flight.has_room() {
                return None;
            }
            match self.accumulator.take(index, now) {
                Take::Filled(filled) => self.encode(index, filled),
                Take::Lingering(until) => return Some(until),
                Take::Empty => return None,
            }
        }
    }

    fn next_attempt(&mut self, index: usize) -> Attempt {
        self.attempts = (self.attempts + 1) & ((1 << ATTEMPT_BITS) - 1);
        Attempt((index as u64) << ATTEMPT_BITS | self.attempts)
    }

    /// Encodes a batch: here if that only means its checksum, on another thread if it is to be
    /// compressed, which takes milliseconds.
    fn encode(&mut self, index: usize, filled: Filled) {
        let lane = &mut self.lanes[index];
        if self.accumulator.is_compressing() {
            lane.is_encoding = true;
            let reserved = filled.reserved;
            let encoding = tokio::task::spawn_blocking(move || Batch::encode(filled, None));
            let encoded = encoding.map(move |batch| Encoded {
                lane: index,
                reserved,
                batch,
            });
            self.encodings.push(encoded.boxed());
        } else {
            lane.in_flight.push(filled);
        }
    }

    /// Fails all of a partition's batches, and refuses records for it from here on.
    fn end_lane(&mut self, index: usize, error: &Error) {
        self.accumulator.refuse(index, error);
        for settled in self.lanes[index].in_flight.fail_all(error) {
            self.settle(settled);
        }
        while let Some(filled) = self.accumulator.take_filled(index) {
            self.fail(filled, error.clone());
        }
    }

    fn settle(&self, settled: Settled) {
        let Batch { bytes, filled, .. } = settled.batch;
        self.complete(&filled, settled.outcome);
        self.accumulator.budget.give_back(filled.reserved);
        self.accumulator.recycle(filled.builder, bytes);
    }

    /// Fails a batch that was never sent.
    fn fail(&self, filled: Filled, error: Error) {
        self.complete(&filled, Err(error.with_side_effects(true)));
        self.accumulator.budget.give_back(filled.reserved);
    }

    fn complete(&self, filled: &Filled, outcome: Result<Offset, Error>) {
        if let Err(error) = &outcome {
            // First: a flush that waits for the batch looks for it then.
            self.accumulator.failures.note(error);
        }
        filled.completion.complete(outcome);
    }
}

impl Heading {
    fn request(&self, attempt: Attempt, index: usize) -> v1::ProduceRequest {
        v1::ProduceRequest {
            request_id: attempt.0,
            topic: self.topic.clone(),
            topic_id: self.topic_id.clone(),
            partition: u32::try_from(index).expect("a partition number fits 32 bits"),
            acks: self.acks.into(),
            batch: Bytes::new(),
        }
    }
}

impl Drop for Sender {
    /// The runtime ends before the producer does: nobody is left waiting.
    fn drop(&mut self) {
        let ended = runtime_ended();
        self.accumulator.close();
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].is_encoding {
                self.accumulator.failures.note(&ended);
            }
            self.end_lane(lane, &ended);
        }
    }
}
