//! Input and output: files, or `-` for standard input and output.

use std::{
    fs::File,
    io::{self, BufWriter, IsTerminal, Write},
    os::fd::AsFd,
    path::Path,
};

use anyhow::Context;

const BUFFER_BYTES: usize = 1 << 20;

/// Opens a file to read, or standard input for `-`; with its size, if that is known.
pub(super) fn input(path: &Path) -> anyhow::Result<(File, Option<u64>)> {
    if path == Path::new("-") {
        // The descriptor itself: nothing may be held back in a buffer.
        let stdin = io::stdin().as_fd().try_clone_to_owned()?;
        return Ok((File::from(stdin), None));
    }
    let opened = || format!("{} cannot be read", path.display());
    let file = File::open(path).with_context(opened)?;
    let metadata = file.metadata().with_context(opened)?;
    anyhow::ensure!(!metadata.is_dir(), "{} is a directory", path.display());
    let size = metadata.is_file().then_some(metadata.len());
    Ok((file, size))
}

/// Standard output, buffered.
pub(super) fn stdout() -> Box<dyn Write> {
    let stdout = io::stdout();
    // A person wants each line at once; a pipe wants few writes.
    let bytes = if stdout.is_terminal() {
        0
    } else {
        BUFFER_BYTES
    };
    Box::new(BufWriter::with_capacity(bytes, stdout))
}

/// A file to write, buffered.
pub(super) fn buffered(file: File) -> Box<dyn Write> {
    Box::new(BufWriter::with_capacity(BUFFER_BYTES, file))
}

/// Creates a file to write, or takes standard output for `-`.
pub(super) fn output(path: &Path) -> anyhow::Result<Box<dyn Write>> {
    if path == Path::new("-") {
        return Ok(stdout());
    }
    let file =
        File::create(path).with_context(|| format!("{} cannot be written", path.display()))?;
    Ok(buffered(file))
}
