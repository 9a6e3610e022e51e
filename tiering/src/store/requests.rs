//! Counts of requests to the object store, by verb and outcome: the user's bill.
//!
//! | metric | labels | says |
//! | --- | --- | --- |
//! | `esker_tiering_store_requests_total` | `verb`, `outcome` | requests, each retry counted |
//! | `esker_tiering_store_request_duration_seconds` | `verb` | until the reply's first byte |
//! | `esker_tiering_store_bytes_total` | `direction` | payload bytes, `sent` and `received` |
//!
//! Stores reached by HTTP are counted request by request below the client's own retries; others
//! call by call.

use std::{array, sync::Arc, time::Duration};

use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry};

use crate::error::Error;

macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[$item:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$item])* $variant),+ }

        impl $name {
            /// All of them.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$variant),+];

            /// The label's text.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }
    };
}

labels! {
    /// What a request asks for.
    Verb {
        /// An object or a range of it.
        Get = "get",
        /// Whether an object is there, and how large.
        Head = "head",
        /// Write under a fresh key.
        Put = "put",
        /// Write if absent.
        Create = "create",
        /// A page of keys.
        List = "list",
        /// Delete one or many.
        Delete = "delete",
        /// Anything else, as credentials.
        Other = "other",
    }
}

labels! {
    /// How a request ended.
    Outcome {
        /// As asked.
        Ok = "ok",
        /// No such object.
        NotFound = "not_found",
        /// The object exists already, or changed.
        Conflict = "conflict",
        /// Not allowed.
        Denied = "denied",
        /// Too many requests.
        Throttled = "throttled",
        /// Any other refusal.
        Refused = "refused",
        /// The store failed.
        Failed = "failed",
        /// No connection, or a broken one, or no answer in time.
        Unreachable = "unreachable",
    }
}

impl Outcome {
    /// Classifies an HTTP status.
    pub(crate) const fn of_status(status: u16) -> Self {
        match status {
            200..=399 => Self::Ok,
            404 => Self::NotFound,
            409 | 412 => Self::Conflict,
            401 | 403 => Self::Denied,
            429 | 503 => Self::Throttled,
            500.. => Self::Failed,
            _ => Self::Refused,
        }
    }

    pub(crate) const fn of_error(error: &object_store::Error) -> Self {
        match error {
            object_store::Error::NotFound { .. } => Self::NotFound,
            object_store::Error::AlreadyExists { .. }
            | object_store::Error::Precondition { .. } => Self::Conflict,
            object_store::Error::PermissionDenied { .. }
            | object_store::Error::Unauthenticated { .. } => Self::Denied,
            object_store::Error::NotImplemented { .. }
            | object_store::Error::NotSupported { .. } => Self::Refused,
            _ => Self::Failed,
        }
    }
}

/// Requests made so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    counts: [[u64; Outcome::ALL.len()]; Verb::ALL.len()],
    /// Payload bytes sent.
    pub bytes_sent: u64,
    /// Payload bytes received.
    pub bytes_received: u64,
}

impl Requests {
    /// Requests of `verb` that ended in `outcome`.
    pub const fn count(&self, verb: Verb, outcome: Outcome) -> u64 {
        self.counts[verb as usize][outcome as usize]
    }

    /// Requests of `verb`.
    pub fn of(&self, verb: Verb) -> u64 {
        self.counts[verb as usize].iter().sum()
    }

    /// All requests.
    pub fn total(&self) -> u64 {
        Verb::ALL.iter().map(|&verb| self.of(verb)).sum()
    }

    /// What was added since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            counts: array::from_fn(|verb| {
                array::from_fn(|end| {
                    self.counts[verb][end].saturating_sub(earlier.counts[verb][end])
                })
            }),
            bytes_sent: self.bytes_sent.saturating_sub(earlier.bytes_sent),
            bytes_received: self.bytes_received.saturating_sub(earlier.bytes_received),
        }
    }
}

/// Counts requests. Cheap to clone; all clones count together.
#[derive(Clone, Debug)]
pub(crate) struct Meter(Arc<Counters>);

#[derive(Debug)]
struct Counters {
    requests: [[IntCounter; Outcome::ALL.len()]; Verb::ALL.len()],
    durations: HistogramVec,
    bytes_sent: IntCounter,
    bytes_received: IntCounter,
}

impl Meter {
    /// Starts counting into `registry`.
    pub(crate) fn register(registry: &Registry) -> Result<Self, Error> {
        let invalid = |_| Error::MetricsTaken;
        let requests = IntCounterVec::new(
            Opts::new(
                "esker_tiering_store_requests_total",
                "Requests to the object store",
            ),
            &["verb", "outcome"],
        )
        .map_err(invalid)?;
        let durations = HistogramVec::new(
            HistogramOpts::new(
                "esker_tiering_store_request_duration_seconds",
                "Time to the first byte of a reply of the object store",
            )
            .buckets(vec![
                0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0,
            ]),
            &["verb"],
        )
        .map_err(invalid)?;
        let bytes = IntCounterVec::new(
            Opts::new(
                "esker_tiering_store_bytes_total",
                "Payload bytes to and from the store",
            ),
            &["direction"],
        )
        .map_err(invalid)?;
        registry
            .register(Box::new(requests.clone()))
            .map_err(invalid)?;
        registry
            .register(Box::new(durations.clone()))
            .map_err(invalid)?;
        registry
            .register(Box::new(bytes.clone()))
            .map_err(invalid)?;
        Ok(Self(Arc::new(Counters {
            requests: Verb::ALL.map(|verb| {
                Outcome::ALL.map(|end| requests.with_label_values(&[verb.name(), end.name()]))
            }),
            durations,
            bytes_sent: bytes.with_label_values(&["sent"]),
            bytes_received: bytes.with_label_values(&["received"]),
        })))
    }

    pub(crate) fn observe(&self, verb: Verb, outcome: Outcome, took: Duration) {
        self.0.requests[verb as usize][outcome as usize].inc();
        self.0
            .durations
            .with_label_values(&[verb.name()])
            .observe(took.as_secs_f64());
    }

    pub(crate) fn add_bytes(&self, sent: u64, received: u64) {
        self.0.bytes_sent.inc_by(sent);
        self.0.bytes_received.inc_by(received);
    }

    pub(crate) fn snapshot(&self) -> Requests {
        Requests {
            counts: array::from_fn(|verb| array::from_fn(|end| self.0.requests[verb][end].get())),
            bytes_sent: self.0.bytes_sent.get(),
            bytes_received: self.0.bytes_received.get(),
        }
    }
}
