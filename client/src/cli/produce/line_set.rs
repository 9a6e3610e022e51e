//! Sets of lines of the input, to say which were not delivered.

use std::{fmt, ops::Range};

use super::super::output::grouped;

/// Runs of lines that are written out; the rest is counted.
const RUNS_SHOWN: usize = 20;

/// Line numbers, from 1 on. Takes as much memory as it has runs of consecutive lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LineSet(Vec<Range<u64>>);

impl LineSet {
    /// Adds a line behind all others.
    #[inline]
    pub(super) fn push(&mut self, line: u64) {
        match self.0.last_mut() {
            Some(run) if run.end == line => run.end += 1,
            _ => self.0.push(line..line + 1),
        }
    }

    /// Adds lines of which none is in the set.
    pub(super) fn merge(&mut self, others: impl IntoIterator<Item = Self>) {
        self.0.extend(others.into_iter().flat_map(|other| other.0));
        self.0.sort_unstable_by_key(|run| run.start);
        self.0.dedup_by(|next, run| {
            let touches = run.end == next.start;
            if touches {
                run.end = next.end;
            }
            touches
        });
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of lines.
    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|run| run.end - run.start).sum()
    }

    /// First and last line of each run.
    pub(super) fn runs(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().map(|run| (run.start, run.end - 1))
    }
}

/// `line 3`, `lines 3 to 5 and 9`.
impl fmt::Display for LineSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.count() == 1 { "line " } else { "lines " })?;
        let rest = self.0.iter().skip(RUNS_SHOWN);
        let rest: u64 = rest.map(|run| run.end - run.start).sum();
        let shown = self.0.len().min(RUNS_SHOWN);
        for (index, (first, last)) in self.runs().take(shown).enumerate() {
            f.write_str(match index {
                0 => "",
                _ if index + 1 == shown && rest == 0 => " and ",
                _ => ", ",
            })?;
            match first == last {
                true => write!(f, "{first}")?,
                false => write!(f, "{first} to {last}")?,
            }
        }
        if rest > 0 {
            write!(f, " and {} more", grouped(rest))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(lines: impl IntoIterator<Item = u64>) -> LineSet {
        let mut set = LineSet::default();
        lines.into_iter().for_each(|line| set.push(line));
        set
    }

    #[test]
    fn runs_of_lines_are_named_by_their_ends() {
        assert_eq!(set([3]).to_string(), "line 3");
        assert_eq!(set([3, 4]).to_string(), "lines 3 to 4");
        assert_eq!(set([1, 3, 4, 5, 9]).to_string(), "lines 1, 3 to 5 and 9");
        let odd = set((0..1000).map(|n| 2 * n + 1));
        assert!(odd.to_string().ends_with(", 39 and 980 more"), "{odd}");
    }

    #[test]
    fn merged_sets_are_one_set() {
        let mut lines = set([1, 2, 9]);
        lines.merge([set([3, 4, 7]), set([8])]);
        assert_eq!(lines, set([1, 2, 3, 4, 7, 8, 9]));
        assert_eq!(lines.count(), 7);
    }
}
