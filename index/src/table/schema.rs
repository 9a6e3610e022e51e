//! The columns, and how each is encoded.

use std::sync::{Arc, LazyLock};

use parquet::{
    basic::{Encoding, LogicalType, Repetition, TimeUnit, Type as PhysicalType},
    file::properties::{EnabledStatistics, WriterProperties, WriterVersion},
    schema::types::{ColumnPath, Type},
};

/// Name of the one text column, which comes first.
pub(super) const SEGMENT_ID: &str = "segment_id";

/// The 64-bit integer columns behind it, in order.
pub(super) const INTEGERS: [(&str, Kind); 12] = [
    ("segment_base_offset", Kind::PerSegment),
    ("segment_next_offset", Kind::PerSegment),
    ("leader_epoch", Kind::PerSegment),
    ("segment_size_bytes", Kind::PerSegment),
    ("segment_crc32c", Kind::PerSegment),
    ("base_offset", Kind::PerRow),
    ("position", Kind::PerRow),
    ("length", Kind::PerRow),
    ("record_count", Kind::PerRow),
    ("min_timestamp", Kind::Time),
    ("max_timestamp", Kind::Time),
    ("segment_uploaded_at", Kind::Time),
];

/// How many of [`INTEGERS`] every file has: the first files end before the others.
pub(super) const INTEGERS_MIN: usize = 11;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The same for all rows of a segment: dictionary and run length.
    PerSegment,
    /// Different in each row but close to its neighbours: differences, bit-packed.
    PerRow,
    /// As `PerRow`, and shown as a point in time.
    Time,
}

pub(super) static SCHEMA: LazyLock<Arc<Type>> = LazyLock::new(|| {
    let mut fields = vec![column(
        SEGMENT_ID,
        PhysicalType::BYTE_ARRAY,
        Some(LogicalType::String),
    )];
    fields.extend(INTEGERS.map(|(name, kind)| {
        let time = LogicalType::timestamp(true, TimeUnit::MILLIS);
        column(
            name,
            PhysicalType::INT64,
            (kind == Kind::Time).then_some(time),
        )
    }));
    let schema = Type::group_type_builder("esker_index")
        .with_fields(fields)
        .build();
    Arc::new(schema.expect("the schema is constant"))
});

fn column(name: &str, physical: PhysicalType, logical: Option<LogicalType>) -> Arc<Type> {
    let column = Type::primitive_type_builder(name, physical)
        .with_repetition(Repetition::REQUIRED)
        .with_logical_type(logical)
        .build();
    Arc::new(column.expect("the column is constant"))
}

pub(super) static PROPERTIES: LazyLock<Arc<WriterProperties>> = LazyLock::new(|| {
    let mut properties = WriterProperties::builder()
        .set_created_by("esker".to_owned())
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .set_max_row_group_row_count(None);
    for (name, kind) in INTEGERS {
        if kind != Kind::PerSegment {
            let path = ColumnPath::from(name);
            properties = properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
        }
    }
    Arc::new(properties.build())
});
