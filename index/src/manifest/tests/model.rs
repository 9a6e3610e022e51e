//! Any sequence of updates against a plain list of segments.

use std::collections::HashMap;

use bytes::Bytes;
use proptest::{collection::vec, prelude::*};

use crate::{
    IndexEntry, Manifest, PageId, Place, Row, Rows, SegmentMeta, Update,
    testing::{add, at, opened, segment, time, trim},
};

#[derive(Clone, Debug)]
enum Step {
    /// Add segments of so many entries of these records and times, in one commit.
    Add(Vec<Vec<(u32, i64)>>),
    /// Trim to this thousandth of the log, if even to a segment's end; with the page's rows or
    /// without.
    Trim(u64, bool),
    /// Merge what is due, or the first pages there are.
    Merge(usize),
    /// Encode and decode.
    Reopen,
}

fn any_step() -> impl Strategy<Value = Step> {
    let small = vec((1_u32..50, 0_i64..1000), 1..6);
    // A few of these fill the head.
    let large = (vec((1_u32..50, 0_i64..1000), 1..6), 200_usize..1300)
        .prop_map(|(pattern, length)| pattern.into_iter().cycle().take(length).collect());
    prop_oneof![
        3 => vec(small, 1..30).prop_map(Step::Add),
        4 => vec(large, 1..6).prop_map(Step::Add),
        2 => (0_u64..1000, any::<bool>()).prop_map(|(to, with_rows)| Step::Trim(to, with_rows)),
        2 => (1_usize..5).prop_map(Step::Merge),
        1 => Just(Step::Reopen),
    ]
}

/// A bucket of pages, and what the log should look like.
struct Model {
    manifest: Manifest,
    bucket: HashMap<PageId, Bytes>,
    segments: Vec<(SegmentMeta, Vec<IndexEntry>)>,
    log_start: u64,
    tiered: u64,
    commits: u128,
    counts_are_exact: bool,
}

impl Model {
    fn new() -> Self {
        Self {
            manifest: opened(),
            bucket: HashMap::new(),
            segments: Vec::new(),
            log_start: 0,
            tiered: 0,
            commits: 2,
            counts_are_exact: true,
        }
    }

    fn commit(&mut self, update: Update) {
        self.commits += 1;
        let next = self
            .manifest
            .apply(update, self.commits)
            .expect("the update is valid");
        for page in next.new_pages {
            assert!(
                self.bucket.insert(page.page_ref.id, page.bytes).is_none(),
                "a key was reused"
            );
        }
        for page in next.dropped_pages {
            assert!(
                self.bucket.remove(&page.id).is_some(),
                "a page was dropped that was not there"
            );
        }
        assert_eq!(
            self.bucket.len(),
            next.manifest.pages().len(),
            "no page is forgotten"
        );
        self.manifest = next.manifest;
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Add(shapes) => self.add(&shapes),
            Step::Trim(to, with_rows) => self.trim(to, with_rows),
            Step::Merge(count) => self.merge(count),
            Step::Reopen => {
                let object = self.manifest.encode([0; 32]);
                let decoded = Manifest::decode(object).expect("just encoded");
                assert_eq!(decoded, self.manifest);
            }
        }
    }

    fn add(&mut self, shapes: &[Vec<(u32, i64)>]) {
        let updates = shapes.iter().map(|shape| {
            let built = segment(self.tiered, shape);
            let update = add(self.tiered, shape);
            self.tiered = built.0.next_offset.get();
            self.segments.push(built);
            update
        });
        let updates = updates.collect();
        self.commit(Update::All(updates));
    }

    fn trim(&mut self, to: u64, with_rows: bool) {
        let is_even = to.is_multiple_of(2);
        let mut to = self.log_start + (self.tiered - self.log_start) * to / 1000;
        let ends = self.segments.iter().map(|(meta, _)| meta.next_offset.get());
        if let Some(end) = ends.take_while(|&end| end <= to).last().filter(|_| is_even) {
            to = end;
        }
        let page = match self.manifest.find(at(to)) {
            Place::Page(page) => Some(*page),
            _ => None,
        };
        let rows = page.filter(|_| with_rows).map(|page| self.fetch(&page));
        self.counts_are_exact &= page.is_none() || with_rows;
        self.commit(trim(to, rows));
        self.log_start = self.log_start.max(to);
        self.segments
            .retain(|(meta, _)| meta.next_offset.get() > self.log_start);
    }

    fn merge(&mut self, count: usize) {
        let first = || self.manifest.pages().get(..count).map(<[_]>::to_vec);
        let Some(pages) = self.manifest.merge_due().or_else(first) else {
            return;
        };
        let rows: u32 = pages.iter().map(|page| page.row_count).sum();
        if rows as usize > crate::PAGE_ROWS_MAX {
            return;
        }
        let merged = pages
            .into_iter()
            .map(|page| (page, self.fetch(&page)))
            .collect();
        self.commit(Update::MergePages { merged });
    }

    fn fetch(&self, page: &crate::PageRef) -> Rows {
        Rows::decode_page(self.bucket[&page.id].clone(), page).expect("stored as it was made")
    }

    fn rows(&self) -> impl Iterator<Item = Row> + '_ {
        self.segments.iter().flat_map(|(segment, entries)| {
            entries.iter().map(|&entry| Row {
                segment: *segment,
                entry,
            })
        })
    }

    /// The row an offset is in, found as a reader finds it: with at most one page.
    fn locate(&self, offset: u64) -> Option<Row> {
        let rows = match self.manifest.find(at(offset)) {
            Place::Page(page) => self.fetch(page),
            Place::Head => self.manifest.head().clone(),
            Place::BelowStart | Place::AtEnd => return None,
        };
        Some(rows.row(rows.seek(at(offset)).expect("the place holds the offset")))
    }

    /// The first row with a large enough timestamp, as a reader finds it.
    fn locate_time(&self, timestamp: i64) -> Option<Row> {
        let mut from = self.manifest.log_start_offset();
        loop {
            let rows = match self.manifest.find_timestamp(time(timestamp), from) {
                Place::Page(page) => self.fetch(page),
                Place::Head => self.manifest.head().clone(),
                Place::BelowStart | Place::AtEnd => return None,
            };
            if let Some(row) = rows.seek_timestamp(time(timestamp), from) {
                return Some(rows.row(row));
            }
            from = rows.next_offset().expect("a place has rows");
        }
    }

    fn check(&self, offsets: &[u64], timestamps: &[i64]) {
        assert_eq!(self.manifest.log_start_offset(), at(self.log_start));
        assert_eq!(self.manifest.tiered_offset(), at(self.tiered));
        if self.counts_are_exact {
            assert_eq!(self.manifest.segment_count(), self.segments.len() as u64);
            let bytes: u64 = self.segments.iter().map(|(meta, _)| meta.size_bytes).sum();
            assert_eq!(self.manifest.bucket_bytes(), bytes);
        }
        let first_epoch = self.manifest.epochs().starts().first();
        assert!(first_epoch.is_none_or(|first| first.start_offset >= at(self.log_start)));
        let mut edges = vec![
            self.log_start,
            self.log_start.saturating_sub(1),
            self.tiered,
        ];
        let borders = self
            .manifest
            .pages()
            .iter()
            .map(|page| page.next_offset.get());
        edges.extend(borders.flat_map(|border| [border - 1, border]));
        for &offset in offsets.iter().chain(&edges) {
            let offset = offset % (self.tiered + 2);
            let holds =
                |row: &Row| (row.entry.base_offset..row.entry.next_offset()).contains(&at(offset));
            let expected = self
                .rows()
                .find(|row| offset >= self.log_start && holds(row));
            assert_eq!(self.locate(offset), expected, "offset {offset}");
        }
        for &timestamp in timestamps {
            let holds = |row: &Row| {
                row.entry.max_timestamp >= time(timestamp)
                    && row.entry.next_offset() > at(self.log_start)
            };
            assert_eq!(
                self.locate_time(timestamp),
                self.rows().find(holds),
                "time {timestamp}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn lookups_agree_with_a_plain_list_after_any_updates(
        steps in vec(any_step(), 1..16),
        offsets in vec(any::<u64>(), 6),
        timestamps in vec(-1_i64..1001, 3),
    ) {
        let mut model = Model::new();
        for step in steps {
            model.step(step);
            model.check(&offsets, &timestamps);
        }
    }
}
