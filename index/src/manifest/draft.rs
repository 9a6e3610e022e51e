//! A manifest in the making: each kind of update is one method.

use esker_proto::types::{LeaderEpoch, Offset};
use sha2::{Digest, Sha256};
use uuid::Builder;

use super::{
    HEAD_ROWS_MAX, HEAD_SEGMENTS_MAX, Manifest, ManifestParts, NewPage, NewSegment, Next, PageId,
    PageRef, Update,
};
use crate::{Error, Rows, RowsBuilder};

pub(super) struct Draft {
    parts: ManifestParts,
    pages: Vec<PageRef>,
    head: RowsBuilder,
    new_pages: Vec<NewPage>,
    dropped_pages: Vec<PageRef>,
    pages_named: u64,
}

impl Draft {
    pub(super) fn new(base: &Manifest, nonce: u128) -> Self {
        let mut parts = base.0.clone();
        parts.header.version = parts.header.version.next();
        parts.header.nonce = nonce;
        parts.header.prev_sha256 = [0; 32];
        Self {
            pages: parts.pages.to_vec(),
            head: RowsBuilder::from(&parts.head),
            parts,
            new_pages: Vec::new(),
            dropped_pages: Vec::new(),
            pages_named: 0,
        }
    }

    pub(super) fn apply(&mut self, update: Update) -> Result<(), Error> {
        match update {
            Update::Open { leader_epoch } => self.open(leader_epoch),
            Update::AddSegment(segment) => self.add_segment(segment),
            Update::TrimBelow {
                log_start_offset,
                page,
            } => self.trim_below(log_start_offset, page.as_ref()),
            Update::MergePages { merged } => self.merge_pages(&merged),
            Update::All(updates) => updates
                .into_iter()
                .try_for_each(|update| self.apply(update)),
        }
    }

    pub(super) fn finish(mut self) -> Result<Next, Error> {
        self.parts.pages = self.pages.into();
        self.parts.head = self.head.finish();
        let manifest = Manifest::from_parts(self.parts)?;
        // A page that one update made and a later one dropped was never stored.
        let is_named = |page: &PageRef| manifest.pages().iter().any(|named| named.id == page.id);
        let made: Vec<_> = self.new_pages.iter().map(|page| page.page_ref.id).collect();
        self.dropped_pages.retain(|page| !made.contains(&page.id));
        self.new_pages.retain(|page| is_named(&page.page_ref));
        let Self {
            new_pages,
            dropped_pages,
            ..
        } = self;
        Ok(Next {
            manifest,
            new_pages,
            dropped_pages,
        })
    }

    fn open(&mut self, leader_epoch: LeaderEpoch) -> Result<(), Error> {
        let theirs = self.parts.header.leader_epoch;
        if leader_epoch < theirs {
            return Err(Error::Fenced {
                ours: leader_epoch,
                theirs,
            });
        }
        self.parts.header.leader_epoch = leader_epoch;
        Ok(())
    }

    fn add_segment(&mut self, segment: NewSegment) -> Result<(), Error> {
        let NewSegment {
            meta,
            entries,
            epochs,
            producers,
        } = segment;
        let tiered_offset = self.parts.tiered_offset;
        if meta.base_offset != tiered_offset {
            return Err(Error::SegmentOutOfPlace {
                base_offset: meta.base_offset,
                tiered_offset,
            });
        }
        if self.is_head_full(entries.len()) {
            self.spill()?;
        }
        self.head.push(meta, &entries)?;
        let mut epochs = self.parts.epochs.extended_by(&epochs, tiered_offset)?;
        // The epoch that begins at the segment's end is kept: the next log starts with it.
        epochs.truncate_from(Offset::new(meta.next_offset.get().saturating_add(1)));
        epochs.trim_below(self.parts.log_start_offset);
        self.parts.epochs = epochs;
        self.parts.producers = producers;
        self.parts.tiered_offset = meta.next_offset;
        Ok(())
    }

    fn is_head_full(&self, more_rows: usize) -> bool {
        let segments = self.head.segments().len();
        segments > 0
            && (self.head.len() + more_rows > HEAD_ROWS_MAX || segments >= HEAD_SEGMENTS_MAX)
    }

    /// Moves all rows of the head into a page.
    fn spill(&mut self) -> Result<(), Error> {
        let rows = std::mem::take(&mut self.head).finish();
        let page = self.make_page(&rows, 0)?;
        self.pages.push(page);
        Ok(())
    }

    fn make_page(&mut self, rows: &Rows, level: u8) -> Result<PageRef, Error> {
        let id = self.next_page_id();
        let page = NewPage::encode(rows, (id, level, self.parts.header.leader_epoch))?;
        let page_ref = page.page_ref;
        self.new_pages.push(page);
        Ok(page_ref)
    }

    /// Names pages after the nonce, so that they are as unique as it is.
    fn next_page_id(&mut self) -> PageId {
        let mut hash = Sha256::new();
        hash.update(self.parts.header.nonce.to_le_bytes());
        hash.update(self.pages_named.to_le_bytes());
        self.pages_named += 1;
        let digest: [u8; 32] = hash.finalize().into();
        let (id, _) = digest.split_first_chunk().expect("16 of 32 bytes");
        PageId::new(Builder::from_random_bytes(*id).into_uuid())
    }

    fn trim_below(&mut self, offset: Offset, page: Option<&Rows>) -> Result<(), Error> {
        let (log_start_offset, tiered_offset) =
            (self.parts.log_start_offset, self.parts.tiered_offset);
        if offset > tiered_offset {
            return Err(Error::TrimOutOfRange {
                offset,
                log_start_offset,
                tiered_offset,
            });
        }
        if offset <= log_start_offset {
            return Ok(());
        }
        self.parts.log_start_offset = offset;
        self.parts.epochs.trim_below(offset);
        let dead = self
            .pages
            .partition_point(|page| page.next_offset <= offset);
        self.dropped_pages.extend(self.pages.drain(..dead));
        if let (Some(rows), Some(first)) = (page, self.pages.first_mut())
            && first.is_of(rows)
        {
            *first = first.with_live(rows, offset)?;
        }
        self.trim_head(offset)
    }

    fn trim_head(&mut self, offset: Offset) -> Result<(), Error> {
        if self
            .head
            .segments()
            .first()
            .is_some_and(|first| first.next_offset <= offset)
        {
            let rows = std::mem::take(&mut self.head).finish();
            self.head.extend_live(&rows, offset)?;
        }
        Ok(())
    }

    fn merge_pages(&mut self, merged: &[(PageRef, Rows)]) -> Result<(), Error> {
        let run = self.find_run(merged).ok_or(Error::PagesMoved {
            pages: merged.len(),
        })?;
        let mut builder = RowsBuilder::new();
        for (_, rows) in merged {
            builder.extend_live(rows, self.parts.log_start_offset)?;
        }
        let top = merged
            .iter()
            .map(|(page, _)| page.level)
            .max()
            .unwrap_or_default();
        let page = self.make_page(&builder.finish(), top.saturating_add(1))?;
        self.dropped_pages.extend(self.pages.splice(run, [page]));
        Ok(())
    }

    /// Finds pages by identity: their counts may have changed since the caller fetched them.
    fn find_run(&self, merged: &[(PageRef, Rows)]) -> Option<std::ops::Range<usize>> {
        let (oldest, _) = merged.first()?;
        let first = self.pages.iter().position(|page| page.id == oldest.id)?;
        let run = first..first + merged.len();
        let pages = self.pages.get(run.clone())?;
        let agree = |(page, (wanted, rows)): (&PageRef, &(PageRef, Rows))| {
            page.id == wanted.id && page.is_of(rows)
        };
        pages.iter().zip(merged).all(agree).then_some(run)
    }
}
