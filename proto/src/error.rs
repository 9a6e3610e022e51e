//! Wire errors: a kind, and what the caller should do about it.

use prost::{Message, bytes::Bytes};

use crate::v1::{ErrorDetail, ErrorKind};

/// Type URL of [`ErrorDetail`] within `google.rpc.Status`.
const DETAIL_TYPE_URL: &str = "type.googleapis.com/esker.v1.ErrorDetail";

/// `google.rpc.Status`, the standard content of `grpc-status-details-bin`.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

/// Encodes a detail as the bytes of `grpc-status-details-bin`.
pub fn encode_detail(code: i32, detail: &ErrorDetail) -> Bytes {
    let any = prost_types::Any {
        type_url: DETAIL_TYPE_URL.to_owned(),
        value: detail.encode_to_vec(),
    };
    let status = RpcStatus {
        code,
        message: detail.message.clone(),
        details: vec![any],
    };
    status.encode_to_vec().into()
}

/// Finds the detail in the bytes of `grpc-status-details-bin`; `None` if it holds none.
pub fn decode_detail(bytes: &[u8]) -> Option<ErrorDetail> {
    let status = RpcStatus::decode(bytes).ok()?;
    let any = status
        .details
        .into_iter()
        .find(|any| any.type_url == DETAIL_TYPE_URL)?;
    ErrorDetail::decode(any.value.as_slice()).ok()
}

impl ErrorKind {
    /// Whether the same request may succeed later without anybody changing it.
    pub const fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::NotLeader
                | Self::NotController
                | Self::NotEnoughReplicas
                | Self::Throttled
                | Self::BucketUnavailable
                | Self::ShuttingDown
                | Self::TimedOut
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detail_survives_the_trailer() {
        let detail = ErrorDetail {
            kind: ErrorKind::Throttled.into(),
            message: "disk reserve reached".to_owned(),
            has_no_side_effects: true,
            is_retryable: true,
            retry_after_ms: Some(250),
            leader: None,
            damage_end_offset: None,
            divergent_offset: Some(7),
        };
        assert_eq!(decode_detail(&encode_detail(8, &detail)), Some(detail));
        assert_eq!(decode_detail(b"\xff\xff"), None);
    }
}
