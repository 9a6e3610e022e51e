//! Counts HTTP requests where they leave, below the retries of the store's client, and notes by
//! how much the store's clock differs from ours.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use esker_proto::types::TimestampMs;
use object_store::{
    ClientOptions,
    client::{HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    client::{Client, Places},
    requests::{Meter, Outcome, Verb},
};
use crate::env::Clock;

/// The store's clock, as last seen in a `Date` header.
#[derive(Clone, Debug, Default)]
pub(crate) struct Skew(Arc<Mutex<Option<SeenDate>>>);

#[derive(Clone, Copy, Debug)]
struct SeenDate {
    date: TimestampMs,
    /// What our own clock said, which may have jumped since.
    ours: TimestampMs,
    /// When that was, by a clock that does not jump.
    at: Instant,
}

impl Skew {
    pub(crate) fn unseen() -> Self {
        Self::default()
    }

    /// By how much the store's clock was ahead of ours.
    pub(crate) fn millis(&self) -> Option<i64> {
        let seen = (*self.0.lock())?;
        Some(seen.date.get().saturating_sub(seen.ours.get()))
    }

    /// What the store's clock says now. Our own wall clock has no part in it.
    pub(crate) fn time(&self) -> Option<TimestampMs> {
        let seen = (*self.0.lock())?;
        let since = i64::try_from(seen.at.elapsed().as_millis()).unwrap_or(i64::MAX);
        Some(TimestampMs::new(seen.date.get().saturating_add(since)))
    }

    pub(crate) fn note(&self, date: TimestampMs, ours: TimestampMs) {
        let at = Instant::now();
        *self.0.lock() = Some(SeenDate { date, ours, at });
    }
}

/// The bucket's region, as its store has named it in a reply: that of a redirect is nowhere else.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenRegion(Arc<OnceLock<String>>);

impl SeenRegion {
    pub(crate) fn get(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

/// Makes clients that count.
#[derive(Debug, Clone)]
pub(crate) struct MeteredConnector {
    pub meter: Meter,
    pub clock: Arc<dyn Clock>,
    pub skew: Skew,
    pub region: SeenRegion,
    pub places: Places,
    pub connect_timeout: Duration,
    pub stall_timeout: Duration,
}

impl HttpConnector for MeteredConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = Client::open(options, self.connect_timeout, self.stall_timeout)?;
        Ok(HttpClient::new(MeteredService {
            client,
            connector: self.clone(),
        }))
    }
}

#[derive(Debug)]
struct MeteredService {
    client: Client,
    connector: MeteredConnector,
}

#[async_trait]
impl HttpService for MeteredService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let verb = verb_of(&request);
        let sent = request.body().content_length() as u64;
        let place = self.connector.places.take(verb).await;
        let start = Instant::now();
        let reply = self.client.execute(request, place).await;
        let outcome = reply.as_ref().map_or(Outcome::Unreachable, |reply| {
            self.note_date(reply);
            self.note_region(reply);
            Outcome::of_status(reply.status().as_u16())
        });
        let meter = &self.connector.meter;
        meter.observe(verb, outcome, start.elapsed());
        let received = reply
            .as_ref()
            .ok()
            .filter(|_| verb == Verb::Get)
            .and_then(content_length);
        meter.add_bytes(sent, received.unwrap_or(0));
        reply
    }
}

impl MeteredService {
    fn note_region(&self, reply: &HttpResponse) {
        let seen = &self.connector.region.0;
        if let Some(region) = region_of(reply) {
            seen.get_or_init(|| region.to_owned());
        }
    }

    fn note_date(&self, reply: &HttpResponse) {
        let Some(theirs) = date_of(reply) else { return };
        let ours = self.connector.clock.now();
        self.connector.skew.note(theirs, ours);
    }
}

fn region_of(reply: &HttpResponse) -> Option<&str> {
    reply.headers().get("x-amz-bucket-region")?.to_str().ok()
}

fn content_length(reply: &HttpResponse) -> Option<u64> {
    reply
        .headers()
        .get("content-length")?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

fn date_of(reply: &HttpResponse) -> Option<TimestampMs> {
    let date = reply.headers().get("date")?.to_str().ok()?;
    let date = httpdate::parse_http_date(date).ok()?;
    let since_epoch = date.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(TimestampMs::new(
        i64::try_from(since_epoch.as_millis()).ok()?,
    ))
}

fn verb_of(request: &HttpRequest) -> Verb {
    let query = request.uri().query().unwrap_or("");
    let has = |name: &str| {
        query
            .split('&')
            .any(|part| part.split('=').next() == Some(name))
    };
    let is_conditional = |name: &str| request.headers().contains_key(name);
    match request.method().as_str() {
        "GET" if has("list-type") || query.contains("comp=list") => Verb::List,
        "GET" => Verb::Get,
        "HEAD" => Verb::Head,
        "PUT" if is_conditional("if-none-match") => Verb::Create,
        "PUT" if is_conditional("x-goog-if-generation-match") => Verb::Create,
        "PUT" => Verb::Put,
        "DELETE" => Verb::Delete,
        "POST" if has("delete") || query.contains("comp=batch") => Verb::Delete,
        _ => Verb::Other,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_store_time_goes_on_without_our_wall_clock() {
        let skew = Skew::unseen();
        assert_eq!((skew.time(), skew.millis()), (None, None));

        skew.note(TimestampMs::new(50_000), TimestampMs::new(80_000));
        tokio::time::advance(Duration::from_secs(7)).await;

        assert_eq!(skew.time(), Some(TimestampMs::new(57_000)));
        assert_eq!(skew.millis(), Some(-30_000));
    }
}
