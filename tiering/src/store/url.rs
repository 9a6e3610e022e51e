//! The one line that names a store.

use std::{collections::BTreeSet, fmt, path::PathBuf, str::FromStr};

use object_store::path::Path;
use url::Url;

/// A store and where in it everything lies. Holds no secret.
///
/// - `s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=us-east-1&path_style=true`, with
///   `checksum=sha256|crc64nvme|none` and `bulk_delete=false` for stores that refuse the usual,
///   `request_payer=true` for a bucket whose requests we pay, `kms_key=ID` for SSE-KMS with a key
///   other than the bucket's default.
/// - `gs://bucket/prefix`, `az://container/prefix?account=name`, both with `endpoint=`.
/// - `file:///absolute/dir`.
/// - `memory://`, gone with the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreUrl {
    pub(crate) place: Place,
    pub(crate) prefix: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    S3(S3Place),
    Gcs {
        bucket: String,
        endpoint: Option<String>,
    },
    Azure {
        container: String,
        account: Option<String>,
        endpoint: Option<String>,
    },
    Directory(PathBuf),
    Memory,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct S3Place {
    pub bucket: String,
    pub endpoint: Option<String>,
    pub region: Option<String>,
    /// Bucket in the path rather than in the host name. `None`: as the endpoint suggests.
    pub path_style: Option<bool>,
    /// `None`: as the endpoint suggests.
    pub checksum: Option<Checksum>,
    pub bulk_delete: bool,
    /// The bucket's owner lets those who ask pay.
    pub request_payer: bool,
    /// The key of KMS that objects are encrypted with, other than the bucket's default.
    pub kms_key: Option<String>,
}

impl S3Place {
    /// A bucket name with dots matches no wildcard certificate, and endpoints of one's own seldom
    /// have a host name for each bucket.
    pub(crate) fn is_path_style(&self) -> bool {
        self.path_style
            .unwrap_or_else(|| self.endpoint.is_some() || self.bucket.contains('.'))
    }
}

/// Checksum sent along with what is put to S3, for the store to verify and to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    /// Costs nothing on top of the signature, which needs the same digest. For endpoints other than
    /// AWS.
    Sha256,
    /// Takes a fraction of the processor's time, with the payload left out of the signature, since TLS
    /// protects it. For AWS: not every store knows it.
    Crc64Nvme,
    /// For stores that refuse the header.
    None,
}

impl Checksum {
    const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Crc64Nvme => "crc64nvme",
            Self::None => "none",
        }
    }
}

/// Why a text is no [`StoreUrl`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreUrlError {
    /// Not a URL at all.
    #[error("not a url, expected s3://, gs://, az://, file:/// or memory://: {0}")]
    Syntax(url::ParseError),
    /// A scheme that names no store.
    #[error("unknown scheme, expected s3, gs, az, file or memory. scheme=`{0}`")]
    Scheme(String),
    /// No bucket.
    #[error("the bucket is missing, expected {0}://bucket/prefix")]
    BucketMissing(&'static str),
    /// A user name or password in the URL, which ends up in logs and process lists.
    #[error("credentials do not belong in the url: use the environment, a profile or a role")]
    Credentials,
    /// A relative or otherwise unusable directory.
    #[error("expected file:///absolute/directory")]
    Directory,
    /// A prefix that is no clean path.
    #[error("the prefix has an empty, relative or illegal part. prefix=`{0}`")]
    Prefix(String),
    /// A parameter nobody knows, or known twice.
    #[error("unknown or repeated parameter, expected {expected}. parameter=`{name}`")]
    Parameter {
        /// The parameter.
        name: String,
        /// What this scheme takes.
        expected: &'static str,
    },
    /// A value out of place.
    #[error("bad value, expected {expected}. parameter=`{name}`")]
    Value {
        /// The parameter.
        name: &'static str,
        /// What it takes.
        expected: &'static str,
    },
}

const S3_PARAMETERS: &str =
    "endpoint, region, path_style, checksum, bulk_delete, request_payer, kms_key";

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let url = Url::parse(text).map_err(StoreUrlError::Syntax)?;
        refuse_credentials(&url)?;
        let mut parameters = Parameters::of(&url)?;
        let place = match url.scheme() {
            "s3" | "s3a" => s3_place(&url, &mut parameters)?,
            "gs" => Place::Gcs {
                bucket: bucket(&url, "gs")?,
                endpoint: parameters.take_endpoint()?,
            },
            "az" | "azure" => Place::Azure {
                container: bucket(&url, "az")?,
                account: parameters.take("account"),
                endpoint: parameters.take_endpoint()?,
            },
            "file" => Place::Directory(directory(&url)?),
            "memory" => Place::Memory,
            scheme => return Err(StoreUrlError::Scheme(scheme.to_owned())),
        };
        parameters.refuse_rest(match place {
            Place::S3(_) => S3_PARAMETERS,
            Place::Gcs { .. } => "endpoint",
            Place::Azure { .. } => "account, endpoint",
            Place::Directory(_) | Place::Memory => "none",
        })?;
        let prefix = match place {
            Place::Directory(_) => String::new(),
            _ => prefix(&url)?,
        };
        Ok(Self { place, prefix })
    }
}

fn s3_place(url: &Url, parameters: &mut Parameters) -> Result<Place, StoreUrlError> {
    let checksum = match parameters.take("checksum").as_deref() {
        None => None,
        Some("sha256") => Some(Checksum::Sha256),
        Some("crc64nvme") => Some(Checksum::Crc64Nvme),
        Some("none") => Some(Checksum::None),
        Some(_) => {
            let expected = "sha256, crc64nvme or none";
            return Err(StoreUrlError::Value {
                name: "checksum",
                expected,
            });
        }
    };
    Ok(Place::S3(S3Place {
        bucket: bucket(url, "s3")?,
        endpoint: parameters.take_endpoint()?,
        region: parameters.take("region"),
        path_style: parameters.take_bool("path_style")?,
        checksum,
        bulk_delete: parameters.take_bool("bulk_delete")?.unwrap_or(true),
        request_payer: parameters.take_bool("request_payer")?.unwrap_or(false),
        kms_key: parameters.take("kms_key"),
    }))
}

fn refuse_credentials(url: &Url) -> Result<(), StoreUrlError> {
    if url.username().is_empty() && url.password().is_none() {
        return Ok(());
    }
    Err(StoreUrlError::Credentials)
}

fn bucket(url: &Url, scheme: &'static str) -> Result<String, StoreUrlError> {
    let host = url.host_str().filter(|host| !host.is_empty());
    host.map(str::to_owned)
        .ok_or(StoreUrlError::BucketMissing(scheme))
}

fn directory(url: &Url) -> Result<PathBuf, StoreUrlError> {
    let path = url.to_file_path().map_err(|()| StoreUrlError::Directory)?;
    // A root directory is always a slip of the pen.
    if path.parent().is_none() {
        Err(StoreUrlError::Directory)
    } else {
        Ok(path)
    }
}

fn prefix(url: &Url) -> Result<String, StoreUrlError> {
    let text = url.path().trim_matches('/');
    let path = Path::from_url_path(text).map_err(|_| StoreUrlError::Prefix(text.to_owned()))?;
    Ok(path.to_string())
}

struct Parameters(Vec<(String, String)>);

impl Parameters {
    fn of(url: &Url) -> Result<Self, StoreUrlError> {
        let pairs: Vec<_> = url.query_pairs().into_owned().collect();
        let mut seen = BTreeSet::new();
        match pairs.iter().find(|(name, _)| !seen.insert(name.as_str())) {
            Some((name, _)) => Err(StoreUrlError::Parameter {
                name: name.clone(),
                expected: "each parameter once",
            }),
            None => Ok(Self(pairs)),
        }
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let index = self.0.iter().position(|(key, _)| key == name)?;
        Some(self.0.swap_remove(index).1)
    }

    fn take_bool(&mut self, name: &'static str) -> Result<Option<bool>, StoreUrlError> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        let expected = "true or false";
        value
            .parse()
            .map(Some)
            .map_err(|_| StoreUrlError::Value { name, expected })
    }

    fn take_endpoint(&mut self) -> Result<Option<String>, StoreUrlError> {
        let Some(value) = self.take("endpoint") else {
            return Ok(None);
        };
        let bad = || StoreUrlError::Value {
            name: "endpoint",
            expected: "http:// or https:// url",
        };
        let url = Url::parse(&value).map_err(|_| bad())?;
        refuse_credentials(&url)?;
        if !matches!(url.scheme(), "http" | "https") || url.query().is_some() {
            return Err(bad());
        }
        Ok(Some(value.trim_end_matches('/').to_owned()))
    }

    fn refuse_rest(self, expected: &'static str) -> Result<(), StoreUrlError> {
        match self.0.into_iter().next() {
            Some((name, _)) => Err(StoreUrlError::Parameter { name, expected }),
            None => Ok(()),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, host) = match &self.place {
            Place::S3(place) => ("s3", place.bucket.as_str()),
            Place::Gcs { bucket, .. } => ("gs", bucket.as_str()),
            Place::Azure { container, .. } => ("az", container.as_str()),
            Place::Directory(path) => {
                let path = path.display().to_string();
                return write!(f, "file://{}", escaped(&path, "%?#"));
            }
            Place::Memory => ("memory", ""),
        };
        write!(f, "{scheme}://{host}")?;
        if !self.prefix.is_empty() {
            write!(f, "/{}", escaped(&self.prefix, "%?#"))?;
        }
        let mut separator = '?';
        for (name, value) in self.parameters() {
            write!(f, "{separator}{name}={}", escaped(&value, "%&#+"))?;
            separator = '&';
        }
        Ok(())
    }
}

/// Escapes what would end this part of a URL or read as something else, and blanks.
fn escaped(text: &str, special: &str) -> String {
    let is_special = |c: char| c == ' ' || c.is_ascii_control() || special.contains(c);
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match is_special(c) {
            true => escaped.push_str(&format!("%{:02X}", u32::from(c))),
            false => escaped.push(c),
        }
    }
    escaped
}

impl StoreUrl {
    /// Whether it is gone with the process.
    pub const fn is_memory(&self) -> bool {
        matches!(self.place, Place::Memory)
    }

    /// The directory, if that is what it is.
    pub fn directory(&self) -> Option<&std::path::Path> {
        match &self.place {
            Place::Directory(path) => Some(path),
            _ => None,
        }
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        let mut pairs = Vec::new();
        let mut push = |name, value: Option<String>| pairs.extend(value.map(|value| (name, value)));
        match &self.place {
            Place::S3(place) => {
                push("endpoint", place.endpoint.clone());
                push("region", place.region.clone());
                push("path_style", place.path_style.map(|flag| flag.to_string()));
                push(
                    "checksum",
                    place.checksum.map(|checksum| checksum.name().into()),
                );
                push("bulk_delete", (!place.bulk_delete).then(|| "false".into()));
                push("request_payer", place.request_payer.then(|| "true".into()));
                push("kms_key", place.kms_key.clone());
            }
            Place::Gcs { endpoint, .. } => push("endpoint", endpoint.clone()),
            Place::Azure {
                account, endpoint, ..
            } => {
                push("account", account.clone());
                push("endpoint", endpoint.clone());
            }
            Place::Directory(_) | Place::Memory => {}
        }
        pairs
    }
}

#[cfg(test)]
mod tests;
