//! Reads lines, and knows where each stood.

use std::{
    io::{BufRead, BufReader, Read},
    time::{SystemTime, UNIX_EPOCH},
};

use super::super::source::Line;

/// A line longer than this is refused: no batch could hold it.
const LINE_BYTES_MAX: usize = 32 << 20;

/// Where a line stood.
pub(super) type Stamp = Line;

/// The lines of an input.
pub(super) struct Lines {
    input: BufReader<Box<dyn Read>>,
    line: Vec<u8>,
    bytes_read: u64,
    stamp: Stamp,
    is_first: bool,
}

impl Lines {
    #[expect(
        clippy::disallowed_methods,
        reason = "marks this run apart from others, nothing more"
    )]
    pub(super) fn new(input: BufReader<Box<dyn Read>>) -> Self {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let run_ms = u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX);
        let stamp = Stamp {
            run_ms,
            number: 0,
            is_unterminated: false,
        };
        Self {
            input,
            line: Vec::new(),
            bytes_read: 0,
            stamp,
            is_first: true,
        }
    }

    /// Reads the next line, without its line feed, and where it stood.
    pub(super) fn next(&mut self) -> anyhow::Result<Option<(&[u8], Stamp)>> {
        self.line.clear();
        let limit = u64::try_from(LINE_BYTES_MAX + 1).unwrap_or(u64::MAX);
        let read = (&mut self.input)
            .take(limit)
            .read_until(b'\n', &mut self.line)?;
        if read == 0 {
            return Ok(None);
        }
        if !std::mem::take(&mut self.is_first) {
            self.stamp.number += 1;
        }
        anyhow::ensure!(
            self.line.len() <= LINE_BYTES_MAX,
            "line {} is longer than {LINE_BYTES_MAX} bytes",
            self.stamp.number + 1
        );
        self.bytes_read += u64::try_from(read).unwrap_or(u64::MAX);
        self.stamp.is_unterminated = self.line.pop_if(|byte| *byte == b'\n').is_none();
        Ok(Some((&self.line, self.stamp)))
    }

    /// Returns the bytes read so far.
    pub(super) const fn bytes_read(&self) -> u64 {
        self.bytes_read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &'static [u8]) -> Vec<(Vec<u8>, u64, bool)> {
        let mut lines = Lines::new(BufReader::new(Box::new(text)));
        let mut read = Vec::new();
        while let Some((line, stamp)) = lines.next().unwrap() {
            read.push((line.to_vec(), stamp.number, stamp.is_unterminated));
        }
        read
    }

    #[test]
    fn lines_keep_everything_but_their_line_feed() {
        let read = lines(b"one\r\n\n\xff\xfe\nlast");
        let expected: [(&[u8], u64, bool); 4] = [
            (b"one\r", 0, false),
            (b"", 1, false),
            (b"\xff\xfe", 2, false),
            (b"last", 3, true),
        ];
        assert_eq!(read.len(), 4);
        for ((line, number, open), (text, at, unterminated)) in read.iter().zip(expected) {
            assert_eq!((line.as_slice(), *number, *open), (text, at, unterminated));
        }
        assert!(lines(b"").is_empty());
    }
}
