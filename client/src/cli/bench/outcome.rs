//! One measured figure and the limit beside it.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use crate::cli::output::{self, grouped};

/// What a bench found.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) name: &'static str,
    pub(super) rate: f64,
    pub(super) unit: &'static str,
    /// What the machine could do at most, in the same unit; 0 where there is none.
    pub(super) limit: f64,
    /// What the limit is.
    pub(super) limit_is: &'static str,
    pub(super) latency: Option<Latency>,
    /// Other figures: name, value, and how a person reads it.
    pub(super) details: Vec<(&'static str, Value, String)>,
}

/// Latencies, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Latency {
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
}

impl Latency {
    /// Reads a histogram of microseconds.
    pub(super) fn of(micros: &Histogram<u64>) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "microseconds for people")]
        let at = |quantile| micros.value_at_quantile(quantile) as f64 / 1000.0;
        Self {
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
        }
    }
}

/// An empty histogram of microseconds.
pub(super) fn micros() -> anyhow::Result<Histogram<u64>> {
    Ok(Histogram::new(3)?)
}

/// Microseconds, as a histogram takes them.
pub(super) fn in_micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Outcome {
    pub(super) fn new(name: &'static str, rate: f64, unit: &'static str) -> Self {
        let (limit, limit_is, latency, details) = (0.0, "", None, Vec::new());
        Self {
            name,
            rate,
            unit,
            limit,
            limit_is,
            latency,
            details,
        }
    }

    /// Adds a figure.
    pub(super) fn detail(
        &mut self,
        name: &'static str,
        value: impl Into<Value>,
        text: impl Into<String>,
    ) {
        self.details.push((name, value.into(), text.into()));
    }

    fn ratio(&self) -> f64 {
        if self.limit > 0.0 {
            self.rate / self.limit
        } else {
            0.0
        }
    }

    /// Prints it, in a block for people or as one JSON object on a line.
    pub(super) fn print(&self, json: bool) -> anyhow::Result<()> {
        if json {
            return output::json(&self.as_json());
        }
        output::line(format_args!(
            "{:<28}{:>16} {}",
            self.name,
            rounded(self.rate),
            self.unit
        ))?;
        if self.limit > 0.0 {
            let (limit, share) = (rounded(self.limit), self.ratio() * 100.0);
            output::line(format_args!(
                "  {:<26}{limit:>16} {}; {share:.0} % of it reached",
                self.limit_is, self.unit
            ))?;
        }
        if let Some(Latency {
            p50_ms,
            p99_ms,
            p999_ms,
        }) = self.latency
        {
            output::line(format_args!(
                "  p50 {p50_ms:.2} ms, p99 {p99_ms:.2} ms, p99.9 {p999_ms:.2} ms"
            ))?;
        }
        for (name, _, text) in &self.details {
            output::line(format_args!("  {:<26}{text:>16}", name.replace('_', " ")))?;
        }
        Ok(())
    }

    fn as_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("name".to_owned(), json!(self.name));
        object.insert("rate".to_owned(), json!(self.rate));
        object.insert("unit".to_owned(), json!(self.unit));
        object.insert("limit".to_owned(), json!(self.limit));
        object.insert("ratio".to_owned(), json!(self.ratio()));
        if let Some(latency) = self.latency {
            object.insert("p50_ms".to_owned(), json!(latency.p50_ms));
            object.insert("p99_ms".to_owned(), json!(latency.p99_ms));
            object.insert("p999_ms".to_owned(), json!(latency.p999_ms));
        }
        for (name, value, _) in &self.details {
            object.insert((*name).to_owned(), value.clone());
        }
        Value::Object(object)
    }
}

/// A figure as people read it: large ones grouped, small ones with decimals.
pub(super) fn rounded(figure: f64) -> String {
    if figure < 1000.0 {
        return format!("{figure:.2}");
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "for people"
    )]
    let whole = figure as u64;
    grouped(whole)
}
