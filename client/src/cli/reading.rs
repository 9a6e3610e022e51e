//! Reads partitions as `consume` and `replay` do: waits for agents that are away, and says so; skips
//! what it is asked to, and says what.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use clap::Args;

use super::{
    exit,
    output::note,
    positions::{FromOffsets, Positions},
    start::Place,
};
use crate::{
    Client, Consumer, ConsumerConfig, End, Error, ErrorKind, Fetched, Offset, OnDamage, OutOfRange,
    PartitionId, Partitions, StartAt, client::OffsetQuery,
};

/// An agent that is away for longer is worth a word.
const WORD_AFTER: Duration = Duration::from_secs(3);

/// What to read, and what to leave out.
#[derive(Debug, Args)]
pub(super) struct ReadingArgs {
    /// Partitions to read [default: all]
    #[arg(long, value_delimiter = ',')]
    partition: Vec<u32>,
    /// Start at these offsets: `0:1000,1:2000`, or a file that `replay --resume` keeps
    ///
    /// A partition that is not named is read from the log start.
    #[arg(long, value_name = "LIST|FILE", conflicts_with = "from")]
    pub(super) from_offsets: Option<FromOffsets>,
    /// Continue at the log start where records were removed, and say which were skipped
    #[arg(long)]
    skip_removed: bool,
    /// Continue behind records that cannot be read, and say which were skipped
    #[arg(long)]
    skip_damaged: bool,
}

impl ReadingArgs {
    /// The settings of a consumer, one of `consumers` that share the memory.
    pub(super) fn config(&self, consumers: usize) -> ConsumerConfig {
        let default = ConsumerConfig::default();
        ConsumerConfig {
            buffer_bytes: default.buffer_bytes / consumers.max(1),
            out_of_range: match self.skip_removed {
                true => OutOfRange::Earliest,
                false => OutOfRange::Error,
            },
            on_damage: match self.skip_damaged {
                true => OnDamage::Skip,
                false => OnDamage::Fail,
            },
            // Only to say so: it is tried again.
            give_up_after: Some(WORD_AFTER),
            ..default
        }
    }

    /// Assigns the partitions to a consumer. One that ends before the offset `until` is read up to
    /// its end, and named: whether more will come, nobody knows.
    pub(super) async fn assign(
        &self,
        client: &Client,
        topic: &str,
        start: StartAt,
        until: Option<Place>,
    ) -> anyhow::Result<Consumer> {
        let partitions = match self.partition.is_empty() {
            true => Partitions::All,
            false => {
                let numbers = self.partition.iter().copied();
                Partitions::Only(numbers.map(PartitionId::new).collect())
            }
        };
        let mut consumer = client.consumer(self.config(1));
        let (end, begins) = (until.map(Place::end), Begins::at(&start));
        consumer.assign(topic, partitions, start, end).await?;
        if let Some(error) = consumer.unfound() {
            return Err(error.clone().into());
        }
        match until {
            Some(Place::Offset(until)) => end_early(client, &mut consumer, topic, until).await?,
            Some(Place::End) => begins.check(&consumer)?,
            _ => {}
        }
        Ok(consumer)
    }

    /// Where to start.
    pub(super) async fn start(
        &self,
        client: &Client,
        topic: &str,
        from: Place,
    ) -> anyhow::Result<StartAt> {
        match &self.from_offsets {
            None => Ok(from.start()),
            Some(offsets) => offsets.start(client, topic).await,
        }
    }
}

/// Where reading begins, if it might be behind an end.
enum Begins {
    /// Where an earlier reader stopped.
    Saved,
    /// At an offset that a person named for all partitions.
    Offset,
    Elsewhere,
}

impl Begins {
    const fn at(start: &StartAt) -> Self {
        match start {
            StartAt::Saved(_) => Self::Saved,
            StartAt::Offset(_) => Self::Offset,
            _ => Self::Elsewhere,
        }
    }

    /// A log that ends below a saved position has lost what was read; to read nothing would hide that,
    /// and leave out what is appended there.
    fn check(&self, consumer: &Consumer) -> anyhow::Result<()> {
        let positions = Positions::new(consumer.saved_positions());
        for (_, partition, end) in consumer.assignment() {
            let (Some(at), Some(end)) = (positions.next_offset(partition), end) else {
                continue;
            };
            let text = format!("partition {partition} ends at offset {end}, below {at}");
            match self {
                Self::Saved if end < at => {
                    let text = format!("{text}: its log has lost what was read before, start over");
                    return Err(exit::Damaged(text).into());
                }
                Self::Offset if end < at => note(format_args!("esker: {text}; not reading it")),
                _ => {}
            }
        }
        Ok(())
    }
}

async fn end_early(
    client: &Client,
    consumer: &mut Consumer,
    topic: &str,
    until: Offset,
) -> anyhow::Result<()> {
    let saved = consumer.saved_positions();
    let Some(topic_id) = saved.first().map(|position| position.topic_id) else {
        return Ok(());
    };
    let partitions: Vec<_> = saved.iter().map(|position| position.partition).collect();
    let query = OffsetQuery::Latest;
    let latest = client
        .list_offsets(topic, Some(topic_id), &partitions, query)
        .await?;
    for position in saved {
        let partition = position.partition;
        let end = latest.get(&partition).copied().flatten();
        let Some(end) = end.filter(|end| *end < until) else {
            continue;
        };
        note(format_args!(
            "esker: partition {partition} ends at offset {end}, below {until}; reading up to its end"
        ));
        let end = End::Offset(end.max(position.next_offset));
        let start = StartAt::Saved(vec![position]);
        consumer.assign(topic, partition, start, Some(end)).await?;
    }
    Ok(())
}

/// Says once that an agent is waited for, however many partitions wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Outage(Arc<AtomicBool>);

impl Outage {
    fn waits(&self, error: &Error) {
        if !self.0.swap(true, Ordering::Relaxed) {
            note(format_args!(
                "esker: waiting for an agent, trying again until it answers: {error}"
            ));
        }
    }

    fn is_over(&self) {
        if self.0.swap(false, Ordering::Relaxed) {
            note(format_args!("esker: reading again"));
        }
    }
}

/// A consumer that says what it waits for and what it skips.
pub(super) struct Reader {
    consumer: Consumer,
    outage: Outage,
    /// Behind what was fetched.
    fetched: Positions,
    skipped: u64,
}

impl Reader {
    pub(super) fn new(consumer: Consumer, outage: Outage) -> Self {
        Self {
            fetched: Positions::new(consumer.saved_positions()),
            consumer,
            outage,
            skipped: 0,
        }
    }

    /// The positions behind what was fetched.
    pub(super) const fn positions(&self) -> &Positions {
        &self.fetched
    }

    /// Number of records that were left out so far.
    pub(super) const fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Returns the next records; `None`: all partitions are read to their ends. May be dropped
    /// before it returns.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<Fetched>> {
        loop {
            match self.consumer.next().await {
                Ok(Some(fetched)) => {
                    self.outage.is_over();
                    self.take_note(&fetched);
                    return Ok(Some(fetched));
                }
                Ok(None) => {
                    self.take_note_of_ends();
                    return Ok(None);
                }
                Err(error) if error.is_retryable() => self.outage.waits(&error),
                Err(error) => return Err(advised(error)),
            }
        }
    }

    /// Says what is missing before these records.
    fn take_note(&mut self, fetched: &Fetched) {
        let partition = fetched.partition();
        let mut at = self.fetched.next_offset(partition).unwrap_or_default();
        for error in fetched.skipped() {
            let Some(damaged) = error.offsets() else {
                continue;
            };
            self.say_removed(partition, at, damaged.start);
            note(format_args!("esker: skipped, {error}"));
            self.skipped += damaged.end.get().saturating_sub(damaged.start.get());
            at = damaged.end;
        }
        self.say_removed(partition, at, fetched.base_offset());
        self.fetched
            .advance(partition, fetched.next_offset(), fetched.leader_epoch());
    }

    /// Says what is missing at the ends of the partitions.
    fn take_note_of_ends(&mut self) {
        for (_, partition, end) in self.consumer.assignment() {
            let at = self.fetched.next_offset(partition);
            if let (Some(end), Some(at)) = (end, at)
                && at < end
            {
                self.say_removed(partition, at, end);
                self.fetched.advance_to_end(partition, end);
            }
        }
    }

    fn say_removed(&mut self, partition: PartitionId, from: Offset, to: Offset) {
        if from < to {
            self.skipped += to.get() - from.get();
            note(format_args!(
                "esker: skipped, partition {partition} offsets {from}..{to}: the records were removed"
            ));
        }
        if to < from {
            note(format_args!(
                "esker: partition {partition} is read again from offset {to}: its log no longer \
                 reaches {from}"
            ));
        }
    }
}

/// Names the option that continues after an error, if there is one.
pub(super) fn advised(error: Error) -> anyhow::Error {
    let advice = match error.kind() {
        ErrorKind::OutOfRange => "--skip-removed continues at the log start and says what it skips",
        ErrorKind::Truncated => "--skip-removed continues where the log left what was read",
        ErrorKind::Corrupt => "--skip-damaged continues behind and says what it skips",
        ErrorKind::TopicRecreated => {
            "the topic was deleted and created again, its offsets mean nothing now: start over"
        }
        _ => return error.into(),
    };
    let text = format!("{error}; {advice}");
    exit::Ended {
        text,
        code: exit::of_client(error.kind()),
        is_final: exit::is_final_kind(error.kind()),
    }
    .into()
}
