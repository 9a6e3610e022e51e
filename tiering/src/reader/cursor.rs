//! One reader's way through the tiered part of a partition.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use esker_index::{Manifest, Place as IndexPlace, Rows};
use esker_proto::types::{Offset, TopicPartition};
use tokio::sync::watch;

use super::{
    Inner,
    chunk::Chunk,
    cut::Place,
    fetcher::Request,
    holds::Hold,
    metrics::Active,
    plan::ChunkPlan,
    window::{Arrival, Window},
};
use crate::error::Error;

/// How often a read resolves its offset again after an object was gone.
const RESOLVES_MAX: u32 = 5;
/// How long the first of them waits for a newer manifest; each further one twice as long.
const MANIFEST_WAIT: Duration = Duration::from_millis(50);

/// What a read found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// Batches that follow each other.
    Batches {
        /// Slices of cached chunks, not copied, each of whole batches. The first batch may begin
        /// below the offset asked for. Let go of them before waiting for anything but the peer they
        /// are sent to: they count against the memory of all cold reads.
        bytes: Vec<Bytes>,
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
    hold: Hold,
    window: Window,
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
        let hold = reader.fetcher.holds().add();
        Self {
            reader,
            tp,
            manifests,
            manifest,
            offset,
            reading: None,
            hold,
            window: Window::new(),
            asked_below: offset,
            is_sequential: false,
            active: None,
        }
    }

    /// Returns the offset the next read begins at.
    pub const fn offset(&self) -> Offset {
        self.offset
    }

    /// Reads whole batches, at most `max_bytes` of them but at least one. Cancel safe: a fetch under
    /// way goes on, and the next call finds it.
    ///
    /// # Errors
    ///
    /// [`Error::OffsetOutOfRange`] below the log start. [`Error::Corrupt`], naming object and
    /// position, when stored bytes do not hold: offsets outside that chunk stay readable.
    /// [`Error::NotFound`] when the newest manifest names an object that is gone. Otherwise an error
    /// that is worth a retry.
    pub async fn next(&mut self, max_bytes: usize) -> Result<Read, Error> {
        let mut resolves = 0;
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
                outcome => return outcome,
            }
        }
    }

    async fn try_next(&mut self, max_bytes: usize) -> Result<Read, Error> {
        if !self.resolve().await? {
            self.active = None;
            return Ok(Read::AtEnd);
        }
        if self.active.is_none() {
            self.active = Some(self.reader.activate());
        }
        let chunk = self.chunk().await?;
        let read = self.cut(&chunk, max_bytes)?;
        self.is_sequential = true;
        if !self.has_finished_chunk() && !self.reader.fetcher.budget().is_short() {
            self.hold.put(chunk);
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
            let plan = ChunkPlan::at_offset(&rows, self.offset, self.reader.chunk_bytes);
            let plan = plan.ok_or_else(|| self.hole())?;
            self.reading = Some(Reading::new(rows, plan));
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
        let plan = reading.plan.next(&reading.rows, self.reader.chunk_bytes)?;
        plan.entry_of(self.offset)?;
        Some(Reading::new(reading.rows.clone(), plan))
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

    async fn chunk(&mut self) -> Result<Arc<Chunk>, Error> {
        let reading = self.reading.as_ref().expect("resolved just before");
        if let Some(chunk) = reading.place.and_then(|_| self.hold.take()) {
            if self.is_sequential && !reading.has_fetched_ahead {
                self.fetch_ahead(Arrival::Ready);
            }
            return Ok(chunk);
        }
        let is_new = reading.place.is_none();
        let was_asked = reading.plan.next_offset() <= self.asked_below;
        let request = self.reader.fetcher.demand(self.tp, &reading.plan);
        let arrival = match &request {
            Request::Ready(_) => Arrival::Ready,
            Request::Pending(pending) if pending.is_first && was_asked => Arrival::Lost,
            Request::Pending(_) => Arrival::Late,
        };
        // Before waiting, so that what comes after is fetched at the same time.
        if self.is_sequential && is_new {
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
        let reading = self.reading.as_mut().expect("resolved just before");
        let share = self.reader.share_chunks();
        let chunk_bytes = u64::from(reading.plan.id.length);
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
        let chunk_bytes = self.reader.chunk_bytes;
        if let Some(next) = last.next(rows, chunk_bytes) {
            return Some((rows.clone(), next));
        }
        let offset = last.next_offset();
        let rows = match self.manifest.find(offset) {
            IndexPlace::Page(page) => self.reader.pages.rows_or_prefetch(self.tp, page)?,
            IndexPlace::Head => self.manifest.head().clone(),
            IndexPlace::AtEnd | IndexPlace::BelowStart => return None,
        };
        let next = ChunkPlan::at_offset(&rows, offset, chunk_bytes)?;
        Some((rows, next))
    }

    fn has_finished_chunk(&self) -> bool {
        self.reading
            .as_ref()
            .is_none_or(|reading| reading.plan.next_offset() <= self.offset)
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
