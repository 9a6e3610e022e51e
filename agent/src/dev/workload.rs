//! The records of the main job: made from their number, so that each can be checked alone.

use std::io::Write;

/// Keys in use; records of one key must stay in order.
pub(super) const KEYS: u64 = 1000;
/// Bytes of a record's value.
pub(super) const VALUE_BYTES: usize = 100;

/// Writes the key of record `number`.
pub(super) fn key(number: u64, key: &mut Vec<u8>) {
    key.clear();
    write!(key, "key-{:04}", number % KEYS).expect("a vector takes everything");
}

/// Writes the value of record `number`: the number, and text that follows from it.
pub(super) fn value(number: u64, value: &mut Vec<u8>) {
    value.clear();
    write!(value, "{number:020} ").expect("a vector takes everything");
    let mut mixed = number;
    while value.len() < VALUE_BYTES {
        // SplitMix64: cheap, and no two records look alike.
        mixed = mixed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = mixed;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        write!(value, "{:016x}", word ^ (word >> 31)).expect("a vector takes everything");
    }
    value.truncate(VALUE_BYTES);
}

/// Reads the number back from a value.
pub(super) fn number(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value.get(..20)?).ok()?.parse().ok()
}

/// Checks what a replay returns: each record once, whole, and in the order of its key.
#[derive(Debug)]
pub(super) struct Checker {
    seen: Vec<bool>,
    last_of_key: Vec<Option<u64>>,
    expected_key: Vec<u8>,
    expected_value: Vec<u8>,
    pub(super) faults: Faults,
}

/// What was wrong, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Faults {
    pub(super) altered: u64,
    pub(super) doubled: u64,
    pub(super) out_of_order: u64,
    pub(super) missing: u64,
}

impl Checker {
    pub(super) fn new(records: u64) -> Self {
        let size = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        Self {
            seen: vec![false; size(records)],
            last_of_key: vec![None; size(KEYS)],
            expected_key: Vec::new(),
            expected_value: Vec::new(),
            faults: Faults::default(),
        }
    }

    pub(super) fn check(&mut self, record_key: Option<&[u8]>, record_value: Option<&[u8]>) {
        let found = record_value.and_then(number);
        let Some((number, index)) = found.and_then(|number| {
            usize::try_from(number)
                .ok()
                .filter(|i| *i < self.seen.len())
                .map(|i| (number, i))
        }) else {
            self.faults.altered += 1;
            return;
        };
        key(number, &mut self.expected_key);
        value(number, &mut self.expected_value);
        let is_whole = record_key == Some(&self.expected_key[..])
            && record_value == Some(&self.expected_value[..]);
        self.faults.altered += u64::from(!is_whole);
        self.faults.doubled += u64::from(std::mem::replace(&mut self.seen[index], true));
        let of_key = usize::try_from(number % KEYS).unwrap_or(0);
        let last = self.last_of_key[of_key].replace(number);
        self.faults.out_of_order += u64::from(last.is_some_and(|last| last >= number));
    }

    pub(super) fn finish(mut self) -> Faults {
        let missing = self.seen.iter().filter(|seen| !**seen).count();
        self.faults.missing = u64::try_from(missing).unwrap_or(u64::MAX);
        self.faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replayed(numbers: &[u64], damage: impl Fn(&mut Vec<u8>)) -> Faults {
        let mut checker = Checker::new(2000);
        let (mut k, mut v) = (Vec::new(), Vec::new());
        for number in numbers {
            key(*number, &mut k);
            value(*number, &mut v);
            damage(&mut v);
            checker.check(Some(&k), Some(&v));
        }
        checker.finish()
    }

    #[test]
    fn a_faithful_replay_has_no_faults() {
        let all: Vec<u64> = (0..2000).collect();
        assert_eq!(replayed(&all, |_| {}), Faults::default());
    }

    #[test]
    fn every_kind_of_fault_is_seen() {
        let all: Vec<u64> = (0..2000).collect();
        assert_eq!(replayed(&all[1..], |_| {}).missing, 1);
        assert_eq!(replayed(&all, |value| value[50] ^= 1).altered, 2000);
        let doubled: Vec<u64> = all.iter().copied().chain([1999]).collect();
        assert_eq!(replayed(&doubled, |_| {}).doubled, 1);
        let swapped: Vec<u64> = (1000..2000).chain(0..1000).collect();
        assert_eq!(replayed(&swapped, |_| {}).out_of_order, 1000);
    }
}
