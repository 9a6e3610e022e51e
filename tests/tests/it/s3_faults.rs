//! Each fault does to a client what its name says, and no more.

use std::time::Duration;

use bytes::Bytes;
use esker_tests::s3::{Fault, Latency, Release, Rule, S3Server, SECRET_KEY, Status, Verb};
use futures::TryStreamExt;
use object_store::{Error, ObjectStore, ObjectStoreExt, aws::Checksum};

use crate::support::{BUCKET, builder, client, create, hasty_client, server};

const KEY: &str = "topics/t/manifest/1";

async fn with(rule: Rule) -> S3Server {
    S3Server::builder()
        .bucket(BUCKET)
        .fault(rule)
        .start()
        .await
        .unwrap()
}

#[tokio::test]
async fn a_lost_reply_leaves_the_object_behind() {
    let server = with(Rule::new(Fault::ReplyLost).verb(Verb::Put).times(1)).await;
    let store = client(&server);

    let lost = create(&store, KEY, b"mine").await.unwrap_err();
    let again = create(&store, KEY, b"mine").await.unwrap_err();

    assert!(matches!(lost, Error::Generic { .. }), "{lost}");
    assert!(matches!(again, Error::AlreadyExists { .. }), "{again}");
    assert_eq!(server.object(BUCKET, KEY).unwrap(), "mine");
}

#[tokio::test]
async fn applied_then_500_leaves_the_object_behind() {
    for status in [Status::Internal, Status::Unavailable] {
        let server = with(Rule::new(Fault::AppliedThen(status))).await;

        assert!(create(&client(&server), KEY, b"mine").await.is_err());

        assert_eq!(server.object(BUCKET, KEY).unwrap(), "mine");
    }
}

#[tokio::test]
async fn a_late_apply_comes_after_the_client_gave_up() {
    let server = with(Rule::new(Fault::LateApply(Release::OnCall)).times(1)).await;
    let store = client(&server);
    create(&store, KEY, b"late").await.unwrap_err();
    assert!(server.object(BUCKET, KEY).is_none());

    assert_eq!(server.release_late().await, 1);

    assert_eq!(server.object(BUCKET, KEY).unwrap(), "late");
    assert_eq!(server.release_late().await, 0);
}

#[tokio::test]
async fn a_late_create_still_holds_its_condition() {
    let server = with(Rule::new(Fault::LateApply(Release::OnCall)).times(1)).await;
    let store = client(&server);
    create(&store, KEY, b"late").await.unwrap_err();
    create(&store, KEY, b"in time").await.unwrap();

    server.release_late().await;

    assert_eq!(server.object(BUCKET, KEY).unwrap(), "in time");
}

#[tokio::test]
async fn a_late_apply_may_be_due_by_itself() {
    let soon = Release::After(Duration::from_millis(20));
    let server = with(Rule::new(Fault::LateApply(soon)).times(1)).await;
    let store = client(&server);
    create(&store, KEY, b"late").await.unwrap_err();

    while server.object(BUCKET, KEY).is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_create_applied_twice_hears_that_it_lost_although_it_won() {
    let server = with(Rule::new(Fault::AppliedTwice)).await;

    let lost = create(&client(&server), KEY, b"mine").await.unwrap_err();

    assert!(matches!(lost, Error::AlreadyExists { .. }), "{lost}");
    assert_eq!(server.object(BUCKET, KEY).unwrap(), "mine");
}

#[tokio::test]
async fn a_conflict_has_no_effect() {
    let server = with(Rule::new(Fault::Answer(Status::Conflict)).times(1)).await;
    let store = client(&server);

    create(&store, KEY, b"mine").await.unwrap_err();
    assert!(server.object(BUCKET, KEY).is_none());

    create(&store, KEY, b"mine").await.unwrap();
}

#[tokio::test]
async fn a_burst_of_slow_down_ends() {
    let burst = Rule::new(Fault::Answer(Status::SlowDown))
        .verb(Verb::Get)
        .skip(1)
        .times(2);
    let server = with(burst).await;
    server.plant(BUCKET, KEY, "x");
    let store = client(&server);

    let mut outcomes = Vec::new();
    for _ in 0..4 {
        outcomes.push(store.get(&KEY.into()).await.is_ok());
    }

    assert_eq!(outcomes, [true, false, false, true]);
}

#[tokio::test]
async fn a_hang_lasts_until_the_client_gives_up_and_has_no_effect() {
    let server = with(Rule::new(Fault::Hang).verb(Verb::Put)).await;

    let error = create(&hasty_client(&server), KEY, b"mine")
        .await
        .unwrap_err();

    assert!(
        format!("{error:?}").contains("TimedOut") || format!("{error:?}").contains("Timeout"),
        "{error:?}"
    );
    assert!(server.object(BUCKET, KEY).is_none());
}

#[tokio::test]
async fn a_reset_breaks_the_body_off() {
    let server = with(Rule::new(Fault::Reset {
        after_bytes: 70_000,
    }))
    .await;
    let body = Bytes::from(vec![7; 200_000]);
    server.plant(BUCKET, KEY, body.clone());
    let store = client(&server);

    let answer = store.get(&KEY.into()).await.unwrap();
    let mut arrived = 0;
    let mut chunks = answer.into_stream();
    let error = loop {
        match chunks.try_next().await {
            Ok(Some(chunk)) => arrived += chunk.len(),
            Ok(None) => panic!("the body ended"),
            Err(error) => break error,
        }
    };
    assert_eq!(arrived, 70_000, "{error}");

    store.put(&"other".into(), body.into()).await.unwrap_err();
    assert_eq!(server.keys(BUCKET), [KEY]);
}

#[tokio::test]
async fn a_truncated_answer_looks_complete() {
    let server = with(Rule::new(Fault::Truncate { to_bytes: 3 }).verb(Verb::Get)).await;
    server.plant(BUCKET, KEY, "0123456789");

    let answer = client(&server).get(&KEY.into()).await.unwrap();

    assert_eq!(answer.bytes().await.unwrap(), "012");
}

#[tokio::test]
async fn a_flipped_bit_spoils_an_answer_and_never_the_object() {
    let server = with(Rule::new(Fault::BitFlip).verb(Verb::Get)).await;
    let body = Bytes::from(vec![0; 1000]);
    server.plant(BUCKET, KEY, body.clone());

    let got = client(&server)
        .get(&KEY.into())
        .await
        .unwrap()
        .bytes()
        .await
        .unwrap();

    assert_eq!(got.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
    assert_eq!(server.object(BUCKET, KEY).unwrap(), body);
}

#[tokio::test]
async fn a_bit_flipped_on_the_way_in_is_refused_by_checksum() {
    let server = with(Rule::new(Fault::BitFlip).verb(Verb::Put)).await;
    let unsigned = builder(&server.url()).with_unsigned_payload(true);
    let with_crc = unsigned
        .clone()
        .with_checksum_algorithm(Checksum::CRC64NVME);

    for store in [builder(&server.url()), unsigned, with_crc] {
        let store = store.build().unwrap();
        let error = store
            .put(&KEY.into(), "payload".into())
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("BadDigest"), "{error}");
    }
    assert!(server.keys(BUCKET).is_empty());
}

#[tokio::test]
async fn a_stale_list_misses_the_newest_and_shows_the_deleted() {
    let server = server().await;
    server.plant(BUCKET, "old", "x");
    server.remember_listing();
    server.plant(BUCKET, "new", "x");
    server.remove(BUCKET, "old");
    let stale = server.add_fault(Rule::new(Fault::StaleList).verb(Verb::List));
    let store = client(&server);
    let listed = async || {
        let found: Vec<_> = store.list(None).try_collect().await.unwrap();
        found
            .into_iter()
            .map(|meta| meta.location.to_string())
            .collect::<Vec<_>>()
    };

    assert_eq!(listed().await, ["old"]);
    stale.disarm();
    assert_eq!(listed().await, ["new"]);
}

#[tokio::test]
async fn a_refusal_is_typed() {
    let server = with(Rule::new(Fault::Answer(Status::Forbidden))).await;

    let error = client(&server).get(&KEY.into()).await.unwrap_err();

    assert!(matches!(error, Error::PermissionDenied { .. }), "{error}");
}

#[tokio::test]
async fn an_outage_can_be_of_one_agent_alone() {
    let server = S3Server::builder()
        .bucket(BUCKET)
        .credentials("agent-1", SECRET_KEY)
        .credentials("agent-2", SECRET_KEY)
        .start()
        .await
        .unwrap();
    let outage = server.add_fault(Rule::new(Fault::Drop).access_key("agent-1"));
    let one = builder(&server.url())
        .with_access_key_id("agent-1")
        .build()
        .unwrap();
    let two = builder(&server.url())
        .with_access_key_id("agent-2")
        .build()
        .unwrap();

    one.put(&"one".into(), "x".into()).await.unwrap_err();
    two.put(&"two".into(), "x".into()).await.unwrap();
    outage.disarm();
    one.put(&"one".into(), "x".into()).await.unwrap();

    assert_eq!(outage.fired(), 1);
    assert_eq!(server.keys(BUCKET), ["one", "two"]);
}

#[tokio::test]
async fn a_delay_adds_to_another_fault() {
    let server = server().await;
    let delay = server.add_fault(Rule::new(Fault::Delay(Latency::Fixed(
        Duration::from_millis(1),
    ))));
    let lost = server.add_fault(Rule::new(Fault::ReplyLost));

    create(&client(&server), KEY, b"mine").await.unwrap_err();

    assert_eq!((delay.fired(), lost.fired()), (1, 1));
}

#[tokio::test]
async fn a_completed_multipart_upload_may_be_an_error_in_disguise() {
    let server = with(Rule::new(Fault::OkWithError).verb(Verb::MultipartComplete)).await;
    let store = client(&server);
    let mut upload = store.put_multipart(&KEY.into()).await.unwrap();
    upload.put_part("part".into()).await.unwrap();

    upload.complete().await.unwrap_err();

    assert!(server.object(BUCKET, KEY).is_none());
}
