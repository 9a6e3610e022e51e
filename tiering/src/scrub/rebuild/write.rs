//! Makes a manifest of the chosen segments, and puts it into the chain.

use std::sync::Arc;

use esker_index::{Manifest, ManifestParts, NewSegment, SegmentTrailer, Update};
use esker_proto::types::{ClusterId, ManifestVersion, Offset};
use futures::{StreamExt, stream};

use super::{RebuildOptions, Remains, named::NamedSegments};
use crate::{
    chain::{ChainName, ChainReader, Put, RetryPolicy, put_definite, repair_nonce},
    env::IdGenerator,
    error::Error,
    keys::{Keys, SegmentName},
    scrub::{Candidate, Scrubber},
};

/// Segments added to the manifest at a time: bounds the memory of their entries.
const SEGMENTS_AT_A_TIME: usize = 256;

/// All that writing takes.
pub(super) struct Rebuild<'a> {
    pub scrubber: &'a Scrubber,
    pub keys: Keys,
    pub ids: &'a dyn IdGenerator,
    pub options: RebuildOptions,
    pub remains: Remains,
    pub named: NamedSegments,
}

impl Rebuild<'_> {
    pub(super) async fn write(
        self,
        cluster: ClusterId,
        chain: &[Candidate],
    ) -> Result<Arc<Manifest>, Error> {
        let newest = chain
            .last()
            .map(|last| last.leader_epoch)
            .unwrap_or_default();
        let leader_epoch = newest.max(self.remains.epoch);
        let start = chain
            .first()
            .map_or(Offset::ZERO, |first| first.base_offset);
        let mut manifest = Manifest::create_at(cluster, self.keys.topic_partition(), start);
        manifest = self.apply(&manifest, Update::Open { leader_epoch }).await?;
        for run in chain.chunks(SEGMENTS_AT_A_TIME) {
            let segments = self.segments(run).await?;
            let updates = segments.into_iter().map(Update::AddSegment).collect();
            manifest = self.apply(&manifest, Update::All(updates)).await?;
        }
        let log_start_offset = start.max(self.remains.log_start_offset());
        let trim = Update::TrimBelow {
            log_start_offset,
            page: None,
        };
        manifest = self.apply(&manifest, trim).await?;
        let manifest = self.number(&manifest)?;
        if !self.options.dry_run {
            self.commit(&manifest).await?;
            self.replace_boundary().await?;
        }
        Ok(Arc::new(manifest))
    }

    /// Applies an update and puts the pages it spills.
    async fn apply(&self, manifest: &Manifest, update: Update) -> Result<Manifest, Error> {
        let index_error = |source| Error::Index {
            key: self.keys.manifests(),
            source,
        };
        let next = manifest
            .apply(update, self.ids.nonce())
            .map_err(index_error)?;
        if !self.options.dry_run {
            for page in next.new_pages {
                let key = self.keys.page((&page.page_ref).into());
                self.scrubber.store.put_object(&key, page.bytes).await?;
            }
        }
        Ok(next.manifest)
    }

    /// Reads the trailers of chosen segments again, for their entries.
    async fn segments(&self, run: &[Candidate]) -> Result<Vec<NewSegment>, Error> {
        let mut segments = Vec::with_capacity(run.len());
        let names: Vec<SegmentName> = run.iter().map(name_of).collect();
        let reads = names.into_iter().map(|name| self.segment(name));
        let reads: Vec<_> = reads.collect();
        let mut reads = stream::iter(reads).buffered(self.scrubber.concurrency);
        while let Some(segment) = reads.next().await {
            segments.push(segment?);
        }
        Ok(segments)
    }

    async fn segment(&self, name: SegmentName) -> Result<NewSegment, Error> {
        let key = self.keys.segment(name);
        let size_bytes = self.scrubber.store.head(&key).await?.size_bytes;
        let trailer = self.scrubber.trailer(self.keys, &name, size_bytes).await?;
        let trailer = match trailer {
            Ok(trailer) => trailer,
            Err(reason) => {
                let named = self.named.segment(&name);
                return named.ok_or_else(|| Error::corrupt(key, reason));
            }
        };
        let SegmentTrailer {
            meta,
            entries,
            epochs,
            producers,
            ..
        } = trailer;
        Ok(NewSegment {
            meta,
            entries,
            epochs,
            producers,
        })
    }

    /// Gives the manifest its place in the chain, and a nonce that says that it opens an epoch, as a repair.
    fn number(&self, manifest: &Manifest) -> Result<Manifest, Error> {
        let mut header = *manifest.header();
        header.version = ManifestVersion::new(self.remains.slot);
        header.nonce = repair_nonce(self.ids);
        let numbered = Manifest::from_parts(ManifestParts {
            header,
            log_start_offset: manifest.log_start_offset(),
            tiered_offset: manifest.tiered_offset(),
            epochs: manifest.epochs().clone(),
            producers: manifest.producers().clone(),
            pages: manifest.pages().into(),
            head: manifest.head().clone(),
        });
        numbered.map_err(|source| Error::Index {
            key: self.keys.manifests(),
            source,
        })
    }

    /// The slot just written is above any floor that the damaged boundary can have held.
    async fn replace_boundary(&self) -> Result<(), Error> {
        if !self.remains.boundary_is_damaged {
            return Ok(());
        }
        let chain = ChainReader::new(self.scrubber.store.clone(), ChainName::Manifest(self.keys));
        let (slot, nonce) = (self.remains.slot, self.ids.nonce());
        let policy = RetryPolicy::default();
        chain.replace_damaged_boundary(slot, nonce, policy).await
    }

    async fn commit(&self, manifest: &Manifest) -> Result<(), Error> {
        let key = ChainName::Manifest(self.keys).slot(self.remains.slot);
        let body = manifest.encode(self.remains.prev_sha256);
        let policy = RetryPolicy::default();
        match put_definite(&self.scrubber.store, &key, body, Manifest::nonce_of, policy).await {
            Put::Won => Ok(()),
            Put::Lost(_) => {
                let ours = u64::from(manifest.header().leader_epoch.get());
                Err(Error::Fenced {
                    key,
                    ours,
                    theirs: ours,
                })
            }
            Put::Refused(error) => Err(error),
            Put::Unknown(error) => Err(Error::OutcomeUnknown {
                key,
                source: Some(Arc::new(error)),
            }),
        }
    }
}

pub(super) const fn name_of(candidate: &Candidate) -> SegmentName {
    SegmentName {
        base_offset: candidate.base_offset,
        leader_epoch: candidate.leader_epoch,
        segment_id: candidate.segment_id,
    }
}
