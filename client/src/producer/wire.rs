//! The request side of a produce stream, without a copy of the batches.
//!
//! A generated stub would encode each [`v1::ProduceRequest`] into a buffer: one more copy of every
//! batch. Here the few bytes before the batch are encoded and the batch follows as it is.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{BufMut, Bytes, BytesMut};
use esker_proto::v1;
use hyper::body::{Body, Frame};
use prost::{
    Message,
    encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len},
};
use tokio::sync::mpsc;

/// gRPC's flag and length before each message.
const GRPC_PREFIX_BYTES: usize = 5;
/// Number of [`v1::ProduceRequest::batch`], which is written last.
const BATCH_TAG: u32 = 5;

/// A request, encoded up to the batch, and the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outgoing {
    head: Bytes,
    batch: Bytes,
}

impl Outgoing {
    /// `request` lacks the batch.
    pub(crate) fn new(request: &v1::ProduceRequest, batch: Bytes) -> Self {
        debug_assert!(request.batch.is_empty());
        let batch_length = batch.len() as u64;
        let fields_bytes =
            request.encoded_len() + key_len(BATCH_TAG) + encoded_len_varint(batch_length);
        let message_bytes = u32::try_from(fields_bytes + batch.len());
        let mut head = BytesMut::with_capacity(GRPC_PREFIX_BYTES + fields_bytes);
        head.put_u8(0);
        head.put_u32(message_bytes.expect("a batch is bounded far below 4 GiB"));
        request
            .encode(&mut head)
            .expect("the buffer grows as needed");
        encode_key(BATCH_TAG, WireType::LengthDelimited, &mut head);
        encode_varint(batch_length, &mut head);
        Self {
            head: head.freeze(),
            batch,
        }
    }
}

/// The body of a produce request: what comes in on a channel, until that is closed.
#[derive(Debug)]
pub(crate) struct ProduceBody {
    requests: mpsc::Receiver<Outgoing>,
    /// The batch whose head is out.
    batch: Option<Bytes>,
}

impl ProduceBody {
    pub(crate) const fn new(requests: mpsc::Receiver<Outgoing>) -> Self {
        Self {
            requests,
            batch: None,
        }
    }
}

impl Body for ProduceBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(batch) = self.batch.take() {
            return Poll::Ready(Some(Ok(Frame::data(batch))));
        }
        self.requests.poll_recv(cx).map(|request| {
            let request = request?;
            self.batch = Some(request.batch);
            Some(Ok(Frame::data(request.head)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_in_two_parts_reads_as_one_message() {
        let request = v1::ProduceRequest {
            request_id: 1 << 40,
            topic: "orders".to_owned(),
            topic_id: Bytes::from_static(&[9; 16]),
            partition: 300,
            acks: v1::Acks::All.into(),
            batch: Bytes::new(),
        };
        let batch = Bytes::from(vec![7; 70_000]);
        let outgoing = Outgoing::new(&request, batch.clone());

        let bytes = [&outgoing.head[..], &outgoing.batch[..]].concat();
        let (prefix, message) = bytes.split_at(GRPC_PREFIX_BYTES);

        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        assert_eq!(prefix, [&[0][..], &length[..]].concat());
        let expected = v1::ProduceRequest { batch, ..request };
        assert_eq!(v1::ProduceRequest::decode(message).unwrap(), expected);
    }
}
