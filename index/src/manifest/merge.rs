//! When pages are merged, and into what.

use super::{Manifest, PageRef};

/// Pages of one level that become one page of the next.
pub const PAGES_PER_MERGE: usize = 8;
/// Pages of this level are never merged.
pub const PAGE_LEVEL_MAX: u8 = 2;
/// Most rows of a page: as many as a full head merged [`PAGE_LEVEL_MAX`] times.
pub const PAGE_ROWS_MAX: usize = super::HEAD_ROWS_MAX * PAGES_PER_MERGE.pow(PAGE_LEVEL_MAX as u32);

impl Manifest {
    /// Returns a run of pages that should become one; `None` if there are not enough of a level.
    ///
    /// The caller fetches and decodes them and hands their rows to [`super::Update::MergePages`],
    /// alone or in the same commit with other updates.
    pub fn merge_due(&self) -> Option<Vec<PageRef>> {
        self.pages()
            .windows(PAGES_PER_MERGE)
            .find(|run| is_due(run))
            .map(<[_]>::to_vec)
    }
}

fn is_due(run: &[PageRef]) -> bool {
    let level = run[0].level;
    let rows: u64 = run.iter().map(|page| u64::from(page.row_count)).sum();
    level < PAGE_LEVEL_MAX
        && run.iter().all(|page| page.level == level)
        && rows <= PAGE_ROWS_MAX as u64
}
