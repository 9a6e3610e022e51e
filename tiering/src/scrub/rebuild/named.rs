//! What the last readable manifest, and those of its pages that can be read, say of segments.

use std::collections::HashMap;

use esker_index::{Manifest, NewSegment, Rows, SegmentMeta};
use esker_proto::types::SegmentId;

use super::Cluster;
use crate::{
    archive::{pages::Pages, trim::is_damage},
    error::Error,
    keys::{Keys, SegmentName},
    scrub::Scrubber,
};

/// The segments a manifest names, with their index.
pub(super) struct NamedSegments {
    manifest: Option<Manifest>,
    rows: Vec<Rows>,
    /// Which rows, and which of their segments.
    by_id: HashMap<SegmentId, (usize, usize)>,
}

impl NamedSegments {
    /// Reads the pages; those that are damaged are left out.
    pub(super) async fn read(
        scrubber: &Scrubber,
        keys: Keys,
        manifest: Option<&Manifest>,
    ) -> Result<Self, Error> {
        let pages = Pages::new(scrubber.store.clone(), keys, scrubber.tasks.clone());
        let mut rows = Vec::new();
        for page in manifest.map_or(&[][..], Manifest::pages) {
            match pages.load(page).await {
                Ok(page) => rows.push(page),
                Err(error) if is_damage(&error) => {}
                Err(error) => return Err(error),
            }
        }
        rows.extend(manifest.map(|manifest| manifest.head().clone()));
        let segments = rows.iter().enumerate().flat_map(|(at, rows)| {
            let segments = rows.segments().iter().enumerate();
            segments.map(move |(index, meta)| (meta.segment_id, (at, index)))
        });
        Ok(Self {
            by_id: segments.collect(),
            rows,
            manifest: manifest.cloned(),
        })
    }

    /// Returns what is known of a segment, if it is named.
    pub(super) fn get(&self, name: &SegmentName) -> Option<&SegmentMeta> {
        let (rows, index) = *self.by_id.get(&name.segment_id)?;
        Some(&self.rows[rows].segments()[index]).filter(|meta| SegmentName::from(*meta) == *name)
    }

    /// Returns the cluster the manifest belongs to.
    pub(super) fn cluster(&self) -> Cluster {
        let known = self.manifest.as_ref();
        known.map_or(Cluster::None, |known| {
            Cluster::One(known.header().cluster_id)
        })
    }

    /// Returns a named segment as its trailer would tell it. The producers are known only where the
    /// manifest ends.
    pub(super) fn segment(&self, name: &SegmentName) -> Option<NewSegment> {
        let manifest = self.manifest.as_ref()?;
        let (rows, index) = *self.by_id.get(&name.segment_id)?;
        let meta = self.rows[rows].segments()[index];
        let mut epochs = manifest.epochs().clone();
        epochs.truncate_from(meta.next_offset);
        let is_last = meta.next_offset == manifest.tiered_offset();
        let producers = is_last.then(|| manifest.producers().clone());
        Some(NewSegment {
            meta,
            entries: self.rows[rows].entries(index),
            epochs,
            producers: producers.unwrap_or_default(),
        })
    }
}
