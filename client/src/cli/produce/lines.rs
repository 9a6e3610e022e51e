//! Cuts what is read into lines, and knows where each stood.

use std::io::BufRead;

use super::super::source::Line;

/// A line longer than this is refused: no batch could hold it.
const LINE_BYTES_MAX: usize = 32 << 20;

/// The lines of an input.
#[derive(Debug)]
pub(super) struct Lines {
    run: u64,
    /// What was read last, and how much of it is cut.
    chunk: Vec<u8>,
    cut: usize,
    line: Vec<u8>,
    /// The line is whole: the next one starts afresh.
    is_whole: bool,
    /// Lines that were handed out.
    count: u64,
}

/// A line is longer than a record may be.
#[derive(Debug, thiserror::Error)]
#[error("line {0} is longer than {LINE_BYTES_MAX} bytes")]
pub(super) struct TooLong(u64);

impl Lines {
    /// No lines yet; `run` tells them from those of other inputs.
    pub(super) const fn new(run: u64) -> Self {
        Self {
            run,
            chunk: Vec::new(),
            cut: 0,
            line: Vec::new(),
            is_whole: false,
            count: 0,
        }
    }

    /// Takes what was read next. What came before is cut.
    pub(super) fn push(&mut self, chunk: Vec<u8>) {
        debug_assert_eq!(self.cut, self.chunk.len(), "some lines were not taken");
        (self.chunk, self.cut) = (chunk, 0);
    }

    /// Cuts the next whole line, and returns it without its line feed. `None`: more has to be read.
    pub(super) fn next(&mut self) -> Result<Option<(&[u8], Line)>, TooLong> {
        if std::mem::take(&mut self.is_whole) {
            self.line.clear();
        }
        let mut rest = &self.chunk[self.cut..];
        // Reading from memory does not fail.
        self.cut += rest.read_until(b'\n', &mut self.line).unwrap_or_default();
        if self.line.len() > LINE_BYTES_MAX {
            return Err(TooLong(self.count + 1));
        }
        if self.line.pop_if(|byte| *byte == b'\n').is_none() {
            return Ok(None);
        }
        Ok(Some(self.hand_out(false)))
    }

    /// Takes the last line, after the end of the input, if no line feed ended it.
    pub(super) fn last(&mut self) -> Option<(&[u8], Line)> {
        self.has_part().then(|| self.hand_out(true))
    }

    /// Whether a part of a line was read whose rest was not.
    pub(super) const fn has_part(&self) -> bool {
        !self.is_whole && !self.line.is_empty()
    }

    fn hand_out(&mut self, is_unterminated: bool) -> (&[u8], Line) {
        let line = Line {
            run: self.run,
            number: self.count,
            is_unterminated,
        };
        self.count += 1;
        self.is_whole = true;
        (&self.line, line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<(Vec<u8>, u64, bool)> {
        let mut lines = Lines::new(7);
        let mut read = Vec::new();
        let mut add = |(line, place): (&[u8], Line)| {
            read.push((line.to_vec(), place.number, place.is_unterminated));
        };
        for chunk in chunks {
            lines.push(chunk.to_vec());
            while let Some(line) = lines.next().unwrap() {
                add(line);
            }
        }
        if let Some(line) = lines.last() {
            add(line);
        }
        assert!(!lines.has_part());
        read
    }

    #[test]
    fn lines_keep_everything_but_their_line_feed() {
        let expected = [
            (b"one\r".to_vec(), 0, false),
            (b"".to_vec(), 1, false),
            (b"\xff\xfe".to_vec(), 2, false),
            (b"last".to_vec(), 3, true),
        ];
        assert_eq!(lines(&[b"one\r\n\n\xff\xfe\nlast"]), expected);
        assert_eq!(
            lines(&[b"one", b"\r\n", b"\n\xff\xfe\nla", b"st"]),
            expected
        );
        assert!(lines(&[b""]).is_empty());
    }

    #[test]
    fn a_line_beyond_the_limit_is_refused_by_its_number() {
        let mut lines = Lines::new(7);
        lines.push(b"short\n".to_vec());
        assert!(lines.next().unwrap().is_some());
        lines.push(vec![b'a'; LINE_BYTES_MAX + 1]);
        let error = lines.next().unwrap_err().to_string();
        assert!(error.starts_with("line 2 "), "{error}");
    }
}
