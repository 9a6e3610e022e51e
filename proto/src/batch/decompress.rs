//! Decompression with a bound on what it yields: a few kilobytes may claim gigabytes.

use std::io::{self, Read};

use bytes::Bytes;

use super::{
    BatchError, Compression,
    snappy::{self, SnappyError},
};

/// First guess at how much larger the records are than their compressed bytes.
const EXPANSION_GUESS: usize = 3;

/// Returns the records in `input`, at most `bytes_max` of them.
pub(super) fn decompress(
    compression: Compression,
    input: &[u8],
    bytes_max: usize,
) -> Result<Bytes, BatchError> {
    let corrupt = |reason: String| BatchError::Decompress {
        compression,
        reason,
    };
    let too_large = BatchError::TooLarge { bytes_max };
    let output = match compression {
        Compression::None => Ok(input.to_vec()),
        Compression::Snappy => {
            return snappy::decompress(input, bytes_max)
                .map(Bytes::from)
                .map_err(|e| match e {
                    SnappyError::TooLarge => too_large,
                    SnappyError::Corrupt(reason) => corrupt(reason),
                });
        }
        Compression::Gzip => read_bounded(
            flate2::bufread::MultiGzDecoder::new(input),
            input.len(),
            bytes_max,
        ),
        Compression::Lz4 => read_bounded(
            lz4_flex::frame::FrameDecoder::new(input),
            input.len(),
            bytes_max,
        ),
        Compression::Zstd => zstd::stream::read::Decoder::with_buffer(input)
            .and_then(|decoder| read_bounded(decoder, input.len(), bytes_max)),
    };
    let output = output.map_err(|error| corrupt(error.to_string()))?;
    if output.len() > bytes_max {
        return Err(too_large);
    }
    Ok(output.into())
}

/// Reads to the end, or one byte beyond the bound.
fn read_bounded(reader: impl Read, input_bytes: usize, bytes_max: usize) -> io::Result<Vec<u8>> {
    let guess = input_bytes.saturating_mul(EXPANSION_GUESS).min(bytes_max);
    let mut output = Vec::with_capacity(guess);
    reader.take(bytes_max as u64 + 1).read_to_end(&mut output)?;
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::compressor::Compressor;

    #[test]
    fn bound_is_the_last_size_that_passes() {
        let records: Vec<u8> = (0..100_000_u32)
            .flat_map(|n| (n / 9).to_be_bytes())
            .collect();
        for compression in Compression::ALL.into_iter().skip(1) {
            let mut compressor = Compressor::new(compression);
            let compressed = compressor.compress(&records);
            let bytes_max = records.len();
            let exact = decompress(compression, compressed, bytes_max);
            assert_eq!(exact.as_deref(), Ok(records.as_slice()), "{compression}");
            let beyond = decompress(compression, compressed, bytes_max - 1);
            let too_large = BatchError::TooLarge {
                bytes_max: bytes_max - 1,
            };
            assert_eq!(beyond, Err(too_large), "{compression}");
        }
    }

    #[test]
    fn compressor_is_fresh_for_each_batch() {
        for compression in Compression::ALL {
            let mut compressor = Compressor::new(compression);
            let first = compressor
                .compress(b"first, and longer than the second")
                .to_vec();
            compressor.compress(b"second");
            assert_eq!(
                compressor.compress(b"first, and longer than the second"),
                first
            );
        }
    }
}
