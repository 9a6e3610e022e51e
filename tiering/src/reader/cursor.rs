//! One reader's way through the tiered part of a partition.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use esker_index::{Manifest, Place as IndexPlace, Rows};
use esker_proto::types::{Offset, OffsetRange, TopicPartition};
use tokio::sync::watch;

use super::{
    Inner,
    budget::Side,
    chunk::{Buffer, Chunk},
    cut::Place,
    fetcher::Request,
    holds::Hold,
    metrics::Active,
    plan::{ChunkId, ChunkPlan},
    window::{Arrival, ChunkSize, Window},
};
use crate::error::{Error, ErrorKind};

/// How often a read resolves its offset again after an object was gone.
const RESOLVES_MAX: u32 = 5;
/// How long the first of them waits for a newer manifest; each further one twice as long.
const MANIFEST_WAIT: Duration = Duration::from_millis(50);

/// The first fetch of a reader takes this part of a chunk at most, but a whole index entry.
const FIRST_PART: u64 = 2;

/// What a read found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// Batches that follow each other.
    Batches {
        /// Slices of cached chunks, not copied, each of whole batches. The first batch may begin
        /// below the offset asked for. Let go of them before waiting for anything but the peer they
        /// are sent to: they count against the memory of all cold reads.
        bytes: Vec<Bytes>,
        /// What they keep in memory.
        buffer: Buffer,
        /// Offset after the last record.
        next_offset: Offset,
    },
    /// Nothing at or above the offset is tiered: go on in the tail. A later call looks again.
    AtEnd,
}

/// Reads a partition from an offset on. Made by [`super::Reader::read`].
pub struct Cursor {
    reader: Arc<Inner>,
    tp: TopicPartition,
    manifests: watch::Receiver<Arc<Manifest>>,
    /// What offsets are resolved by: one version at a time.
    manifest: Arc<Manifest>,
    offset: Offset,
    reading: Option<Reading>,
    /// The chunk in use, between calls.
    hold: Hold<(ChunkId, Arc<Chunk>)>,
    window: Window,
    size: ChunkSize,
    /// Everything below has been asked for at some time.
    asked_below: Offset,
    /// Whether it has read on from where it began: only then is it worth fetching ahead.
    is_sequential: bool,
    active: Option<Active>,
}

/// The chunk that the offset is in.
struct Reading {
    rows: Rows,
    plan: ChunkPlan,
    /// None until the chunk has been there, since finding a batch takes its bytes.
    place: Option<Place>,
    /// Whether what comes after it was fetched ahead, or shall not be.
    has_fetched_ahead: bool,
}

impl Cursor {
    pub(super) fn new(
        reader: Arc<Inner>,
        tp: TopicPartition,
        mut manifests: watch::Receiver<Arc<Manifest>>,
        offset: Offset,
    ) -> Self {
        let manifest = manifests.borrow_and_update().clone();
        let hold = reader.fetcher.budget().holds().add(Side::Bucket);
        Self {
            reader,
            tp,
            manifests,
            manifest,
            offset,
            reading: None,
            hold,
            window: Window::new(),
            size: ChunkSize::new(),
            asked_below: offset,
            is_sequential: false,
            active: None,
        }
    }

    /// Returns the offset the next read begins at.
    pub const fn offset(&self) -> Offset {
        self.offset
    }

    /// Goes to another offset: back to one whose batches were not used, say.
    pub fn seek(&mut self, offset: Offset) {
        self.offset = offset;
        if let Some(reading) = &mut self.reading {
            reading.place = None;
        }
    }

    /// Reads whole batches, at most `max_bytes` of them but at least one. Cancel safe: a fetch under
    /// way goes on, and the next call finds it.
    ///
    /// # Errors
    ///
    /// [`Error::OffsetOutOfRange`] below the log start. [`Error::Corrupt`], naming object and
    /// position, when stored bytes do not hold: offsets outside of [`Cursor::damaged`] stay readable.
    /// [`Error::NotFound`] when the newest manifest names an object that is gone. Otherwise an error
    /// that is worth a retry.
    pub async fn next(&mut self, max_bytes: usize) -> Result<Read, Error> {
        let (mut resolves, mut is_narrowed) = (0, false);
        loop {
            let outcome = self.try_next(max_bytes).await;
            match outcome {
                Err(error) if error.is_not_found() && resolves < RESOLVES_MAX => {
                    tracing::info!(%error, offset = %self.offset, "object gone, resolving again");
                    self.reading = None;
                    self.wait_for_manifest(MANIFEST_WAIT * (1 << resolves))
                        .await;
                    resolves += 1;
                }
                // The batches around the damage may be whole.
                Err(error)
                    if error.kind() == ErrorKind::Corrupt && !is_narrowed && self.narrow() =>
                {
                    is_narrowed = true;
                    tracing::warn!(%error, offset = %self.offset, "chunk is corrupt, reading less");
                }
                outcome => return outcome,
            }
        }
    }

    /// Returns which offsets the last error was about, if it was about damage: reading can continue
    /// at their end.
    pub fn damaged(&self, error: &Error) -> Option<OffsetRange> {
        let reading = self.reading.as_ref()?;
        let end = match error.kind() {
            ErrorKind::Corrupt => reading.plan.next_offset(),
            ErrorKind::NotFound => reading.segment_end(),
            _ => return None,
        };
        (self.offset < end).then_some(self.offset..end)
    }

    /// Plans again, for one index entry only; `false` if that was all there was already.
    fn narrow(&mut self) -> bool {
        let Some(reading) = self
            .reading
            .take_if(|reading| reading.plan.entries.len() > 1)
        else {
            return false;
        };
        let Some(index) = reading.rows.seek(self.offset) else {
            return false;
        };
        let plan = self.reader.plan(&reading.rows, index, 1);
        self.reading = Some(Reading {
            has_fetched_ahead: true,
            ..Reading::new(reading.rows, plan)
        });
        true
    }

    async fn try_next(&mut self, max_bytes: usize) -> Result<Read, Error> {
        if !self.resolve().await? {
            self.active = None;
            self.hold.rest();
            return Ok(Read::AtEnd);
        }
        if self.active.is_none() {
            self.active = Some(self.reader.activate());
        }
        let chunk = self.chunk().await?;
        let read = self.cut(&chunk, max_bytes)?;
        self.is_sequential = true;
        if let Some(reading) = &self.reading {
            if reading.plan.next_offset() <= self.offset {
                self.size.on_finished(u64::from(reading.plan.id.length));
            } else {
                let kept = (reading.plan.id, chunk);
                self.reader.fetcher.budget().keep(&self.hold, kept);
            }
        }
        Ok(read)
    }

    /// Finds the chunk that the offset is in. Returns false if nothing is tiered there.
    async fn resolve(&mut self) -> Result<bool, Error> {
        self.take_manifest()?;
        if let Some(reading) = &self.reading {
            if reading.plan.entry_of(self.offset).is_some() {
                return Ok(true);
            }
            // Offsets of a segment never change, so rows in hand are good whatever the manifest's
            // version: it only tells whether they still may be read.
            self.reading = self.next_in_rows(reading);
        }
        if self.reading.is_none() {
            let Some(rows) = self.rows().await? else {
                return Ok(false);
            };
            let index = rows.seek(self.offset).ok_or_else(|| self.hole())?;
            let plan = self.reader.plan(&rows, index, self.max_bytes());
            self.reading = Some(Reading {
                // Most who read one chunk want no more.
                has_fetched_ahead: !self.is_sequential,
                ..Reading::new(rows, plan)
            });
        }
        Ok(true)
    }

    fn take_manifest(&mut self) -> Result<(), Error> {
        if self.manifests.has_changed().unwrap_or(false) {
            self.manifest = self.manifests.borrow_and_update().clone();
        }
        let log_start_offset = self.manifest.log_start_offset();
        if self.offset < log_start_offset {
            return Err(Error::OffsetOutOfRange {
                offset: self.offset,
                log_start_offset,
            });
        }
        Ok(())
    }

    fn next_in_rows(&self, reading: &Reading) -> Option<Reading> {
        let plan = self.plan_in(&reading.rows, reading.plan.rows.end)?;
        plan.entry_of(self.offset)?;
        Some(Reading::new(reading.rows.clone(), plan))
    }

    /// Largest chunk to ask for: a part of one at first, and where many read at once.
    fn max_bytes(&self) -> u64 {
        let fair = self.reader.fair_bytes().min(self.size.max_bytes);
        if self.is_sequential {
            fair
        } else {
            fair.min(self.reader.chunk_bytes / FIRST_PART)
        }
    }

    fn plan_in(&self, rows: &Rows, index: usize) -> Option<ChunkPlan> {
        let max_bytes = self.max_bytes();
        (index < rows.len()).then(|| self.reader.plan(rows, index, max_bytes))
    }

    async fn rows(&self) -> Result<Option<Rows>, Error> {
        match self.manifest.find(self.offset) {
            IndexPlace::Page(page) => self.reader.pages.rows(self.tp, page).await.map(Some),
            IndexPlace::Head => Ok(Some(self.manifest.head().clone())),
            IndexPlace::AtEnd => Ok(None),
            IndexPlace::BelowStart => Err(Error::OffsetOutOfRange {
                offset: self.offset,
                log_start_offset: self.manifest.log_start_offset(),
            }),
        }
    }

    /// A page that does not hold what the manifest says.
    fn hole(&self) -> Error {
        Error::corrupt(
            self.tp.to_string(),
            format!("index has a hole at offset {}", self.offset),
        )
    }

    /// Plans again, for as little as possible, if the chunk was lost before its end.
    fn note_loss(&mut self) {
        let reading = self.reading.as_ref().expect("resolved just before");
        if reading.place.is_none() || self.reader.fetcher.has(&reading.plan.id) {
            return;
        }
        self.size.on_loss();
        let rows = reading.rows.clone();
        if let Some(plan) = rows
            .seek(self.offset)
            .and_then(|index| self.plan_in(&rows, index))
        {
            self.reading = Some(Reading {
                has_fetched_ahead: true,
                ..Reading::new(rows, plan)
            });
        }
    }

    async fn chunk(&mut self) -> Result<Arc<Chunk>, Error> {
        let held = self.hold.take();
        let reading = self.reading.as_ref().expect("resolved just before");
        if let Some((_, chunk)) = held.filter(|(id, _)| *id == reading.plan.id) {
            if self.is_sequential && !reading.has_fetched_ahead {
                self.fetch_ahead(Arrival::Ready);
            }
            return Ok(chunk);
        }
        self.note_loss();
        let reading = self.reading.as_ref().expect("resolved just before");
        let is_new = reading.place.is_none();
        let was_asked = reading.plan.next_offset() <= self.asked_below;
        let request = self.reader.fetcher.demand(self.tp, &reading.plan);
        let arrival = match &request {
            Request::Ready(_) => Arrival::Ready,
            Request::Pending(pending) if pending.is_first && was_asked => Arrival::Lost,
            Request::Pending(_) => Arrival::Late,
        };
        // Before waiting, so that what comes after is fetched at the same time.
        if is_new && !reading.has_fetched_ahead {
            self.fetch_ahead(arrival);
        }
        let chunk = match request {
            Request::Ready(chunk) => chunk,
            Request::Pending(pending) => pending.arrived().await?,
        };
        if is_new {
            self.window.on_fetch(chunk.took());
        }
        Ok(chunk)
    }

    fn fetch_ahead(&mut self, arrival: Arrival) {
        let max_bytes = self.max_bytes().min(self.reader.chunk_bytes);
        let reading = self.reading.as_mut().expect("resolved just before");
        let chunk_bytes = u64::from(reading.plan.id.length).max(max_bytes);
        let share = self.reader.share_chunks(chunk_bytes);
        let chunks = self.window.on_chunk(arrival, chunk_bytes, share);
        reading.has_fetched_ahead = true;
        let mut rows = reading.rows.clone();
        let mut last = reading.plan.clone();
        self.asked_below = self.asked_below.max(last.next_offset());
        for _ in 0..chunks {
            let Some((next_rows, next)) = self.plan_after(&rows, &last) else {
                return;
            };
            if !self.reader.fetcher.prefetch(self.tp, &next) {
                return;
            }
            self.asked_below = self.asked_below.max(next.next_offset());
            (rows, last) = (next_rows, next);
        }
    }

    /// Plans the chunk after `last`, across segments and pages; a page that is not here is fetched
    /// first.
    fn plan_after(&self, rows: &Rows, last: &ChunkPlan) -> Option<(Rows, ChunkPlan)> {
        if let Some(next) = self.plan_in(rows, last.rows.end) {
            return Some((rows.clone(), next));
        }
        let offset = last.next_offset();
        let rows = match self.manifest.find(offset) {
            IndexPlace::Page(page) => self.reader.pages.rows_or_prefetch(self.tp, page)?,
            IndexPlace::Head => self.manifest.head().clone(),
            IndexPlace::AtEnd | IndexPlace::BelowStart => return None,
        };
        let next = self.plan_in(&rows, rows.seek(offset)?)?;
        Some((rows, next))
    }

    fn cut(&mut self, chunk: &Chunk, max_bytes: usize) -> Result<Read, Error> {
        let reading = self.reading.as_mut().expect("resolved just before");
        let bytes = chunk.read();
        let cut = reading.cut(bytes, self.offset, max_bytes);
        // The chunk was checked when it arrived, so this is a bug or bad memory.
        let (range, place) = cut.map_err(|error| {
            Error::corrupt(
                self.tp.to_string(),
                format!("{error} at offset {}", self.offset),
            )
        })?;
        reading.place = Some(place);
        self.offset = place.offset;
        Ok(Read::Batches {
            bytes: vec![bytes.slice(range)],
            buffer: chunk.buffer(),
            next_offset: place.offset,
        })
    }

    /// Waits a while for a newer manifest than the one in use.
    async fn wait_for_manifest(&mut self, at_most: Duration) {
        // Out of time or out of manifests: resolve by what there is.
        let _ = tokio::time::timeout(at_most, self.manifests.changed()).await;
        self.manifest = self.manifests.borrow_and_update().clone();
    }
}

impl Reading {
    /// Offset after the last record of the segment, as far as these rows go.
    fn segment_end(&self) -> Offset {
        let rows = self.plan.rows.start..self.rows.len();
        let in_segment = rows
            .map(|index| self.rows.row(index))
            .take_while(|row| row.segment.segment_id == self.plan.id.segment_id);
        in_segment
            .last()
            .map_or_else(|| self.plan.next_offset(), |row| row.entry.next_offset())
    }

    fn new(rows: Rows, plan: ChunkPlan) -> Self {
        Self {
            rows,
            plan,
            place: None,
            has_fetched_ahead: false,
        }
    }

    fn cut(
        &self,
        bytes: &[u8],
        offset: Offset,
        max_bytes: usize,
    ) -> Result<(std::ops::Range<usize>, Place), esker_proto::batch::BatchError> {
        let mut place = match self.place {
            Some(place) => place,
            None => Place::find(&self.plan, bytes, offset)?,
        };
        let range = place.take(&self.plan, bytes, max_bytes)?;
        Ok((range, place))
    }
}

impl fmt::Debug for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cursor")
            .field("tp", &self.tp)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}
