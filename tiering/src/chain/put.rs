//! Puts an object where there is none, and finds out who won.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::{
    error::Error,
    store::{CreateOutcome, Store},
};

/// How long and how often a conditional put is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// No further try begins after this.
    pub deadline: Duration,
    /// Pause before the first repetition; doubles each time.
    pub backoff: Duration,
    /// Longest pause.
    pub backoff_max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(60),
            backoff: Duration::from_millis(50),
            backoff_max: Duration::from_secs(5),
        }
    }
}

impl RetryPolicy {
    /// The pause after the given number of tries: between half and all of what doubling gives.
    fn pause(&self, tries: u32, noise: u128) -> Duration {
        let doubled = self
            .backoff
            .saturating_mul(1 << tries.min(16))
            .min(self.backoff_max);
        let part = u32::try_from((noise >> (tries % 16 * 8)) & 0xff).unwrap_or(0);
        doubled / 2 + doubled / 512 * part
    }
}

/// How often an object is read to find two reads that agree.
const READS_MAX: u32 = 4;

/// Whose object is in the place.
#[derive(Debug)]
#[must_use]
pub enum Put {
    /// Ours.
    Won,
    /// Somebody else's: these bytes.
    Lost(Bytes),
    /// Surely not ours, and never will be by what was sent so far.
    Refused(Error),
    /// Nobody can tell. What was sent may yet arrive: nothing else may be put in this place.
    Unknown(Error),
}

/// Puts `body` at `key` unless there is an object, however often that takes.
///
/// The store's answer to one attempt says little: a "created" may get lost and turn into an
/// "exists" at the next attempt, and "exists" may mean that another request was merely in the way.
/// So whatever is not a plain "created" is settled by the nonce in the object that is there, and
/// the only body ever sent again is the same one.
///
/// An "exists" with nothing there is either a request that was in the way and left nothing, or an
/// object that was collected since. Sending the same body again is right in the first case. In the
/// second it makes a ghost below the boundary, which rules (c) and (d) are there to catch.
///
/// # Panics
///
/// If `body` carries no nonce.
pub async fn put_definite(
    store: &Store,
    key: &str,
    body: Bytes,
    nonce_of: fn(&[u8]) -> Option<u128>,
    policy: RetryPolicy,
) -> Put {
    let ours = nonce_of(&body).expect("a body that is put conditionally carries a nonce");
    let start = Instant::now();
    let mut is_in_doubt = false;
    for tries in 0.. {
        let error = match store.create(key, body.clone()).await {
            CreateOutcome::Created => return Put::Won,
            CreateOutcome::Refused(error) => error,
            CreateOutcome::Unknown(error) => {
                is_in_doubt = true;
                error
            }
            CreateOutcome::Exists => {
                is_in_doubt = true;
                match theirs(store, key, ours, nonce_of).await {
                    Ok(None) => return Put::Won,
                    Ok(Some(bytes)) => return Put::Lost(bytes),
                    Err(error) => error,
                }
            }
        };
        let pause = policy.pause(tries, ours);
        let may_pass = error.is_retryable() || error.is_not_found();
        if !may_pass || start.elapsed() + pause > policy.deadline {
            return if is_in_doubt {
                Put::Unknown(error)
            } else {
                Put::Refused(error)
            };
        }
        note_retry(key, tries, &error);
        tokio::time::sleep(pause).await;
    }
    unreachable!("the deadline ends the loop")
}

/// Reads whose object is in the place: ours, or somebody else's bytes. Only what was read twice is
/// somebody else's: bytes that were flipped on their way must not depose an owner.
async fn theirs(
    store: &Store,
    key: &str,
    ours: u128,
    nonce_of: fn(&[u8]) -> Option<u128>,
) -> Result<Option<Bytes>, Error> {
    let mut seen = None;
    for _ in 0..READS_MAX {
        let bytes = store.get(key).await?;
        if nonce_of(&bytes) == Some(ours) {
            return Ok(None);
        }
        if seen.as_ref() == Some(&bytes) {
            return Ok(seen);
        }
        seen = Some(bytes);
    }
    Err(Error::corrupt(key, "no two reads gave the same bytes"))
}

fn note_retry(key: &str, tries: u32, error: &Error) {
    if tries < 2 {
        tracing::info!(key, tries, %error, "conditional put is tried again");
    } else {
        tracing::warn!(key, tries, %error, "conditional put is tried again");
    }
}
