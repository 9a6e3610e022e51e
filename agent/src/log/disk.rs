//! The file operations that the log's crash consistency rests on, and nothing else.
//!
//! A trait because tests record these operations, replay every prefix of them as a power cut would
//! leave it, and let any of them fail. It is called once per group of batches, never per batch.

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, IoSlice},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::UNIX_EPOCH,
};

use esker_proto::types::TimestampMs;
use rustix::{buffer::spare_capacity, fs::Advice, io::retry_on_intr};

/// A directory tree on one file system.
pub trait Disk: fmt::Debug + Send + Sync + 'static {
    /// Creates an empty file, in place of one that is there. Its name is durable only after
    /// [`Self::sync_dir`].
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file that exists.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Renames a file over whatever has the name; durable only after [`Self::sync_dir`].
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file; that it is gone is durable only after [`Self::sync_dir`].
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Opens a directory, ahead of what changes it: what cannot be opened then has changed nothing.
    fn open_dir(&self, dir: &Path) -> io::Result<Box<dyn Dir>>;

    /// Makes the names in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.open_dir(dir)?.sync()
    }

    /// Creates a directory and its missing parents, durably.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// Returns the files in `dir`.
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>>;

    /// Whether a syncer of this disk flushes what is in `dir`.
    fn is_synced_as_a_whole(&self, dir: &Path) -> bool;

    /// Opens a way to flush the whole file system, for one thread; nothing where the system would not
    /// report every failure.
    fn syncer(&self) -> io::Result<Option<Box<dyn Syncer>>>;
}

/// One thread's way to flush a whole file system. It reports a failed write to any file there once,
/// however many other syncers reported it before.
pub trait Syncer: fmt::Debug + Send {
    /// Makes everything written to the file system durable, whichever file it went to.
    fn sync_all(&self) -> io::Result<()>;
}

/// An open directory.
pub trait Dir: fmt::Debug + Send {
    /// Makes the names in it durable.
    fn sync(&self) -> io::Result<()>;
}

impl Dir for File {
    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
}

/// An open file.
pub trait DiskFile: fmt::Debug + Send + Sync + 'static {
    /// Writes all of `slices` from `position` on. After an error any part of them may be written.
    fn write_at(&self, slices: &mut [IoSlice<'_>], position: u64) -> io::Result<()>;

    /// Appends to `into` up to `length` bytes from `position` on, fewer at the end of the file.
    fn read_at(&self, into: &mut Vec<u8>, length: usize, position: u64) -> io::Result<()>;

    /// Returns the length of the file.
    fn size_bytes(&self) -> io::Result<u64>;

    /// Returns when the file was created; where the file system does not keep that, when it was last
    /// written. Nothing, if the system does not say.
    fn created(&self) -> Option<TimestampMs>;

    /// Cuts the file to `size_bytes`.
    fn truncate(&self, size_bytes: u64) -> io::Result<()>;

    /// Makes what was written to the file durable. After an error it MUST NOT be called again: the
    /// kernel may have dropped the data and would report success.
    fn sync_data(&self) -> io::Result<()>;

    /// Lets later reads come from the device and not from memory, if the system can.
    fn drop_cache(&self);
}

/// The operating system's files.
#[derive(Debug)]
pub struct OsDisk {
    root: PathBuf,
    /// The file system of `root`.
    device: u64,
}

impl OsDisk {
    /// Takes the file system that holds `root`, a directory that is created if need be.
    pub fn open(root: &Path) -> io::Result<Self> {
        fs::create_dir_all(root)?;
        Ok(Self {
            root: root.to_owned(),
            device: fs::metadata(root)?.dev(),
        })
    }
}

impl Disk for OsDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        Ok(Arc::new(options.open(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(
            OpenOptions::new().read(true).write(true).open(path)?,
        ))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn open_dir(&self, dir: &Path) -> io::Result<Box<dyn Dir>> {
        Ok(Box::new(File::open(dir)?))
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let missing: Vec<&Path> = dir.ancestors().take_while(|dir| !dir.exists()).collect();
        fs::create_dir_all(dir)?;
        for created in missing {
            let parent = created
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            self.sync_dir(parent.unwrap_or_else(|| Path::new(".")))?;
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect()
    }

    fn is_synced_as_a_whole(&self, dir: &Path) -> bool {
        fs::metadata(dir).is_ok_and(|dir| dir.dev() == self.device)
    }

    fn syncer(&self) -> io::Result<Option<Box<dyn Syncer>>> {
        let dir = File::open(&self.root)?;
        let is_trusted = does_kernel_report() && does_file_system_report(&dir)?;
        Ok(is_trusted.then(|| Box::new(FileSystem(dir)) as Box<dyn Syncer>))
    }
}

/// A directory of the file system, opened by the thread that flushes with it: the kernel reports a
/// failed write once to each open file description, from the moment it was opened.
#[derive(Debug)]
struct FileSystem(File);

impl Syncer for FileSystem {
    fn sync_all(&self) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::syncfs(&self.0))?)
    }
}

/// Whether `syncfs` returns the failures it meets: since Linux 5.8 those of a file's data, and since
/// 5.17 those of the journal.
fn does_kernel_report() -> bool {
    let release = rustix::system::uname();
    let release = release.release().to_string_lossy();
    let mut numbers = release.split(|digit: char| !digit.is_ascii_digit());
    let mut number = || numbers.next().and_then(|text| text.parse::<u32>().ok());
    (number(), number()) >= (Some(5), Some(17))
}

/// Whether the file system notes failed writes where `syncfs` looks. Those of ext4, XFS, Btrfs and F2FS
/// do, and tmpfs has none. One that lies on another, such as overlayfs, does not.
fn does_file_system_report(dir: &File) -> io::Result<bool> {
    const REPORTING: [u64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];
    let kind = rustix::fs::fstatfs(dir)?.f_type;
    Ok(u64::try_from(kind).is_ok_and(|kind| REPORTING.contains(&kind)))
}

impl DiskFile for File {
    fn write_at(&self, mut slices: &mut [IoSlice<'_>], mut position: u64) -> io::Result<()> {
        while !slices.is_empty() {
            match rustix::io::pwritev(self, slices, position) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    position += written as u64;
                    IoSlice::advance_slices(&mut slices, written);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn read_at(&self, into: &mut Vec<u8>, length: usize, mut position: u64) -> io::Result<()> {
        let end = into.len() + length;
        into.reserve_exact(length);
        while into.len() < end {
            // The allocation may be larger than asked for, and what is read beyond is cut off.
            match rustix::io::pread(self, spare_capacity(into), position) {
                Ok(0) => break,
                Ok(read) => position += read as u64,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        into.truncate(end);
        Ok(())
    }

    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn created(&self) -> Option<TimestampMs> {
        let metadata = self.metadata().ok()?;
        let at = metadata.created().or_else(|_| metadata.modified()).ok()?;
        let since_epoch = at.duration_since(UNIX_EPOCH).ok()?;
        i64::try_from(since_epoch.as_millis())
            .ok()
            .map(TimestampMs::new)
    }

    fn truncate(&self, size_bytes: u64) -> io::Result<()> {
        self.set_len(size_bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::fdatasync(self))?)
    }

    fn drop_cache(&self) {
        // Best effort: a file system that cannot drop its cache still returns its data.
        let _ = rustix::fs::fadvise(self, 0, None, Advice::DontNeed);
    }
}

/// Whether the system has run out of something, so that the same call may succeed later.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    const SHORT: [Errno; 5] = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOMEM,
        Errno::NOSPC,
        Errno::DQUOT,
    ];
    let code = error.raw_os_error();
    SHORT.iter().any(|errno| code == Some(errno.raw_os_error()))
}

/// Room on the file system of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Size of the file system.
    pub total_bytes: u64,
    /// What an unprivileged process can still write.
    pub available_bytes: u64,
    /// Files that can still be created; nothing where the file system has no such limit.
    pub available_files: Option<u64>,
}

/// Asks for the room on the file system that holds `path`.
pub fn disk_space(path: &Path) -> io::Result<DiskSpace> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(DiskSpace {
        total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        available_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        available_files: (stat.f_files > 0).then_some(stat.f_favail),
    })
}
