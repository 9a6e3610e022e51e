//! The checksum of a batch.

/// CRC-32C (Castagnoli, iSCSI) of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// By how much the checksum of bytes changes, when that of their front changes by `difference` and
/// `bytes` unchanged ones follow.
pub(super) fn crc32c_shifted(difference: u32, bytes: u64) -> u32 {
    let shifted = crc_fast::checksum_combine(
        crc_fast::CrcAlgorithm::Crc32Iscsi,
        difference.into(),
        0,
        bytes,
    );
    u32::try_from(shifted).expect("a CRC-32 has 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_castagnoli() {
        assert_eq!(crc32c(b""), 0);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }
}
