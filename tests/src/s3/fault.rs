//! The vocabulary of faults: what a bucket, or the network before it, can do to a request.

use std::time::Duration;

use rand::{Rng, rngs::StdRng};

/// How long a request is held back before anything else happens to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Latency {
    /// Always the same.
    Fixed(Duration),
    /// Mostly near `min`, seldom far above (a Pareto tail: one in a thousand is 100 × `min`), never
    /// more than `max`.
    HeavyTail {
        /// The least.
        min: Duration,
        /// The most.
        max: Duration,
    },
}

impl Latency {
    pub(super) fn draw(self, rng: &mut StdRng) -> Duration {
        const TAIL_EXPONENT: f64 = 1.5;
        match self {
            Self::Fixed(delay) => delay,
            Self::HeavyTail { min, max } => {
                let unit: f64 = rng.random_range(f64::EPSILON..1.0);
                let seconds = min.as_secs_f64() * unit.powf(-1.0 / TAIL_EXPONENT);
                Duration::try_from_secs_f64(seconds).unwrap_or(max).min(max)
            }
        }
    }
}

/// Where a bucket is that is not where it was looked for.
pub(super) const ELSEWHERE: &str = "eu-west-1";

/// An answer that says no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// 403 AccessDenied: a policy, or credentials that ran out.
    Forbidden,
    /// 301 PermanentRedirect, to a bucket in `eu-west-1`, as its header says.
    Redirect,
    /// 400 AuthorizationHeaderMalformed, signed for another region than `eu-west-1`.
    WrongRegion,
    /// 400 ExpiredToken.
    ExpiredToken,
    /// 403 RequestTimeTooSkewed.
    TooSkewed,
    /// 404 NoSuchKey: what a store without read-after-write says.
    NotFound,
    /// 404 NoSuchBucket.
    NoSuchBucket,
    /// 409 ConditionalRequestConflict: a conflicting operation was in flight; nobody may have won.
    Conflict,
    /// 412 PreconditionFailed.
    Precondition,
    /// 500 InternalError.
    Internal,
    /// 503 ServiceUnavailable.
    Unavailable,
    /// 503 SlowDown.
    SlowDown,
}

impl Status {
    pub(super) const fn code(self) -> u16 {
        match self {
            Self::Redirect => 301,
            Self::WrongRegion | Self::ExpiredToken => 400,
            Self::Forbidden | Self::TooSkewed => 403,
            Self::NotFound | Self::NoSuchBucket => 404,
            Self::Conflict => 409,
            Self::Precondition => 412,
            Self::Internal => 500,
            Self::Unavailable | Self::SlowDown => 503,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Forbidden => "AccessDenied",
            Self::Redirect => "PermanentRedirect",
            Self::WrongRegion => "AuthorizationHeaderMalformed",
            Self::ExpiredToken => "ExpiredToken",
            Self::TooSkewed => "RequestTimeTooSkewed",
            Self::NotFound => "NoSuchKey",
            Self::NoSuchBucket => "NoSuchBucket",
            Self::Conflict => "ConditionalRequestConflict",
            Self::Precondition => "PreconditionFailed",
            Self::Internal => "InternalError",
            Self::Unavailable => "ServiceUnavailable",
            Self::SlowDown => "SlowDown",
        }
    }
}

/// When a request held back by [`Fault::LateApply`] is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// After this long.
    After(Duration),
    /// When the test calls [`S3Server::release_late`](super::S3Server::release_late).
    OnCall,
}

/// What the store makes of `If-None-Match` and `If-Match` on a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// Holds it, atomically.
    #[default]
    Atomic,
    /// Looks first and writes later, with other requests in between.
    Racy,
    /// Does not read the header.
    Ignored,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// It waits, and then goes on as other rules have it.
    Delay(Latency),
    /// It gets no answer and no effect; the connection stays open until the client gives up.
    Hang,
    /// It gets no answer and no effect; the connection is closed. Without conditions: an outage.
    Drop,
    /// It is answered so, without effect.
    Answer(Status),
    /// It is applied, and the connection is closed instead of an answer.
    ReplyLost,
    /// It is applied, and answered so all the same.
    AppliedThen(Status),
    /// The connection is closed, and the request is applied later.
    LateApply(Release),
    /// It is applied twice; the second answer goes out.
    AppliedTwice,
    /// The connection is closed after this many bytes of the body: of the answer to a GET, of the
    /// request otherwise, which then has no effect.
    Reset {
        /// Bytes that still go through.
        after_bytes: usize,
    },
    /// The body of the answer ends after this many bytes, and its length says that this is all.
    Truncate {
        /// Bytes that are left.
        to_bytes: usize,
    },
    /// One bit of the body, drawn at random, is wrong: of the answer to a GET, of the request
    /// otherwise.
    BitFlip,
    /// A listing shows the bucket as it was at
    /// [`S3Server::remember_listing`](super::S3Server::remember_listing).
    StaleList,
    /// A CompleteMultipartUpload is answered 200 with an error as its body, without effect.
    OkWithError,
    /// The write's condition is held so.
    Condition(Condition),
}
