//! Uploads sealed segments: the objects first, then one commit that names them.

use bytes::Bytes;
use esker_index::{NewSegment, SegmentMeta, SegmentTrailer, Update};
use esker_proto::types::{Offset, SegmentId, TimestampMs};
use futures::{StreamExt, stream};
use tokio_util::sync::CancellationToken;

use super::{
    Archive, Reason,
    commit::Fallout,
    garbage::Dead,
    sealed::{self, Parts, Pieces, SealedSegment, SegmentBody},
};
use crate::{
    error::Error,
    keys::SegmentName,
    store::{PARTS_IN_FLIGHT, PutPayload},
};

/// Most segments that one commit names. Bounds what a failed commit leaves to do again.
pub const SEGMENTS_PER_COMMIT_MAX: usize = 32;

/// Puts of one partition at a time: the second hides the latency of the first.
const PUTS_IN_FLIGHT: usize = 2;

impl Archive {
    /// Uploads one sealed segment and commits it. See [`Archive::upload_many`].
    ///
    /// # Errors
    ///
    /// Those of [`Archive::upload_many`].
    pub async fn upload(
        &mut self,
        segment: &SealedSegment,
        cancel: &CancellationToken,
    ) -> Result<(), Error> {
        self.upload_many(std::slice::from_ref(segment), cancel)
            .await
    }

    /// Uploads sealed segments, oldest first, at most [`SEGMENTS_PER_COMMIT_MAX`] of them, and
    /// commits them together. Offsets below the tiered offset are left out, so that it may be called
    /// again with the same segments after anything.
    ///
    /// The caller MUST hand over only offsets below the high watermark, and MUST NOT delete a local
    /// file before the published manifest's tiered offset has passed it, nor before [`Archive::see`] has
    /// found what it holds. When this returns `Ok` it
    /// has passed every segment that was taken.
    ///
    /// # Errors
    ///
    /// `Corrupt` for a local file whose bytes do not hold: nothing of it was uploaded. `Fenced` when
    /// a newer leader has opened the manifest. `Unknown` when nobody can tell whether the commit
    /// happened: every later call settles that first. After any other error the segments before the
    /// failed one are committed.
    pub async fn upload_many(
        &mut self,
        segments: &[SealedSegment],
        cancel: &CancellationToken,
    ) -> Result<(), Error> {
        self.settle().await?;
        let parts = parts_above(segments, self.manifest().tiered_offset());
        let Puts { added, result } = self.put_segments(&parts, cancel).await;
        if !added.is_empty() {
            self.add_segments(added).await?;
        }
        result
    }

    async fn add_segments(&mut self, added: Vec<NewSegment>) -> Result<(), Error> {
        let names = added.iter().map(|segment| SegmentName::from(&segment.meta));
        let if_lost = names
            .map(|name| Dead::Segment(name, Reason::Orphan))
            .collect();
        let updates = added.into_iter().map(Update::AddSegment).collect();
        self.commit(
            Update::All(updates),
            Fallout {
                if_lost,
                ..Fallout::default()
            },
        )
        .await
    }

    /// Puts segments side by side. Those after a failed one cannot be named: they are given up.
    async fn put_segments(&mut self, parts: &[Part<'_>], cancel: &CancellationToken) -> Puts {
        let names: Vec<SegmentName> = parts.iter().map(|part| self.draw_name(part.from)).collect();
        let this = &*self;
        let puts = parts
            .iter()
            .zip(&names)
            .map(|(part, name)| this.put(part, *name, cancel));
        // Collected first: a stream of borrowing closures is not `Send`.
        let puts: Vec<_> = puts.collect();
        let mut results = stream::iter(puts).buffered(PUTS_IN_FLIGHT);
        let mut added = Vec::new();
        let mut result = Ok(());
        while let Some(put) = results.next().await {
            match put {
                Ok(segment) => added.push(segment),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        drop(results);
        let given_up = names.into_iter().skip(added.len());
        self.garbage.give_up_segments(given_up.take(PUTS_IN_FLIGHT));
        Puts { added, result }
    }

    fn draw_name(&self, base_offset: Offset) -> SegmentName {
        let segment_id = SegmentId::new(self.deps.ids.uuid());
        SegmentName {
            base_offset,
            leader_epoch: self.leader_epoch,
            segment_id,
        }
    }

    async fn put(
        &self,
        part: &Part<'_>,
        name: SegmentName,
        cancel: &CancellationToken,
    ) -> Result<NewSegment, Error> {
        let timer = self.deps.metrics.upload_duration.start_timer();
        let outcome = if part.segment.size_bytes > self.deps.parts.above_bytes {
            // Takes back its parts when it is cancelled, and so must not be dropped.
            self.put_in_parts(part, name, cancel).await
        } else {
            let put = self.try_put(part, name, cancel);
            let outcome = cancel.run_until_cancelled(put).await;
            outcome.unwrap_or(Err(cancelled()))
        };
        match &outcome {
            Ok(segment) => {
                timer.observe_duration();
                self.deps
                    .metrics
                    .upload_bytes
                    .inc_by(segment.meta.size_bytes);
            }
            Err(_) => {
                timer.stop_and_discard();
                self.deps.metrics.upload_failures.inc();
            }
        }
        outcome
    }

    async fn try_put(
        &self,
        part: &Part<'_>,
        name: SegmentName,
        cancel: &CancellationToken,
    ) -> Result<NewSegment, Error> {
        self.refuse_gap(part, name)?;
        let _room = self.deps.budget.reserve(part.segment.size_bytes).await;
        let body = self.read(part, Pieces::Keep, cancel).await?;
        let key = self.keys.segment(name);
        let (segment, trailer) = self.assemble(part.segment, name, &body, &key)?;
        let payload: PutPayload = body.pieces.into_iter().chain([trailer]).collect();
        let size_bytes = payload.content_length() as u64;
        if let Err(error) = self.deps.store.put_object(&key, payload).await {
            self.settle_put(&key, size_bytes, error).await?;
        }
        Ok(segment)
    }

    /// Reads the file twice: to check it and to index it, and then part by part.
    async fn put_in_parts(
        &self,
        part: &Part<'_>,
        name: SegmentName,
        cancel: &CancellationToken,
    ) -> Result<NewSegment, Error> {
        self.refuse_gap(part, name)?;
        let part_bytes = self.deps.parts.part_bytes;
        let room_bytes = part_bytes * (PARTS_IN_FLIGHT as u64 + 1);
        let reserving = self.deps.budget.reserve(room_bytes);
        let reserved = cancel.run_until_cancelled(reserving).await;
        let _room = reserved.ok_or_else(cancelled)?;
        let body = self.read(part, Pieces::Drop, cancel).await?;
        let key = self.keys.segment(name);
        let (segment, trailer) = self.assemble(part.segment, name, &body, &key)?;
        let parts = Parts::new(part.segment.clone(), &body, trailer, part_bytes);
        let size_bytes = parts.size_bytes();
        let tasks = &self.deps.tasks;
        let parts = stream::try_unfold(parts, |mut parts| async {
            let reading = tasks.spawn_blocking(move || parts.next().map(|part| (part, parts)));
            let (part, parts) = reading.await.map_err(|_| cancelled())??;
            Ok(part.map(|part| (part, parts)))
        });
        let put = self.deps.store.put_parts(&key, Box::pin(parts), cancel);
        if let Err(error) = put.await {
            self.settle_put(&key, size_bytes, error).await?;
        }
        Ok(segment)
    }

    fn refuse_gap(&self, part: &Part<'_>, name: SegmentName) -> Result<(), Error> {
        if part.segment.base_offset > part.from {
            let (base_offset, tiered_offset) = (part.segment.base_offset, part.from);
            let source = esker_index::Error::SegmentOutOfPlace {
                base_offset,
                tiered_offset,
            };
            return Err(Error::Index {
                key: self.keys.segment(name),
                source,
            });
        }
        Ok(())
    }

    async fn read(
        &self,
        part: &Part<'_>,
        pieces: Pieces,
        cancel: &CancellationToken,
    ) -> Result<SegmentBody, Error> {
        let (segment, from, cancel) = (part.segment.clone(), part.from, cancel.clone());
        let reading = self
            .deps
            .tasks
            .spawn_blocking(move || sealed::read(&segment, from, pieces, &cancel));
        reading.await.map_err(|_| Error::Cancelled {
            operation: "read segment",
        })?
    }

    fn assemble(
        &self,
        segment: &SealedSegment,
        name: SegmentName,
        body: &SegmentBody,
        key: &str,
    ) -> Result<(NewSegment, Bytes), Error> {
        let (entries, crc32c) = (body.entries.clone(), body.crc32c);
        let meta = SegmentMeta::of_entries(name.segment_id, name.leader_epoch, crc32c, &entries);
        let mut meta = meta.ok_or_else(|| Error::corrupt(key, "segment without batches"))?;
        meta.uploaded_at = self.time();
        let trailer = SegmentTrailer {
            cluster_id: self.manifest().header().cluster_id,
            topic_partition: self.keys.topic_partition(),
            meta,
            entries: entries.clone(),
            epochs: segment.epochs.clone(),
            producers: segment.producers.clone(),
        };
        let index_error = |source| Error::Index {
            key: key.to_owned(),
            source,
        };
        let trailer: Bytes = trailer.encode().map_err(index_error)?;
        let (epochs, producers) = (segment.epochs.clone(), segment.producers.clone());
        Ok((
            NewSegment {
                meta,
                entries,
                epochs,
                producers,
            },
            trailer,
        ))
    }

    /// The store's time, if it tells, so that a wrong clock of this machine does no harm.
    fn time(&self) -> TimestampMs {
        let deps = &self.deps;
        deps.store.time().unwrap_or_else(|| deps.clock.now())
    }

    /// Asks for the object when the answer to its put was lost. Nobody else writes this key, and a
    /// put is whole or not at all, so its size tells.
    pub(super) async fn settle_put(
        &self,
        key: &str,
        size_bytes: u64,
        error: Error,
    ) -> Result<(), Error> {
        if error.has_no_side_effects() {
            return Err(error);
        }
        match self.deps.store.head(key).await {
            Ok(object) if object.size_bytes == size_bytes => Ok(()),
            Ok(_) | Err(_) => Err(error),
        }
    }
}

const fn cancelled() -> Error {
    Error::Cancelled {
        operation: "upload",
    }
}

/// What came of several puts: those before the first failure, and that failure.
struct Puts {
    added: Vec<NewSegment>,
    result: Result<(), Error>,
}

/// The part of a sealed segment that is not tiered yet.
#[derive(Clone, Copy, Debug)]
struct Part<'a> {
    segment: &'a SealedSegment,
    from: Offset,
}

/// Cuts away what is tiered. A new leader rolls its segments elsewhere than the last one did, so
/// the tiered offset may lie within one.
fn parts_above(segments: &[SealedSegment], tiered_offset: Offset) -> Vec<Part<'_>> {
    let mut from = tiered_offset;
    let above = segments
        .iter()
        .filter(|segment| segment.next_offset > tiered_offset);
    above
        .take(SEGMENTS_PER_COMMIT_MAX)
        .map(|segment| {
            let part = Part { segment, from };
            from = segment.next_offset;
            part
        })
        .collect()
}
