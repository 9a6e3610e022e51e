//! What a store's refusal means, and which setting mends it.
//!
//! Clients of object stores wrap what happened several layers deep. This is the one place that
//! digs it out again: by type where there is one, else by the error code in the reply's XML.

use std::{error::Error as StdError, fmt, io};

use object_store::client::{HttpError, HttpErrorKind};

use crate::error::ErrorKind;

/// No credentials came, so that no request was sent.
#[derive(Debug, thiserror::Error)]
#[error("no credentials")]
pub(super) struct NoCredentials {
    /// Whether asking again is of no use.
    pub is_lasting: bool,
    #[source]
    pub source: Box<dyn StdError + Send + Sync>,
}

/// What went wrong in or before the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// Too many requests.
    Throttled,
    /// The store failed.
    Server,
    /// No connection came about: nothing was sent.
    Connect,
    /// No answer in time.
    Timeout,
    /// The connection broke.
    Interrupted,
    /// The bucket does not exist.
    NoSuchBucket,
    /// The bucket is in another region, which the store may have named.
    WrongRegion(Option<String>),
    /// The credentials are good, but not for this.
    AccessDenied,
    /// The credentials are not.
    BadCredentials,
    /// There are none.
    NoCredentials,
    /// Whoever hands them out does not answer.
    CredentialsUnreachable,
    /// They were good once.
    ExpiredToken,
    /// This machine's clock is off.
    ClockSkew,
    /// The store cannot do this.
    Unsupported,
    /// The bytes that arrived were not those that were sent.
    BadDigest,
    /// The store finds fault with the request.
    Refused(String),
    /// The file system is full.
    DiskFull,
    /// The file system refuses.
    Disk(io::ErrorKind),
    /// The object is there already.
    Exists,
    /// Something else.
    Other,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongRegion(Some(region)) => {
                return write!(
                    f,
                    "the bucket is in another region: set region={region} in the url"
                );
            }
            Self::Refused(code) => return write!(f, "the store refused the request: {code}"),
            Self::Disk(kind) => return write!(f, "the store's directory cannot be used: {kind}"),
            _ => {}
        }
        f.write_str(self.advice())
    }
}

impl Fault {
    const fn advice(&self) -> &'static str {
        match self {
            Self::Throttled => "the store asks for fewer requests",
            Self::Server => "the store failed",
            Self::Connect => {
                "no connection to the store: check endpoint= and the network; a private subnet needs \
                 a gateway endpoint for S3"
            }
            Self::Timeout => "no answer from the store in time: check endpoint= and the network",
            Self::Interrupted => "the connection to the store broke",
            Self::NoSuchBucket => "no such bucket: create it, or mend the name in the url",
            Self::WrongRegion(_) => "the bucket is in another region: set region= in the url",
            Self::AccessDenied => {
                "access denied: the bucket is another account's, or the credentials lack a permission \
                 for it or its prefix"
            }
            Self::BadCredentials => {
                "unknown or wrong credentials: check AWS_ACCESS_KEY_ID and its secret, or the profile"
            }
            Self::NoCredentials => {
                "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or a role"
            }
            Self::CredentialsUnreachable => {
                "no credentials could be fetched: set AWS_ACCESS_KEY_ID or AWS_PROFILE, or check the role"
            }
            Self::ExpiredToken => {
                "the session token has expired: renew AWS_SESSION_TOKEN, log in again, or check the role"
            }
            Self::ClockSkew => "this machine's clock is off: set it by NTP",
            Self::Unsupported => "the store cannot do this",
            Self::BadDigest => "the bytes were damaged on their way to the store",
            Self::DiskFull => "no space left in the store's directory",
            Self::Exists => "the object exists already",
            Self::Refused(_) | Self::Disk(_) | Self::Other => "the request failed",
        }
    }

    /// Whether it happens to single requests, also where all is set up well. Without a connection, or an
    /// answer in time, enough was waited.
    pub(crate) const fn is_fleeting(&self) -> bool {
        matches!(
            self,
            Self::Throttled | Self::Server | Self::Interrupted | Self::BadDigest | Self::Other
        )
    }

    /// What the request's sender can do. This is about seconds and minutes: a clock is set by NTP, while
    /// a permission that is missing has to be given. Whether a restart of the agent may help is another
    /// question, which its exit code answers.
    pub(crate) const fn kind(&self) -> ErrorKind {
        match self {
            Self::Throttled
            | Self::Server
            | Self::Connect
            | Self::Timeout
            | Self::Interrupted
            | Self::BadDigest
            | Self::CredentialsUnreachable
            | Self::ClockSkew
            | Self::DiskFull
            | Self::Other => ErrorKind::Unavailable,
            Self::AccessDenied
            | Self::BadCredentials
            | Self::NoCredentials
            | Self::ExpiredToken
            | Self::Disk(io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {
                ErrorKind::Forbidden
            }
            Self::NoSuchBucket
            | Self::WrongRegion(_)
            | Self::Unsupported
            | Self::Refused(_)
            | Self::Exists => ErrorKind::Invalid,
            Self::Disk(_) => ErrorKind::Unavailable,
        }
    }

    /// Whether it says all there is to say.
    pub(crate) const fn is_plain(&self) -> bool {
        !matches!(
            self,
            Self::Other
                | Self::Disk(_)
                | Self::Refused(_)
                | Self::NoCredentials
                | Self::CredentialsUnreachable
        )
    }

    /// Whether a write that ended so surely changed nothing.
    pub(crate) const fn has_no_side_effects(&self) -> bool {
        !matches!(
            self,
            Self::Throttled
                | Self::Server
                | Self::Timeout
                | Self::Interrupted
                | Self::Disk(_)
                | Self::DiskFull
                | Self::Other
        )
    }

    /// Finds the fault in what the store's client says.
    pub(crate) fn of(error: &object_store::Error) -> Self {
        let text = error.to_string();
        if let Some(fault) = xml_field(&text, "Code").and_then(|code| Self::of_code(code, &text)) {
            return fault;
        }
        let first: &(dyn StdError + 'static) = error;
        std::iter::successors(Some(first), |&cause| cause.source())
            .find_map(Self::of_cause)
            .or_else(|| Self::of_text(&text))
            .or_else(|| Self::of_variant(error))
            .unwrap_or(Self::Other)
    }

    fn of_cause(cause: &(dyn StdError + 'static)) -> Option<Self> {
        if let Some(error) = cause.downcast_ref::<NoCredentials>() {
            let fault = if error.is_lasting {
                Self::NoCredentials
            } else {
                Self::CredentialsUnreachable
            };
            return Some(fault);
        }
        if let Some(error) = cause.downcast_ref::<io::Error>() {
            return Self::of_io(error.kind());
        }
        let error = cause.downcast_ref::<HttpError>()?;
        match error.kind() {
            HttpErrorKind::Timeout if was_connecting(error) => Some(Self::Connect),
            HttpErrorKind::Connect => Some(Self::Connect),
            HttpErrorKind::Timeout => Some(Self::Timeout),
            _ => Some(Self::Interrupted),
        }
    }

    const fn of_io(kind: io::ErrorKind) -> Option<Self> {
        Some(match kind {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull,
            io::ErrorKind::ConnectionRefused => Self::Connect,
            io::ErrorKind::TimedOut => Self::Timeout,
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof => Self::Interrupted,
            io::ErrorKind::AlreadyExists => Self::Exists,
            io::ErrorKind::NotFound | io::ErrorKind::Other => return None,
            kind => Self::Disk(kind),
        })
    }

    /// Codes of S3 and of those that speak like it.
    fn of_code(code: &str, text: &str) -> Option<Self> {
        Some(match code {
            "NoSuchBucket" | "ContainerNotFound" | "ContainerBeingDeleted" => Self::NoSuchBucket,
            "PermanentRedirect"
            | "TemporaryRedirect"
            | "AuthorizationHeaderMalformed"
            | "IllegalLocationConstraintException"
            | "IncorrectEndpoint" => Self::WrongRegion(region_in(text)),
            "AccessDenied" | "AllAccessDisabled" | "AuthorizationFailure" => Self::AccessDenied,
            "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "AuthenticationFailed" => {
                Self::BadCredentials
            }
            "ExpiredToken" | "TokenRefreshRequired" | "InvalidToken" => Self::ExpiredToken,
            "RequestTimeTooSkewed" | "RequestExpired" => Self::ClockSkew,
            "SlowDown" | "ThrottlingException" | "TooManyRequests" | "ServerBusy" => {
                Self::Throttled
            }
            "InternalError" | "ServiceUnavailable" => Self::Server,
            "RequestTimeout" => Self::Timeout,
            "BadDigest" | "InvalidDigest" | "XAmzContentSHA256Mismatch" | "IncompleteBody" => {
                Self::BadDigest
            }
            "NotImplemented" => Self::Unsupported,
            "PreconditionFailed" | "ConditionalRequestConflict" | "OperationAborted" => {
                Self::Exists
            }
            "NoSuchKey" | "BlobNotFound" => return None,
            code if status_in(text).is_some_and(|status| status < 500) => {
                Self::Refused(code.to_owned())
            }
            _ => return None,
        })
    }

    fn of_text(text: &str) -> Option<Self> {
        if text.contains("redirect without LOCATION") {
            return Some(Self::WrongRegion(None));
        }
        Some(match status_in(text)? {
            301 | 307 => Self::WrongRegion(None),
            401 => Self::BadCredentials,
            403 => Self::AccessDenied,
            408 => Self::Timeout,
            409 | 412 => Self::Exists,
            429 | 503 => Self::Throttled,
            501 => Self::Unsupported,
            500.. => Self::Server,
            status @ 400.. if status != 404 => Self::Refused(format!("status {status}")),
            _ => return None,
        })
    }

    const fn of_variant(error: &object_store::Error) -> Option<Self> {
        Some(match error {
            object_store::Error::AlreadyExists { .. }
            | object_store::Error::Precondition { .. } => Self::Exists,
            object_store::Error::PermissionDenied { .. } => Self::AccessDenied,
            object_store::Error::Unauthenticated { .. } => Self::BadCredentials,
            object_store::Error::NotSupported { .. }
            | object_store::Error::NotImplemented { .. } => Self::Unsupported,
            _ => return None,
        })
    }
}

/// Whether a request timed out before it had a connection: packets that are dropped on the way look
/// like this, and nothing was sent. The client's error for it has no type that can be named.
fn was_connecting(error: &HttpError) -> bool {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes
        .map(ToString::to_string)
        .any(|text| text.contains("(Connect)"))
}

fn xml_field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    Some(rest.split_once('<')?.0.trim())
}

/// The status code in the text of `object_store`'s error, whose type is private.
fn status_in(text: &str) -> Option<u16> {
    let (_, rest) = text.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
}

fn region_in(text: &str) -> Option<String> {
    if let Some(region) = xml_field(text, "Region") {
        return Some(region.to_owned());
    }
    let (_, rest) = text.split_once("expecting '")?;
    Some(rest.split_once('\'')?.0.to_owned())
}

#[cfg(test)]
mod tests;
