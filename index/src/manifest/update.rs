//! Updates, and what applying one gives.

use bytes::Bytes;
use esker_proto::types::{LeaderEpoch, Offset};

use super::{Manifest, NewPage, PageRef, draft::Draft};
use crate::{EpochHistory, Error, IndexEntry, Rows, SegmentMeta};

/// A change of a manifest; one commit.
#[derive(Clone, Debug)]
pub enum Update {
    /// The leader of an epoch takes the manifest over.
    Open {
        /// Its epoch, which is not below that of the manifest.
        leader_epoch: LeaderEpoch,
    },
    /// A segment object was stored; the tiered offset moves to its end.
    AddSegment(NewSegment),
    /// The log start moves up.
    TrimBelow {
        /// The log start wanted, at most the tiered offset. One below the present log start changes
        /// nothing.
        log_start_offset: Offset,
        /// Rows of the page that holds it, if it falls into one: they keep the counts of
        /// [`PageRef::segment_count`] exact.
        page: Option<Rows>,
    },
    /// Neighbouring pages become one. Their rows, oldest first.
    MergePages {
        /// The pages, as [`Manifest::merge_due`] gave them, with the rows decoded from them.
        merged: Vec<(PageRef, Rows)>,
    },
    /// Several updates in one commit, in this order; all of them or none.
    All(Vec<Self>),
}

/// A segment to add.
#[derive(Clone, Debug)]
pub struct NewSegment {
    /// The segment, which begins at the tiered offset.
    pub meta: SegmentMeta,
    /// Its index.
    pub entries: Vec<IndexEntry>,
    /// Leader epochs of the log up to its end. Older ones that the manifest knows may be missing.
    pub epochs: EpochHistory,
    /// Producer snapshot at its end.
    pub producers: Bytes,
}

/// What applying an update gives.
#[derive(Clone, Debug)]
pub struct Next {
    /// The next version.
    pub manifest: Manifest,
    /// Pages to store before it is committed.
    pub new_pages: Vec<NewPage>,
    /// Pages to delete after it is committed.
    pub dropped_pages: Vec<PageRef>,
}

impl Manifest {
    /// Returns the next version: this one, changed by `update`.
    ///
    /// `nonce` must be fresh. On an error there is no next version and nothing to store. CPU only,
    /// but tens of milliseconds of it when large pages are merged.
    pub fn apply(&self, update: Update, nonce: u128) -> Result<Next, Error> {
        let mut draft = Draft::new(self, nonce);
        draft.apply(update)?;
        let next = draft.finish()?;
        next.manifest.check_follows(self)?;
        Ok(next)
    }
}
