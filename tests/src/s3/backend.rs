//! Buckets and objects in memory. Each call is one atomic step; nothing here waits.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::Arc,
    time::SystemTime,
};

use bytes::Bytes;
use parking_lot::Mutex;
use s3s::dto;

use super::{fault::Condition, multipart::Upload};

/// An object as it was written.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    pub(super) bytes: Bytes,
    pub(super) content_type: Option<String>,
    pub(super) metadata: Option<dto::Metadata>,
    pub(super) checksum: dto::Checksum,
}

/// An object as it lies in a bucket.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) content: Content,
    /// Opaque and never the same twice, as ETags are under KMS: equal bytes do not give equal tags.
    pub(super) e_tag: String,
    pub(super) modified: SystemTime,
}

/// What must hold for a write to take place.
#[derive(Clone, Debug, Default)]
pub(super) enum Expected {
    #[default]
    Anything,
    Absent,
    Tag(String),
}

/// Why a request has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    NoSuchBucket,
    NoSuchKey,
    NoSuchUpload,
    InvalidPart,
    BucketExists,
    BucketNotEmpty,
    PreconditionFailed,
}

type Keys = BTreeMap<String, Arc<Object>>;

#[derive(Debug, Default)]
struct Bucket {
    objects: Keys,
    /// What a stale listing shows.
    remembered: Keys,
    lifecycle: Option<Vec<dto::LifecycleRule>>,
    versioning: Option<dto::VersioningConfiguration>,
}

#[derive(Debug, Default)]
struct State {
    buckets: HashMap<String, Bucket>,
    uploads: HashMap<String, Upload>,
    writes: u64,
    rewrites: u64,
}

impl State {
    fn bucket(&mut self, name: &str) -> Result<&mut Bucket, Refusal> {
        self.buckets.get_mut(name).ok_or(Refusal::NoSuchBucket)
    }

    fn put(&mut self, bucket: &str, key: &str, content: Content) -> Result<Arc<Object>, Refusal> {
        self.writes += 1;
        let e_tag = format!("{:032x}", self.writes);
        let object = Arc::new(Object {
            content,
            e_tag,
            modified: now(),
        });
        let before = self
            .bucket(bucket)?
            .objects
            .insert(key.to_owned(), Arc::clone(&object));
        let is_rewrite = before.is_some_and(|old| old.content.bytes != object.content.bytes);
        self.rewrites += u64::from(is_rewrite);
        Ok(object)
    }
}

/// The part of a bucket that a listing asks for.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) prefix: String,
    /// Only what sorts behind this: a key, or a common prefix that was listed.
    pub(super) after: Option<String>,
    pub(super) delimiter: Option<String>,
    pub(super) keys_max: usize,
    pub(super) is_stale: bool,
}

/// One page of a listing, in the order of keys.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) objects: Vec<(String, Arc<Object>)>,
    pub(super) prefixes: Vec<String>,
    /// Where the next page goes on, if there is one.
    pub(super) next_after: Option<String>,
}

/// The whole store.
#[derive(Debug, Default)]
pub(super) struct Backend {
    state: Mutex<State>,
}

impl Backend {
    pub(super) fn create_bucket(&self, name: &str) -> Result<(), Refusal> {
        let mut state = self.state.lock();
        if state.buckets.contains_key(name) {
            return Err(Refusal::BucketExists);
        }
        state.buckets.insert(name.to_owned(), Bucket::default());
        Ok(())
    }

    pub(super) fn delete_bucket(&self, name: &str) -> Result<(), Refusal> {
        let mut state = self.state.lock();
        if !state.bucket(name)?.objects.is_empty() {
            return Err(Refusal::BucketNotEmpty);
        }
        state.buckets.remove(name);
        Ok(())
    }

    pub(super) fn bucket_names(&self) -> Vec<String> {
        self.state.lock().buckets.keys().cloned().collect()
    }

    pub(super) fn has_bucket(&self, name: &str) -> Result<(), Refusal> {
        self.state.lock().bucket(name).map(drop)
    }

    pub(super) fn get(&self, bucket: &str, key: &str) -> Result<Arc<Object>, Refusal> {
        let mut state = self.state.lock();
        state
            .bucket(bucket)?
            .objects
            .get(key)
            .cloned()
            .ok_or(Refusal::NoSuchKey)
    }

    /// Checks `expected` and writes, as one step.
    pub(super) fn put(
        &self,
        bucket: &str,
        key: &str,
        content: Content,
        expected: &Expected,
    ) -> Result<Arc<Object>, Refusal> {
        let mut state = self.state.lock();
        holds(state.bucket(bucket)?.objects.get(key), expected)?;
        state.put(bucket, key, content)
    }

    /// Writes past every condition, and does not count it as a rewrite.
    pub(super) fn plant(&self, bucket: &str, key: &str, content: Content) -> Result<(), Refusal> {
        let mut state = self.state.lock();
        let rewrites = state.rewrites;
        state.put(bucket, key, content)?;
        state.rewrites = rewrites;
        Ok(())
    }

    /// Checks only: for the store that looks first and writes later.
    pub(super) fn check(
        &self,
        bucket: &str,
        key: &str,
        expected: &Expected,
    ) -> Result<(), Refusal> {
        holds(self.state.lock().bucket(bucket)?.objects.get(key), expected)
    }

    pub(super) fn delete(&self, bucket: &str, key: &str) -> Result<Option<Arc<Object>>, Refusal> {
        Ok(self.state.lock().bucket(bucket)?.objects.remove(key))
    }

    pub(super) fn list(&self, bucket: &str, listing: &Listing) -> Result<Page, Refusal> {
        let mut state = self.state.lock();
        let bucket = state.bucket(bucket)?;
        let keys = if listing.is_stale {
            &bucket.remembered
        } else {
            &bucket.objects
        };
        Ok(page(keys, listing))
    }

    pub(super) fn remember_listing(&self) {
        for bucket in self.state.lock().buckets.values_mut() {
            bucket.remembered = bucket.objects.clone();
        }
    }

    pub(super) fn rewrites(&self) -> u64 {
        self.state.lock().rewrites
    }

    pub(super) fn lifecycle(&self, name: &str) -> Result<Option<Vec<dto::LifecycleRule>>, Refusal> {
        Ok(self.state.lock().bucket(name)?.lifecycle.clone())
    }

    pub(super) fn set_lifecycle(
        &self,
        name: &str,
        rules: Option<Vec<dto::LifecycleRule>>,
    ) -> Result<(), Refusal> {
        self.state.lock().bucket(name)?.lifecycle = rules;
        Ok(())
    }

    pub(super) fn versioning(
        &self,
        name: &str,
    ) -> Result<Option<dto::VersioningConfiguration>, Refusal> {
        Ok(self.state.lock().bucket(name)?.versioning.clone())
    }

    pub(super) fn set_versioning(
        &self,
        name: &str,
        versioning: dto::VersioningConfiguration,
    ) -> Result<(), Refusal> {
        self.state.lock().bucket(name)?.versioning = Some(versioning);
        Ok(())
    }

    pub(super) fn begin_upload(&self, upload: Upload) -> Result<String, Refusal> {
        let mut state = self.state.lock();
        state.bucket(&upload.bucket)?;
        state.writes += 1;
        let id = format!("upload-{}", state.writes);
        state.uploads.insert(id.clone(), upload);
        Ok(id)
    }

    /// Keeps a part and returns its tag.
    pub(super) fn put_part(&self, id: &str, number: i32, part: Bytes) -> Result<String, Refusal> {
        let mut state = self.state.lock();
        state.writes += 1;
        let e_tag = format!("{:032x}", state.writes);
        let upload = state.uploads.get_mut(id).ok_or(Refusal::NoSuchUpload)?;
        upload.parts.insert(number, (e_tag.clone(), part));
        Ok(e_tag)
    }

    /// Makes an object of the named parts, if `expected` holds; else the upload stays.
    pub(super) fn complete_upload(
        &self,
        id: &str,
        parts: &[(i32, String)],
        expected: &Expected,
    ) -> Result<Arc<Object>, Refusal> {
        let mut state = self.state.lock();
        let upload = state.uploads.get(id).ok_or(Refusal::NoSuchUpload)?;
        let content = upload.join(parts).ok_or(Refusal::InvalidPart)?;
        let (bucket, key) = (upload.bucket.clone(), upload.key.clone());
        holds(state.bucket(&bucket)?.objects.get(&key), expected)?;
        state.uploads.remove(id);
        state.put(&bucket, &key, content)
    }

    pub(super) fn abort_upload(&self, id: &str) -> Result<(), Refusal> {
        self.state
            .lock()
            .uploads
            .remove(id)
            .map(drop)
            .ok_or(Refusal::NoSuchUpload)
    }
}

impl Condition {
    /// Returns what the final, atomic step still checks.
    pub(super) fn at_write(self, expected: Expected) -> Expected {
        match self {
            Self::Atomic => expected,
            Self::Racy | Self::Ignored => Expected::Anything,
        }
    }
}

/// As AWS has it: a missing key under If-Match is 404, everything else 412.
fn holds(present: Option<&Arc<Object>>, expected: &Expected) -> Result<(), Refusal> {
    match (expected, present) {
        (Expected::Anything, _) | (Expected::Absent, None) => Ok(()),
        (Expected::Tag(_), None) => Err(Refusal::NoSuchKey),
        (Expected::Tag(tag), Some(object)) if *tag == object.e_tag => Ok(()),
        (Expected::Absent | Expected::Tag(_), Some(_)) => Err(Refusal::PreconditionFailed),
    }
}

fn page(keys: &Keys, listing: &Listing) -> Page {
    let mut page = Page::default();
    let mut cursor = listing.after.clone();
    while let Some((key, object)) = following(keys, &listing.prefix, cursor.as_deref()) {
        let group = listing
            .delimiter
            .as_deref()
            .and_then(|d| group_of(key, &listing.prefix, d));
        let name = group.clone().unwrap_or_else(|| key.clone());
        if listing.after.as_deref() != Some(&name) {
            if page.objects.len() + page.prefixes.len() == listing.keys_max {
                page.next_after = cursor;
                break;
            }
            match group {
                Some(ref prefix) => page.prefixes.push(prefix.clone()),
                None => page.objects.push((key.clone(), Arc::clone(object))),
            }
        }
        // A common prefix stands for all its keys: the highest character jumps over them.
        cursor = Some(group.map_or(name, |prefix| prefix + "\u{10ffff}"));
    }
    page
}

fn following<'a>(
    keys: &'a Keys,
    prefix: &str,
    after: Option<&str>,
) -> Option<(&'a String, &'a Arc<Object>)> {
    let start = match after {
        Some(after) if after >= prefix => Bound::Excluded(after),
        _ => Bound::Included(prefix),
    };
    let next = keys.range::<str, _>((start, Bound::Unbounded)).next();
    next.filter(|(key, _)| key.starts_with(prefix))
}

fn group_of(key: &str, prefix: &str, delimiter: &str) -> Option<String> {
    let end = prefix.len() + key[prefix.len()..].find(delimiter)? + delimiter.len();
    Some(key[..end].to_owned())
}

#[expect(
    clippy::disallowed_methods,
    reason = "a server of its own, outside every simulation"
)]
pub(super) fn now() -> SystemTime {
    SystemTime::now()
}
