//! Sends line after line, and watches for what ends that: signals and failed deliveries.

use std::time::Duration;

use tokio::{select, time::Instant};

use super::{
    super::{
        progress::Progress,
        record_json::RecordJson,
        signals::{Signals, Stop},
        source,
    },
    Format, ProduceArgs,
    ending::{Cause, Ended, Tally},
    fates::{Fate, Fates},
    input::{Chunk, Chunks, Stopper},
    key::{KeySource, of_line},
    lines::Lines,
};
use crate::{Delivery, PartitionId, Producer, RecordRef, cli::source::Line};

/// How long what was read may take to be delivered, once something ended the reading. Below the
/// 10 s that container runtimes wait before they kill.
const FINISH_WITHIN: Duration = Duration::from_secs(8);

/// Lines on their way into the log.
pub(super) struct Sending<'a> {
    args: &'a ProduceArgs,
    keys: KeySource,
    producer: Producer,
    watch: Watch,
    /// The end of the input was reached.
    has_read_all: bool,
}

/// What can happen at any time while lines are read and sent.
pub(super) struct Watch {
    signals: Signals,
    /// Reading goes on for as long as it is here.
    stopper: Option<Stopper>,
    stopped_by: Option<Stop>,
    /// When to give up what is not delivered.
    deadline: Option<Instant>,
    fates: Fates,
    progress: Progress,
    keep_going: bool,
    tally: Tally,
}

impl Watch {
    pub(super) fn new(
        signals: Signals,
        stopper: Stopper,
        progress: Progress,
        keep_going: bool,
    ) -> Self {
        Self {
            signals,
            stopper: Some(stopper),
            stopped_by: None,
            deadline: None,
            fates: Fates::default(),
            progress,
            keep_going,
            tally: Tally::default(),
        }
    }

    /// Waits for what ends the sending; takes note of all else. May be dropped before it returns.
    async fn trouble(&mut self) -> Cause {
        loop {
            if let Some(cause) = self.event().await {
                return cause;
            }
        }
    }

    /// Waits for one thing to happen; returns what ends the sending, if that does.
    async fn event(&mut self) -> Option<Cause> {
        let deadline = self.deadline.unwrap_or_else(Instant::now);
        select! {
            stop = self.signals.next() => {
                if self.stopped_by.replace(stop).is_some() {
                    return Some(Cause::Cut(stop));
                }
                self.stop_reading(stop);
                None
            }
            Some(fate) = self.fates.next() => self.settle(fate),
            () = tokio::time::sleep_until(deadline), if self.deadline.is_some() => {
                Some(Cause::TimedOut(FINISH_WITHIN))
            }
        }
    }

    /// A first signal: what was read is still delivered.
    fn stop_reading(&mut self, stop: Stop) {
        self.stopper = None;
        self.finish_soon();
        self.progress.note(format_args!(
            "esker: {stop}: delivering what was read, for {FINISH_WITHIN:?} at most; a second signal ends \
             this at once"
        ));
    }

    fn finish_soon(&mut self) {
        self.deadline
            .get_or_insert_with(|| Instant::now() + FINISH_WITHIN);
    }

    /// Takes note of what became of a batch; returns what ends the sending, if that does.
    fn settle(&mut self, fate: Fate) -> Option<Cause> {
        let Err(error) = fate.outcome else {
            self.tally.delivered += fate.lines.count();
            return None;
        };
        let cause = Cause::Undelivered {
            lines: fate.lines.clone(),
            error: error.clone(),
        };
        self.tally.add_undelivered(fate.lines, &error);
        self.unless_kept_going(cause)
    }

    /// Names what went wrong, if the sending continues after it.
    fn unless_kept_going(&mut self, cause: Cause) -> Option<Cause> {
        if !self.keep_going {
            return Some(cause);
        }
        self.progress.note(format_args!("esker: {cause}"));
        self.tally.has_kept_going = true;
        None
    }
}

impl<'a> Sending<'a> {
    pub(super) const fn new(
        args: &'a ProduceArgs,
        keys: KeySource,
        producer: Producer,
        watch: Watch,
    ) -> Self {
        Self {
            args,
            keys,
            producer,
            watch,
            has_read_all: false,
        }
    }

    /// Sends everything, and waits until its fate is known, or for as long as is allowed.
    pub(super) async fn run(mut self, mut lines: Lines, mut chunks: Chunks) -> Ended {
        let cause = self.send_all(&mut lines, &mut chunks).await.err();
        let cause = match cause {
            None => self.finish().await.err(),
            Some(cause @ (Cause::Cut(_) | Cause::TimedOut(_))) => Some(cause),
            Some(cause) => {
                self.watch.finish_soon();
                // The first cause is told; what else fails is named all the same.
                let end = self.finish_all().await;
                Some(cause.or_cut(end))
            }
        };
        let Watch {
            fates,
            progress,
            mut tally,
            stopped_by,
            ..
        } = self.watch;
        progress.finish();
        tally.unknown.merge(fates.rest());
        let stopped_by = stopped_by.filter(|_| !self.has_read_all);
        tally.has_part = lines.has_part();
        Ended {
            cause: cause.or_else(|| stopped_by.map(Cause::Stopped)),
            tally,
        }
    }

    async fn send_all(&mut self, lines: &mut Lines, chunks: &mut Chunks) -> Result<(), Cause> {
        loop {
            while let Some((line, place)) = lines.next()? {
                self.send(line, place).await?;
            }
            self.watch.progress.at(self.watch.tally.bytes);
            let chunk = select! {
                biased;
                cause = self.watch.trouble() => return Err(cause),
                chunk = chunks.next() => chunk,
            };
            match chunk {
                Some(Chunk::Bytes(bytes)) => lines.push(bytes),
                Some(Chunk::Failed(error)) => return Err(Cause::Unreadable(error)),
                // Part of a line is no line: its rest was not read.
                None => return Ok(()),
                Some(Chunk::End) => {
                    self.has_read_all = true;
                    if let Some((line, place)) = lines.last() {
                        self.send(line, place).await?;
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Sends one line.
    async fn send(&mut self, line: &[u8], place: Line) -> Result<(), Cause> {
        let number = place.number + 1;
        let sent = match self.args.format {
            Format::Lines => self.send_line(line, place).await?,
            Format::Json => self.send_json(line).await?,
        };
        let tally = &mut self.watch.tally;
        tally.bytes += line.len() as u64 + u64::from(!place.is_unterminated);
        let cause = match sent {
            Ok(delivery) => {
                self.watch.fates.add(number, delivery);
                tally.sent = number;
                return Ok(());
            }
            Err(error) => Cause::Refused {
                line: number,
                error,
            },
        };
        match self.watch.unless_kept_going(cause) {
            Some(cause) => Err(cause),
            None => {
                self.watch.tally.sent = number;
                self.watch.tally.skipped.push(number);
                Ok(())
            }
        }
    }

    async fn send_line(
        &mut self,
        line: &[u8],
        place: Line,
    ) -> Result<anyhow::Result<Delivery>, Cause> {
        let keyed = match self.keys.split(line) {
            Ok(keyed) => keyed,
            Err(error) => return Ok(Err(error)),
        };
        let lacks_key = keyed.key.is_none() && self.args.key_field.is_some();
        if lacks_key && self.args.key_required {
            return Ok(Err(anyhow::anyhow!("the key field is missing or null")));
        }
        let place = place.encode();
        let header = [(source::HEADER, Some(&place[..]))];
        let record = RecordRef {
            key: keyed.key.as_deref(),
            value: Some(keyed.value),
            headers: if self.args.no_line_numbers {
                &[]
            } else {
                &header
            },
            timestamp: None,
            partition: self.args.partition.map(PartitionId::new),
        };
        let sent = self.send_record(record).await?;
        self.watch.tally.without_key += u64::from(lacks_key && sent.is_ok());
        Ok(sent)
    }

    async fn send_json(&mut self, line: &[u8]) -> Result<anyhow::Result<Delivery>, Cause> {
        let json: serde_json::Result<RecordJson> = serde_json::from_slice(line);
        let json = match json {
            Ok(json) => json,
            Err(error) => return Ok(Err(of_line(&error).context("not a record in JSON"))),
        };
        let parts = (|| Ok((json.key()?, json.value()?, json.headers()?)))();
        let (key, value, headers) = match parts {
            Ok(parts) => parts,
            Err(error) => return Ok(Err(error)),
        };
        let headers: Vec<_> = headers.iter().map(|(k, v)| (*k, v.as_deref())).collect();
        let record = RecordRef {
            key: key.as_deref(),
            value: value.as_deref(),
            headers: &headers,
            timestamp: json.timestamp(),
            partition: self.args.partition.or(json.partition).map(PartitionId::new),
        };
        self.send_record(record).await
    }

    /// Puts a record into its batch; waits for room, but for nothing that ends the sending.
    async fn send_record(
        &mut self,
        record: RecordRef<'_>,
    ) -> Result<anyhow::Result<Delivery>, Cause> {
        match self.producer.try_send(record) {
            Ok(Some(delivery)) => Ok(Ok(delivery)),
            Err(error) => Ok(Err(error.into())),
            Ok(None) => select! {
                biased;
                sent = self.producer.send(record) => Ok(sent.map_err(Into::into)),
                cause = self.watch.trouble() => Err(cause),
            },
        }
    }

    /// Waits until the fate of everything is known.
    async fn finish(&mut self) -> Result<(), Cause> {
        let failed = match self.settle_all().await {
            Ok(()) => return Ok(()),
            Err(cause @ (Cause::Cut(_) | Cause::TimedOut(_))) => return Err(cause),
            Err(cause) => cause,
        };
        self.watch.finish_soon();
        let end = self.finish_all().await;
        Err(failed.or_cut(end))
    }

    /// Waits until the fate of everything is known, also of what fails.
    async fn finish_all(&mut self) -> Result<(), Cause> {
        loop {
            match self.settle_all().await {
                Err(Cause::Undelivered { .. }) => {}
                end => return end,
            }
        }
    }

    async fn settle_all(&mut self) -> Result<(), Cause> {
        select! {
            biased;
            // The fates tell what failed, batch by batch.
            _ = self.producer.flush() => {}
            cause = self.watch.trouble() => return Err(cause),
        }
        while !self.watch.fates.is_empty() {
            if let Some(cause) = self.watch.event().await {
                return Err(cause);
            }
        }
        Ok(())
    }
}
