//! What AWS wants to see granted before it does what a request asks.

use hyper::{Method, http::request::Parts};

use super::request::{Asked, Verb, has_parameter};

/// One permission, as policies name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Permission {
    /// Such as `s3:GetObject`. `s3:*` stands for all that no policy on objects grants.
    pub action: &'static str,
    /// The object's key; empty where the bucket is meant.
    pub key: String,
}

impl Permission {
    fn new(action: &'static str, key: impl Into<String>) -> Self {
        let key = key.into();
        Self { action, key }
    }

    /// Those that a request wants, all of them.
    pub(super) fn wanted(asked: &Asked, parts: &Parts, body: &[u8]) -> Vec<Self> {
        let on_key = |action| vec![Self::new(action, asked.key.as_str())];
        match asked.verb {
            Verb::Get | Verb::Head => on_key("s3:GetObject"),
            Verb::Put | Verb::MultipartCreate | Verb::MultipartPart | Verb::MultipartComplete => {
                on_key("s3:PutObject")
            }
            Verb::MultipartAbort => on_key("s3:AbortMultipartUpload"),
            Verb::Delete => on_key("s3:DeleteObject"),
            Verb::DeleteMany => keys_in(&String::from_utf8_lossy(body))
                .map(|key| Self::new("s3:DeleteObject", key))
                .collect(),
            Verb::List | Verb::Bucket => vec![Self::new(on_bucket(parts), "")],
            // It reads what stands in a header.
            Verb::Copy => on_key("s3:*"),
        }
    }
}

fn on_bucket(parts: &Parts) -> &'static str {
    const QUESTIONS: [(&str, &str); 7] = [
        ("versioning", "s3:GetBucketVersioning"),
        ("lifecycle", "s3:GetLifecycleConfiguration"),
        ("location", "s3:GetBucketLocation"),
        ("encryption", "s3:GetEncryptionConfiguration"),
        ("policy", "s3:GetBucketPolicy"),
        ("versions", "s3:ListBucketVersions"),
        ("uploads", "s3:ListBucketMultipartUploads"),
    ];
    let query = parts.uri.query().unwrap_or_default();
    match parts.method {
        Method::GET | Method::HEAD if parts.uri.path() == "/" => "s3:ListAllMyBuckets",
        Method::GET | Method::HEAD => QUESTIONS
            .iter()
            .find(|(name, _)| has_parameter(query, name))
            .map_or("s3:ListBucket", |(_, action)| action),
        _ => "s3:*",
    }
}

/// Keys of a request to delete many. Our own need no escapes.
fn keys_in(body: &str) -> impl Iterator<Item = &str> {
    let parts = body.split("<Key>").skip(1);
    parts.filter_map(|part| Some(part.split_once("</Key>")?.0))
}
