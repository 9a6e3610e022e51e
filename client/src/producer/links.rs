//! The produce streams of one producer, by agent, and when to open a broken one again.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use esker_proto::v1;
use futures::stream::{AbortHandle, SelectAll, StreamExt, abortable};
use tokio::{sync::mpsc, time::Instant};

use super::{
    link::{self, Events, LinkId},
    wire::Outgoing,
};
use crate::{
    client::Client,
    error::Error,
    retry::{Backoff, RetryPolicy, after},
    transport::Address,
};

/// How fast a broken stream is opened again; the delivery timeout says how often.
const RECONNECT: RetryPolicy = RetryPolicy {
    attempts_max: u32::MAX,
    delay_first: Duration::from_millis(20),
    delay_max: Duration::from_secs(1),
};

/// Whether a stream can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    Open(LinkId),
    /// Not before then; `None`: an event will tell.
    At(Option<Instant>),
}

/// The streams, at most one per agent.
#[derive(Debug)]
pub(crate) struct Links {
    client: Client,
    by_address: HashMap<Address, Link>,
    address_by_id: HashMap<LinkId, Address>,
    requests_max: usize,
    opened: u64,
}

#[derive(Debug)]
struct Link {
    state: State,
    backoff: Backoff,
    /// Requests without an answer.
    awaited: usize,
    /// Since when nothing was heard though an answer is awaited.
    silent_since: Option<Instant>,
    last_error: Option<Error>,
}

#[derive(Debug)]
enum State {
    Down { until: Instant },
    Opening(Stream),
    Open(Stream),
}

#[derive(Debug)]
struct Stream {
    id: LinkId,
    requests: mpsc::Sender<Outgoing>,
    events: AbortHandle,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.events.abort();
    }
}

impl Links {
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// At most `requests_max` requests wait in one stream.
    pub(crate) fn new(client: Client, requests_max: usize) -> Self {
        let (by_address, address_by_id) = (HashMap::new(), HashMap::new());
        Self {
            client,
            by_address,
            address_by_id,
            requests_max,
            opened: 0,
        }
    }

    /// Returns the stream to an agent, or begins to open it.
    pub(crate) fn ready(
        &mut self,
        address: &Address,
        now: Instant,
        events: &mut SelectAll<Events>,
    ) -> Ready {
        let link = self
            .by_address
            .entry(address.clone())
            .or_insert_with(|| Link::new(now));
        match &link.state {
            State::Open(stream) => return Ready::Open(stream.id),
            State::Opening(_) => return Ready::At(None),
            State::Down { until } if *until > now => return Ready::At(Some(*until)),
            State::Down { .. } => {}
        }
        self.opened += 1;
        let id = LinkId(self.opened);
        let timeout = self.client.config().connect_timeout;
        let (requests, stream) = link::open(id, address.clone(), timeout, self.requests_max);
        let (stream, abort) = abortable(stream);
        events.push(stream.boxed());
        link.state = State::Opening(Stream {
            id,
            requests,
            events: abort,
        });
        self.address_by_id.insert(id, address.clone());
        Ready::At(None)
    }

    pub(crate) fn on_opened(&mut self, id: LinkId) {
        let Some(link) = self.link_mut(id) else {
            return;
        };
        let down = State::Down {
            until: Instant::now(),
        };
        link.state = match std::mem::replace(&mut link.state, down) {
            State::Opening(stream) => State::Open(stream),
            other => other,
        };
    }

    pub(crate) fn on_answered(&mut self, id: LinkId, now: Instant) {
        if let Some(link) = self.link_mut(id) {
            link.awaited = link.awaited.saturating_sub(1);
            link.silent_since = (link.awaited > 0).then_some(now);
            link.backoff.reset();
            link.last_error = None;
        }
    }

    /// Closes a stream for a while. Returns its address, and another to try, if the agent could not
    /// be reached at all.
    pub(crate) fn on_broken(
        &mut self,
        id: LinkId,
        error: &Error,
        now: Instant,
    ) -> Option<(Address, Address)> {
        let address = self.address_by_id.remove(&id)?;
        let link = self.by_address.get_mut(&address)?;
        let was_open = matches!(link.state, State::Open(_));
        link.state = State::Down {
            until: after(now, link.backoff.delay(error.retry_after())),
        };
        (link.awaited, link.silent_since) = (0, None);
        link.last_error = Some(error.clone());
        (!was_open).then(|| {
            let other = self.client.address_after(&address);
            (address, other)
        })
    }

    /// Whether a stream takes no more requests for the moment.
    pub(crate) fn is_full(&self, id: LinkId) -> bool {
        let stream = self
            .address_by_id
            .get(&id)
            .and_then(|address| self.by_address.get(address));
        stream
            .and_then(Link::stream)
            .is_none_or(|stream| stream.requests.capacity() == 0)
    }

    /// Sends a batch. If the stream is broken already its event is on the way.
    pub(crate) fn send(
        &mut self,
        id: LinkId,
        request: &v1::ProduceRequest,
        batch: Bytes,
        now: Instant,
    ) {
        let Some(link) = self.link_mut(id) else {
            return;
        };
        link.awaited += 1;
        link.silent_since.get_or_insert(now);
        if let Some(stream) = link.stream()
            && let Err(error) = stream.requests.try_send(Outgoing::new(request, batch))
        {
            tracing::debug!(%error, "stream takes no more requests");
        }
    }

    /// Returns when the next silent stream is to be given up.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let since = self
            .by_address
            .values()
            .filter_map(|link| link.silent_since)
            .min()?;
        Some(after(since, self.client.config().request_timeout))
    }

    /// Returns a stream that has been silent for too long.
    pub(crate) fn silent(&self, now: Instant) -> Option<LinkId> {
        let timeout = self.client.config().request_timeout;
        let is_silent = |link: &&Link| {
            link.silent_since
                .is_some_and(|at| after(at, timeout) <= now)
        };
        let link = self.by_address.values().find(is_silent)?;
        link.stream().map(|stream| stream.id)
    }

    /// Returns why the stream to an agent broke, if it was not used since.
    pub(crate) fn last_error(&self, address: &Address) -> Option<&Error> {
        self.by_address.get(address)?.last_error.as_ref()
    }

    fn link_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        self.by_address.get_mut(self.address_by_id.get(&id)?)
    }
}

impl Link {
    const fn new(now: Instant) -> Self {
        Self {
            state: State::Down { until: now },
            backoff: Backoff::new(RECONNECT),
            awaited: 0,
            silent_since: None,
            last_error: None,
        }
    }

    const fn stream(&self) -> Option<&Stream> {
        match &self.state {
            State::Open(stream) => Some(stream),
            State::Opening(_) | State::Down { .. } => None,
        }
    }
}
