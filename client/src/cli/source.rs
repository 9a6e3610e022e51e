//! Where a record's line stood in its input, so that a replay can put lines back in order.
//!
//! `esker produce` gives each record a header `esker-line` of 16 bytes, big-endian: the number of the
//! run and the number of the line. The top bit of the line's number marks a line that its input ended
//! without a line feed.
//!
//! The number of the run is one that the cluster gives out, each once and rising, as it gives out
//! producer ids. So what one command sent after another comes after it, whatever any clock says.

/// Name of the header.
pub(super) const HEADER: &str = "esker-line";
const UNTERMINATED: u64 = 1 << 63;

/// Place of one line; places are ordered as the lines were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Line {
    pub(super) run: u64,
    pub(super) number: u64,
    pub(super) is_unterminated: bool,
}

impl Line {
    pub(super) fn encode(self) -> [u8; 16] {
        let number = if self.is_unterminated {
            self.number | UNTERMINATED
        } else {
            self.number
        };
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.run.to_be_bytes());
        bytes[8..].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (run, number) = bytes.split_first_chunk::<8>()?;
        let number = u64::from_be_bytes(number.try_into().ok()?);
        Some(Self {
            run: u64::from_be_bytes(*run),
            number: number & !UNTERMINATED,
            is_unterminated: number & UNTERMINATED != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_survives_its_header() {
        for is_unterminated in [false, true] {
            let line = Line {
                run: 1_700_000_000_000,
                number: 42,
                is_unterminated,
            };
            assert_eq!(Line::decode(&line.encode()), Some(line));
        }
        assert_eq!(Line::decode(b"short"), None);
    }

    #[test]
    fn places_are_ordered_by_run_and_number() {
        let at = |run, number| Line {
            run,
            number,
            is_unterminated: false,
        };
        assert!(at(1, 9) < at(2, 0));
        assert!(at(2, 0) < at(2, 1));
    }
}
