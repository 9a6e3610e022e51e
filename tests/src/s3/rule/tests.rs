//! Which requests a rule catches, and what rules come to together.

use super::{
    super::fault::{Condition, Latency, Release, Status},
    *,
};

fn asked(verb: Verb, key: &str) -> Asked {
    Asked {
        verb,
        key: key.to_owned(),
        access_key: Some("agent-1".to_owned()),
    }
}

fn fires(rules: &mut Rules, verb: Verb, key: &str) -> bool {
    rules.judge(&asked(verb, key)).fault.is_some()
}

#[test]
fn a_rule_catches_only_what_meets_all_its_conditions() {
    let rule = Rule::new(Fault::Drop)
        .verb(Verb::Put)
        .verb(Verb::Get)
        .key_prefix("topics/")
        .key_contains("/manifest/")
        .access_key("agent-1");
    let mut rules = Rules::new(0);
    rules.add(rule);

    assert!(fires(&mut rules, Verb::Put, "topics/t/manifest/1"));
    assert!(fires(&mut rules, Verb::Get, "topics/t/manifest/1"));
    assert!(!fires(&mut rules, Verb::Head, "topics/t/manifest/1"));
    assert!(!fires(&mut rules, Verb::Put, "topics/t/segments/1"));
    assert!(!fires(&mut rules, Verb::Put, "meta/manifest/1"));
    let stranger = Asked {
        access_key: None,
        ..asked(Verb::Put, "topics/t/manifest/1")
    };
    assert_eq!(rules.judge(&stranger).fault, None);
}

#[test]
fn skip_and_times_count_matching_requests_only() {
    let mut rules = Rules::new(0);
    let handle = rules.add(Rule::new(Fault::Drop).verb(Verb::Put).skip(2).times(2));

    let fired: Vec<_> = (0..6)
        .map(|_| {
            assert!(!fires(&mut rules, Verb::Get, "k"));
            fires(&mut rules, Verb::Put, "k")
        })
        .collect();

    assert_eq!(fired, [false, false, true, true, false, false]);
    assert_eq!(handle.fired(), 2);
}

#[test]
fn the_same_seed_draws_the_same_faults() {
    let run = |seed| {
        let mut rules = Rules::new(seed);
        rules.add(Rule::new(Fault::Drop).probability(0.3));
        (0..1000)
            .map(|_| fires(&mut rules, Verb::Put, "k"))
            .collect::<Vec<_>>()
    };
    let share = run(1).into_iter().filter(|fired| *fired).count();

    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    assert!((200..400).contains(&share), "{share}");
}

#[test]
fn delays_add_up_and_the_first_other_fault_wins() {
    let delay = |millis| Fault::Delay(Latency::Fixed(Duration::from_millis(millis)));
    let mut rules = Rules::new(0);
    rules.add(Rule::new(delay(1)));
    rules.add(Rule::new(Fault::ReplyLost));
    rules.add(Rule::new(Fault::Drop));
    rules.add(Rule::new(delay(2)));

    let verdict = rules.judge(&asked(Verb::Put, "k"));

    let expected = Verdict {
        delay: Duration::from_millis(3),
        fault: Some(Fault::ReplyLost),
    };
    assert_eq!(verdict, expected);
}

#[test]
fn a_disarmed_rule_fires_no_more() {
    let mut rules = Rules::new(0);
    let handle = rules.add(Rule::new(Fault::Drop));
    assert!(fires(&mut rules, Verb::Put, "k"));

    handle.disarm();

    assert!(!fires(&mut rules, Verb::Put, "k"));
}

#[test]
fn a_heavy_tail_is_mostly_near_its_minimum_and_never_past_its_maximum() {
    let (min, max) = (Duration::from_millis(10), Duration::from_millis(800));
    let mut rng = StdRng::seed_from_u64(7);
    let latency = Latency::HeavyTail { min, max };
    let mut drawn: Vec<_> = (0..10_000).map(|_| latency.draw(&mut rng)).collect();
    drawn.sort_unstable();

    assert!(drawn[0] >= min && drawn[9999] <= max);
    assert!(
        drawn[5000] < Duration::from_millis(20),
        "median {:?}",
        drawn[5000]
    );
    assert!(
        drawn[9990] > Duration::from_millis(400),
        "p99.9 {:?}",
        drawn[9990]
    );
}

#[test]
fn rules_can_be_written_as_text() {
    let millis = Duration::from_millis;
    let tail = Latency::HeavyTail {
        min: millis(5),
        max: Duration::from_secs(2),
    };
    let cases = [
        ("delay=20ms", Fault::Delay(Latency::Fixed(millis(20)))),
        ("delay=5ms..2s", Fault::Delay(tail)),
        ("hang", Fault::Hang),
        ("drop", Fault::Drop),
        ("answer=slow-down", Fault::Answer(Status::SlowDown)),
        ("reply-lost", Fault::ReplyLost),
        (
            "applied-then=internal",
            Fault::AppliedThen(Status::Internal),
        ),
        (
            "late-apply=5s",
            Fault::LateApply(Release::After(Duration::from_secs(5))),
        ),
        ("applied-twice", Fault::AppliedTwice),
        ("reset=4096", Fault::Reset { after_bytes: 4096 }),
        ("truncate=1", Fault::Truncate { to_bytes: 1 }),
        ("bit-flip", Fault::BitFlip),
        ("ok-with-error", Fault::OkWithError),
        ("condition=racy", Fault::Condition(Condition::Racy)),
    ];
    for (text, fault) in cases {
        assert_eq!(
            text.parse::<Rule>().map(|rule| rule.fault),
            Ok(fault),
            "{text}"
        );
    }

    let text =
        "drop,verb=put,verb=multipart-part,prefix=a/,contains=b,access-key=c,skip=1,times=2,p=0.5";
    let rule: Rule = text.parse().unwrap();
    assert_eq!(rule.verbs, [Verb::Put, Verb::MultipartPart]);
    assert_eq!(
        (rule.key_prefix.as_str(), rule.key_contains.as_str()),
        ("a/", "b")
    );
    assert_eq!(
        (rule.access_key.as_deref(), rule.skip, rule.times),
        (Some("c"), 1, 2)
    );
    assert!((rule.probability - 0.5).abs() < f64::EPSILON);
}

#[test]
fn a_rule_that_cannot_be_read_names_the_part() {
    let cases = [
        ("", ""),
        ("burn", "burn"),
        ("delay=20", "delay=20"),
        ("delay=2s..1s", "delay=2s..1s"),
        ("answer=yes", "answer=yes"),
        ("drop,verb=patch", "verb=patch"),
        ("drop,p=2", "p=2"),
        ("drop,colour=red", "colour=red"),
    ];
    for (text, part) in cases {
        let error = text.parse::<Rule>().unwrap_err().to_string();
        assert_eq!(
            error,
            format!("cannot read the fault rule. at=`{part}`"),
            "{text}"
        );
    }
}
