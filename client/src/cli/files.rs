//! Input and output: files, or `-` for standard input and output.

use std::{
    fs::{self, File},
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

/// Creates a file to write.
pub(super) fn create(path: &Path) -> anyhow::Result<File> {
    File::create(path).with_context(|| format!("{} cannot be written", path.display()))
}

/// Creates a file to write, or takes standard output for `-`.
pub(super) fn output(path: &Path) -> anyhow::Result<Box<dyn Write>> {
    if path == Path::new("-") {
        return Ok(stdout());
    }
    Ok(buffered(create(path)?))
}

/// Gives a file that is complete its name. After a power cut the name stands for the whole new file,
/// or for what it was before.
pub(super) fn put_in_place(file: &File, from: &Path, to: &Path) -> anyhow::Result<()> {
    put_in_place_on(&OsDisk, file, from, to)
}

/// Makes the names in the directory of a file survive a power cut.
pub(super) fn sync_directory_of(path: &Path) -> anyhow::Result<()> {
    sync_directory_on(&OsDisk, path)
}

/// What `put_in_place` does to the disk.
trait Disk {
    fn sync(&self, file: &File) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn sync_directory(&self, path: &Path) -> io::Result<()>;
}

struct OsDisk;

impl Disk for OsDisk {
    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}

fn put_in_place_on(disk: &impl Disk, file: &File, from: &Path, to: &Path) -> anyhow::Result<()> {
    disk.sync(file)
        .with_context(|| format!("cannot sync {}", from.display()))?;
    disk.rename(from, to)
        .with_context(|| format!("cannot rename {} to {}", from.display(), to.display()))?;
    sync_directory_on(disk, to)
}

fn sync_directory_on(disk: &impl Disk, path: &Path) -> anyhow::Result<()> {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    let directory = parent.unwrap_or_else(|| Path::new("."));
    disk.sync_directory(directory)
        .with_context(|| format!("cannot sync the directory {}", directory.display()))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::cli::exit;

    /// Notes each step, and fails one of them.
    #[derive(Default)]
    struct FakeDisk {
        steps: RefCell<Vec<String>>,
        fails_at: Option<usize>,
    }

    impl FakeDisk {
        fn step(&self, step: String) -> io::Result<()> {
            let mut steps = self.steps.borrow_mut();
            let is_failing = self.fails_at == Some(steps.len());
            steps.push(step);
            match is_failing {
                true => Err(io::Error::from_raw_os_error(5)),
                false => Ok(()),
            }
        }
    }

    impl Disk for FakeDisk {
        fn sync(&self, _file: &File) -> io::Result<()> {
            self.step("sync".to_owned())
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            self.step(format!("rename {} {}", from.display(), to.display()))
        }

        fn sync_directory(&self, path: &Path) -> io::Result<()> {
            self.step(format!("sync {}", path.display()))
        }
    }

    fn put(disk: &FakeDisk, from: &str, to: &str) -> anyhow::Result<()> {
        let file = tempfile::tempfile().unwrap();
        put_in_place_on(disk, &file, Path::new(from), Path::new(to))
    }

    #[test]
    fn file_is_synced_before_it_has_its_name_and_its_directory_after() {
        for (directory, prefix) in [("/d", "/d/"), ("d", "d/"), (".", "")] {
            let disk = FakeDisk::default();
            let (from, to) = (format!("{prefix}a.new"), format!("{prefix}a"));
            put(&disk, &from, &to).unwrap();
            let expected = [
                "sync".to_owned(),
                format!("rename {from} {to}"),
                format!("sync {directory}"),
            ];
            assert_eq!(*disk.steps.borrow(), expected);
        }
    }

    #[test]
    fn failed_step_ends_it_and_is_named() {
        let steps = [
            "cannot sync /d/a.new",
            "cannot rename /d/a.new to /d/a",
            "cannot sync the directory /d",
        ];
        for (index, expected) in steps.into_iter().enumerate() {
            let disk = FakeDisk {
                fails_at: Some(index),
                ..FakeDisk::default()
            };
            let error = put(&disk, "/d/a.new", "/d/a").unwrap_err();
            assert_eq!(disk.steps.borrow().len(), index + 1);
            let text = exit::told(&error);
            assert!(text.starts_with(expected), "{text}");
            assert!(text.contains("os error 5"), "{text}");
        }
    }
}
