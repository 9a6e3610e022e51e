//! Against the `kafka-protocol` crate, in both directions.

use bytes::{Bytes, BytesMut};
use esker_proto::batch::{Compression, RecordBatch};
use kafka_protocol::records::{
    Compression as PeerCompression, Record as PeerRecord, RecordBatchDecoder, RecordBatchEncoder,
    RecordEncodeOptions, TimestampType,
};
use proptest::prelude::*;

use crate::samples::{
    PRODUCER, Sample, any_compression, any_samples, build, one_of_everything, read,
};

const fn peer_compression(compression: Compression) -> PeerCompression {
    match compression {
        Compression::None => PeerCompression::None,
        Compression::Gzip => PeerCompression::Gzip,
        Compression::Snappy => PeerCompression::Snappy,
        Compression::Lz4 => PeerCompression::Lz4,
        Compression::Zstd => PeerCompression::Zstd,
    }
}

fn peer_record(index: usize, sample: &Sample) -> PeerRecord {
    let index = i32::try_from(index).unwrap();
    let headers = sample.headers.iter().map(|(key, value)| {
        let key = kafka_protocol::protocol::StrBytes::from_string(key.clone());
        (key, value.clone().map(Bytes::from))
    });
    PeerRecord {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: 0,
        producer_id: PRODUCER.0,
        producer_epoch: PRODUCER.1,
        timestamp_type: TimestampType::Creation,
        offset: index.into(),
        sequence: PRODUCER.2 + index,
        timestamp: sample.timestamp,
        key: sample.key.clone().map(Bytes::from),
        value: sample.value.clone().map(Bytes::from),
        headers: headers.collect(),
    }
}

fn peer_records(samples: &[Sample]) -> Vec<PeerRecord> {
    samples
        .iter()
        .enumerate()
        .map(|(index, sample)| peer_record(index, sample))
        .collect()
}

/// Encodes with the peer.
pub(crate) fn peer_build(samples: &[Sample], compression: Compression) -> Bytes {
    let options = RecordEncodeOptions {
        version: 2,
        compression: peer_compression(compression),
    };
    let mut bytes = BytesMut::new();
    RecordBatchEncoder::encode(&mut bytes, &peer_records(samples), &options).unwrap();
    bytes.freeze()
}

fn assert_peers_agree(samples: &[Sample], compression: Compression) {
    let theirs = peer_build(samples, compression);
    assert_eq!(
        read(theirs.clone()).unwrap(),
        samples,
        "{compression}: ours reads theirs"
    );

    let ours = build(samples, compression, PRODUCER);
    let decoded = RecordBatchDecoder::decode(&mut ours.clone()).unwrap();
    assert_eq!(decoded.compression, peer_compression(compression));
    assert_eq!(
        decoded.records,
        peer_records(samples),
        "{compression}: theirs reads ours"
    );

    let header = *RecordBatch::validate(theirs.clone()).unwrap().header();
    assert_eq!(
        header.encode(),
        theirs[..61],
        "{compression}: the header keeps every bit"
    );
    if matches!(compression, Compression::None | Compression::Snappy) {
        assert!(ours == theirs, "{compression}: byte for byte");
    }
}

#[test]
fn one_of_everything_is_the_same_to_both() {
    for compression in Compression::ALL {
        assert_peers_agree(&one_of_everything(), compression);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_batch_is_the_same_to_both(samples in any_samples(), compression in any_compression()) {
        assert_peers_agree(&samples, compression);
    }
}
