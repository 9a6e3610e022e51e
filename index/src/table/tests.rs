//! Tests of the table: damage is refused, and other Parquet readers see what we wrote.

use arrow_array::{
    Array, RecordBatch,
    cast::AsArray,
    types::{Int64Type, TimestampMillisecondType},
};
use bytes::Bytes;
use esker_proto::types::TimestampMs;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use proptest::{collection::vec, prelude::*};

use super::{envelope::seal, read, write};
use crate::{
    Error, Row, Rows,
    testing::{rows, segment},
};

fn some_rows() -> Rows {
    let mut segments = [
        segment(100, &[(10, 50), (20, 70), (5, 60)]),
        segment(135, &[(1, 80), (2, 70)]),
    ];
    segments[0].0.uploaded_at = TimestampMs::new(1_000);
    segments[1].0.uploaded_at = TimestampMs::new(2_000);
    rows(&segments)
}

fn file() -> Vec<u8> {
    write(
        &some_rows(),
        vec![("esker.format", "page".to_owned()), ("k", "v".to_owned())],
    )
}

#[test]
fn rows_and_metadata_come_back() {
    let table = read(file().into(), 5).expect("reads");
    assert_eq!(table.rows, some_rows());
    assert_eq!(table.metadata["k"], "v");

    let empty = read(write(&Rows::default(), Vec::new()).into(), 0).expect("reads");
    assert!(empty.rows.is_empty());
}

#[test]
fn more_rows_than_allowed_are_refused() {
    let error = read(file().into(), 4).unwrap_err();
    assert_eq!(
        error,
        Error::TooLarge {
            limit: "rows",
            actual: 5
        }
    );
}

#[test]
fn any_flipped_bit_is_noticed() {
    let file = file();
    for bit in 0..file.len() * 8 {
        let mut damaged = file.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(read(damaged.into(), 5).is_err(), "bit {bit}");
    }
}

#[test]
fn a_truncated_or_lengthened_file_is_noticed() {
    let file = Bytes::from(file());
    for length in 0..file.len() {
        assert!(read(file.slice(..length), 5).is_err(), "length {length}");
    }
    let longer = [&file[..], &[0]].concat();
    assert!(matches!(
        read(longer.into(), 5),
        Err(Error::WrongLength { .. })
    ));
}

#[test]
fn a_dictionary_that_claims_more_than_its_bytes_is_refused() {
    let mut forged = file();
    // Page header, field 7 (dictionary), field 1 (number of values, zigzag): 2 of them.
    let header = [0x4c, 0x15, 4];
    let at = forged
        .windows(3)
        .position(|bytes| bytes == header)
        .expect("a dictionary page");
    forged[at + 2] = 0x7e;
    seal(&mut forged);

    let error = read(forged.into(), 5).unwrap_err();

    assert_eq!(
        error,
        Error::Malformed {
            what: "parquet dictionary"
        }
    );
}

/// Other readers do not know the envelope: they must find a plain Parquet file.
#[test]
fn arrow_reads_the_same_rows() {
    let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(file())).expect("Parquet");
    let batches: Vec<RecordBatch> = reader
        .build()
        .expect("a reader")
        .collect::<Result<_, _>>()
        .expect("reads");
    let batch = &batches[0];
    let number = |name: &str, row: usize| {
        batch
            .column_by_name(name)
            .expect(name)
            .as_primitive::<Int64Type>()
            .value(row)
    };
    let time = |name: &str, row: usize| {
        let column = batch.column_by_name(name).expect(name);
        column.as_primitive::<TimestampMillisecondType>().value(row)
    };
    assert_eq!(batch.num_rows(), 5);
    for (row, Row { segment, entry }) in some_rows().iter().enumerate() {
        let id = batch
            .column_by_name("segment_id")
            .expect("a column")
            .as_string::<i32>();
        assert_eq!(id.value(row), segment.segment_id.to_string());
        let unsigned = [
            ("segment_base_offset", segment.base_offset.get()),
            ("segment_next_offset", segment.next_offset.get()),
            ("leader_epoch", segment.leader_epoch.get().into()),
            ("segment_size_bytes", segment.size_bytes),
            ("segment_crc32c", segment.crc32c.into()),
            ("base_offset", entry.base_offset.get()),
            ("position", entry.position.get()),
            ("length", entry.length.into()),
            ("record_count", entry.record_count.into()),
        ];
        for (name, expected) in unsigned {
            assert_eq!(u64::try_from(number(name, row)), Ok(expected), "{name}");
        }
        assert_eq!(time("min_timestamp", row), entry.min_timestamp.get());
        assert_eq!(time("max_timestamp", row), entry.max_timestamp.get());
    }
    assert!(
        batch
            .columns()
            .iter()
            .all(|column| column.null_count() == 0)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// What a checksum does not catch: a file made on purpose.
    #[test]
    fn arbitrary_bytes_behind_a_good_checksum_never_panic(
        changes in vec((0_usize..4096, any::<u8>()), 1..8),
        cut in 0_usize..64,
    ) {
        let mut forged = file();
        let length = forged.len();
        for (at, byte) in changes {
            // The footer is where lengths and counts are.
            let at = if at % 2 == 0 { at % length } else { length - 1 - at % (length / 3) };
            forged[at] = byte;
        }
        if cut > 32 {
            forged.drain(length / 2..length / 2 + cut);
        }
        seal(&mut forged);
        let _ = read(forged.into(), 5);
    }

    #[test]
    fn arbitrary_bytes_are_refused(bytes in vec(any::<u8>(), 0..2000)) {
        prop_assert!(read(bytes.into(), 5).is_err());
    }
}
