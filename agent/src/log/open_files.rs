//! Files of sealed segments: opened when they are read, so many at a time of all logs together, and
//! closed again in the order they were opened. A log by itself holds open the segment it appends to.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

use super::{
    disk::{Disk, DiskFile, is_shortage},
    segment::Segment,
};

/// What opens the files of an agent's sealed segments.
#[derive(Debug)]
pub(super) struct OpenFiles {
    disk: Arc<dyn Disk>,
    max: usize,
    opened: Mutex<VecDeque<Weak<Segment>>>,
}

impl OpenFiles {
    pub(super) fn new(disk: Arc<dyn Disk>, max: usize) -> Self {
        Self {
            disk,
            max: max.max(1),
            opened: Mutex::default(),
        }
    }

    /// Returns a segment's file, opening it if it is not. It stays open while it is used, also if it
    /// is closed here or removed meanwhile.
    pub(super) fn open(&self, segment: &Arc<Segment>) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(file) = segment.file() {
            return Ok(file);
        }
        let file = match self.disk.open(&segment.path) {
            Err(error) if is_shortage(&error) => {
                self.close_down_to(0);
                self.disk.open(&segment.path)?
            }
            opened => opened?,
        };
        segment.set_file(Arc::clone(&file));
        self.opened.lock().push_back(Arc::downgrade(segment));
        self.close_down_to(self.max);
        Ok(file)
    }

    fn close_down_to(&self, max: usize) {
        let mut opened = self.opened.lock();
        let too_many = opened.len().saturating_sub(max);
        let closing: Vec<_> = opened.drain(..too_many).collect();
        drop(opened);
        for segment in closing.iter().filter_map(Weak::upgrade) {
            segment.close_file();
        }
    }
}
