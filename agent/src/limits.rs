//! How much local data the agent takes before producers are slowed, then refused.
//!
//! Un-uploaded data is never deleted, so a bucket that is away, or slower than the producers, must
//! push back on them (peers' users lose data or fill disks where nothing does).

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// From this share of the ceiling on, producers are slowed.
const THROTTLE_FROM: f64 = 0.75;
/// The longest a producer is slowed, per batch.
const THROTTLE_MS_MAX: f64 = 1000.0;

/// What to do with a batch that comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Take it.
    Accept,
    /// Take it, and the producer's next one only after so many milliseconds.
    Throttle(u32),
    /// Refuse it: too much is waiting for the bucket.
    RefuseUnuploaded,
    /// Refuse it: the disk has reached its reserve.
    RefuseDisk,
}

/// The agent-wide account of local data. Shared by all partitions.
#[derive(Debug)]
pub(crate) struct Limits {
    unuploaded_bytes: AtomicU64,
    unuploaded_bytes_max: u64,
    free_bytes: AtomicU64,
    reserve_bytes: AtomicU64,
    /// Bytes that logs have taken since the agent started.
    appended_bytes: AtomicU64,
    /// What that was when the disk was last looked at.
    appended_at_look: AtomicU64,
    /// When it has reached this, the reserve is all that is left.
    appended_max: AtomicU64,
}

impl Limits {
    /// Starts with nothing stored and a disk that has room.
    pub(crate) const fn new(unuploaded_bytes_max: u64) -> Self {
        Self {
            unuploaded_bytes: AtomicU64::new(0),
            unuploaded_bytes_max,
            free_bytes: AtomicU64::new(u64::MAX),
            reserve_bytes: AtomicU64::new(0),
            appended_bytes: AtomicU64::new(0),
            appended_at_look: AtomicU64::new(0),
            appended_max: AtomicU64::new(u64::MAX),
        }
    }

    /// Notes what a log takes. The disk is looked at only now and then, and what producers send in
    /// between must not reach beyond the reserve.
    pub(crate) fn note_appended(&self, bytes: u64) {
        self.appended_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Replaces one partition's part of the sum.
    pub(crate) fn replace_unuploaded(&self, before: u64, now: u64) {
        if now >= before {
            self.unuploaded_bytes
                .fetch_add(now - before, Ordering::Relaxed);
        } else {
            self.unuploaded_bytes
                .fetch_sub(before - now, Ordering::Relaxed);
        }
    }

    /// Notes what the volume of the logs has free, and what has to stay free.
    pub(crate) fn note_disk(&self, free_bytes: u64, reserve_bytes: u64) {
        self.free_bytes.store(free_bytes, Ordering::Relaxed);
        self.reserve_bytes.store(reserve_bytes, Ordering::Relaxed);
        let appended = self.appended_bytes.load(Ordering::Relaxed);
        // Some of what came since the look before may not be written yet, so none of it counts as
        // written: producers are refused a little early rather than a little late.
        let before = self.appended_at_look.swap(appended, Ordering::Relaxed);
        let max = match reserve_bytes {
            0 => u64::MAX,
            reserve_bytes => before.saturating_add(free_bytes.saturating_sub(reserve_bytes)),
        };
        self.appended_max.store(max, Ordering::Relaxed);
    }

    /// Returns the local bytes of all partitions that are not in the bucket.
    pub(crate) fn unuploaded_bytes(&self) -> u64 {
        self.unuploaded_bytes.load(Ordering::Relaxed)
    }

    /// Returns the free bytes of the volume of the logs at the last check.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_bytes.load(Ordering::Relaxed)
    }

    /// Whether the volume of the logs has less free than has to stay free.
    pub(crate) fn is_disk_short(&self) -> bool {
        self.free_bytes() < self.reserve_bytes.load(Ordering::Relaxed)
    }

    /// Whether partitions should let go of local data, by sealing early or by keeping nothing that
    /// is in the bucket already.
    pub(crate) fn is_pressed(&self) -> bool {
        self.is_disk_short() || self.unuploaded_bytes() > self.unuploaded_bytes_max / 2
    }

    /// Returns the age at which segments are sealed: `age`, and less the more is un-uploaded. Active
    /// segments of many partitions can reach the ceiling before any of them is large or old enough. On a
    /// disk that has reached its reserve they are sealed at once: uploads are what frees it.
    pub(crate) fn segment_age(&self, age: Duration) -> Duration {
        if self.is_disk_short() {
            return Duration::ZERO;
        }
        shortened(age, self.unuploaded_bytes(), self.unuploaded_bytes_max)
    }

    /// Decides about a batch.
    pub(crate) fn admit(&self) -> Admission {
        let appended = self.appended_bytes.load(Ordering::Relaxed);
        if appended >= self.appended_max.load(Ordering::Relaxed) {
            return Admission::RefuseDisk;
        }
        decide(self.unuploaded_bytes(), self.unuploaded_bytes_max)
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a size, and a wait between 1 and 1000"
)]
fn decide(unuploaded: u64, unuploaded_max: u64) -> Admission {
    if unuploaded >= unuploaded_max {
        return Admission::RefuseUnuploaded;
    }
    let share = unuploaded as f64 / unuploaded_max as f64;
    if share < THROTTLE_FROM {
        return Admission::Accept;
    }
    let severity = (share - THROTTLE_FROM) / (1.0 - THROTTLE_FROM);
    Admission::Throttle((severity * THROTTLE_MS_MAX).ceil().max(1.0) as u32)
}

/// Above half of the ceiling, the part of `age` that is left of the other half.
#[expect(clippy::cast_precision_loss, reason = "a share of a size")]
fn shortened(age: Duration, unuploaded: u64, unuploaded_max: u64) -> Duration {
    let share = unuploaded as f64 / unuploaded_max.max(1) as f64;
    age.mul_f64((2.0 * (1.0 - share)).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_sealed_earlier_the_more_waits_for_the_bucket() {
        let age = Duration::from_secs(600);
        let at = |unuploaded| shortened(age, unuploaded, 1000).as_secs();
        assert_eq!((at(0), at(500)), (600, 600));
        assert_eq!(at(750), 300);
        assert_eq!((at(1000), at(2000)), (0, 0));
    }

    #[test]
    fn segments_are_sealed_at_once_on_a_disk_that_has_reached_its_reserve() {
        let limits = Limits::new(1000);
        let age = Duration::from_secs(600);
        limits.note_disk(100, 40);
        assert_eq!(limits.segment_age(age), age);
        limits.note_disk(39, 40);
        assert_eq!(limits.segment_age(age), Duration::ZERO);
    }

    #[test]
    fn producers_are_slowed_before_they_are_refused() {
        let at = |unuploaded| decide(unuploaded, 1000);
        assert_eq!(at(0), Admission::Accept);
        assert_eq!(at(749), Admission::Accept);
        assert_eq!(at(750), Admission::Throttle(1));
        assert_eq!(at(875), Admission::Throttle(500));
        assert_eq!(at(999), Admission::Throttle(996));
        assert_eq!(at(1000), Admission::RefuseUnuploaded);
    }

    #[test]
    fn what_comes_between_two_looks_at_the_disk_stays_out_of_its_reserve() {
        let limits = Limits::new(1_000_000);
        limits.note_disk(100, 40);
        limits.note_appended(59);
        assert_eq!(limits.admit(), Admission::Accept);
        limits.note_appended(1);
        assert_eq!(limits.admit(), Admission::RefuseDisk);

        // None of it may be written yet.
        limits.note_disk(100, 40);
        assert_eq!(limits.admit(), Admission::RefuseDisk);
        limits.note_disk(41, 40);
        assert_eq!(limits.admit(), Admission::Accept);
        limits.note_disk(39, 40);
        assert_eq!(limits.admit(), Admission::RefuseDisk);
        limits.note_disk(100, 0);
        assert_eq!(limits.admit(), Admission::Accept, "no reserve, no refusal");
    }

    #[test]
    fn the_sum_follows_each_partition() {
        let limits = Limits::new(100);
        limits.replace_unuploaded(0, 60);
        limits.replace_unuploaded(0, 50);
        assert_eq!(limits.admit(), Admission::RefuseUnuploaded);
        limits.replace_unuploaded(60, 10);
        assert_eq!(
            (limits.unuploaded_bytes(), limits.admit()),
            (60, Admission::Accept)
        );
    }
}
