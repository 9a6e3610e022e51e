//! Snappy in the framing of xerial's snappy-java, which Kafka's clients write: a magic and two
//! versions, then blocks of 32 KiB, each after its compressed length. Raw snappy is read, too.

use snap::raw::{Decoder, Encoder, decompress_len, max_compress_len};

/// Magic, version 1, compatible with version 1.
const XERIAL_HEADER: [u8; 16] = *b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01";
/// What tells the framing from raw snappy.
const XERIAL_MAGIC_BYTES: usize = 8;
/// Uncompressed bytes of a block.
const BLOCK_BYTES: usize = 32 << 10;
/// No snappy element yields more than 64 bytes from 2 of input.
const EXPANSION_MAX: usize = 32;

/// Why snappy bytes cannot be decompressed.
#[derive(Debug)]
pub(super) enum SnappyError {
    /// More than the limit.
    TooLarge,
    /// No snappy.
    Corrupt(String),
}

/// Appends `input`, compressed, to `output`.
pub(super) fn compress(input: &[u8], output: &mut Vec<u8>) {
    let mut encoder = Encoder::new();
    output.extend_from_slice(&XERIAL_HEADER);
    for block in input.chunks(BLOCK_BYTES) {
        compress_block(&mut encoder, block, output);
    }
}

fn compress_block(encoder: &mut Encoder, block: &[u8], output: &mut Vec<u8>) {
    let length_start = output.len();
    let start = length_start + size_of::<u32>();
    output.resize(start + max_compress_len(block.len()), 0);
    let written = encoder
        .compress(block, &mut output[start..])
        .expect("the room for a block is what snappy asks for");
    let length = u32::try_from(written).expect("a compressed block is near 32 KiB");
    output[length_start..start].copy_from_slice(&length.to_be_bytes());
    output.truncate(start + written);
}

/// Returns `input` decompressed, at most `bytes_max` of it.
pub(super) fn decompress(input: &[u8], bytes_max: usize) -> Result<Vec<u8>, SnappyError> {
    let mut output = Vec::new();
    if !input.starts_with(&XERIAL_HEADER[..XERIAL_MAGIC_BYTES]) {
        decompress_block(input, &mut output, bytes_max)?;
        return Ok(output);
    }
    let mut rest = input.get(XERIAL_HEADER.len()..).ok_or_else(truncated)?;
    while !rest.is_empty() {
        let (length, tail) = rest.split_first_chunk::<4>().ok_or_else(truncated)?;
        let length = u32::from_be_bytes(*length) as usize;
        let (block, tail) = tail.split_at_checked(length).ok_or_else(truncated)?;
        decompress_block(block, &mut output, bytes_max)?;
        rest = tail;
    }
    Ok(output)
}

fn truncated() -> SnappyError {
    SnappyError::Corrupt("bytes end within a block".to_owned())
}

/// Appends one block. Its claim of a length is believed only as far as snappy can expand.
fn decompress_block(
    block: &[u8],
    output: &mut Vec<u8>,
    bytes_max: usize,
) -> Result<(), SnappyError> {
    let corrupt = |error: snap::Error| SnappyError::Corrupt(error.to_string());
    let length = decompress_len(block).map_err(corrupt)?;
    if length > block.len() * EXPANSION_MAX {
        return Err(SnappyError::Corrupt(
            "block claims an impossible length".to_owned(),
        ));
    }
    let start = output.len();
    if length > bytes_max - start {
        return Err(SnappyError::TooLarge);
    }
    output.resize(start + length, 0);
    Decoder::new()
        .decompress(block, &mut output[start..])
        .map_err(corrupt)?;
    Ok(())
}
