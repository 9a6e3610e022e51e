//! A disk in memory that tells what is durable from what is not.
//!
//! Data is durable in blocks of 4 KiB once its file is flushed, names once their directory is. A
//! power cut keeps any subset of the rest, in any order: blocks of one write apart from each other, a
//! rename without the data it points to.
//!
//! A write to the device that fails is as on Linux: the blocks count as clean from then on though the
//! device lacks them, reads see them until the cache is dropped, and the failure is reported once to each
//! descriptor that was open, of the file and of the file system.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    io::{self, IoSlice},
    path::{Path, PathBuf},
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use esker_proto::types::TimestampMs;
use parking_lot::Mutex;

use crate::log::{Dir, Disk, DiskFile, disk::Syncer};

pub(super) const BLOCK_BYTES: usize = 4 << 10;

/// What an operation of the disk is, for faults that are set on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Create,
    Write,
    SyncData,
    SyncDir,
    SyncAll,
    Rename,
}

/// Everything on the disk, durable or not.
#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    /// Changes of names since their directory was flushed: what `names` says now against the one before.
    changed_names: Vec<NameChange>,
    files: Vec<FileImage>,
    /// Failed writes to the device, of all files.
    failures: u64,
}

#[derive(Clone, Debug)]
enum NameChange {
    Set(PathBuf, usize),
    Gone(PathBuf),
    Moved(PathBuf, PathBuf, usize),
}

#[derive(Clone, Debug, Default)]
struct FileImage {
    created: TimestampMs,
    data: Vec<u8>,
    durable: Vec<u8>,
    /// Blocks that are not written to the device. A block that could not be is not among them.
    dirty: BTreeSet<usize>,
    /// Failed writes to the device.
    failures: u64,
    /// The next write to the device fails.
    is_bad: bool,
}

type Hook = Box<dyn Fn(&Image) + Send>;

#[derive(Default)]
struct State {
    image: Image,
    now: TimestampMs,
    /// The nth call of an action from now on fails, and what it does before it fails.
    faults: Vec<(Action, usize, Fault)>,
    hook: Option<Hook>,
    calls: Vec<Action>,
    capacity: Option<usize>,
    /// Directories on another file system.
    elsewhere: Vec<PathBuf>,
    /// The file system does not report failures to those who flush all of it.
    is_silent: bool,
    /// No file can be created.
    create_errno: Option<i32>,
    open_files: Arc<AtomicUsize>,
    /// A file name whose next so many openings fail.
    bad_opens: Option<(PathBuf, usize, i32)>,
    meeting: Option<Arc<Meeting>>,
}

/// Where threads wait for each other, once.
pub(super) struct Meeting {
    arrived: AtomicUsize,
    places: AtomicUsize,
    all: Barrier,
}

impl Meeting {
    pub(super) fn arrived(&self) -> usize {
        self.arrived.load(Ordering::SeqCst)
    }

    fn come(&self) {
        let place = self
            .places
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |p| p.checked_sub(1));
        if place.is_ok() {
            self.arrived.fetch_add(1, Ordering::SeqCst);
            self.all.wait();
        }
    }
}

/// How an operation fails.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// With this error. A flush has then lost what it should have written, any other call has no effect.
    Errno(i32),
    Panic,
}

/// See the module. Clones are the same disk.
#[derive(Clone, Default)]
pub(super) struct MemDisk(Arc<Mutex<State>>);

impl fmt::Debug for MemDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemDisk")
    }
}

impl MemDisk {
    pub(super) fn of(image: Image) -> Self {
        let disk = Self::default();
        disk.0.lock().image = image;
        disk
    }

    pub(super) fn image(&self) -> Image {
        self.0.lock().image.clone()
    }

    /// Calls `hook` before every change, with the disk as it is then.
    pub(super) fn before_each_change(&self, hook: impl Fn(&Image) + Send + 'static) {
        self.0.lock().hook = Some(Box::new(hook));
    }

    pub(super) fn without_hook(&self) {
        self.0.lock().hook = None;
    }

    /// Lets the `nth` call of `action` from now on fail, counted from 0.
    pub(super) fn fail(&self, action: Action, nth: usize, fault: Fault) {
        self.0.lock().faults.push((action, nth, fault));
    }

    /// Lets the next write of `path` to the device fail, whichever caller asks for it.
    pub(super) fn fail_next_writeback(&self, path: &Path) {
        let mut state = self.0.lock();
        let file = state.image.names[path];
        state.image.files[file].is_bad = true;
    }

    /// Holds each flush of the whole file system until so many threads have come to one.
    pub(super) fn hold_syncs_until(&self, threads: usize) -> Arc<Meeting> {
        let meeting = Arc::new(Meeting {
            arrived: AtomicUsize::new(0),
            all: Barrier::new(threads),
            places: AtomicUsize::new(threads),
        });
        self.0.lock().meeting = Some(meeting.clone());
        meeting
    }

    /// Writes a file to the device without being asked, as the system does.
    pub(super) fn write_back(&self, path: &Path) {
        let mut state = self.0.lock();
        let file = state.image.names[path];
        state.image.write_back(file, false);
    }

    /// Lets `dir` lie on another file system than the logs.
    pub(super) fn set_elsewhere(&self, dir: &Path) {
        self.0.lock().elsewhere.push(dir.to_owned());
    }

    /// Lets every creation of a file fail from now on, or none.
    pub(super) fn set_create_errno(&self, errno: Option<i32>) {
        self.0.lock().create_errno = errno;
    }

    /// Lets the next so many openings of a file of this name fail.
    pub(super) fn fail_opens(&self, name: &Path, times: usize, errno: i32) {
        self.0.lock().bad_opens = Some((name.to_owned(), times, errno));
    }

    /// How many files are open now.
    pub(super) fn open_files(&self) -> usize {
        self.0.lock().open_files.load(Ordering::SeqCst)
    }

    fn handle(&self, state: &State, file: usize) -> Arc<dyn DiskFile> {
        state.open_files.fetch_add(1, Ordering::SeqCst);
        Arc::new(MemFile {
            disk: self.clone(),
            file,
            reported: AtomicU64::new(state.image.files[file].failures),
            open_files: state.open_files.clone(),
        })
    }

    /// Lets no one flush the whole file system.
    pub(super) fn set_silent(&self) {
        self.0.lock().is_silent = true;
    }

    /// Lets writes fail with `ENOSPC` that would make the files together larger than this.
    pub(super) fn set_capacity(&self, bytes: Option<usize>) {
        self.0.lock().capacity = bytes;
    }

    /// Sets the time by which files are created.
    pub(super) fn set_time(&self, now: TimestampMs) {
        self.0.lock().now = now;
    }

    pub(super) fn calls_of(&self, action: Action) -> usize {
        self.0
            .lock()
            .calls
            .iter()
            .filter(|call| **call == action)
            .count()
    }

    pub(super) fn file_names(&self) -> Vec<String> {
        let state = self.0.lock();
        let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        state.image.names.keys().map(name).collect()
    }

    /// All files and what they hold.
    pub(super) fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let state = self.0.lock();
        let names = state.image.names.iter();
        names
            .map(|(path, file)| (path.clone(), state.image.files[*file].data.clone()))
            .collect()
    }

    pub(super) fn bytes(&self, path: &Path) -> Vec<u8> {
        let state = self.0.lock();
        state.image.files[state.image.names[path]].data.clone()
    }

    /// Changes a file behind everybody's back, durably.
    pub(super) fn corrupt(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.0.lock();
        let file = state.image.names[path];
        let file = &mut state.image.files[file];
        change(&mut file.data);
        file.durable = file.data.clone();
    }

    pub(super) fn forget(&self, path: &Path) {
        let mut state = self.0.lock();
        state.image.names.remove(path);
        state.image.durable_names.remove(path);
    }

    fn enter(&self, action: Action) -> io::Result<parking_lot::MutexGuard<'_, State>> {
        match self.begin(action) {
            (state, None) => Ok(state),
            (_, Some(errno)) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Notes a call, and returns how it is to fail.
    fn begin(&self, action: Action) -> (parking_lot::MutexGuard<'_, State>, Option<i32>) {
        let mut state = self.0.lock();
        if let Some(hook) = &state.hook {
            hook(&state.image);
        }
        state.calls.push(action);
        let mut failing = None;
        state.faults.retain_mut(|(on, nth, fault)| {
            let is_due = *on == action && *nth == 0;
            if is_due {
                failing = Some(*fault);
            } else if *on == action {
                *nth -= 1;
            }
            !is_due
        });
        match failing {
            None => (state, None),
            Some(Fault::Errno(errno)) => (state, Some(errno)),
            Some(Fault::Panic) => {
                drop(state);
                panic!("asked to");
            }
        }
    }
}

impl Image {
    /// The disk after a power cut. `keeps` decides about each change that was not flushed.
    pub(super) fn after_power_cut(&self, mut keeps: impl FnMut() -> bool) -> Self {
        let mut names = self.durable_names.clone();
        for change in &self.changed_names {
            if !keeps() {
                continue;
            }
            match change {
                NameChange::Set(path, file) => drop(names.insert(path.clone(), *file)),
                NameChange::Gone(path) => drop(names.remove(path)),
                NameChange::Moved(from, to, file) => {
                    names.remove(from);
                    names.insert(to.clone(), *file);
                }
            }
        }
        let files = self
            .files
            .iter()
            .map(|file| file.after_power_cut(&mut keeps))
            .collect();
        Self {
            names: names.clone(),
            durable_names: names,
            changed_names: Vec::new(),
            files,
            failures: 0,
        }
    }

    /// Writes what is dirty of a file to the device. If that fails the kernel gives it up.
    fn write_back(&mut self, file: usize, fails: bool) {
        let file = &mut self.files[file];
        if file.pending() == 0 {
            return;
        }
        if fails || std::mem::take(&mut file.is_bad) {
            file.dirty.clear();
            file.failures += 1;
            self.failures += 1;
        } else {
            file.write_back();
        }
    }

    fn write_back_all(&mut self, fails: bool) {
        (0..self.files.len()).for_each(|file| self.write_back(file, fails));
    }

    /// How many changes a power cut decides about.
    pub(super) fn pending(&self) -> usize {
        let files = self.files.iter().map(FileImage::pending);
        self.changed_names.len() + files.sum::<usize>()
    }

    fn used_bytes(&self) -> usize {
        self.names
            .values()
            .map(|file| self.files[*file].data.len())
            .sum()
    }

    fn lookup(&self, path: &Path) -> io::Result<usize> {
        self.names
            .get(path)
            .copied()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl FileImage {
    fn has_new_length(&self) -> bool {
        self.data.len() != self.durable.len()
    }

    fn pending(&self) -> usize {
        self.dirty.len() + usize::from(self.has_new_length())
    }

    fn after_power_cut(&self, keeps: &mut impl FnMut() -> bool) -> Self {
        let mut durable = self.durable.clone();
        // The length may be durable without the data: what was never written reads as zeros.
        if self.has_new_length() && keeps() {
            durable.resize(self.data.len(), 0);
        }
        for block in &self.dirty {
            let range = block * BLOCK_BYTES..((block + 1) * BLOCK_BYTES).min(self.data.len());
            if keeps() && !range.is_empty() {
                durable.resize(durable.len().max(range.end), 0);
                durable[range.clone()].copy_from_slice(&self.data[range]);
            }
        }
        Self {
            created: self.created,
            data: durable.clone(),
            durable,
            ..Self::default()
        }
    }

    fn write_back(&mut self) {
        self.durable.resize(self.data.len(), 0);
        for block in std::mem::take(&mut self.dirty) {
            let range = self.block(block);
            self.durable[range.clone()].copy_from_slice(&self.data[range]);
        }
    }

    /// Forgets what is in memory alone and is not going to be written.
    fn drop_cache(&mut self) {
        for block in 0..self.data.len().div_ceil(BLOCK_BYTES) {
            if self.dirty.contains(&block) {
                continue;
            }
            let range = self.block(block);
            let mut on_device = vec![0; range.len()];
            let known = range.start.min(self.durable.len())..range.end.min(self.durable.len());
            on_device[..known.len()].copy_from_slice(&self.durable[known]);
            self.data[range].copy_from_slice(&on_device);
        }
    }

    /// The bytes of a block that lie within the file.
    fn block(&self, block: usize) -> std::ops::Range<usize> {
        let end = self.data.len();
        (block * BLOCK_BYTES).min(end)..((block + 1) * BLOCK_BYTES).min(end)
    }

    fn mark_dirty(&mut self, from: usize, to: usize) {
        self.dirty
            .extend(from / BLOCK_BYTES..to.div_ceil(BLOCK_BYTES));
    }
}

struct MemFile {
    disk: MemDisk,
    file: usize,
    /// Failures of the file that this descriptor has reported, or that came before it.
    reported: AtomicU64,
    open_files: Arc<AtomicUsize>,
}

impl Drop for MemFile {
    fn drop(&mut self) {
        self.open_files.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A descriptor to flush the file system with.
#[derive(Debug)]
struct MemSyncer {
    disk: MemDisk,
    reported: AtomicU64,
}

/// Reports a failure once to each descriptor.
fn report(failures: u64, reported: &AtomicU64, errno: Option<i32>) -> io::Result<()> {
    const EIO: i32 = 5;
    if reported.swap(failures, Ordering::SeqCst) == failures {
        return Ok(());
    }
    Err(io::Error::from_raw_os_error(errno.unwrap_or(EIO)))
}

impl Syncer for MemSyncer {
    fn sync_all(&self) -> io::Result<()> {
        let meeting = self.disk.0.lock().meeting.clone();
        if let Some(meeting) = meeting {
            meeting.come();
        }
        let (mut state, errno) = self.disk.begin(Action::SyncAll);
        let image = &mut state.image;
        image.write_back_all(errno.is_some());
        if errno.is_none() {
            image.durable_names = image.names.clone();
            image.changed_names.clear();
        }
        report(image.failures, &self.reported, errno)
    }
}

impl fmt::Debug for MemFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemFile({})", self.file)
    }
}

impl State {
    fn check_open(&mut self, path: &Path) -> io::Result<()> {
        match &mut self.bad_opens {
            Some((name, times, errno)) if path.ends_with(&*name) && *times > 0 => {
                *times -= 1;
                Err(io::Error::from_raw_os_error(*errno))
            }
            _ => Ok(()),
        }
    }
}

impl Dir for MemDisk {
    fn sync(&self) -> io::Result<()> {
        let image = &mut self.enter(Action::SyncDir)?.image;
        image.durable_names = image.names.clone();
        image.changed_names.clear();
        Ok(())
    }
}

impl Disk for MemDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.enter(Action::Create)?;
        if let Some(errno) = state.create_errno {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let created = state.now;
        let image = &mut state.image;
        let file = image.files.len();
        image.files.push(FileImage {
            created,
            ..FileImage::default()
        });
        image.names.insert(path.to_owned(), file);
        image
            .changed_names
            .push(NameChange::Set(path.to_owned(), file));
        Ok(self.handle(&state, file))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.0.lock();
        state.check_open(path)?;
        let file = state.image.lookup(path)?;
        Ok(self.handle(&state, file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.enter(Action::Rename)?;
        let image = &mut state.image;
        let file = image.lookup(from)?;
        image.names.remove(from);
        image.names.insert(to.to_owned(), file);
        image
            .changed_names
            .push(NameChange::Moved(from.to_owned(), to.to_owned(), file));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.enter(Action::Rename)?;
        state.image.lookup(path)?;
        state.image.names.remove(path);
        state
            .image
            .changed_names
            .push(NameChange::Gone(path.to_owned()));
        Ok(())
    }

    fn open_dir(&self, dir: &Path) -> io::Result<Box<dyn Dir>> {
        self.0.lock().check_open(dir)?;
        Ok(Box::new(self.clone()))
    }

    fn create_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let state = self.0.lock();
        let is_in = |path: &&PathBuf| path.parent() == Some(dir);
        Ok(state.image.names.keys().filter(is_in).cloned().collect())
    }

    fn is_synced_as_a_whole(&self, dir: &Path) -> bool {
        !self.0.lock().elsewhere.iter().any(|other| other == dir)
    }

    fn syncer(&self) -> io::Result<Option<Box<dyn Syncer>>> {
        let state = self.0.lock();
        let syncer = MemSyncer {
            disk: self.clone(),
            reported: AtomicU64::new(state.image.failures),
        };
        Ok((!state.is_silent).then(|| Box::new(syncer) as Box<dyn Syncer>))
    }
}

impl DiskFile for MemFile {
    fn write_at(&self, slices: &mut [IoSlice<'_>], position: u64) -> io::Result<()> {
        let mut state = self.disk.enter(Action::Write)?;
        let bytes: Vec<u8> = slices
            .iter()
            .flat_map(|slice| slice.iter().copied())
            .collect();
        let used = state.image.used_bytes();
        let room = state
            .capacity
            .map_or(usize::MAX, |capacity| capacity.saturating_sub(used));
        let file = &mut state.image.files[self.file];
        let from = usize::try_from(position).unwrap();
        // Like Linux: what fits is written, then the error comes.
        let to = (from + bytes.len()).min(file.data.len().saturating_add(room));
        let length = to.saturating_sub(from);
        file.data.resize(file.data.len().max(to), 0);
        file.data[from..from + length].copy_from_slice(&bytes[..length]);
        file.mark_dirty(from, from + length);
        if length < bytes.len() {
            return Err(io::Error::from_raw_os_error(28));
        }
        Ok(())
    }

    fn read_at(&self, into: &mut Vec<u8>, length: usize, position: u64) -> io::Result<()> {
        let state = self.disk.0.lock();
        let data = &state.image.files[self.file].data;
        let start = usize::try_from(position).unwrap().min(data.len());
        into.extend_from_slice(&data[start..start.saturating_add(length).min(data.len())]);
        Ok(())
    }

    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.disk.0.lock().image.files[self.file].data.len() as u64)
    }

    fn created(&self) -> Option<TimestampMs> {
        Some(self.disk.0.lock().image.files[self.file].created)
    }

    fn truncate(&self, size_bytes: u64) -> io::Result<()> {
        let mut state = self.disk.enter(Action::Write)?;
        let file = &mut state.image.files[self.file];
        let old = file.data.len();
        let new = usize::try_from(size_bytes).unwrap();
        file.data.resize(new, 0);
        // A cut that is not flushed may not have happened: the old data is still there.
        file.mark_dirty(new, old);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let (mut state, errno) = self.disk.begin(Action::SyncData);
        state.image.write_back(self.file, errno.is_some());
        let failures = state.image.files[self.file].failures;
        match (report(failures, &self.reported, errno), errno) {
            // Also where nothing was dirty.
            (Ok(()), Some(errno)) => Err(io::Error::from_raw_os_error(errno)),
            (reported, _) => reported,
        }
    }

    fn drop_cache(&self) {
        self.disk.0.lock().image.files[self.file].drop_cache();
    }
}
