//! Arbitrary bytes as batches: reading them never panics and never takes much memory.
//!
//! `cargo +nightly fuzz run batch -- -malloc_limit_mb=300 -timeout=10`, with `proto/testdata/v2`
//! as a further corpus directory. The bytes are read as they are, and once more with length and CRC
//! set right, because no fuzzer guesses a CRC.
#![no_main]

use bytes::Bytes;
use esker_proto::{
    batch::{BatchBuilder, BatchHeaders, Batches, RecordBatch, crc32c},
    convert::{push_wire_record, wire_records},
    types::{LeaderEpoch, Offset, TimestampMs},
};
use libfuzzer_sys::fuzz_target;

/// Wire records built again at most, as an agent bounds them.
const RECORDS_MAX: usize = 1000;

fuzz_target!(|bytes: &[u8]| {
    walk(bytes);
    if let Some(mended) = mended(bytes) {
        walk(&mended);
    }
});

fn walk(bytes: &[u8]) {
    let headers = BatchHeaders::new(bytes).filter(Result::is_ok).count();
    let batches = Batches::new(Bytes::copy_from_slice(bytes)).flatten();
    let valid = batches.inspect(check).count();
    assert!(valid <= headers, "a valid batch has a valid header");
}

fn check(batch: &RecordBatch) {
    let (header, body) = batch.stamped(Offset::new(42), LeaderEpoch::new(7));
    let appended: Bytes = [&header[..], &body[..]].concat().into();
    RecordBatch::validate(appended).expect("a stamp leaves a valid batch valid");
    if batch.check_records().is_ok() {
        check_sound(batch);
    }
}

/// Records that hold are as many as the header says, and can be built again.
fn check_sound(batch: &RecordBatch) {
    let records = batch.records().expect("they decompressed before");
    assert_eq!(records.iter().count(), batch.header().record_count as usize);
    let mut builder = BatchBuilder::new(batch.header().compression());
    let first = batch.header().base_offset;
    for record in wire_records(&records, first).take(RECORDS_MAX) {
        let record = record.expect("it was decoded before");
        if push_wire_record(&mut builder, &record, TimestampMs::new(1)).is_err() {
            return;
        }
    }
    let again = RecordBatch::validate(builder.finish(None)).expect("what is built is valid");
    again.check_records().expect("what is built can be read");
}

/// The bytes as one batch whose magic, length and CRC hold.
fn mended(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut batch = bytes.to_vec();
    let length = u32::try_from(bytes.len().checked_sub(12)?).ok()?;
    batch.get_mut(8..12)?.copy_from_slice(&length.to_be_bytes());
    *batch.get_mut(16)? = 2;
    let crc = crc32c(batch.get(21..)?);
    batch.get_mut(17..21)?.copy_from_slice(&crc.to_be_bytes());
    Some(batch)
}
