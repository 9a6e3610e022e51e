//! Keys as they stand in buckets.

use proptest::prelude::*;

use super::*;

fn partition(topic: u128, partition: u32) -> TopicPartition {
    let topic_id = TopicId::new(Uuid::from_u128(topic));
    TopicPartition {
        topic_id,
        partition: PartitionId::new(partition),
    }
}

fn any_key() -> impl Strategy<Value = Key> {
    let place = (any::<u128>(), any::<u32>()).prop_map(|(topic, number)| partition(topic, number));
    let numbers = (any::<u64>(), any::<u32>(), any::<u128>(), any::<[u8; 32]>());
    (0..9_u8, place, numbers).prop_map(|(variant, tp, (slot, number, id, sha256))| {
        let (base_offset, id) = (Offset::new(slot), Uuid::from_u128(id));
        let leader_epoch = LeaderEpoch::new(number);
        match variant {
            0 => Key::Cluster,
            1 => Key::MetadataSlot(slot),
            2 => Key::MetadataBoundary(slot),
            3 => Key::MetadataSnapshot { slot, sha256 },
            4 => Key::Manifest(tp, ManifestVersion::new(slot)),
            5 => Key::ManifestBoundary(tp, slot),
            6 => Key::Page(
                tp,
                PageName {
                    base_offset,
                    leader_epoch,
                    id,
                },
            ),
            7 => {
                let segment_id = SegmentId::new(id);
                Key::Segment(
                    tp,
                    SegmentName {
                        base_offset,
                        leader_epoch,
                        segment_id,
                    },
                )
            }
            _ => Key::Probe { run: id, number },
        }
    })
}

proptest! {
    #[test]
    fn every_key_parses_back_to_itself(key in any_key()) {
        prop_assert_eq!(Key::parse(&key.to_string()), Some(key));
    }

    #[test]
    fn parsing_a_foreign_name_never_panics(text in "[a-z0-9/+.-]{0,80}|\\PC{0,40}") {
        if let Some(key) = Key::parse(&text) {
            prop_assert_eq!(key.to_string(), text);
        }
    }

    #[test]
    fn listing_order_of_segments_is_offset_order(a in any::<u64>(), b in any::<u64>()) {
        let key = |base| Keys::new(partition(1, 2)).segment(SegmentName {
            base_offset: Offset::new(base),
            leader_epoch: LeaderEpoch::new(7),
            segment_id: SegmentId::new(Uuid::from_u128(9)),
        });
        prop_assert_eq!(a.cmp(&b), key(a).cmp(&key(b)));
    }
}

#[test]
fn keys_stay_as_the_first_release_wrote_them() {
    let keys = Keys::new(partition(0x10, 3));
    let folder = "topics/00000000-0000-0000-0000-000000000010/000003";
    let segment = SegmentName {
        base_offset: Offset::new(42),
        leader_epoch: LeaderEpoch::new(5),
        segment_id: SegmentId::new(Uuid::from_u128(0xab)),
    };
    let page = PageName {
        base_offset: Offset::new(42),
        leader_epoch: LeaderEpoch::new(5),
        id: Uuid::from_u128(0xab),
    };

    assert_eq!(keys.folder(), folder);
    assert_eq!(
        keys.manifest(ManifestVersion::new(1)),
        format!("{folder}/manifest/00000000000000000001.parquet")
    );
    assert_eq!(
        keys.boundary(1),
        format!("{folder}/boundary/00000000000000000001")
    );
    assert_eq!(
        keys.segment(segment),
        format!(
            "{folder}/segments/00000000000000000042-0000000005-000000000000000000000000000000ab.log"
        )
    );
    assert_eq!(
        keys.page(page),
        format!(
            "{folder}/pages/00000000000000000042-0000000005-000000000000000000000000000000ab.parquet"
        )
    );
    assert_eq!(Key::Cluster.to_string(), "cluster.json");
    assert_eq!(
        Key::MetadataSlot(7).to_string(),
        "meta/log/00000000000000000007"
    );
}

#[test]
fn names_that_only_look_like_ours_are_refused() {
    let folder = "topics/00000000-0000-0000-0000-000000000010";
    for name in [
        "meta/log/7".to_owned(),
        "meta/log/+0000000000000000007".to_owned(),
        "meta/log/99999999999999999999".to_owned(),
        format!("{folder}/3/manifest/00000000000000000001.parquet"),
        format!("{folder}/000003/manifest/00000000000000000001"),
        format!("{folder}/000003/manifest/00000000000000000001.parquet/x"),
        format!("/{folder}/000003/manifest/00000000000000000001.parquet"),
    ] {
        assert_eq!(Key::parse(&name), None, "{name}");
    }
}
