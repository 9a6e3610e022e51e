//! Compression of a batch's records, with what is worth keeping from batch to batch.

use std::{fmt, io::Write};

use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};

use super::{Compression, snappy};

/// Zstandard's own default, and that of Kafka's clients.
const ZSTD_LEVEL: i32 = 3;

/// Compresses the records of one batch after another.
pub(super) struct Compressor {
    compression: Compression,
    /// A zstd context is over a megabyte: made once, at first use.
    zstd: Option<zstd::bulk::Compressor<'static>>,
    output: Vec<u8>,
}

impl Compressor {
    pub(super) const fn new(compression: Compression) -> Self {
        Self {
            compression,
            zstd: None,
            output: Vec::new(),
        }
    }

    pub(super) const fn compression(&self) -> Compression {
        self.compression
    }

    /// Returns `records` compressed; the bytes stay until the next call.
    pub(super) fn compress(&mut self, records: &[u8]) -> &[u8] {
        self.output.clear();
        match self.compression {
            Compression::None => self.output.extend_from_slice(records),
            Compression::Gzip => self.compress_gzip(records),
            Compression::Snappy => snappy::compress(records, &mut self.output),
            Compression::Lz4 => self.compress_lz4(records),
            Compression::Zstd => self.compress_zstd(records),
        }
        &self.output
    }

    fn compress_gzip(&mut self, records: &[u8]) {
        let level = flate2::Compression::default();
        let mut encoder = flate2::write::GzEncoder::new(&mut self.output, level);
        let written = encoder
            .write_all(records)
            .and_then(|()| encoder.try_finish());
        written.expect("a vector takes every write");
    }

    /// Independent blocks of 64 KiB without checksums: all that Kafka's Java client reads.
    fn compress_lz4(&mut self, records: &[u8]) {
        let frame = FrameInfo::new()
            .block_size(BlockSize::Max64KB)
            .block_mode(BlockMode::Independent);
        let mut encoder = FrameEncoder::with_frame_info(frame, &mut self.output);
        let written = encoder
            .write_all(records)
            .map_err(|error| error.to_string());
        let finished =
            written.and_then(|()| encoder.try_finish().map_err(|error| error.to_string()));
        finished.expect("a vector takes every write");
    }

    fn compress_zstd(&mut self, records: &[u8]) {
        let zstd = self.zstd.get_or_insert_with(|| {
            zstd::bulk::Compressor::new(ZSTD_LEVEL).expect("the default level exists")
        });
        self.output
            .reserve(zstd::zstd_safe::compress_bound(records.len()));
        zstd.compress_to_buffer(records, &mut self.output)
            .expect("the room for the records is what zstd asks for");
    }
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compressor")
            .field("compression", &self.compression)
            .finish_non_exhaustive()
    }
}
