//! Tests of the retention plan.

use super::*;
use crate::testing::{add, add_uploaded, at, filled, opened, time, trim};

/// Three segments of 10 kB whose newest records are of times 100, 300 and 200.
fn three() -> Manifest {
    let all = [
        add(0, &[(10, 100)]),
        add(10, &[(10, 300)]),
        add(20, &[(10, 200)]),
    ];
    opened()
        .apply(crate::Update::All(all.into()), 2)
        .expect("follow")
        .manifest
}

fn aged(age_ms: u64) -> RetentionPolicy {
    RetentionPolicy {
        age_ms: Some(age_ms),
        size_bytes: None,
    }
}

fn sized(size_bytes: u64) -> RetentionPolicy {
    RetentionPolicy {
        age_ms: None,
        size_bytes: Some(size_bytes),
    }
}

#[test]
fn without_limits_everything_stays() {
    let policy = RetentionPolicy::default();
    assert_eq!(plan(&three(), None, time(i64::MAX), policy), Decision::Keep);
}

#[test]
fn age_counts_from_the_newest_record_and_stops_at_the_first_that_stays() {
    let decide = |now| plan(&three(), None, time(now), aged(50));

    assert_eq!(decide(150), Decision::Keep);
    assert_eq!(decide(151), Decision::TrimBelow(at(10)));
    assert_eq!(decide(300), Decision::TrimBelow(at(10)));
    assert_eq!(decide(351), Decision::TrimBelow(at(30)));
}

#[test]
fn imported_history_is_kept_as_long_after_its_upload_as_new_records() {
    let history = [
        add_uploaded(0, &[(10, 100)], 5_000),
        add_uploaded(10, &[(10, 200)], 6_000),
        add_uploaded(20, &[(10, 9_000)], 7_000),
    ];
    let manifest = opened()
        .apply(crate::Update::All(history.into()), 2)
        .expect("follow")
        .manifest;
    let decide = |now| plan(&manifest, None, time(now), aged(50));

    assert_eq!(decide(5_050), Decision::Keep);
    assert_eq!(decide(5_051), Decision::TrimBelow(at(10)));
    assert_eq!(decide(6_051), Decision::TrimBelow(at(20)));
    assert_eq!(decide(9_050), Decision::TrimBelow(at(20)));
    assert_eq!(decide(9_051), Decision::TrimBelow(at(30)));
    assert_eq!(
        aged(50).reason(&manifest, time(5_051)),
        "older than the topic's retention"
    );
    assert_eq!(
        sized(0).reason(&manifest, time(5_051)),
        "beyond the topic's retention size"
    );
}

#[test]
fn imported_history_is_kept_in_pages_too() {
    let shape = |base: u64| -> Vec<_> { (0..64).map(|_| (10, base.cast_signed())).collect() };
    let bases = (0..65).map(|index| index * 640);
    let updates = bases
        .map(|base| add_uploaded(base, &shape(base), 1_000_000 + base.cast_signed()))
        .collect();
    let next = opened()
        .apply(crate::Update::All(updates), 2)
        .expect("segments follow each other");
    let (manifest, page) = (next.manifest, &next.new_pages[0]);
    let rows = Rows::decode_page(page.bytes.clone(), &page.page_ref).expect("just made");
    let decide = |now, rows| plan(&manifest, rows, time(now), aged(50));

    assert_eq!(decide(1_000_050, None), Decision::Keep);
    let needed = Decision::NeedPage(page.page_ref);
    assert_eq!(decide(1_000_051, None), needed);
    assert_eq!(decide(1_000_051, Some(&rows)), Decision::TrimBelow(at(640)));
    let last = page.page_ref.max_uploaded_at.get();
    assert_eq!(decide(last + 50, None), needed);
    let whole = Decision::TrimBelow(page.page_ref.next_offset);
    assert_eq!(decide(last + 51, None), whole);
}

#[test]
fn records_from_the_future_stay() {
    assert_eq!(plan(&three(), None, time(0), aged(0)), Decision::Keep);
}

#[test]
fn size_never_leaves_less_than_the_limit() {
    let decide = |limit| plan(&three(), None, time(0), sized(limit));

    assert_eq!(decide(30_000), Decision::Keep);
    assert_eq!(decide(20_001), Decision::Keep);
    assert_eq!(decide(20_000), Decision::TrimBelow(at(10)));
    assert_eq!(decide(10_000), Decision::TrimBelow(at(20)));
    assert_eq!(decide(0), Decision::TrimBelow(at(30)));
}

#[test]
fn a_page_is_asked_for_only_when_part_of_it_may_go() {
    // 64 segments of 64 entries fill the head; page 0 holds times up to 41 583.
    let manifest = filled(65, 64).manifest;
    let page = manifest.pages()[0];
    let total = manifest.bucket_bytes();

    assert_eq!(
        plan(
            &manifest,
            None,
            time(page.max_timestamp.get() + 8),
            aged(100_000)
        ),
        Decision::Keep
    );
    assert_eq!(plan(&manifest, None, time(0), sized(total)), Decision::Keep);
    assert_eq!(
        plan(&manifest, None, time(0), sized(total - 1)),
        Decision::NeedPage(page)
    );
    assert_eq!(
        plan(&manifest, None, time(5_000), aged(100)),
        Decision::NeedPage(page)
    );
    let all_of_it = plan(&manifest, None, time(0), sized(total - page.segment_bytes));
    assert_eq!(all_of_it, Decision::TrimBelow(page.next_offset));
}

#[test]
fn the_rows_of_a_page_decide_about_its_segments() {
    let next = filled(65, 64);
    let page = &next.new_pages[0];
    let rows = Rows::decode_page(page.bytes.clone(), &page.page_ref).expect("just made");
    let total = next.manifest.bucket_bytes();

    // A segment has 640 records of 1000 bytes.
    let decide = |limit| plan(&next.manifest, Some(&rows), time(0), sized(limit));
    assert_eq!(decide(total - 1), Decision::Keep);
    assert_eq!(
        decide(total - 2 * 640_000),
        Decision::TrimBelow(at(2 * 640))
    );

    let trimmed = next
        .manifest
        .apply(trim(2 * 640, Some(rows.clone())), 3)
        .expect("trims")
        .manifest;
    assert_eq!(trimmed.bucket_bytes(), total - 2 * 640_000);
    let again = plan(&trimmed, Some(&rows), time(0), sized(total - 3 * 640_000));
    assert_eq!(again, Decision::TrimBelow(at(3 * 640)));
}
