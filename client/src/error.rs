//! Errors, classed by what the caller can do about them.

use std::{error, fmt, sync::Arc, time::Duration};

use esker_proto::{
    batch::BatchError,
    error::decode_detail,
    types::{Offset, OffsetRange, PartitionId},
    v1,
};
use tonic::{Code, Status};

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller can do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The agent cannot be reached or cannot serve this now. Try again later.
    Unavailable,
    /// The agent takes no more for the moment. Slow down, then try again.
    Throttled,
    /// Time ran out.
    TimedOut,
    /// There is no such topic or partition.
    NotFound,
    /// There is one of that name already.
    AlreadyExists,
    /// The request is wrong: change it.
    Invalid,
    /// The caller may not do this.
    Forbidden,
    /// The offset lies outside the log: below its start, or beyond its end.
    OutOfRange,
    /// Records that were read are no longer in the log: it was truncated, and offsets may stand for
    /// other records now. [`Error::divergent_offset`] says where to continue.
    Truncated,
    /// The topic was deleted, and another of its name was created. Offsets of the one mean nothing
    /// in the other: start over.
    TopicRecreated,
    /// Another one has taken over. Drop this handle and open another.
    Fenced,
    /// Bytes are not what they should be. Trying again will not help.
    Corrupt,
    /// This handle was closed.
    Closed,
    /// A fault of the agent or of this library.
    Internal,
}

impl ErrorKind {
    /// Whether the same call may succeed later without anybody changing it.
    const fn is_retryable(self) -> bool {
        matches!(self, Self::Unavailable | Self::Throttled | Self::TimedOut)
    }
}

/// Why a call failed. Cheap to clone: all records of a batch share one.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    wire_kind: v1::ErrorKind,
    message: String,
    is_retryable: bool,
    has_no_side_effects: bool,
    retry_after: Option<Duration>,
    leader: Option<String>,
    place: Option<Place>,
    damage_end: Option<Offset>,
    divergent_offset: Option<Offset>,
    source: Option<Arc<dyn error::Error + Send + Sync>>,
}

/// The partition an error is about.
#[derive(Clone, Debug)]
struct Place {
    topic: Arc<str>,
    partition: PartitionId,
    offsets: Option<OffsetRange>,
}

impl Error {
    /// Returns what the caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns exactly what the agent said; `ERROR_KIND_UNSPECIFIED` if it was not the agent who
    /// said it.
    pub fn wire_kind(&self) -> v1::ErrorKind {
        self.0.wire_kind
    }

    /// Whether the same call may succeed later without anybody changing it.
    pub fn is_retryable(&self) -> bool {
        self.0.is_retryable
    }

    /// Whether the call surely changed nothing. If not, its outcome is **unknown**: it may have
    /// been carried out, or still be.
    pub fn has_no_side_effects(&self) -> bool {
        self.0.has_no_side_effects
    }

    /// Returns the topic, if the error is about one partition that is read.
    pub fn topic(&self) -> Option<&str> {
        self.0.place.as_ref().map(|place| &*place.topic)
    }

    /// Returns the partition, if the error is about one that is read.
    pub fn partition(&self) -> Option<PartitionId> {
        self.0.place.as_ref().map(|place| place.partition)
    }

    /// Returns the offsets that cannot be read, if the error is about damaged or missing records.
    /// Reading can continue at their end: see [`Consumer::seek`](crate::Consumer::seek) and
    /// [`OnDamage`](crate::OnDamage).
    pub fn offsets(&self) -> Option<OffsetRange> {
        self.0.place.as_ref()?.offsets.clone()
    }

    /// Returns where a truncated log left what was read: below it, it has the same records, as far as
    /// its leader epochs tell.
    pub fn divergent_offset(&self) -> Option<Offset> {
        self.0.divergent_offset
    }

    /// Returns how long the agent asks to wait before the next try.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Returns the address of the agent to ask instead.
    pub(crate) fn leader(&self) -> Option<&str> {
        self.0.leader.as_deref()
    }

    /// Returns the first offset behind what the agent cannot read.
    pub(crate) fn damage_end(&self) -> Option<Offset> {
        self.0.damage_end
    }

    /// An error this library found itself, before it sent anything.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner {
            kind,
            wire_kind: v1::ErrorKind::Unspecified,
            message: message.into(),
            is_retryable: kind.is_retryable(),
            has_no_side_effects: true,
            retry_after: None,
            leader: None,
            place: None,
            damage_end: None,
            divergent_offset: None,
            source: None,
        }))
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// Records that are not what they should be.
    pub(crate) fn corrupt(source: BatchError) -> Self {
        let message = format!("records cannot be read: {source}");
        Self::new(ErrorKind::Corrupt, message).with_source(source)
    }

    /// The topic has another id than it had before.
    pub(crate) fn recreated(topic: &str) -> Self {
        let message = format!("topic was deleted and created again. topic=`{topic}`");
        Self::new(ErrorKind::TopicRecreated, message)
    }

    /// A connection that failed while it was in use: what was sent may have been carried out.
    pub(crate) fn broken(
        address: impl fmt::Display,
        source: impl error::Error + Send + Sync + 'static,
    ) -> Self {
        Self::new(
            ErrorKind::Unavailable,
            format!("connection to the agent broke. address=`{address}`"),
        )
        .with_source(source)
        .with_side_effects(false)
    }

    /// What an agent answered within a stream.
    pub(crate) fn from_detail(detail: v1::ErrorDetail) -> Self {
        let wire_kind = detail.kind();
        Self(Arc::new(Inner {
            kind: kind_of_wire(wire_kind),
            wire_kind,
            message: detail.message,
            is_retryable: detail.is_retryable,
            has_no_side_effects: detail.has_no_side_effects,
            retry_after: detail
                .retry_after_ms
                .map(|ms| Duration::from_millis(ms.into())),
            leader: detail.leader.filter(|leader| !leader.is_empty()),
            place: None,
            damage_end: detail.damage_end_offset.map(Offset::new),
            divergent_offset: detail.divergent_offset.map(Offset::new),
            source: None,
        }))
    }

    /// How a call ended.
    pub(crate) fn from_status(status: Status) -> Self {
        if let Some(detail) = decode_detail(status.details()) {
            return Self::from_detail(detail);
        }
        let kind = kind_of_code(&status);
        let is_refused = matches!(
            status.code(),
            Code::InvalidArgument | Code::NotFound | Code::Unimplemented | Code::PermissionDenied
        );
        let message = match (innermost_source(&status), status.message()) {
            // The transport's own words say little ("http2 error"), and each layer repeats the next.
            (Some(cause), _) => format!("connection to the agent broke: {cause}"),
            (None, "") => format!("call failed. code=`{:?}`", status.code()),
            (None, message) => message.to_owned(),
        };
        Self::new(kind, message).with_side_effects(is_refused)
    }

    /// Returns the same error with another answer to [`Error::has_no_side_effects`].
    pub(crate) fn with_side_effects(mut self, has_no_side_effects: bool) -> Self {
        self.inner_mut().has_no_side_effects = has_no_side_effects;
        self
    }

    pub(crate) fn with_source(mut self, source: impl error::Error + Send + Sync + 'static) -> Self {
        self.inner_mut().source = Some(Arc::new(source));
        self
    }

    /// Puts what was being done before the message.
    pub(crate) fn context(mut self, context: impl fmt::Display) -> Self {
        let inner = self.inner_mut();
        inner.message = format!("{context}: {}", inner.message);
        self
    }

    /// Says which partition it is about, and which records.
    pub(crate) fn at(
        self,
        topic: &Arc<str>,
        partition: PartitionId,
        offsets: Option<OffsetRange>,
    ) -> Self {
        let mut error = self.context(format_args!("topic {topic} partition {partition}"));
        let inner = error.inner_mut();
        if let Some(OffsetRange { start, end }) = &offsets {
            let named = format!("offsets=`{start}..{end}`");
            // Of damage in the bucket the agent has said so.
            if !inner.message.ends_with(&named) {
                inner.message = format!("{} {named}", inner.message);
            }
        }
        inner.place = Some(Place {
            topic: Arc::clone(topic),
            partition,
            offsets,
        });
        error
    }

    fn inner_mut(&mut self) -> &mut Inner {
        Arc::make_mut(&mut self.0)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Error");
        text.field("kind", &self.0.kind)
            .field("message", &self.0.message);
        if self.0.wire_kind != v1::ErrorKind::Unspecified {
            text.field("wire_kind", &self.0.wire_kind);
        }
        text.field("is_retryable", &self.0.is_retryable)
            .field("has_no_side_effects", &self.0.has_no_side_effects);
        if let Some(place) = &self.0.place {
            text.field("place", place);
        }
        if let Some(source) = &self.0.source {
            text.field("source", source);
        }
        text.finish()
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.0
            .source
            .as_deref()
            .map(|source| source as &(dyn error::Error + 'static))
    }
}

const fn kind_of_wire(kind: v1::ErrorKind) -> ErrorKind {
    use v1::ErrorKind as Wire;
    match kind {
        Wire::UnknownTopic | Wire::UnknownPartition => ErrorKind::NotFound,
        Wire::UnknownTopicId => ErrorKind::TopicRecreated,
        Wire::TopicExists => ErrorKind::AlreadyExists,
        Wire::InvalidTopicName | Wire::InvalidArgument | Wire::BatchTooLarge => ErrorKind::Invalid,
        Wire::CorruptBatch | Wire::CorruptData => ErrorKind::Corrupt,
        Wire::OffsetOutOfRange => ErrorKind::OutOfRange,
        Wire::LogTruncated => ErrorKind::Truncated,
        Wire::OutOfOrderSequence | Wire::ProducerFenced | Wire::Fenced => ErrorKind::Fenced,
        Wire::Throttled => ErrorKind::Throttled,
        Wire::TimedOut => ErrorKind::TimedOut,
        Wire::NotLeader
        | Wire::NotController
        | Wire::NotEnoughReplicas
        | Wire::BucketUnavailable
        | Wire::ShuttingDown => ErrorKind::Unavailable,
        Wire::Unspecified | Wire::Storage | Wire::Internal => ErrorKind::Internal,
    }
}

/// Classes a status that came without a detail: from a proxy, or made up by the transport.
fn innermost_source(status: &Status) -> Option<&(dyn error::Error + 'static)> {
    let first = error::Error::source(status)?;
    std::iter::successors(Some(first), |error| error.source()).last()
}

fn kind_of_code(status: &Status) -> ErrorKind {
    match status.code() {
        Code::NotFound => ErrorKind::NotFound,
        Code::AlreadyExists => ErrorKind::AlreadyExists,
        Code::InvalidArgument | Code::OutOfRange | Code::Unimplemented => ErrorKind::Invalid,
        Code::PermissionDenied | Code::Unauthenticated => ErrorKind::Forbidden,
        Code::ResourceExhausted => ErrorKind::Throttled,
        Code::DeadlineExceeded => ErrorKind::TimedOut,
        Code::Unavailable | Code::Aborted | Code::Cancelled => ErrorKind::Unavailable,
        // The transport wraps its own failures, a reset or a lost connection, in these.
        Code::Unknown | Code::Internal if error::Error::source(status).is_some() => {
            ErrorKind::Unavailable
        }
        // So does it when it has only text: "h2 protocol error".
        Code::Internal if status.message().contains("h2 protocol error") => ErrorKind::Unavailable,
        _ => ErrorKind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn damaged_offsets_are_named_once() {
        let offsets = Some(Offset::ZERO..Offset::new(4));
        for message in ["damaged", "damaged; offsets=`0..4`"] {
            let error = Error::new(ErrorKind::Corrupt, message);
            let error = error.at(&"t".into(), PartitionId::new(1), offsets.clone());
            let named = error.to_string().matches("offsets=`0..4`").count();
            assert_eq!(named, 1, "{error}");
        }
    }

    #[test]
    fn a_broken_connection_is_said_in_one_line() {
        let cause = io::Error::new(io::ErrorKind::TimedOut, "keep-alive timed out");
        let wrapped = io::Error::other(cause);
        let error = Error::from_status(Status::from_error(Box::new(wrapped)));
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(!error.has_no_side_effects());
        let line = with_sources(&error);
        assert_eq!(line, "connection to the agent broke: keep-alive timed out");
    }

    /// An error and its sources, as the command line prints them.
    fn with_sources(error: &Error) -> String {
        let sources = std::iter::successors(error::Error::source(error), |error| error.source());
        std::iter::once(error.to_string())
            .chain(sources.map(ToString::to_string))
            .collect::<Vec<_>>()
            .join(": ")
    }
}
