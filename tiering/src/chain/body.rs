//! What a chain is made of.

use bytes::Bytes;
use esker_index::Manifest;
use esker_proto::types::ManifestVersion;

use super::rules;
use crate::{
    env::IdGenerator,
    error::Error,
    keys::{Key, Keys},
};

/// The body of one slot. It carries in itself where it belongs and who wrote it, because headers
/// and metadata of objects get lost on their way through stores and proxies.
pub trait ChainBody: Sized + Send + Sync {
    /// The slot it was made for.
    fn slot(&self) -> u64;

    /// The epoch of its writer. Never falls along a chain.
    fn epoch(&self) -> u64;

    /// Drawn by [`opening_nonce`] or [`next_nonce`], afresh for each body.
    fn nonce(&self) -> u128;

    /// SHA-256 of the slot before, as it was given to [`ChainBody::encode`]; zeros in the first.
    fn prev_sha256(&self) -> [u8; 32];

    /// Whether it may stand in the slot after `previous`.
    ///
    /// # Errors
    ///
    /// Says what does not hold.
    fn check_follows(&self, previous: &Self) -> Result<(), String>;

    /// The object's bytes. The same for each call.
    fn encode(&self, prev_sha256: [u8; 32]) -> Bytes;

    /// Reads what [`ChainBody::encode`] wrote, and checks that nothing is damaged.
    ///
    /// # Errors
    ///
    /// Names `key` and what does not hold.
    fn decode(key: &str, bytes: Bytes) -> Result<Self, Error>;

    /// The nonce in an object's bytes, without reading all of them.
    fn nonce_of(bytes: &[u8]) -> Option<u128>;
}

/// Draws the nonce of a body that opens an epoch.
pub fn opening_nonce(ids: &dyn IdGenerator) -> u128 {
    ids.nonce() & !0b11 | 1
}

/// Draws the nonce of a body that a repair puts. It opens an epoch too.
pub(crate) fn repair_nonce(ids: &dyn IdGenerator) -> u128 {
    ids.nonce() | 0b11
}

/// Draws the nonce of any other body.
pub fn next_nonce(ids: &dyn IdGenerator) -> u128 {
    ids.nonce() & !1
}

/// One slot of a chain, as read or written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<B> {
    /// Its slot.
    pub slot: u64,
    /// What it says.
    pub body: B,
    /// Digest of its bytes: the next slot names it.
    pub sha256: [u8; 32],
}

/// Which chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainName {
    /// The manifests of one partition.
    Manifest(Keys),
    /// The metadata log of the cluster.
    Metadata,
}

impl ChainName {
    /// Key of a slot.
    pub fn slot(self, slot: u64) -> String {
        match self {
            Self::Manifest(keys) => keys.manifest(ManifestVersion::new(slot)),
            Self::Metadata => Key::MetadataSlot(slot).to_string(),
        }
    }

    /// Key of a boundary object.
    pub fn boundary(self, number: u64) -> String {
        match self {
            Self::Manifest(keys) => keys.boundary(number),
            Self::Metadata => Key::MetadataBoundary(number).to_string(),
        }
    }

    pub(super) fn slots(self) -> String {
        match self {
            Self::Manifest(keys) => keys.manifests(),
            Self::Metadata => Keys::METADATA_LOG.to_owned(),
        }
    }

    pub(super) fn boundaries(self) -> String {
        match self {
            Self::Manifest(keys) => keys.boundaries(),
            Self::Metadata => Keys::METADATA_BOUNDARIES.to_owned(),
        }
    }

    /// The number in a listed key, of a slot or of a boundary object.
    pub(super) fn number_in(key: &str) -> Option<u64> {
        match Key::parse(key)? {
            Key::Manifest(_, version) => Some(version.get()),
            Key::MetadataSlot(number)
            | Key::MetadataBoundary(number)
            | Key::ManifestBoundary(_, number) => Some(number),
            _ => None,
        }
    }
}

impl ChainBody for Manifest {
    fn slot(&self) -> u64 {
        self.header().version.get()
    }

    fn epoch(&self) -> u64 {
        u64::from(self.header().leader_epoch.get())
    }

    fn nonce(&self) -> u128 {
        self.header().nonce
    }

    fn prev_sha256(&self) -> [u8; 32] {
        self.header().prev_sha256
    }

    fn check_follows(&self, previous: &Self) -> Result<(), String> {
        Self::check_follows(self, previous).map_err(|error| error.to_string())
    }

    fn encode(&self, prev_sha256: [u8; 32]) -> Bytes {
        Self::encode(self, prev_sha256)
    }

    fn decode(key: &str, bytes: Bytes) -> Result<Self, Error> {
        let manifest = Self::decode(bytes).map_err(|source| Error::Index {
            key: key.to_owned(),
            source,
        })?;
        // Copied by hand into another folder it is whole, and names segments that are not there.
        let named = manifest.header().topic_partition;
        match Keys::partition_of(key) {
            Some(folder) if folder != named => Err(Error::corrupt(
                key,
                format!("the manifest belongs to partition {named}"),
            )),
            _ => Ok(manifest),
        }
    }

    fn nonce_of(bytes: &[u8]) -> Option<u128> {
        Self::nonce_of(bytes)
    }
}

pub(super) fn sha256(bytes: &[u8]) -> [u8; 32] {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).into()
}

/// Whether the object opened an epoch. One that cannot be read counts as if it did, and stays.
pub(super) fn may_open<B: ChainBody>(bytes: &[u8]) -> bool {
    B::nonce_of(bytes).is_none_or(rules::opens)
}
