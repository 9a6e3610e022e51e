//! How far the slots of a chain may have been deleted: a chain of its own, never deleted.
//!
//! Each object holds the floor: slots below it may be gone. A boundary in one object that is
//! replaced would need a conditional replace, which a directory and some stores do not offer.
//! Objects are few: one for each round of collection.
//!
//! ```text
//! 0   magic "ESKB"          4   format version, 1       8   floor
//! 16  swept below           24  nonce                   40  CRC-32C of the bytes before
//! ```

use bytes::{BufMut, Bytes, BytesMut};
use futures::TryStreamExt;

use super::{
    body::ChainName,
    put::{Put, RetryPolicy, put_definite},
    reader::read_decoded,
    rules::FIRST_SLOT,
};
use crate::{
    error::{Error, ErrorKind},
    store::Store,
};

const MAGIC: [u8; 4] = *b"ESKB";
const FORMAT_VERSION: u32 = 1;
const LENGTH: usize = 44;
const NONCE_AT: usize = 24;
const CRC_AT: usize = 40;

/// The boundary of one chain as of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Boundary {
    /// Slots below it may be gone; those from it on are not. Never falls.
    pub floor: u64,
    /// Slots below it are gone, but for those that open an epoch: nobody has to look again.
    pub swept_below: u64,
}

impl Boundary {
    const START: Self = Self {
        floor: FIRST_SLOT,
        swept_below: FIRST_SLOT,
    };

    pub(super) fn encode(self, nonce: u128) -> Bytes {
        let mut bytes = BytesMut::with_capacity(LENGTH);
        bytes.put_slice(&MAGIC);
        bytes.put_u32_le(FORMAT_VERSION);
        bytes.put_u64_le(self.floor);
        bytes.put_u64_le(self.swept_below);
        bytes.put_u128_le(nonce);
        bytes.put_u32_le(crc_of(&bytes));
        bytes.freeze()
    }

    pub(super) fn decode(key: &str, bytes: &[u8]) -> Result<Self, Error> {
        let corrupt = |reason: &str| Error::corrupt(key, reason);
        if bytes.len() != LENGTH || bytes[..4] != MAGIC {
            return Err(corrupt("not a boundary"));
        }
        if u32::from_le_bytes(array(bytes, CRC_AT)) != crc_of(&bytes[..CRC_AT]) {
            return Err(corrupt("boundary checksum mismatch"));
        }
        if u32::from_le_bytes(array(bytes, 4)) != FORMAT_VERSION {
            return Err(corrupt("unknown boundary format version"));
        }
        let floor = u64::from_le_bytes(array(bytes, 8));
        let swept_below = u64::from_le_bytes(array(bytes, 16));
        if floor < FIRST_SLOT || swept_below > floor {
            return Err(corrupt("impossible boundary"));
        }
        Ok(Self { floor, swept_below })
    }

    pub(super) fn nonce_of(bytes: &[u8]) -> Option<u128> {
        (bytes.len() == LENGTH).then(|| u128::from_le_bytes(array(bytes, NONCE_AT)))
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N]
        .try_into()
        .expect("the length was checked")
}

fn crc_of(bytes: &[u8]) -> u32 {
    esker_proto::batch::crc32c(bytes)
}

/// Follows the boundary of one chain.
#[derive(Debug)]
pub(super) struct BoundaryCursor {
    store: Store,
    chain: ChainName,
    number: u64,
    boundary: Boundary,
    is_placed: bool,
}

impl BoundaryCursor {
    pub(super) const fn new(store: Store, chain: ChainName) -> Self {
        Self {
            store,
            chain,
            number: 0,
            boundary: Boundary::START,
            is_placed: false,
        }
    }

    /// The boundary as last read.
    pub(super) const fn last(&self) -> Boundary {
        self.boundary
    }

    /// Remembers, for the next boundary object, what need not be swept again.
    pub(super) const fn note_swept(&mut self, below: u64) {
        if below > self.boundary.swept_below {
            self.boundary.swept_below = below;
        }
    }

    /// Reads on to the newest boundary object. A damaged one that another follows is passed over.
    pub(super) async fn refresh(&mut self) -> Result<Boundary, Error> {
        if !self.is_placed {
            self.place().await?;
        }
        while let Some((number, next)) = self.read_from(self.number + 1).await? {
            self.number = number - 1;
            self.advance(next)?;
        }
        Ok(self.boundary)
    }

    /// Jumps to the newest object a listing shows. It may be an old listing: none of these objects
    /// is ever deleted, so reading on from any of them ends at the newest.
    async fn place(&mut self) -> Result<(), Error> {
        let newest = self.newest_listed().await?;
        if newest > 0
            && let Some(found) = self.read_from(newest).await?
        {
            (self.number, self.boundary) = found;
        }
        self.is_placed = true;
        Ok(())
    }

    async fn newest_listed(&self) -> Result<u64, Error> {
        let mut listed = self.store.list(&self.chain.boundaries(), None);
        let mut newest = 0;
        while let Some(object) = listed.try_next().await? {
            newest = newest.max(ChainName::number_in(&object.key).unwrap_or(0));
        }
        Ok(newest)
    }

    /// Reads an object, or the one after it if it is damaged: a repair puts one there.
    async fn read_from(&self, number: u64) -> Result<Option<(u64, Boundary)>, Error> {
        let damage = match self.read(number).await {
            Ok(found) => return Ok(found.map(|boundary| (number, boundary))),
            Err(error) if error.kind() == ErrorKind::Corrupt => error,
            Err(error) => return Err(error),
        };
        match self.read(number + 1).await? {
            Some(boundary) => Ok(Some((number + 1, boundary))),
            None => Err(damage),
        }
    }

    async fn read(&self, number: u64) -> Result<Option<Boundary>, Error> {
        let key = self.chain.boundary(number);
        read_decoded(&self.store, &key, |bytes| Boundary::decode(&key, &bytes)).await
    }

    /// Puts a boundary after a damaged one. `floor` must not be below the floor it held: the newest
    /// slot is not.
    pub(super) async fn replace_damaged(
        &self,
        floor: u64,
        nonce: u128,
        policy: RetryPolicy,
    ) -> Result<(), Error> {
        let mut number = self.newest_listed().await?;
        loop {
            match self.store.head(&self.chain.boundary(number + 1)).await {
                Ok(_) => number += 1,
                Err(error) if error.is_not_found() => break,
                Err(error) => return Err(error),
            }
        }
        let key = self.chain.boundary(number + 1);
        let body = Boundary {
            floor,
            swept_below: FIRST_SLOT,
        };
        match put_definite(
            &self.store,
            &key,
            body.encode(nonce),
            Boundary::nonce_of,
            policy,
        )
        .await
        {
            Put::Won | Put::Lost(_) => Ok(()),
            Put::Refused(error) | Put::Unknown(error) => Err(error),
        }
    }

    fn advance(&mut self, next: Boundary) -> Result<(), Error> {
        let key = self.chain.boundary(self.number + 1);
        if next.floor < self.boundary.floor {
            return Err(Error::corrupt(key, "the boundary fell"));
        }
        self.number += 1;
        let swept_below = next.swept_below.max(self.boundary.swept_below);
        self.boundary = Boundary {
            floor: next.floor,
            swept_below,
        };
        Ok(())
    }

    /// Raises the floor, and is done when one at least as high is durable.
    pub(super) async fn raise(
        &mut self,
        raised: Boundary,
        nonce: u128,
        policy: RetryPolicy,
    ) -> Result<Boundary, Error> {
        while self.refresh().await?.floor < raised.floor {
            let swept_below = raised.swept_below.max(self.boundary.swept_below);
            let next = Boundary {
                floor: raised.floor,
                swept_below,
            };
            let (key, body) = (self.chain.boundary(self.number + 1), next.encode(nonce));
            match put_definite(&self.store, &key, body, Boundary::nonce_of, policy).await {
                Put::Won => self.advance(next)?,
                Put::Lost(bytes) => self.advance(Boundary::decode(&key, &bytes)?)?,
                Put::Refused(error) => return Err(error),
                Put::Unknown(error) => {
                    return Err(Error::OutcomeUnknown {
                        key,
                        source: Some(error.into()),
                    });
                }
            }
        }
        Ok(self.boundary)
    }
}
