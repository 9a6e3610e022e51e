//! Goes through the segments of a log in order and gathers what they hold.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use esker_index::{EpochHistory, IndexBuilder, producers::ProducerTable};
use esker_proto::{
    batch::BatchHeader,
    types::{LeaderEpoch, Offset, Position},
};

use super::{
    Cut, OpenedLog, RecoverAt, Recovered,
    scan::{End, Scan},
};
use crate::log::{
    SealedSegment,
    disk::Disk,
    error::{Damage, Error, failed},
    files::{self, segment_path, state_path},
    mark::{Mark, MarkFile},
    repair::Repaired,
    segment::{List, Segment},
    state::{SealedIndex, StateAt},
};

/// The log as far as it was walked.
pub(super) struct Walk<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    at: &'a RecoverAt,
    mark: Mark,
    states: Vec<StateAt>,
    start_offset: Offset,
    /// Where the next batch must begin.
    end_offset: Offset,
    segments: Vec<Arc<Segment>>,
    sealed: Vec<SealedSegment>,
    active: Option<IndexBuilder>,
    active_age: Duration,
    pub(super) epochs: EpochHistory,
    /// The epochs come from the checkpoint, which knows every epoch of the log.
    is_history_whole: bool,
    producers: ProducerTable,
    /// Batches below are in `producers` already.
    producers_offset: Offset,
    cut: Option<Cut>,
    /// Why segments are not to be read that the bucket has.
    distrusted: Vec<Error>,
    /// Producers at the tiered offset.
    tiered_producers: ProducerTable,
    /// That an operator cut the log.
    pub(super) repaired: Option<Repaired>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        disk: &'a dyn Disk,
        dir: &'a Path,
        at: &'a RecoverAt,
        mark: Mark,
        checkpoint: Option<EpochHistory>,
        states: Vec<StateAt>,
    ) -> Result<Self, Error> {
        let tiered_producers = tiered_producers(dir, at)?;
        let is_history_whole = checkpoint.is_some();
        let epochs = checkpoint.unwrap_or_else(|| at.epochs.clone());
        Ok(Self {
            disk,
            dir,
            at,
            mark,
            states,
            start_offset: at.tiered_offset,
            end_offset: at.tiered_offset,
            segments: Vec::new(),
            sealed: Vec::new(),
            active: None,
            active_age: Duration::ZERO,
            epochs,
            is_history_whole,
            producers: tiered_producers.clone(),
            producers_offset: at.tiered_offset,
            tiered_producers,
            cut: None,
            distrusted: Vec::new(),
            repaired: None,
        })
    }

    /// Walks all segments, given by their base offsets in order.
    ///
    /// One that is damaged, and whose end is known to be in the bucket, stays a part of the log that
    /// nobody reads.
    pub(super) fn segments(&mut self, bases: &[Offset]) -> Result<(), Error> {
        for (at, base) in bases.iter().copied().enumerate() {
            let is_leftover = base > self.end_offset && base <= self.at.tiered_offset;
            if self.segments.is_empty() || is_leftover {
                // What was walked so far is in the bucket: a removal that a crash cut short.
                self.begin_at(base);
            } else if base != self.end_offset {
                let damage = Damage::Chain {
                    expected: self.end_offset,
                    got: base,
                };
                let path = segment_path(self.dir, base);
                return Err(Error::Corrupt {
                    path,
                    offset: self.end_offset,
                    position: Position::ZERO,
                    damage,
                });
            }
            self.segment(base, bases.get(at + 1).copied())?;
        }
        Ok(())
    }

    fn begin_at(&mut self, base: Offset) {
        self.start_offset = base;
        self.end_offset = base;
        self.segments.clear();
        self.sealed.clear();
        if base == Offset::ZERO {
            (self.producers, self.producers_offset) = (ProducerTable::new(), base);
        } else {
            self.find_producers(base);
        }
    }

    /// Takes the producers at `offset`, where the batches before it were not walked; those at the end of
    /// the bucket if nothing else knows any.
    fn find_producers(&mut self, offset: Offset) {
        let state = self.states.iter().find(|state| state.offset == offset);
        let known = state.and_then(|state| ProducerTable::decode(&state.producers).ok());
        (self.producers, self.producers_offset) = match known {
            Some(producers) => (producers, offset),
            None => (self.tiered_producers.clone(), self.at.tiered_offset),
        };
    }

    fn segment(&mut self, base_offset: Offset, next: Option<Offset>) -> Result<(), Error> {
        let path = segment_path(self.dir, base_offset);
        if let Some((state, index, producers)) = self.state_of(base_offset) {
            let next_offset = state.offset;
            let checked = self.check_length(&path, base_offset, index.size_bytes);
            let harm = self.forgive(checked, Some(next_offset))?;
            (self.producers, self.producers_offset) = (producers, next_offset);
            self.take_sealed(path, state, index);
            self.distrust_newest(harm);
            return Ok(());
        }
        let scanned = self.scan_segment(path.clone(), base_offset, next.is_none());
        if let Some(harm) = self.forgive(scanned, next)? {
            self.take_unknown(path, base_offset, next.unwrap_or(base_offset));
            self.distrust_newest(Some(harm));
        }
        Ok(())
    }

    /// Returns the state that was written when the segment was sealed, if it holds.
    fn state_of(&self, base_offset: Offset) -> Option<(StateAt, SealedIndex, ProducerTable)> {
        let index_of = |state: &StateAt| {
            let index = state.segment.clone();
            index.filter(|index| index.base_offset == base_offset)
        };
        let found = |state: &StateAt| index_of(state).map(|index| (state.clone(), index));
        let (state, index) = self.states.iter().find_map(found)?;
        let producers = ProducerTable::decode(&state.producers).ok()?;
        Some((state, index, producers))
    }

    fn check_length(&self, path: &Path, offset: Offset, expected: u64) -> Result<(), Error> {
        let file = self.disk.open(path).map_err(failed("open", path))?;
        let got = file.size_bytes().map_err(failed("stat", path))?;
        if expected == got {
            return Ok(());
        }
        Err(Error::Corrupt {
            path: path.to_owned(),
            offset,
            position: Position::new(expected.min(got)),
            damage: Damage::Length { expected, got },
        })
    }

    /// Passes an error on, unless it is that of one file, and the bucket has all up to `end`, where the
    /// file ended.
    fn forgive(
        &self,
        taken: Result<(), Error>,
        end: Option<Offset>,
    ) -> Result<Option<Error>, Error> {
        let is_copy = end.is_some_and(|end| end <= self.at.tiered_offset);
        match taken {
            Err(error) if is_copy && error.is_of_copy() => Ok(Some(error)),
            taken => taken.map(|()| None),
        }
    }

    /// Takes a segment whose batches cannot be known.
    fn take_unknown(&mut self, path: PathBuf, base_offset: Offset, next_offset: Offset) {
        let segment = Segment::unknown(path.clone(), base_offset, next_offset);
        self.segments.push(Arc::new(segment));
        self.end_offset = next_offset;
        self.find_producers(next_offset);
        self.sealed.push(SealedSegment {
            path,
            base_offset,
            next_offset,
            size_bytes: 0,
            entries: Arc::default(),
            epochs: self.epochs.clone(),
            producers: self.producers.encode(),
        });
    }

    fn distrust_newest(&mut self, harm: Option<Error>) {
        if let (Some(harm), Some(newest)) = (harm, self.segments.last()) {
            newest.distrust();
            self.distrusted.push(harm);
        }
    }

    /// Takes a sealed segment as its state describes it.
    fn take_sealed(&mut self, path: PathBuf, state: StateAt, index: SealedIndex) {
        if !self.is_history_whole {
            for start in state.epochs.starts() {
                // Those the history knows are refused, which is as well.
                let _ = self.epochs.push(start.leader_epoch, start.start_offset);
            }
        }
        let segment = Segment::sealed(path.clone(), index.base_offset, &index.entries);
        self.end_offset = state.offset;
        self.segments.push(Arc::new(segment));
        self.sealed.push(SealedSegment {
            path,
            base_offset: index.base_offset,
            next_offset: state.offset,
            size_bytes: index.size_bytes,
            entries: index.entries.into(),
            epochs: state.epochs,
            producers: state.producers,
        });
    }

    fn scan_segment(
        &mut self,
        path: PathBuf,
        base_offset: Offset,
        is_last: bool,
    ) -> Result<(), Error> {
        let file = self.disk.open(&path).map_err(failed("open", &path))?;
        let size_bytes = file.size_bytes().map_err(failed("stat", &path))?;
        file.sync_data().map_err(failed("fsync", &path))?;
        file.drop_cache();
        let scan = Scan {
            path: &path,
            file: &*file,
            size_bytes,
        };
        let segment = Segment::empty(path.clone(), base_offset);
        let mut index = IndexBuilder::new();
        let end = scan.walk(|batch| self.visit(batch, &segment, &mut index))?;
        if let Some(damage) = end.damage.clone() {
            self.judge(scan, &end, damage, is_last)?;
        }
        if end.position == 0 {
            return Ok(());
        }
        segment.set_readable(end.position);
        let begun = file.created();
        if is_last {
            // Appending continues in it.
            segment.set_file(file);
        }
        self.segments.push(Arc::new(segment));
        if is_last {
            self.active = Some(index);
            // The file is created by its first batch.
            let age_ms = begun.map_or(0, |begun| self.at.now.millis_since(begun));
            self.active_age = Duration::from_millis(age_ms);
            return Ok(());
        }
        self.seal_again(path, base_offset, end.position, index)
    }

    /// Writes the state of a segment that was sealed and lost it.
    fn seal_again(
        &mut self,
        path: PathBuf,
        base_offset: Offset,
        size_bytes: u64,
        index: IndexBuilder,
    ) -> Result<(), Error> {
        let sealed = SealedSegment {
            path,
            base_offset,
            next_offset: self.end_offset,
            size_bytes,
            entries: index.finish().into(),
            epochs: self.epochs.clone(),
            producers: self.producers.encode(),
        };
        let state = state_path(self.dir, self.end_offset);
        files::replace(self.disk, &state, &sealed.state().encode())?;
        self.sealed.push(sealed);
        Ok(())
    }

    fn visit(
        &mut self,
        batch: &BatchHeader,
        segment: &Segment,
        index: &mut IndexBuilder,
    ) -> Result<(), Damage> {
        if batch.base_offset != self.end_offset {
            return Err(Damage::Offset {
                expected: self.end_offset,
                got: batch.base_offset,
            });
        }
        self.note_epoch(batch)?;
        if batch.base_offset >= self.producers_offset {
            self.producers.apply(batch);
        }
        segment.push(batch);
        index.push(batch);
        self.end_offset = batch.next_offset();
        Ok(())
    }

    fn note_epoch(&mut self, batch: &BatchHeader) -> Result<(), Damage> {
        let got = batch.leader_epoch;
        let last = self.epochs.last();
        // A whole history knew every epoch before its first batch was written.
        let may_begin = !self.is_history_whole || last.is_none();
        if may_begin && last.is_none_or(|last| got > last.leader_epoch) {
            let pushed = self.epochs.push(got, batch.base_offset);
            return pushed.map_err(|_| Damage::Epoch { got });
        }
        match self.epochs.epoch_at(batch.base_offset) {
            Some(known) if known != got => Err(Damage::Epoch { got }),
            _ => Ok(()),
        }
    }

    /// Cuts a torn tail, or refuses.
    fn judge(
        &mut self,
        scan: Scan<'_>,
        end: &End,
        damage: Damage,
        is_last: bool,
    ) -> Result<(), Error> {
        let base_offset = self
            .segments
            .last()
            .map_or(self.start_offset, |s| s.next_offset());
        let was_durable = self.mark.is_clean
            || (self.mark.segment == base_offset && end.position < self.mark.position)
            || self.end_offset < self.at.flushed_offset(&self.mark);
        let may_be_torn = is_last && !was_durable && matches!(damage, Damage::Batch(_));
        let position = Position::new(end.position);
        let path = scan.path.to_owned();
        if !may_be_torn || !scan.is_torn(end.position, self.end_offset)? {
            return Err(Error::Corrupt {
                path,
                offset: self.end_offset,
                position,
                damage,
            });
        }
        scan.file
            .truncate(end.position)
            .map_err(failed("truncate", &path))?;
        scan.file.sync_data().map_err(failed("fsync", &path))?;
        let bytes = scan.size_bytes - end.position;
        self.cut = Some(Cut {
            path,
            position,
            bytes,
            damage,
        });
        Ok(())
    }

    /// Drops what was walked and begins anew where the bucket ends.
    pub(super) fn begin_at_tiered(&mut self) -> Result<(), Error> {
        let tiered_offset = self.at.tiered_offset;
        let newest = self.epochs.last();
        self.epochs = self.at.epochs.clone();
        if let Some(newest) = newest
            && self
                .epochs
                .last()
                .is_none_or(|last| newest.leader_epoch > last.leader_epoch)
        {
            let pushed = self.epochs.push(newest.leader_epoch, tiered_offset);
            pushed.map_err(|_| self.bad_epoch(newest.leader_epoch))?;
        }
        (self.start_offset, self.end_offset) = (tiered_offset, tiered_offset);
        self.segments.clear();
        self.sealed.clear();
        self.active = None;
        self.producers = self.tiered_producers.clone();
        let known = self
            .states
            .iter()
            .find(|state| state.offset == tiered_offset);
        if let Some(known) = known.and_then(|state| ProducerTable::decode(&state.producers).ok()) {
            self.producers = known;
            return Ok(());
        }
        if tiered_offset == Offset::ZERO {
            return Ok(());
        }
        let state = StateAt {
            offset: tiered_offset,
            epochs: self.epochs.clone(),
            producers: self.producers.encode(),
            segment: None,
        };
        files::replace(
            self.disk,
            &state_path(self.dir, tiered_offset),
            &state.encode(),
        )
    }

    /// Lets no epoch begin above the end: what it would have begun with is gone.
    pub(super) fn finish_epochs(&mut self) -> Result<(), Error> {
        let Some(last) = self
            .epochs
            .last()
            .filter(|last| last.start_offset > self.end_offset)
        else {
            return Ok(());
        };
        self.epochs.truncate_from(self.end_offset);
        let pushed = self.epochs.push(last.leader_epoch, self.end_offset);
        pushed.map_err(|_| self.bad_epoch(last.leader_epoch))
    }

    fn bad_epoch(&self, got: LeaderEpoch) -> Error {
        let path = files::epochs_path(self.dir);
        Error::Corrupt {
            path,
            offset: self.end_offset,
            position: Position::ZERO,
            damage: Damage::Epoch { got },
        }
    }

    /// Whether the log itself knows an epoch, and does not have it from the bucket.
    pub(super) fn has_led(&self, epoch: LeaderEpoch) -> bool {
        let mut starts = self.epochs.starts().iter();
        self.is_history_whole && starts.any(|start| start.leader_epoch == epoch)
    }

    /// Whether a state shows that the log has reached an offset.
    pub(super) fn knows_state_at(&self, offset: Offset) -> bool {
        self.states.iter().any(|state| state.offset >= offset)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    pub(super) fn start_offset(&self) -> Offset {
        self.start_offset
    }

    pub(super) fn end_offset(&self) -> Offset {
        self.end_offset
    }

    pub(super) fn has_segment(&self, base: Offset) -> bool {
        self.segments
            .iter()
            .any(|segment| segment.base_offset == base)
    }

    pub(super) fn has_state(&self, offset: Offset) -> bool {
        let is_end = |sealed: &SealedSegment| sealed.next_offset == offset;
        offset == self.start_offset || self.sealed.iter().any(is_end)
    }

    /// What is durable now.
    pub(super) fn mark(&self) -> Mark {
        let active = self.segments.last().filter(|_| self.active.is_some());
        Mark {
            segment: active.map_or(self.end_offset, |segment| segment.base_offset),
            position: active.map_or(0, |segment| segment.size_bytes()),
            flushed_offset: self.end_offset,
            is_clean: false,
        }
    }

    pub(super) fn into_opened(self, was_reset: bool, mark: MarkFile) -> OpenedLog {
        let recovered = Recovered {
            local_log_start_offset: self.start_offset,
            log_end_offset: self.end_offset,
            was_clean: self.mark.is_clean,
            was_reset,
            cut: self.cut,
            distrusted: self.distrusted,
            repaired: self.repaired,
        };
        let active = self.segments.last().cloned().zip(self.active);
        let list = List {
            segments: Arc::new(self.segments),
            start_offset: self.start_offset,
            flushed_offset: self.end_offset,
            epochs: Arc::new(self.epochs.clone()),
        };
        OpenedLog {
            recovered,
            list,
            sealed: self.sealed,
            active,
            active_age: self.active_age,
            epochs: self.epochs,
            producers: self.producers,
            mark,
        }
    }
}

/// Producers at the tiered offset, as the bucket has them.
fn tiered_producers(dir: &Path, at: &RecoverAt) -> Result<ProducerTable, Error> {
    let bytes = at.producers.as_deref().unwrap_or_default();
    ProducerTable::decode(bytes).map_err(|source| Error::Producers {
        path: dir.to_owned(),
        source,
    })
}
