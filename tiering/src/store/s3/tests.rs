//! Which lifecycle rules would take live data away.

use aws_sdk_s3::types::{
    LifecycleExpiration, LifecycleRuleAndOperator, LifecycleRuleFilter,
    NoncurrentVersionExpiration, Tag, Transition, TransitionStorageClass,
    builders::LifecycleRuleBuilder,
};

use super::*;

const OURS: &str = "esker/production";

fn rule(prefix: &str) -> LifecycleRuleBuilder {
    let filter = LifecycleRuleFilter::builder().prefix(prefix).build();
    LifecycleRule::builder()
        .id("old")
        .status(ExpirationStatus::Enabled)
        .filter(filter)
}

fn after_days(days: i32) -> LifecycleExpiration {
    LifecycleExpiration::builder().days(days).build()
}

fn expiring(prefix: &str) -> LifecycleRuleBuilder {
    rule(prefix).expiration(after_days(30))
}

fn moving_to(class: TransitionStorageClass) -> LifecycleRuleBuilder {
    rule("").transitions(Transition::builder().days(30).storage_class(class).build())
}

fn tag() -> Tag {
    Tag::builder().key("kind").value("scratch").build().unwrap()
}

fn harm(rule: LifecycleRuleBuilder) -> Option<String> {
    let mut found = harmful(&[rule.build().unwrap()], OURS);
    assert!(found.len() <= 1, "{found:?}");
    found.pop()
}

#[test]
fn a_rule_that_expires_what_is_under_our_prefix_is_named() {
    for prefix in ["", "esker/", "esker/production", "esker/production/topics/"] {
        let harm = harm(expiring(prefix)).unwrap_or_else(|| panic!("{prefix} went unnoticed"));
        assert_eq!(harm, "rule `old` deletes objects by age");
    }
}

#[test]
fn a_rule_is_found_in_each_form_that_names_a_prefix() {
    #[expect(
        deprecated,
        reason = "buckets configured long ago still hold the old form"
    )]
    let old_form = LifecycleRule::builder()
        .status(ExpirationStatus::Enabled)
        .expiration(after_days(1))
        .prefix("esker/");
    assert_eq!(
        harm(old_form).as_deref(),
        Some("rule `without id` deletes objects by age")
    );
    let and = |prefix: &str| {
        let and = LifecycleRuleAndOperator::builder().prefix(prefix);
        let and = and.object_size_greater_than(1).build();
        let filter = LifecycleRuleFilter::builder().and(and).build();
        harm(expiring("").filter(filter))
    };
    assert!(and("esker/").is_some());
    assert_eq!(and("backups/"), None);
    let date = aws_sdk_s3::primitives::DateTime::from_secs(2_000_000_000);
    let on_a_date = LifecycleExpiration::builder().date(date).build();
    assert!(harm(rule("").expiration(on_a_date)).is_some());
}

#[test]
fn a_rule_that_moves_objects_out_of_reach_is_named_and_others_are_not() {
    for class in [
        TransitionStorageClass::Glacier,
        TransitionStorageClass::DeepArchive,
    ] {
        let harm = harm(moving_to(class.clone())).unwrap();
        assert!(
            harm.contains(class.as_str()) && harm.contains("cannot be read"),
            "{harm}"
        );
    }
    for class in [
        TransitionStorageClass::StandardIa,
        TransitionStorageClass::GlacierIr,
        TransitionStorageClass::IntelligentTiering,
    ] {
        assert_eq!(harm(moving_to(class)), None);
    }
}

#[test]
fn a_rule_that_leaves_live_data_alone_is_no_reason_to_refuse() {
    let noncurrent = NoncurrentVersionExpiration::builder()
        .noncurrent_days(1)
        .build();
    let markers = LifecycleExpiration::builder()
        .expired_object_delete_marker(true)
        .build();
    let tagged = LifecycleRuleFilter::builder().tag(tag()).build();
    let and = LifecycleRuleAndOperator::builder()
        .prefix("esker/")
        .tags(tag())
        .build();
    let and_tagged = LifecycleRuleFilter::builder().and(and).build();
    for (what, rule) in [
        ("another prefix", expiring("backups/")),
        ("a prefix beside ours", expiring("esker/production-old")),
        ("disabled", expiring("").status(ExpirationStatus::Disabled)),
        (
            "old versions",
            rule("").noncurrent_version_expiration(noncurrent),
        ),
        ("markers of deleted objects", rule("").expiration(markers)),
        ("objects with a tag", expiring("").filter(tagged)),
        (
            "objects with a prefix and a tag",
            expiring("").filter(and_tagged),
        ),
    ] {
        assert_eq!(harm(rule), None, "{what}");
    }
}
