//! Gives an encoded batch other sequences.

use bytes::{Bytes, BytesMut};
use esker_proto::batch::{BatchHeader, HEADER_BYTES, crc32c};

use super::in_flight::Stamp;

/// The checksum covers everything from here.
const CRC_START: usize = 21;

/// Writes producer id, epoch and sequence into the header and sets the checksum. Copies the batch
/// only if somebody still holds its bytes.
pub(crate) fn restamp(batch: Bytes, stamp: Stamp) -> Bytes {
    let mut batch = batch
        .try_into_mut()
        .unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    let mut header = BatchHeader::parse(&batch).expect("this producer encoded the batch itself");
    (
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    ) = stamp;
    batch[..HEADER_BYTES].copy_from_slice(&header.encode());
    header.crc = crc32c(&batch[CRC_START..]);
    batch[..HEADER_BYTES].copy_from_slice(&header.encode());
    batch.freeze()
}

#[cfg(test)]
mod tests {
    use esker_proto::{
        batch::{BatchBuilder, Compression, RecordBatch},
        types::{ProducerEpoch, ProducerId, Sequence, TimestampMs},
    };

    use super::*;

    #[test]
    fn batch_with_other_sequences_is_the_one_built_with_them() {
        let stamp = |epoch, sequence| {
            (
                ProducerId::new(7),
                ProducerEpoch::new(epoch),
                Sequence::new(sequence),
            )
        };
        let build = |stamp| {
            let mut builder = BatchBuilder::new(Compression::Lz4);
            for value in [b"one", b"two"] {
                builder
                    .push(TimestampMs::new(5), None, Some(value), &[])
                    .unwrap();
            }
            builder.finish(Some(stamp))
        };
        let (old, expected) = (build(stamp(0, 40)), build(stamp(1, 0)));
        let still_held = old.clone();

        let restamped = restamp(old, stamp(1, 0));

        assert_eq!(restamped, expected);
        RecordBatch::validate(restamped).unwrap();
        RecordBatch::validate(still_held).unwrap();
    }
}
