//! What is asked of S3 for objects of each kind: the most that a policy has to allow.
//!
//! The policy in `terraform/iam.tf` allows exactly this; `terraform/check.sh` reads the tables out
//! of this file and compares. Whoever adds a request for a kind of object adds a row here, and to
//! the policy: with credentials that allow no more, the request is refused.
//!
//! A conditional put needs no action but `PutObject`, and HEAD none but `GetObject`. A part of
//! a large segment needs no action but `PutObject`; to take parts back has one of its own.

use super::Key;

/// A permission of S3's, by the name it has in policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// GET and HEAD of an object.
    GetObject,
    /// PUT of an object, conditional or not.
    PutObject,
    /// Taking back the parts of a large segment whose upload failed.
    AbortMultipartUpload,
    /// DELETE of one object or of many at once.
    DeleteObject,
    /// Listings. Also decides how a GET of a missing object is answered: 404 to whoever may list
    /// the bucket, 403 to others, which no chain could be read with.
    ListBucket,
    /// Asked by the probe, which goes on without an answer.
    GetBucketVersioning,
    /// Asked by the probe, which goes on without an answer.
    GetLifecycleConfiguration,
}

impl Action {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::GetObject,
        Self::PutObject,
        Self::AbortMultipartUpload,
        Self::DeleteObject,
        Self::ListBucket,
        Self::GetBucketVersioning,
        Self::GetLifecycleConfiguration,
    ];

    /// The name in policies.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GetObject => "s3:GetObject",
            Self::PutObject => "s3:PutObject",
            Self::AbortMultipartUpload => "s3:AbortMultipartUpload",
            Self::DeleteObject => "s3:DeleteObject",
            Self::ListBucket => "s3:ListBucket",
            Self::GetBucketVersioning => "s3:GetBucketVersioning",
            Self::GetLifecycleConfiguration => "s3:GetLifecycleConfiguration",
        }
    }
}

/// A kind of object, whichever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyClass {
    /// [`Key::Cluster`].
    Cluster,
    /// [`Key::MetadataSlot`].
    MetadataSlot,
    /// [`Key::MetadataBoundary`].
    MetadataBoundary,
    /// [`Key::MetadataSnapshot`].
    MetadataSnapshot,
    /// [`Key::Manifest`].
    Manifest,
    /// [`Key::ManifestBoundary`].
    ManifestBoundary,
    /// [`Key::Page`].
    Page,
    /// [`Key::Segment`].
    Segment,
    /// [`Key::Probe`].
    Probe,
}

impl KeyClass {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Cluster,
        Self::MetadataSlot,
        Self::MetadataBoundary,
        Self::MetadataSnapshot,
        Self::Manifest,
        Self::ManifestBoundary,
        Self::Page,
        Self::Segment,
        Self::Probe,
    ];

    /// The keys of the class as a policy would write them, below the store's prefix.
    pub const fn pattern(self) -> &'static str {
        match self {
            Self::Cluster => "cluster.json",
            Self::MetadataSlot => "meta/log/*",
            Self::MetadataBoundary => "meta/boundary/*",
            Self::MetadataSnapshot => "meta/snapshot/*",
            Self::Manifest => "topics/*/manifest/*",
            Self::ManifestBoundary => "topics/*/boundary/*",
            Self::Page => "topics/*/pages/*",
            Self::Segment => "topics/*/segments/*",
            Self::Probe => "probe/*",
        }
    }
}

impl Key {
    /// What kind of object the key names.
    pub const fn class(&self) -> KeyClass {
        match self {
            Self::Cluster => KeyClass::Cluster,
            Self::MetadataSlot(_) => KeyClass::MetadataSlot,
            Self::MetadataBoundary(_) => KeyClass::MetadataBoundary,
            Self::MetadataSnapshot { .. } => KeyClass::MetadataSnapshot,
            Self::Manifest(..) => KeyClass::Manifest,
            Self::ManifestBoundary(..) => KeyClass::ManifestBoundary,
            Self::Page(..) => KeyClass::Page,
            Self::Segment(..) => KeyClass::Segment,
            Self::Probe { .. } => KeyClass::Probe,
        }
    }
}

/// Every action on objects.
///
/// Metadata is never deleted yet, nor is a boundary of it or a snapshot put; the boundary is looked
/// for all the same. Boundaries of manifests go with their topic.
pub const OBJECT_ACTIONS: &[(KeyClass, Action)] = &[
    (KeyClass::Cluster, Action::GetObject),
    (KeyClass::Cluster, Action::PutObject),
    (KeyClass::MetadataSlot, Action::GetObject),
    (KeyClass::MetadataSlot, Action::PutObject),
    (KeyClass::MetadataBoundary, Action::GetObject),
    (KeyClass::Manifest, Action::GetObject),
    (KeyClass::Manifest, Action::PutObject),
    (KeyClass::Manifest, Action::DeleteObject),
    (KeyClass::ManifestBoundary, Action::GetObject),
    (KeyClass::ManifestBoundary, Action::PutObject),
    (KeyClass::ManifestBoundary, Action::DeleteObject),
    (KeyClass::Page, Action::GetObject),
    (KeyClass::Page, Action::PutObject),
    (KeyClass::Page, Action::DeleteObject),
    (KeyClass::Segment, Action::GetObject),
    (KeyClass::Segment, Action::PutObject),
    (KeyClass::Segment, Action::AbortMultipartUpload),
    (KeyClass::Segment, Action::DeleteObject),
    (KeyClass::Probe, Action::GetObject),
    (KeyClass::Probe, Action::PutObject),
    (KeyClass::Probe, Action::DeleteObject),
];

/// Every action on the bucket itself.
pub const BUCKET_ACTIONS: &[Action] = &[
    Action::ListBucket,
    Action::GetBucketVersioning,
    Action::GetLifecycleConfiguration,
];

/// Whether the table has `action` for the object at `key`, which is relative to the store's prefix.
pub fn is_listed(key: &str, action: Action) -> bool {
    Key::parse(key).is_some_and(|key| OBJECT_ACTIONS.contains(&(key.class(), action)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// One key of each class.
    const SAMPLES: [&str; 9] = [
        "cluster.json",
        "meta/log/00000000000000000001",
        "meta/boundary/00000000000000000001",
        "meta/snapshot/00000000000000000001-\
         0101010101010101010101010101010101010101010101010101010101010101",
        "topics/00000000-0000-0000-0000-000000000001/000000/manifest/00000000000000000001.parquet",
        "topics/00000000-0000-0000-0000-000000000001/000000/boundary/00000000000000000001",
        "topics/00000000-0000-0000-0000-000000000001/000000/pages/\
         00000000000000000001-0000000001-00000000000000000000000000000001.parquet",
        "topics/00000000-0000-0000-0000-000000000001/000000/segments/\
         00000000000000000001-0000000001-00000000000000000000000000000001.log",
        "probe/00000000000000000000000000000001/000001",
    ];

    /// As policies match: `*` is any text.
    fn matches(pattern: &str, text: &str) -> bool {
        match pattern.split_once('*') {
            None => pattern == text,
            Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
                (0..=text.len()).any(|cut| matches(rest, text.get(cut..).unwrap_or_default()))
            }),
        }
    }

    #[test]
    fn a_key_matches_the_pattern_of_its_class_and_no_other() {
        for (sample, class) in SAMPLES.into_iter().zip(KeyClass::ALL) {
            let key = Key::parse(sample).unwrap_or_else(|| panic!("{sample} is no key"));
            assert_eq!(key.class(), class, "{sample}");
            let matching = KeyClass::ALL.map(|other| matches(other.pattern(), sample));
            assert_eq!(
                matching,
                KeyClass::ALL.map(|other| other == class),
                "{sample}"
            );
        }
    }

    #[test]
    fn rows_are_unique_and_actions_are_where_they_can_be_allowed() {
        let unique: BTreeSet<_> = OBJECT_ACTIONS.iter().collect();
        assert_eq!(unique.len(), OBJECT_ACTIONS.len());
        let used = OBJECT_ACTIONS.iter().map(|&(_, action)| action);
        let used: BTreeSet<_> = used.chain(BUCKET_ACTIONS.iter().copied()).collect();
        assert_eq!(used, BTreeSet::from(Action::ALL));
        let on_objects = |action: &Action| {
            action.name().ends_with("Object") || *action == Action::AbortMultipartUpload
        };
        assert!(OBJECT_ACTIONS.iter().all(|(_, action)| on_objects(action)));
        assert!(!BUCKET_ACTIONS.iter().any(on_objects));
    }

    #[test]
    fn what_names_the_cluster_is_never_deleted() {
        assert!(is_listed("cluster.json", Action::PutObject));
        assert!(!is_listed("cluster.json", Action::DeleteObject));
        assert!(!is_listed(
            "meta/log/00000000000000000001",
            Action::DeleteObject
        ));
        assert!(!is_listed("somebody/elses", Action::GetObject));
    }
}
