//! Zigzag varints: seven bits a byte, least significant first.

use super::RecordFault;

/// Most bytes of a 64-bit varint.
pub(super) const VARINT_BYTES_MAX: usize = 10;

/// Maps small negative numbers to small unsigned ones: 0, -1, 1, -2, ... to 0, 1, 2, 3, ...
#[inline]
pub(super) const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

/// Zigzag of a length, which is never negative.
#[inline]
pub(super) const fn zigzag_length(length: usize) -> u64 {
    (length as u64) << 1
}

/// Undoes [`zigzag`].
#[inline]
pub(super) const fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

/// Bytes that `value` takes as a varint.
#[inline]
pub(super) const fn size(value: u64) -> usize {
    let bits = (u64::BITS - (value | 1).leading_zeros()) as usize;
    bits.div_ceil(7)
}

/// Writes `value` at `start` of `out` and returns where it ends.
#[inline]
pub(super) fn write<const N: usize>(out: &mut [u8; N], start: usize, mut value: u64) -> usize {
    let mut at = start;
    while value >= 0x80 {
        out[at] = (value & 0x7f) as u8 | 0x80;
        value >>= 7;
        at += 1;
    }
    out[at] = (value & 0x7f) as u8;
    at + 1
}

/// Undoes [`zigzag_length`]; `None` for a negative length.
#[inline]
pub(super) fn as_length(value: u64) -> Option<usize> {
    usize::try_from(value >> 1).ok().filter(|_| value & 1 == 0)
}

/// Returns the varint in the lowest bytes of `word`, not decoded from zigzag, and how many bytes it
/// takes; `None` if it takes more than three.
#[inline]
pub(super) const fn in_word(word: u64) -> Option<(u64, usize)> {
    if word & 0x80 == 0 {
        Some((word & 0x7f, 1))
    } else if word & 0x8000 == 0 {
        Some((word & 0x7f | word >> 1 & 0x3f80, 2))
    } else if word & 0x80_0000 == 0 {
        Some((word & 0x7f | word >> 1 & 0x3f80 | word >> 2 & 0x1f_c000, 3))
    } else {
        None
    }
}

/// Returns the varint at the front of `bytes`, and what follows it.
///
/// Takes and returns the slice by value, so that a loop over records keeps it in registers.
#[inline]
pub(super) fn read(bytes: &[u8]) -> Result<(i64, &[u8]), RecordFault> {
    match *bytes {
        [first, ref rest @ ..] if first < 0x80 => Ok((unzigzag(u64::from(first)), rest)),
        [first, second, ref rest @ ..] if second < 0x80 => {
            let value = u64::from(first & 0x7f) | u64::from(second) << 7;
            Ok((unzigzag(value), rest))
        }
        _ => read_long(bytes),
    }
}

/// The varints of three bytes and more, and the faulty ones.
fn read_long(bytes: &[u8]) -> Result<(i64, &[u8]), RecordFault> {
    let mut value = 0;
    for (index, byte) in bytes.iter().enumerate().take(VARINT_BYTES_MAX) {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if *byte < 0x80 {
            // The tenth byte has room for one bit.
            let overflows = index + 1 == VARINT_BYTES_MAX && *byte > 1;
            let rest = &bytes[index + 1..];
            return if overflows {
                Err(RecordFault::Varint)
            } else {
                Ok((unzigzag(value), rest))
            };
        }
    }
    let is_cut = bytes.len() < VARINT_BYTES_MAX;
    Err(if is_cut {
        RecordFault::Truncated
    } else {
        RecordFault::Varint
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(value: i64) -> Vec<u8> {
        let mut out = [0; VARINT_BYTES_MAX];
        let end = write(&mut out, 0, zigzag(value));
        out[..end].to_vec()
    }

    fn assert_comes_back(value: i64) {
        let mut bytes = written(value);
        assert_eq!(bytes.len(), size(zigzag(value)), "{value}");
        bytes.push(0x55);
        let expected = Ok((value, [0x55].as_slice()));
        assert_eq!(
            read(&bytes),
            expected,
            "no byte more, no byte less is taken"
        );
    }

    #[test]
    fn encoding_is_that_of_protobuf_sint() {
        let cases: [(i64, &[u8]); 7] = [
            (0, &[0]),
            (-1, &[1]),
            (63, &[0x7e]),
            (-64, &[0x7f]),
            (64, &[0x80, 1]),
            (8192, &[0x80, 0x80, 1]),
            (
                i64::MIN,
                &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            ),
        ];
        for (value, bytes) in cases {
            assert_eq!(written(value), bytes, "{value}");
        }
        assert_eq!(zigzag_length(300), zigzag(300));
    }

    #[test]
    fn values_at_the_edges_of_each_size_come_back() {
        for shift in 0..63 {
            for value in [
                (1_i64 << shift) - 1,
                1 << shift,
                -(1 << shift),
                -(1 << shift) - 1,
            ] {
                assert_comes_back(value);
            }
        }
        assert_comes_back(i64::MAX);
        assert_comes_back(i64::MIN);
    }

    #[test]
    fn cut_and_endless_varints_are_errors() {
        assert_eq!(read(&[]), Err(RecordFault::Truncated));
        assert_eq!(read(&[0x80]), Err(RecordFault::Truncated));
        assert_eq!(read(&[0x80; 9]), Err(RecordFault::Truncated));
        assert_eq!(read(&[0x80; 10]), Err(RecordFault::Varint));
        let beyond_64_bits = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2];
        assert_eq!(read(&beyond_64_bits), Err(RecordFault::Varint));
    }

    proptest! {
        #[test]
        fn any_value_comes_back(value in any::<i64>()) {
            assert_comes_back(value);
        }
    }
}
