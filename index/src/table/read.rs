//! Bytes to rows and metadata, trusting nothing.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
};

use bytes::Bytes;
use esker_proto::types::{LeaderEpoch, Offset, Position, SegmentId, TimestampMs};
use parquet::{
    column::{page::Page, reader::get_typed_column_reader},
    data_type::{ByteArrayType, DataType, Int64Type},
    file::reader::{FileReader, RowGroupReader, SerializedFileReader},
};

use super::{
    envelope::check,
    schema::{INTEGERS, INTEGERS_MIN, SCHEMA},
};
use crate::{Error, IndexEntry, Rows, RowsBuilder, SegmentMeta};

/// Where [`INTEGERS`] has the time of a segment's upload.
const UPLOADED_AT: usize = INTEGERS.len() - 1;

/// A table that was read.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) rows: Rows,
    pub(crate) metadata: HashMap<String, String>,
}

/// Reads a table of at most `rows_max` rows.
pub(crate) fn read(file: Bytes, rows_max: usize) -> Result<Table, Error> {
    check(&file)?;
    // The checksum keeps accidents from the Parquet parser. Should a file made to look right drive
    // it into a panic all the same, that file is malformed and the process goes on.
    catch_unwind(AssertUnwindSafe(|| read_parquet(file, rows_max))).unwrap_or(Err(
        Error::Malformed {
            what: "parquet file",
        },
    ))
}

fn read_parquet(file: Bytes, rows_max: usize) -> Result<Table, Error> {
    let file_bytes = file.len();
    let reader = SerializedFileReader::new(file).map_err(|_| malformed("parquet footer"))?;
    check_schema(&reader)?;
    let footer = reader.metadata().file_metadata();
    let pairs = footer.key_value_metadata().into_iter().flatten();
    let metadata = pairs
        .filter_map(|pair| Some((pair.key.clone(), pair.value.clone()?)))
        .collect();
    let rows = match reader.num_row_groups() {
        0 => Rows::default(),
        1 => {
            check_sizes(&reader, rows_max, file_bytes)?;
            let group = reader
                .get_row_group(0)
                .map_err(|_| malformed("parquet row group"))?;
            read_rows(&*group)?
        }
        groups => {
            return Err(Error::TooLarge {
                limit: "row groups",
                actual: groups as u64,
            });
        }
    };
    Ok(Table { rows, metadata })
}

fn malformed(what: &'static str) -> Error {
    Error::Malformed { what }
}

/// The columns of the schema must come first, by name and type. Files of earlier releases lack the
/// last ones.
fn check_schema(reader: &SerializedFileReader<Bytes>) -> Result<(), Error> {
    let columns = reader.metadata().file_metadata().schema_descr().columns();
    let expected = SCHEMA.get_fields();
    let agree = columns.len() > INTEGERS_MIN
        && expected.iter().zip(columns).all(|(expected, column)| {
            expected.name() == column.path().string()
                && expected.get_physical_type() == column.physical_type()
                && column.max_def_level() == 0
                && column.max_rep_level() == 0
        });
    if agree {
        Ok(())
    } else {
        Err(malformed("parquet schema"))
    }
}

/// Without compression a column cannot be longer than the file.
fn check_sizes(
    reader: &SerializedFileReader<Bytes>,
    rows_max: usize,
    file_bytes: usize,
) -> Result<(), Error> {
    let group = reader.metadata().row_group(0);
    let rows = usize::try_from(group.num_rows()).map_err(|_| malformed("row count"))?;
    if rows > rows_max {
        return Err(Error::TooLarge {
            limit: "rows",
            actual: rows as u64,
        });
    }
    for column in group.columns() {
        let bytes =
            usize::try_from(column.uncompressed_size()).map_err(|_| malformed("column size"))?;
        let is_plain = column.compression() == parquet::basic::Compression::UNCOMPRESSED;
        if !is_plain || bytes > file_bytes || column.num_values() != group.num_rows() {
            return Err(malformed("parquet column"));
        }
    }
    Ok(())
}

fn read_rows(group: &dyn RowGroupReader) -> Result<Rows, Error> {
    let ids = read_column::<ByteArrayType>(group, 0)?;
    let mut integers: [Vec<i64>; INTEGERS.len()] = Default::default();
    for (index, column) in integers.iter_mut().enumerate() {
        *column = if index + 1 < group.num_columns() {
            read_column::<Int64Type>(group, index + 1)?
        } else {
            vec![0; ids.len()]
        };
    }
    let mut builder = RowsBuilder::new();
    let mut start = 0;
    while start < ids.len() {
        let id = &ids[start];
        let end = start + ids[start..].iter().take_while(|other| *other == id).count();
        let entries = (start..end)
            .map(|row| entry(&integers, row))
            .collect::<Result<Vec<_>, _>>()?;
        let meta = segment(id.data(), &integers, start..end, &entries)?;
        builder.push(meta, &entries)?;
        start = end;
    }
    Ok(builder.finish())
}

/// A dictionary is allocated by the count it claims: hold that against its bytes first. Everything
/// else the library allocates by what it has read.
fn check_dictionaries(group: &dyn RowGroupReader, column: usize) -> Result<(), Error> {
    const VALUE_BYTES_MIN: usize = 4;
    let unreadable = |_| malformed("parquet column");
    let mut pages = group.get_column_page_reader(column).map_err(unreadable)?;
    while let Some(page) = pages.get_next_page().map_err(unreadable)? {
        if let Page::DictionaryPage {
            buf, num_values, ..
        } = page
            && num_values as usize > buf.len() / VALUE_BYTES_MIN
        {
            return Err(malformed("parquet dictionary"));
        }
    }
    Ok(())
}

fn read_column<T: DataType>(group: &dyn RowGroupReader, index: usize) -> Result<Vec<T::T>, Error> {
    let rows = usize::try_from(group.metadata().num_rows()).map_err(|_| malformed("row count"))?;
    check_dictionaries(group, index)?;
    let reader = group
        .get_column_reader(index)
        .map_err(|_| malformed("parquet column"))?;
    let mut values = Vec::new();
    let (read, _, _) = get_typed_column_reader::<T>(reader)
        .read_records(rows, None, None, &mut values)
        .map_err(|_| malformed("parquet column"))?;
    if read != rows || values.len() != rows {
        return Err(malformed("parquet column"));
    }
    Ok(values)
}

fn segment(
    id: &[u8],
    integers: &[Vec<i64>; INTEGERS.len()],
    rows: std::ops::Range<usize>,
    entries: &[IndexEntry],
) -> Result<SegmentMeta, Error> {
    let first = |column: usize| integers[column][rows.start];
    let is_constant = |column: usize| {
        integers[column][rows.clone()]
            .iter()
            .all(|&v| v == first(column))
    };
    if !(0..5).chain([UPLOADED_AT]).all(is_constant) {
        return Err(malformed("segment columns"));
    }
    let text = std::str::from_utf8(id).map_err(|_| malformed("segment id"))?;
    let leader_epoch = u32::try_from(first(2)).map_err(|_| malformed("leader epoch"))?;
    let crc32c = u32::try_from(first(4)).map_err(|_| malformed("segment checksum"))?;
    let segment_id: SegmentId = text.parse().map_err(|_| malformed("segment id"))?;
    let mut meta =
        SegmentMeta::of_entries(segment_id, LeaderEpoch::new(leader_epoch), crc32c, entries)
            .ok_or_else(|| malformed("segment"))?;
    meta.base_offset = Offset::new(unsigned(first(0))?);
    meta.next_offset = Offset::new(unsigned(first(1))?);
    meta.size_bytes = unsigned(first(3))?;
    meta.uploaded_at = TimestampMs::new(first(UPLOADED_AT));
    Ok(meta)
}

fn entry(integers: &[Vec<i64>; INTEGERS.len()], row: usize) -> Result<IndexEntry, Error> {
    let short = |column: usize| {
        u32::try_from(integers[column][row]).map_err(|_| malformed("length or record count"))
    };
    Ok(IndexEntry {
        base_offset: Offset::new(unsigned(integers[5][row])?),
        position: Position::new(unsigned(integers[6][row])?),
        length: short(7)?,
        record_count: short(8)?,
        min_timestamp: TimestampMs::new(integers[9][row]),
        max_timestamp: TimestampMs::new(integers[10][row]),
    })
}

fn unsigned(number: i64) -> Result<u64, Error> {
    u64::try_from(number).map_err(|_| malformed("negative number"))
}
