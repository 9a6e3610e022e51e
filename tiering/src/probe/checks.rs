//! The checks, in the order in which they are made.

use std::{ops::Range, slice, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};

use super::{Probe, Stop, Verdict};
use crate::{
    error::{Error, ErrorKind},
    store::{CreateOutcome, Fault},
};

/// Creates that race for one key.
const RACERS: usize = 32;
/// Races, since a weak store may get one right by luck.
const RACES: usize = 8;
/// Enough that clients take the path of real segments.
const LARGE_BYTES: usize = 1024 * 1024 + 17;
/// Tries of the first write, for a store that is merely busy.
const WRITE_TRIES: u32 = 3;
/// Reads of an object until its bytes count as changed by the store, and not on their way.
const READ_TRIES: u32 = 3;
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// Signatures hold out to a quarter of an hour; retention by age and people's patience do not.
const SKEW_MAX_MS: u64 = 30_000;

const WRITE: &str = "reach and write";
const READ: &str = "read after write";
const EXISTS: &str = "create if absent";
const RACE: &str = "create race";
const RANGES: &str = "checksums and ranges";
const LIST: &str = "list after write";
const DELETE: &str = "delete";
const CLOCK: &str = "clock skew";

/// How a race went wrong.
enum Upset {
    /// The store broke its promise in this way.
    Seen(String),
    /// It gave no answer.
    Error(Error),
}

impl Probe<'_> {
    fn body(&self) -> Bytes {
        Bytes::from(self.ids.uuid().simple().to_string())
    }

    /// One plain create, not retried by any library, so that a missing bucket, a wrong key or a
    /// dead endpoint is told at once.
    pub(super) async fn write(&mut self) -> Result<(), Stop> {
        for _ in 1..WRITE_TRIES {
            match self.try_write().await? {
                true => return Ok(()),
                false => tokio::time::sleep(TRY_AGAIN).await,
            }
        }
        if self.try_write().await? {
            return Ok(());
        }
        self.fault = Some(Fault::Throttled);
        self.note(WRITE, Verdict::Failed, "the store was too busy each time");
        Err(Stop)
    }

    async fn try_write(&mut self) -> Result<bool, Stop> {
        let (key, body) = (self.fresh_key(), self.body());
        match self.store.create(&key, body).await {
            CreateOutcome::Created => {
                self.note(WRITE, Verdict::Ok, "the bucket is there and takes objects");
                Ok(true)
            }
            CreateOutcome::Exists => {
                Err(self.refuse(WRITE, "a create under a fresh key was refused as existing"))
            }
            CreateOutcome::Refused(error) | CreateOutcome::Unknown(error) => {
                if matches!(
                    error,
                    Error::Store {
                        fault: Fault::Throttled,
                        ..
                    }
                ) {
                    return Ok(false);
                }
                if error.is_not_found() {
                    let detail = "a put was answered by 404: endpoint= names no object store, or \
                                  there is no such bucket";
                    self.note(WRITE, Verdict::Failed, detail);
                    return Err(Stop);
                }
                Err(self.fail(WRITE, &error))
            }
        }
    }

    /// Reads an object. Bytes that nobody put there are read again: most stores send no checksum, so
    /// that one flipped bit on the way would pass for a broken promise.
    async fn read(&self, key: &str, known: &[Bytes]) -> Result<Bytes, Error> {
        for _ in 1..READ_TRIES {
            let found = self.store.get(key).await?;
            if known.contains(&found) {
                return Ok(found);
            }
        }
        self.store.get(key).await
    }

    async fn read_range(&self, key: &str, range: Range<u64>, whole: &Bytes) -> Result<bool, Error> {
        let wanted = whole.slice(index(range.start)..index(range.end));
        for _ in 0..READ_TRIES {
            if self.store.get_range(key, range.clone()).await? == wanted {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) async fn read_after_write(&mut self) -> Result<(), Stop> {
        let (key, body) = (self.fresh_key(), self.body());
        let put = self.store.put_object(&key, body.clone()).await;
        put.map_err(|error| self.fail(READ, &error))?;
        match self.read(&key, slice::from_ref(&body)).await {
            Ok(found) if found == body => {
                self.note(
                    READ,
                    Verdict::Ok,
                    "an object is there as soon as it was put",
                );
                Ok(())
            }
            Ok(_) => Err(self.refuse(READ, "other bytes came back than were put")),
            Err(error) if error.is_not_found() => {
                Err(self.refuse(READ, "an object was not found right after it was put"))
            }
            Err(error) => Err(self.fail(READ, &error)),
        }
    }

    pub(super) async fn create_after_exists(&mut self) -> Result<(), Stop> {
        let (key, first, second) = (self.fresh_key(), self.body(), self.body());
        let put = self.store.put_object(&key, first.clone()).await;
        put.map_err(|error| self.fail(EXISTS, &error))?;
        match self.store.create(&key, second.clone()).await {
            CreateOutcome::Exists => {}
            CreateOutcome::Created => {
                let detail = "the condition is ignored: two agents could both own a partition";
                return Err(self.refuse(EXISTS, detail));
            }
            CreateOutcome::Refused(error) | CreateOutcome::Unknown(error) => {
                return Err(self.fail(EXISTS, &error));
            }
        }
        match self.read(&key, &[first.clone(), second]).await {
            Ok(found) if found == first => {
                self.note(EXISTS, Verdict::Ok, "an existing object is never replaced");
                Ok(())
            }
            Ok(_) => Err(self.refuse(EXISTS, "a refused create replaced the object all the same")),
            Err(error) => Err(self.fail(EXISTS, &error)),
        }
    }

    pub(super) async fn create_race(&mut self) -> Result<(), Stop> {
        for race in 1..=RACES {
            let key = self.fresh_key();
            match self.race(&key).await {
                Ok(()) => {}
                Err(Upset::Seen(seen)) => {
                    return Err(self.refuse(RACE, format!("race {race}: {seen}")));
                }
                Err(Upset::Error(error)) => return Err(self.fail(RACE, &error)),
            }
        }
        let detail = format!("{RACES} races of {RACERS}, one winner each");
        self.note(RACE, Verdict::Ok, detail);
        Ok(())
    }

    /// Lets creates race, and says what is wrong with how it ended.
    async fn race(&self, key: &str) -> Result<(), Upset> {
        let bodies: Vec<Bytes> = (0..RACERS).map(|_| self.body()).collect();
        let racing = bodies
            .iter()
            .map(|body| async move { (body.clone(), self.store.create(key, body.clone()).await) });
        let ended: Vec<_> = stream::iter(racing)
            .buffer_unordered(RACERS)
            .collect()
            .await;
        let mut winners = Vec::new();
        let mut doubtful = Vec::new();
        for (body, outcome) in ended {
            match outcome {
                CreateOutcome::Created => winners.push(body),
                CreateOutcome::Exists => {}
                CreateOutcome::Unknown(_) => doubtful.push(body),
                CreateOutcome::Refused(error) => return Err(Upset::Error(error)),
            }
        }
        if winners.len() > 1 {
            let winners = winners.len();
            return Err(Upset::Seen(format!(
                "{winners} of {RACERS} creates of one object won: two agents could both own a \
                 partition"
            )));
        }
        let found = self.read(key, &bodies).await.map_err(Upset::Error)?;
        // A winner whose answer was lost is no fault.
        let expected = if winners.is_empty() {
            doubtful
        } else {
            winners
        };
        if expected.contains(&found) {
            Ok(())
        } else {
            Err(Upset::Seen("the winner's object is gone".into()))
        }
    }

    pub(super) async fn checksums_and_ranges(&mut self) -> Result<(), Stop> {
        let key = self.fresh_key();
        let seed = self.ids.nonce().to_le_bytes();
        let body: Bytes = seed
            .iter()
            .cycle()
            .zip(0..LARGE_BYTES)
            .map(|(a, b)| scramble(*a, b))
            .collect();
        if let Err(error) = self.store.put_object(&key, body.clone()).await {
            let hint = match error.kind() {
                ErrorKind::Invalid => "; a store without checksums wants checksum=none in the url",
                _ => "",
            };
            return Err(self.fail_with(RANGES, &error, hint));
        }
        let size = LARGE_BYTES as u64;
        for range in [0..size, 0..1, 4095..4097, 65_536..1_048_576, size - 1..size] {
            match self.read_range(&key, range.clone(), &body).await {
                Ok(true) => {}
                Ok(false) => return Err(self.refuse(RANGES, format!("wrong bytes for {range:?}"))),
                Err(error) => return Err(self.fail(RANGES, &error)),
            }
        }
        self.note(
            RANGES,
            Verdict::Ok,
            "large objects come back whole and in parts",
        );
        Ok(())
    }

    /// Listings only find garbage and speed up a cold start, so a late one is no danger.
    pub(super) async fn list_after_write(&mut self) {
        let (mut wanted, first) = (self.keys(), self.key(0));
        let folder = first
            .rsplit_once('/')
            .map_or("", |(folder, _)| folder)
            .to_owned();
        let listed = self.store.list(&folder, Some(&first));
        let found: Result<Vec<_>, _> = listed.map_ok(|object| object.key).try_collect().await;
        wanted.remove(0);
        match found {
            Err(error) => drop(self.fail(LIST, &error)),
            Ok(found) if found == wanted => {
                self.note(LIST, Verdict::Ok, "a listing shows every object, in order");
            }
            Ok(found) if found.iter().is_sorted() => {
                let missing = wanted.iter().filter(|key| !found.contains(key)).count();
                let detail = format!("a listing lacks {missing} objects put just before it");
                self.note(LIST, Verdict::Warning, detail);
            }
            Ok(_) => self.note(
                LIST,
                Verdict::Unfit,
                "a listing is not in the order of keys",
            ),
        }
    }

    pub(super) async fn delete(&mut self) -> Result<(), Stop> {
        let keys = self.keys();
        // Twice: deleting what is gone must not be an error.
        for _ in 0..2 {
            let deleted = self.store.delete(&keys).await;
            deleted.map_err(|error| {
                let hint = match error.kind() {
                    ErrorKind::Invalid => "; a store without bulk deletes wants bulk_delete=false",
                    _ => "",
                };
                self.fail_with(DELETE, &error, hint)
            })?;
        }
        match self.store.get(&keys[0]).await {
            Err(error) if error.is_not_found() => {
                self.note(DELETE, Verdict::Ok, "what was deleted is gone");
                Ok(())
            }
            Err(error) => Err(self.fail(DELETE, &error)),
            Ok(_) => {
                self.note(
                    DELETE,
                    Verdict::Warning,
                    "a deleted object could still be read",
                );
                Ok(())
            }
        }
    }

    pub(super) fn clock(&mut self) {
        let Some(skew) = self.store.clock_skew_ms() else {
            return self.note(CLOCK, Verdict::Skipped, "the store does not tell the time");
        };
        let side = if skew < 0 { "behind" } else { "ahead" };
        let detail = format!(
            "the store's clock is {:.1} s {side}",
            seconds(skew.unsigned_abs())
        );
        if skew.unsigned_abs() > SKEW_MAX_MS {
            self.note(
                CLOCK,
                Verdict::Warning,
                detail + ": set this machine's clock by NTP",
            );
        } else {
            self.note(CLOCK, Verdict::Ok, detail);
        }
    }

    #[cfg(not(feature = "aws"))]
    pub(super) async fn bucket(&mut self) {}

    #[cfg(feature = "aws")]
    pub(super) async fn bucket(&mut self) {
        const VERSIONING: &str = "versioning";
        const LIFECYCLE: &str = "lifecycle rules";
        let Some(s3) = self.store.s3().cloned() else {
            return;
        };
        match s3.is_versioned().await {
            Ok(false) => self.note(VERSIONING, Verdict::Ok, "off: deleted objects cost nothing"),
            Ok(true) => {
                let detail = "on: deleted objects live on and are billed, unless a lifecycle rule \
                              expires noncurrent versions";
                self.note(VERSIONING, Verdict::Warning, detail);
            }
            Err(error) => self.note(VERSIONING, Verdict::Skipped, format!("no answer: {error}")),
        }
        match s3.harmful_rules(self.store.prefix()).await {
            Ok(rules) if rules.is_empty() => {
                self.note(LIFECYCLE, Verdict::Ok, "none deletes or hides live data");
            }
            Ok(rules) => {
                let detail = format!("{}: remove it, or exclude the prefix", rules.join(", "));
                self.note(LIFECYCLE, Verdict::Unfit, detail);
            }
            Err(error) => self.note(LIFECYCLE, Verdict::Skipped, format!("no answer: {error}")),
        }
    }
}

/// Bytes that differ from place to place, so that a shifted range shows.
fn scramble(seed: u8, place: usize) -> u8 {
    let [low, middle, high, ..] = place.to_le_bytes();
    seed ^ low ^ middle.rotate_left(3) ^ high.rotate_left(5)
}

fn index(position: u64) -> usize {
    usize::try_from(position).expect("a position in a small object fits in memory")
}

#[expect(clippy::cast_precision_loss, reason = "for people's eyes")]
fn seconds(millis: u64) -> f64 {
    millis as f64 / 1000.0
}
