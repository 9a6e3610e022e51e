//! Which partition a keyed record goes to: murmur2 of the key, as Kafka's clients have it, so that
//! records of one key stay together whoever sends them.

use std::num::NonZeroU32;

use crate::types::PartitionId;

const SEED: u32 = 0x9747_b28c;
const MULTIPLIER: u32 = 0x5bd1_e995;
const SHIFT: u32 = 24;

/// Returns the partition of `key` among `partitions`.
pub fn partition_for_key(key: &[u8], partitions: NonZeroU32) -> PartitionId {
    let positive = murmur2(key) & 0x7fff_ffff;
    PartitionId::new(positive % partitions)
}

/// The 32-bit murmur2 hash with Kafka's seed.
pub fn murmur2(bytes: &[u8]) -> u32 {
    let (words, tail) = bytes.as_chunks::<4>();
    // Kafka mixes in a Java int: of longer keys, which nobody has, only the low bits.
    let mut hash = SEED ^ u32::try_from(bytes.len() & 0xffff_ffff).unwrap_or_default();
    for word in words {
        hash = hash.wrapping_mul(MULTIPLIER) ^ scramble(u32::from_le_bytes(*word));
    }
    if !tail.is_empty() {
        let last = tail
            .iter()
            .rev()
            .fold(0, |last, byte| last << 8 | u32::from(*byte));
        hash = (hash ^ last).wrapping_mul(MULTIPLIER);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(MULTIPLIER);
    hash ^ (hash >> 15)
}

const fn scramble(word: u32) -> u32 {
    let word = word.wrapping_mul(MULTIPLIER);
    (word ^ (word >> SHIFT)).wrapping_mul(MULTIPLIER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_kafka() {
        let cases: [(&[u8], i32); 6] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (
                b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            (b"abc", 479_470_107),
        ];
        for (key, hash) in cases {
            assert_eq!(murmur2(key).cast_signed(), hash, "{}", key.escape_ascii());
        }
    }

    #[test]
    fn keys_stay_within_the_partitions() {
        let partitions = NonZeroU32::new(7).unwrap();
        for key in 0..1000_u32 {
            assert!(partition_for_key(&key.to_be_bytes(), partitions).get() < 7);
        }
        // -790332482 & 0x7fffffff = 1357151166
        assert_eq!(
            partition_for_key(b"foobar", partitions).get(),
            1_357_151_166 % 7
        );
    }
}
