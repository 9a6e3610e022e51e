//! What `dev` tells a person.

use std::{
    fmt::{self, Write},
    net::SocketAddr,
    time::Duration,
};

use bytesize::ByteSize;
use esker_tiering::store::{Requests, Verb};

use super::workload::{Faults, VALUE_BYTES};

/// One step of the job.
#[derive(Clone, Debug)]
pub(super) struct Step {
    name: &'static str,
    took: Duration,
    records: Option<u64>,
}

impl Step {
    pub(super) const fn new(name: &'static str, took: Duration) -> Self {
        Self {
            name,
            took,
            records: None,
        }
    }

    pub(super) const fn of_records(name: &'static str, records: u64, took: Duration) -> Self {
        Self {
            name,
            took,
            records: Some(records),
        }
    }
}

/// What is in the bucket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bucket {
    pub(super) objects: u64,
    pub(super) bytes: u64,
}

/// The whole report.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub(super) topic: String,
    pub(super) records: u64,
    pub(super) steps: Vec<Step>,
    pub(super) replayed: u64,
    pub(super) from_bucket: u64,
    pub(super) faults: Faults,
    /// Bytes of the topic that are still on local disk.
    pub(super) local_bytes: u64,
    pub(super) bucket: Bucket,
    pub(super) requests: Requests,
}

impl Report {
    /// Whether everything came back, from the bucket, as it was sent.
    pub(super) fn is_ok(&self) -> bool {
        self.checks().iter().all(|(_, is_ok)| *is_ok)
    }

    fn checks(&self) -> [(String, bool); 4] {
        let Faults {
            altered,
            doubled,
            out_of_order,
            missing,
        } = self.faults;
        let records = grouped(self.records);
        let is_count_right = self.replayed == self.records && doubled + missing == 0;
        [
            (
                format!("{records} records came back, none twice"),
                is_count_right,
            ),
            (
                format!("{} as they were sent", grouped(self.records - altered)),
                altered == 0,
            ),
            (
                format!("each key in its order ({out_of_order} out of order)"),
                out_of_order == 0,
            ),
            (
                format!(
                    "{} read from the bucket, {} left on local disk",
                    grouped(self.from_bucket),
                    ByteSize(self.local_bytes)
                ),
                self.from_bucket == self.records && self.local_bytes == 0,
            ),
        ]
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { topic, records, .. } = self;
        writeln!(
            f,
            "topic {topic}: {} keyed records of {VALUE_BYTES} bytes, 4 partitions",
            grouped(*records)
        )?;
        for Step {
            name,
            took,
            records,
        } in &self.steps
        {
            write!(f, "  {name:<42}{:>8.2} s", took.as_secs_f64())?;
            match records {
                Some(records) => writeln!(f, "{:>16} records/s", rate(*records, *took))?,
                None => writeln!(f)?,
            }
        }
        writeln!(f, "\nchecks")?;
        for (text, is_ok) in self.checks() {
            writeln!(f, "  {}  {text}", if is_ok { "ok    " } else { "FAILED" })?;
        }
        writeln!(
            f,
            "\nbucket: {} in {} objects; this run sent {} requests ({})\n",
            ByteSize(self.bucket.bytes),
            grouped(self.bucket.objects),
            grouped(self.requests.total()),
            by_verb(&self.requests)
        )
    }
}

fn by_verb(requests: &Requests) -> String {
    let sent = Verb::ALL
        .iter()
        .map(|verb| (verb.name(), requests.of(*verb)));
    let sent: Vec<_> = sent
        .filter(|(_, count)| *count > 0)
        .map(|(verb, count)| format!("{count} {verb}"))
        .collect();
    sent.join(", ")
}

/// What a newcomer may type next.
pub(super) fn next_steps(grpc: SocketAddr) -> String {
    let mut text = String::from("Serving. In another terminal:\n\n");
    let bootstrap = match grpc.port() {
        7771 => String::new(),
        _ => format!(" --bootstrap {grpc}"),
    };
    for command in [
        "topic create hello",
        "produce hello --file README.md",
        "consume hello --from beginning --until end",
        "topic describe dev-1",
        "bench produce",
    ] {
        let _ = writeln!(
            text,
            "  cargo run --release --bin esker -- {command}{bootstrap}"
        );
    }
    text.push_str("\nCtrl-C drains and ends.\n");
    text
}

fn rate(records: u64, took: Duration) -> String {
    let per_second = u128::from(records) * 1_000_000 / took.as_micros().max(1);
    grouped(u64::try_from(per_second).unwrap_or(u64::MAX))
}

/// Writes a number with a comma before each third digit.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1234567, "1,234,567"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }
}
