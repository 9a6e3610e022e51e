//! One partition's records as a stream: opens the fetch, resumes it after a break.
//!
//! # Order and gaps
//!
//! The only state is the offset to read on from. It moves when records are handed out and at no
//! other time, so that whatever breaks, the next try begins exactly there. With it goes the leader
//! epoch of the record before, by which the agent tells whether its log still has that. Responses are checked
//! against it: a record that is missing is an error, one below it is left out. The one exception is
//! [`OnDamage::Skip`]: then it moves past what cannot be read, and the next records say so.
//!
//! # Retries and limits
//!
//! Errors that may pass are tried again until an agent answers, with a delay that grows to
//! [`RESUME`]'s. Any answer forgets them, also one without records. If the settings name a time to
//! give up after, the error is handed out then, and the next call begins afresh. Any other error is
//! handed out and ends the stream. An agent that sends nothing for too long counts as broken even if
//! its connection answers pings: the fetch is opened anew, over another connection.
//!
//! # Back-pressure
//!
//! Beyond one response nothing is read ahead here. What the application does not take stays in the
//! HTTP/2 window, and the agent stops.

use std::{sync::Arc, time::Duration};

use esker_proto::{
    types::{LeaderEpoch, Offset, OffsetRange},
    v1,
};
use tokio::{sync::Mutex, time::Instant};
use tonic::Streaming;

use super::{
    bounds::Unfound,
    config::{ConsumerConfig, OnDamage, OutOfRange},
    fetched::{FetchSource, Fetched, Origin},
    position::Watermark,
    response::{Part, Response, Taking},
};
use crate::{
    client::{Client, OffsetQuery, fetch_client},
    error::{Error, ErrorKind, Result},
    retry::{Backoff, RetryPolicy},
    transport::{Address, Connection},
};

/// How fast a broken fetch is resumed; the settings say when to give up.
const RESUME: RetryPolicy = RetryPolicy {
    attempts_max: u32::MAX,
    delay_first: Duration::from_millis(50),
    delay_max: Duration::from_secs(2),
};

/// A connection that several fetchers share, opened again by the first that finds it closed.
#[derive(Debug, Default)]
pub(crate) struct SharedConnection(Mutex<Option<Connection>>);

impl SharedConnection {
    async fn get(&self, address: &Address, client: &Client) -> Result<Connection> {
        let mut shared = self.0.lock().await;
        let is_usable = |open: &&Connection| open.is_open() && open.address() == address;
        if let Some(connection) = shared.as_ref().filter(is_usable) {
            return Ok(connection.clone());
        }
        let connection = Connection::open(address, client.config().connect_timeout).await?;
        *shared = Some(connection.clone());
        Ok(connection)
    }
}

/// What a fetcher needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) client: Client,
    pub(crate) config: Arc<ConsumerConfig>,
    pub(crate) connection: Arc<SharedConnection>,
    pub(crate) origin: Origin,
    /// Where the partition's leader is said to be.
    pub(crate) route: Address,
    /// From where to where; up to [`Offset::MAX`]: it follows the tail.
    pub(crate) wanted: OffsetRange,
    /// That has to be found first: the partition could not tell when it was assigned.
    pub(crate) unfound: Option<Unfound>,
    /// Epoch of the record before the start of `wanted`, if it was read.
    pub(crate) leader_epoch: Option<LeaderEpoch>,
    pub(crate) response_bytes: u32,
    pub(crate) watermark: Watermark,
}

/// One partition's records.
#[derive(Debug)]
pub(crate) struct Fetcher {
    plan: Plan,
    responses: Option<Streaming<v1::FetchResponse>>,
    response: Option<Response>,
    backoff: Backoff,
    /// When the first error since the last answer was met.
    failing_since: Option<Instant>,
    /// An agent has taken the request, so that its log has what was read before.
    is_confirmed: bool,
    has_failed: bool,
}

impl Fetcher {
    pub(crate) const fn new(plan: Plan) -> Self {
        Self {
            plan,
            responses: None,
            response: None,
            backoff: Backoff::new(RESUME),
            failing_since: None,
            is_confirmed: false,
            has_failed: false,
        }
    }

    /// Returns the next records; `None`: the end is reached, or an error has ended it.
    pub(crate) async fn next(mut self) -> Option<(Result<Fetched>, Self)> {
        while !self.has_failed && self.is_due() {
            let error = match self.step().await {
                Ok(None) => continue,
                Ok(Some(fetched)) => return Some((Ok(fetched), self)),
                Err(error) => error,
            };
            (self.responses, self.response) = (None, None);
            let error = match pass(&mut self.plan, error) {
                Ok(fetched) => return Some((Ok(fetched), self)),
                Err(error) => error,
            };
            if let Err(error) = self.recover(error).await {
                return Some((Err(self.plan.origin.name(error, None)), self));
            }
        }
        None
    }

    /// Whether there is something to ask for. Also where nothing is wanted a log that lost what was read
    /// must not pass for one that has nothing new.
    const fn is_due(&self) -> bool {
        let OffsetRange { start, end } = &self.plan.wanted;
        let is_resumed = self.plan.leader_epoch.is_some() && !self.is_confirmed;
        start.get() < end.get() || is_resumed || self.plan.unfound.is_some()
    }

    /// Takes what is wanted of the response at hand, or else the next response.
    async fn step(&mut self) -> Result<Option<Fetched>> {
        if let Some(unfound) = &self.plan.unfound {
            let Plan { client, origin, .. } = &self.plan;
            self.plan.wanted = unfound.find(client, origin).await?;
            self.plan.unfound = None;
            self.forget_failures();
            return Ok(None);
        }
        if let Some(response) = &mut self.response {
            let fetched = take(&mut self.plan, response)?;
            if fetched.is_none() {
                self.response = None;
            }
            return Ok(fetched);
        }
        let responses = match &mut self.responses {
            Some(responses) => responses,
            None => self.responses.insert(open(&self.plan).await?),
        };
        let response = responses.message().await.map_err(Error::from_status)?;
        self.is_confirmed = true;
        let Some(response) = response else {
            return match self.is_due() {
                true => Err(ended_early(&self.plan)),
                false => Ok(None),
            };
        };
        self.forget_failures();
        self.plan.watermark.set(response.high_watermark);
        self.response = Some(Response::new(response));
        Ok(None)
    }

    /// An agent has answered.
    const fn forget_failures(&mut self) {
        self.backoff.reset();
        self.failing_since = None;
    }

    /// Gets ready for another try, or hands the error back.
    async fn recover(&mut self, error: Error) -> Result<()> {
        let error = match self.reposition(error).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if !error.is_retryable() {
            self.has_failed = true;
            return Err(error);
        }
        self.reroute(&error);
        let now = Instant::now();
        let since = *self.failing_since.get_or_insert(now);
        let give_up_after = self.plan.config.give_up_after;
        if give_up_after.is_some_and(|limit| now.duration_since(since) >= limit) {
            self.forget_failures();
            return Err(error);
        }
        let delay = self.backoff.delay(error.retry_after());
        let Origin {
            topic, partition, ..
        } = &self.plan.origin;
        tracing::info!(%error, %topic, %partition, offset = %self.plan.wanted.start, ?delay,
            "fetch broke, resuming");
        tokio::time::sleep(delay).await;
        Ok(())
    }

    fn reroute(&mut self, error: &Error) {
        let route = &mut self.plan.route;
        if let Some(leader) = error.leader().and_then(|leader| leader.parse().ok()) {
            *route = leader;
        } else if error.kind() == ErrorKind::Unavailable {
            // It may lead no more: another one knows.
            *route = self.plan.client.address_after(route);
        }
    }

    /// Moves into the log, if the offset is not and the settings say where to.
    async fn reposition(&mut self, error: Error) -> Result<()> {
        let is_gone = matches!(error.kind(), ErrorKind::OutOfRange | ErrorKind::Truncated);
        let query = match self.plan.config.out_of_range {
            _ if !is_gone => return Err(error),
            OutOfRange::Error => return Err(error),
            OutOfRange::Earliest => OffsetQuery::Earliest,
            OutOfRange::Latest => OffsetQuery::Latest,
        };
        // A log that is never in range does not spin.
        tokio::time::sleep(self.backoff.delay(error.retry_after())).await;
        let offset = match error.divergent_offset() {
            // Below it nothing was lost.
            Some(offset) if query == OffsetQuery::Earliest => offset,
            _ => self.plan.find(query).await?,
        };
        let origin = &self.plan.origin;
        tracing::warn!(%error, topic = %origin.topic, partition = %origin.partition,
            from = %self.plan.wanted.start, to = %offset, "offset out of range, resetting");
        (self.plan.wanted.start, self.plan.leader_epoch) = (offset, None);
        Ok(())
    }
}

impl Plan {
    fn request(&self) -> v1::FetchRequest {
        let end = self.wanted.end;
        v1::FetchRequest {
            topic: self.origin.topic.to_string(),
            topic_id: self.origin.topic_id.to_bytes(),
            partition: self.origin.partition.get(),
            offset: self.wanted.start.get(),
            leader_epoch: self.leader_epoch.map(LeaderEpoch::get),
            end_offset: (end != Offset::MAX).then_some(end.max(self.wanted.start).get()),
            max_bytes: self.response_bytes,
            min_bytes: self.config.wait_bytes_min,
            max_wait_ms: self.config.wait_ms_max,
            format: v1::FetchFormat::Batches.into(),
        }
    }

    async fn find(&self, query: OffsetQuery) -> Result<Offset> {
        let Self { client, origin, .. } = self;
        let partitions = [origin.partition];
        let offsets = client
            .list_offsets(&origin.topic, Some(origin.topic_id), &partitions, query)
            .await?;
        let offset = offsets.get(&origin.partition).copied().flatten();
        Ok(offset.unwrap_or_default())
    }

    /// How long an agent may send nothing, its wait at the tail included.
    fn silence_max(&self) -> Duration {
        let wait = Duration::from_millis(self.config.wait_ms_max.into());
        self.config.silence_max.saturating_add(wait)
    }

    fn taking(&self) -> Taking {
        Taking {
            bytes_max: usize::try_from(self.response_bytes).unwrap_or(usize::MAX),
            is_checked: self.config.on_damage == OnDamage::Skip,
        }
    }
}

/// Takes the next records that are wanted out of a response, past what is damaged if the settings
/// say so; `None`: there are no more.
fn take(plan: &mut Plan, response: &mut Response) -> Result<Option<Fetched>> {
    let (mut skipped, mut batches) = (Vec::new(), Vec::new());
    let mut start = plan.wanted.start;
    while let Some(part) = response.next_part(&plan.wanted, plan.taking()) {
        match part {
            Part::Records {
                batches: taken,
                end,
            } => {
                (batches, start) = (taken, plan.wanted.start);
                plan.wanted.start = end;
                break;
            }
            Part::Damage(damage) => {
                let is_final = plan.config.on_damage == OnDamage::Fail || damage.offsets.is_empty();
                if is_final && !skipped.is_empty() {
                    // What was skipped is told first.
                    response.put_back(damage);
                    break;
                }
                let offsets = damage.offsets;
                let error = plan.origin.name(damage.error, Some(offsets.clone()));
                if is_final {
                    return Err(error);
                }
                tracing::warn!(%error, "records skipped");
                skipped.push(error);
                (start, plan.wanted.start) = (offsets.end, offsets.end);
            }
        }
    }
    if batches.is_empty() && skipped.is_empty() {
        return Ok(None);
    }
    // Of what was skipped nobody knows it.
    plan.leader_epoch = batches.last().map(|batch| batch.header().leader_epoch);
    Ok(Some(Fetched {
        origin: plan.origin.clone(),
        offsets: start..plan.wanted.start,
        batches,
        skipped,
        high_watermark: response.high_watermark,
        log_start_offset: response.log_start_offset,
        source: response.source,
    }))
}

/// Passes over what the agent cannot read, if it says how far that goes and the settings say so.
fn pass(plan: &mut Plan, error: Error) -> Result<Fetched> {
    let Some(end) = error.damage_end() else {
        return Err(error);
    };
    let lost = plan.wanted.start..end.min(plan.wanted.end);
    let error = plan.origin.name(error, Some(lost.clone()));
    if plan.config.on_damage == OnDamage::Fail || lost.is_empty() {
        return Err(error);
    }
    tracing::warn!(%error, "records skipped");
    (plan.wanted.start, plan.leader_epoch) = (lost.end, None);
    Ok(Fetched {
        origin: plan.origin.clone(),
        offsets: lost.end..lost.end,
        batches: Vec::new(),
        skipped: vec![error],
        high_watermark: plan.watermark.offset(),
        log_start_offset: Offset::ZERO,
        source: FetchSource::Unknown,
    })
}

async fn open(plan: &Plan) -> Result<Streaming<v1::FetchResponse>> {
    let connection = plan.connection.get(&plan.route, &plan.client).await?;
    let timeout = plan.client.config().request_timeout;
    let mut agent = fetch_client(connection, plan.silence_max());
    let opened = tokio::time::timeout(timeout, agent.fetch(plan.request())).await;
    let opened = opened.map_err(|_| {
        let message = format!("agent did not open the fetch. timeout=`{timeout:?}`");
        Error::new(ErrorKind::TimedOut, message)
    })?;
    Ok(opened.map_err(Error::from_status)?.into_inner())
}

fn ended_early(plan: &Plan) -> Error {
    let message = format!(
        "agent ended the fetch early. offset=`{}`",
        plan.wanted.start
    );
    Error::new(ErrorKind::Unavailable, message)
}

#[cfg(test)]
mod tests {
    use esker_proto::types::{PartitionId, TopicId};

    use super::{
        super::response::tests::{flipped, plain, response, undecodable_from},
        *,
    };
    use crate::ClientConfig;

    fn fetcher(give_up_after: Option<Duration>) -> Fetcher {
        fetcher_with(ConsumerConfig {
            give_up_after,
            ..ConsumerConfig::default()
        })
    }

    fn fetcher_with(config: ConsumerConfig) -> Fetcher {
        let client = Client::new("a,b", ClientConfig::default()).unwrap();
        Fetcher::new(Plan {
            route: client.any_address(),
            client,
            config: Arc::new(config),
            connection: Arc::default(),
            origin: Origin {
                topic: "t".into(),
                topic_id: TopicId::from_bytes([1; 16]),
                partition: PartitionId::new(0),
            },
            wanted: Offset::ZERO..Offset::MAX,
            unfound: None,
            leader_epoch: None,
            response_bytes: 1,
            watermark: Watermark::default(),
        })
    }

    fn unavailable() -> Error {
        Error::new(ErrorKind::Unavailable, "agent restarts")
    }

    #[tokio::test(start_paused = true)]
    async fn agent_that_is_away_for_hours_is_waited_for() {
        let mut fetcher = fetcher(None);
        let started = Instant::now();
        for _ in 0..10_000 {
            fetcher.recover(unavailable()).await.unwrap();
        }
        assert!(started.elapsed() > Duration::from_secs(3600));
    }

    #[tokio::test(start_paused = true)]
    async fn error_is_handed_out_once_no_agent_has_answered_for_the_time_given() {
        let limit = Duration::from_secs(60);
        let mut fetcher = fetcher(Some(limit));
        for _ in 0..3 {
            let started = Instant::now();
            while fetcher.recover(unavailable()).await.is_ok() {}
            assert!(started.elapsed() >= limit);
            assert!(!fetcher.has_failed, "the next call tries again");
        }
        for _ in 0..1_000 {
            fetcher.recover(unavailable()).await.unwrap();
            // An answer in between, with or without records.
            fetcher.forget_failures();
        }
    }

    /// Takes everything of a response: what records, (in brackets) what was skipped before, and the
    /// error that ends it.
    fn take_all(batches: &[Vec<u8>], next_offset: u64) -> Vec<String> {
        let Fetcher { mut plan, .. } = fetcher_with(ConsumerConfig {
            on_damage: OnDamage::Skip,
            ..ConsumerConfig::default()
        });
        let text = |offsets: Option<OffsetRange>| {
            let OffsetRange { start, end } = offsets.unwrap();
            format!("{start}..{end}")
        };
        let mut response = response(batches, next_offset);
        let mut taken = Vec::new();
        loop {
            match take(&mut plan, &mut response) {
                Ok(None) => return taken,
                Ok(Some(fetched)) => {
                    let skipped = fetched.skipped().iter();
                    taken.extend(skipped.map(|error| format!("[{}]", text(error.offsets()))));
                    if fetched.record_count() > 0 {
                        taken.push(text(Some(fetched.offsets)));
                    }
                }
                Err(error) => {
                    taken.push(format!("error at {}", text(error.offsets())));
                    return taken;
                }
            }
        }
    }

    #[test]
    fn what_was_skipped_is_told_before_an_error_that_ends_the_partition() {
        let garbage = || vec![7; 200];
        let cases = [
            (vec![flipped(plain(0)), garbage()], 10, "[0..10]"),
            (
                vec![undecodable_from(0, plain(0)), garbage()],
                10,
                "[0..10] error at 10..10",
            ),
            (
                vec![plain(0), undecodable_from(0, plain(10)), garbage()],
                20,
                "0..10 [10..20] error at 20..20",
            ),
            (vec![garbage()], 0, "error at 0..0"),
        ];
        for (batches, next_offset, expected) in cases {
            assert_eq!(take_all(&batches, next_offset).join(" "), expected);
        }
    }

    #[test]
    fn request_carries_the_epoch_of_the_record_before_it_unless_that_was_skipped() {
        let Fetcher { mut plan, .. } = fetcher_with(ConsumerConfig {
            on_damage: OnDamage::Skip,
            ..ConsumerConfig::default()
        });
        assert_eq!(plan.request().leader_epoch, None);
        take(&mut plan, &mut response(&[plain(0)], 10)).unwrap();
        let request = plan.request();
        assert_eq!((request.offset, request.leader_epoch), (10, Some(3)));
        take(&mut plan, &mut response(&[flipped(plain(10))], 20)).unwrap();
        let request = plan.request();
        assert_eq!((request.offset, request.leader_epoch), (20, None));
    }

    #[tokio::test(start_paused = true)]
    async fn agents_are_asked_in_turn_while_the_leader_is_away() {
        let mut fetcher = fetcher(None);
        let mut asked = Vec::new();
        for _ in 0..3 {
            asked.push(fetcher.plan.route.to_string());
            fetcher.recover(unavailable()).await.unwrap();
        }
        assert_eq!(asked, ["a:7771", "b:7771", "a:7771"]);
    }
}
