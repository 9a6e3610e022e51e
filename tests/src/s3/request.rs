//! What a request asks for, read from its method, path and query: rules and counts go by it.

use std::{fmt, str::FromStr};

use hyper::{HeaderMap, Method, http::request::Parts};

/// An S3 operation, coarse enough to be a line of the bill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum Verb {
    /// GetObject, whole or a range.
    Get,
    /// HeadObject.
    Head,
    /// PutObject.
    Put,
    /// DeleteObject.
    Delete,
    /// DeleteObjects, many in one request.
    DeleteMany,
    /// ListObjects and ListObjectsV2.
    List,
    /// CopyObject.
    Copy,
    /// CreateMultipartUpload.
    MultipartCreate,
    /// UploadPart.
    MultipartPart,
    /// CompleteMultipartUpload.
    MultipartComplete,
    /// AbortMultipartUpload.
    MultipartAbort,
    /// Anything about a bucket itself: create, head, location, versioning, lifecycle.
    Bucket,
}

impl Verb {
    /// Every verb, in the order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::Get,
        Self::Head,
        Self::Put,
        Self::Delete,
        Self::DeleteMany,
        Self::List,
        Self::Copy,
        Self::MultipartCreate,
        Self::MultipartPart,
        Self::MultipartComplete,
        Self::MultipartAbort,
        Self::Bucket,
    ];

    /// Returns the verb's name in rules and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Head => "head",
            Self::Put => "put",
            Self::Delete => "delete",
            Self::DeleteMany => "delete-many",
            Self::List => "list",
            Self::Copy => "copy",
            Self::MultipartCreate => "multipart-create",
            Self::MultipartPart => "multipart-part",
            Self::MultipartComplete => "multipart-complete",
            Self::MultipartAbort => "multipart-abort",
            Self::Bucket => "bucket",
        }
    }

    fn of_object(method: &Method, query: &str, headers: &HeaderMap) -> Self {
        let of_upload = has_parameter(query, "uploadId");
        match *method {
            Method::HEAD => Self::Head,
            Method::PUT if of_upload => Self::MultipartPart,
            Method::PUT if headers.contains_key("x-amz-copy-source") => Self::Copy,
            Method::PUT => Self::Put,
            Method::DELETE if of_upload => Self::MultipartAbort,
            Method::DELETE => Self::Delete,
            Method::POST if of_upload => Self::MultipartComplete,
            Method::POST => Self::MultipartCreate,
            _ => Self::Get,
        }
    }

    fn of_bucket(method: &Method, query: &str) -> Self {
        const ABOUT: [&str; 5] = [
            "location",
            "versioning",
            "lifecycle",
            "encryption",
            "policy",
        ];
        match *method {
            Method::POST if has_parameter(query, "delete") => Self::DeleteMany,
            Method::GET if !ABOUT.iter().any(|name| has_parameter(query, name)) => Self::List,
            _ => Self::Bucket,
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Verb {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL
            .into_iter()
            .find(|verb| verb.name() == text)
            .ok_or(())
    }
}

/// A request as rules see it. Keys are as in the URL: our own need no escapes.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) verb: Verb,
    /// The object's key without the bucket; a listing's prefix is not looked at.
    pub(super) key: String,
    pub(super) access_key: Option<String>,
}

impl Asked {
    pub(super) fn read(parts: &Parts) -> Self {
        let query = parts.uri.query().unwrap_or_default();
        let path = parts.uri.path().trim_start_matches('/');
        let key = path.split_once('/').map_or("", |(_, key)| key);
        let verb = if key.is_empty() {
            Verb::of_bucket(&parts.method, query)
        } else {
            Verb::of_object(&parts.method, query, &parts.headers)
        };
        Self {
            verb,
            key: key.to_owned(),
            access_key: access_key(&parts.headers),
        }
    }
}

pub(super) fn has_parameter(query: &str, name: &str) -> bool {
    query
        .split('&')
        .any(|pair| pair.split('=').next() == Some(name))
}

/// Reads the key id from `Authorization: AWS4-HMAC-SHA256 Credential=ID/date/…`.
fn access_key(headers: &HeaderMap) -> Option<String> {
    let authorization = headers.get("authorization")?.to_str().ok()?;
    let (_, credential) = authorization.split_once("Credential=")?;
    credential.split('/').next().map(str::to_owned)
}
