//! Rows and metadata to bytes.

use parquet::{
    data_type::{ByteArray, ByteArrayType, DataType, Int64Type},
    errors::Result,
    file::{
        metadata::KeyValue,
        writer::{SerializedFileWriter, SerializedRowGroupWriter},
    },
};

use super::{
    envelope::{ENVELOPE_BYTES, seal},
    schema::{INTEGERS, PROPERTIES, SCHEMA},
};
use crate::{Row, Rows};

/// Writes a table. CPU only, but for a large page that is tens of milliseconds of it.
pub(crate) fn write(rows: &Rows, metadata: Vec<(&'static str, String)>) -> Vec<u8> {
    let mut file = try_write(rows, metadata).expect("writing to memory, with a constant schema");
    seal(&mut file);
    file
}

fn try_write(rows: &Rows, metadata: Vec<(&'static str, String)>) -> Result<Vec<u8>> {
    let mut file = SerializedFileWriter::new(Vec::new(), SCHEMA.clone(), PROPERTIES.clone())?;
    file.write_all(&[0; ENVELOPE_BYTES])?;
    if !rows.is_empty() {
        let mut group = file.next_row_group()?;
        write_columns(rows, &mut group)?;
        group.close()?;
    }
    for (key, value) in metadata {
        file.append_key_value_metadata(KeyValue::new(key.to_owned(), value));
    }
    file.into_inner()
}

fn write_columns(rows: &Rows, group: &mut SerializedRowGroupWriter<'_, Vec<u8>>) -> Result<()> {
    let mut ids = Vec::with_capacity(rows.len());
    for (index, meta) in rows.segments().iter().enumerate() {
        let id = ByteArray::from(meta.segment_id.to_string().into_bytes());
        ids.extend(std::iter::repeat_n(id, rows.rows_of(index).len()));
    }
    write_column::<ByteArrayType>(group, &ids)?;
    for column in integers(rows) {
        write_column::<Int64Type>(group, &column)?;
    }
    Ok(())
}

fn write_column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    values: &[T::T],
) -> Result<()> {
    let mut column = group
        .next_column()?
        .expect("as many columns as the schema has");
    column.typed::<T>().write_batch(values, None, None)?;
    column.close()
}

fn integers(rows: &Rows) -> [Vec<i64>; INTEGERS.len()] {
    let mut columns = std::array::from_fn(|_| Vec::with_capacity(rows.len()));
    for Row { segment, entry } in rows.iter() {
        let values = [
            signed(segment.base_offset.get()),
            signed(segment.next_offset.get()),
            i64::from(segment.leader_epoch.get()),
            signed(segment.size_bytes),
            i64::from(segment.crc32c),
            signed(entry.base_offset.get()),
            signed(entry.position.get()),
            i64::from(entry.length),
            i64::from(entry.record_count),
            entry.min_timestamp.get(),
            entry.max_timestamp.get(),
            segment.uploaded_at.get(),
        ];
        for (column, value) in columns.iter_mut().zip(values) {
            column.push(value);
        }
    }
    columns
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).expect("rows hold 63-bit numbers only")
}
