//! Turns errors into what goes over the wire: a status code, and the typed detail.

use esker_proto::{
    error::encode_detail,
    v1::{ErrorDetail, ErrorKind},
};
use tonic::{Code, Status};

use crate::{control::ControlError, partition::PartitionError};

/// A producer that is refused should come back after about so long.
pub(super) const RETRY_AFTER_MS: u32 = 250;
/// Longest text of an error. It may quote the request, and travels twice in headers, of which many
/// clients take 8 KiB.
const MESSAGE_BYTES_MAX: usize = 1 << 10;

/// Builds the detail of an error that surely changed nothing.
pub(super) fn refusal(kind: ErrorKind, message: impl Into<String>) -> ErrorDetail {
    ErrorDetail {
        kind: kind.into(),
        message: shortened(message.into(), MESSAGE_BYTES_MAX),
        has_no_side_effects: true,
        is_retryable: kind.is_retryable(),
        retry_after_ms: None,
        leader: None,
        damage_end_offset: None,
        divergent_offset: None,
    }
}

/// Cuts a text that is longer than `bytes_max`, and says that it was.
pub(super) fn shortened(mut text: String, bytes_max: usize) -> String {
    const CUT: &str = " [...]";
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max.saturating_sub(CUT.len())));
        text.push_str(CUT);
        text.shrink_to_fit();
    }
    text
}

/// Builds the detail of a partition's error.
pub(super) fn partition_detail(error: &PartitionError) -> ErrorDetail {
    let kind = error.kind();
    let retry_after_ms = match error {
        PartitionError::Throttled { retry_after_ms, .. } => Some(*retry_after_ms),
        _ if kind.is_retryable() => Some(RETRY_AFTER_MS),
        _ => None,
    };
    let damage_end_offset = match error {
        PartitionError::Unreadable { end_offset, .. } => Some(end_offset.get()),
        _ => None,
    };
    let divergent_offset = match error {
        PartitionError::Truncated {
            divergent_offset, ..
        } => Some(divergent_offset.get()),
        _ => None,
    };
    ErrorDetail {
        has_no_side_effects: error.has_no_side_effects(),
        retry_after_ms,
        damage_end_offset,
        divergent_offset,
        ..refusal(kind, error.to_string())
    }
}

/// Builds the detail of a metadata error.
pub(super) fn control_detail(error: &ControlError) -> ErrorDetail {
    ErrorDetail {
        has_no_side_effects: error.has_no_side_effects(),
        ..refusal(error.kind(), error.to_string())
    }
}

/// Builds the status that carries a detail.
pub(super) fn status(detail: &ErrorDetail) -> Status {
    status_of(code(detail.kind()), detail)
}

fn status_of(code: Code, detail: &ErrorDetail) -> Status {
    Status::with_details(
        code,
        detail.message.clone(),
        encode_detail(code.into(), detail),
    )
}

/// Ends a stream when the agent stops: whatever has no answer by then was not carried out.
pub(super) fn shutting_down() -> Status {
    status(&ErrorDetail {
        retry_after_ms: Some(RETRY_AFTER_MS),
        ..refusal(ErrorKind::ShuttingDown, "agent is shutting down")
    })
}

/// Puts into our terms what `tonic` says of a request that it could not read; `None`: it is about
/// something else. `too_large` is what one is that is too large.
pub(super) fn unreadable(error: &Status, too_large: ErrorKind) -> Option<Status> {
    let text = error.message();
    let refused = |kind| refusal(kind, format!("request cannot be read: {text}"));
    match error.code() {
        Code::OutOfRange if text.contains("message length too large") => {
            Some(status_of(Code::ResourceExhausted, &refused(too_large)))
        }
        Code::Internal if text.starts_with("failed to decode Protobuf message") => {
            Some(status(&refused(ErrorKind::InvalidArgument)))
        }
        _ => None,
    }
}

pub(super) fn partition_status(error: &PartitionError) -> Status {
    status(&partition_detail(error))
}

pub(super) fn control_status(error: &ControlError) -> Status {
    status(&control_detail(error))
}

const fn code(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::UnknownTopic | ErrorKind::UnknownTopicId | ErrorKind::UnknownPartition => {
            Code::NotFound
        }
        ErrorKind::InvalidTopicName
        | ErrorKind::InvalidArgument
        | ErrorKind::CorruptBatch
        | ErrorKind::BatchTooLarge => Code::InvalidArgument,
        ErrorKind::TopicExists => Code::AlreadyExists,
        ErrorKind::OffsetOutOfRange | ErrorKind::LogTruncated => Code::OutOfRange,
        ErrorKind::OutOfOrderSequence
        | ErrorKind::ProducerFenced
        | ErrorKind::NotLeader
        | ErrorKind::Fenced
        | ErrorKind::NotController => Code::FailedPrecondition,
        ErrorKind::Throttled => Code::ResourceExhausted,
        ErrorKind::CorruptData => Code::DataLoss,
        ErrorKind::NotEnoughReplicas
        | ErrorKind::Storage
        | ErrorKind::BucketUnavailable
        | ErrorKind::ShuttingDown => Code::Unavailable,
        ErrorKind::TimedOut => Code::DeadlineExceeded,
        ErrorKind::Internal | ErrorKind::Unspecified => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_two_characters() {
        assert_eq!(shortened("short".to_owned(), 10), "short");
        assert_eq!(shortened("0123456789a".to_owned(), 10), "0123 [...]");
        assert_eq!(shortened("012\u{e9}456789".to_owned(), 10), "012 [...]");
    }
}
