//! The S3 operations, spoken through `s3s`, on the store in memory.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use s3s::{
    Body, S3, S3Error, S3Request, S3Response, S3Result, StdError, checksum::ChecksumHasher, dto,
    s3_error,
};

use super::{
    backend::{Backend, Content, Expected, Listing, Object, Refusal},
    body::read_stream,
    fault::{Condition, Fault},
    multipart::Upload,
};

/// S3's own limit on a page.
const PAGE_KEYS_MAX: usize = 1000;

/// What lies between the look and the write of a racy store.
const RACY_PAUSE: Duration = Duration::from_millis(5);

/// Speaks S3 for a [`Backend`].
#[derive(Clone, Debug)]
pub(super) struct Service {
    pub(super) backend: Arc<Backend>,
}

impl From<Refusal> for S3Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NoSuchBucket => s3_error!(NoSuchBucket, "The specified bucket does not exist"),
            Refusal::NoSuchKey => s3_error!(NoSuchKey, "The specified key does not exist."),
            Refusal::NoSuchUpload => s3_error!(NoSuchUpload),
            Refusal::InvalidPart => s3_error!(InvalidPart),
            Refusal::BucketExists => s3_error!(BucketAlreadyOwnedByYou),
            Refusal::BucketNotEmpty => s3_error!(BucketNotEmpty),
            Refusal::PreconditionFailed => s3_error!(
                PreconditionFailed,
                "At least one of the pre-conditions you specified did not hold"
            ),
        }
    }
}

impl Service {
    /// Performs a write under its condition, as well as this store holds conditions.
    async fn write(
        &self,
        how: Condition,
        (bucket, key): (&str, &str),
        content: Content,
        expected: Expected,
    ) -> S3Result<Arc<Object>> {
        if how == Condition::Racy {
            self.backend.check(bucket, key, &expected)?;
            tokio::time::sleep(RACY_PAUSE).await;
        }
        Ok(self
            .backend
            .put(bucket, key, content, &how.at_write(expected))?)
    }
}

#[async_trait::async_trait]
impl S3 for Service {
    async fn create_bucket(
        &self,
        req: S3Request<dto::CreateBucketInput>,
    ) -> S3Result<S3Response<dto::CreateBucketOutput>> {
        self.backend.create_bucket(&req.input.bucket)?;
        let location = Some(format!("/{}", req.input.bucket));
        answer(dto::CreateBucketOutput { location })
    }

    async fn delete_bucket(
        &self,
        req: S3Request<dto::DeleteBucketInput>,
    ) -> S3Result<S3Response<dto::DeleteBucketOutput>> {
        self.backend.delete_bucket(&req.input.bucket)?;
        answer(dto::DeleteBucketOutput::default())
    }

    async fn head_bucket(
        &self,
        req: S3Request<dto::HeadBucketInput>,
    ) -> S3Result<S3Response<dto::HeadBucketOutput>> {
        self.backend.has_bucket(&req.input.bucket)?;
        answer(dto::HeadBucketOutput::default())
    }

    async fn list_buckets(
        &self,
        _: S3Request<dto::ListBucketsInput>,
    ) -> S3Result<S3Response<dto::ListBucketsOutput>> {
        let names = self.backend.bucket_names().into_iter();
        let buckets = names
            .map(|name| dto::Bucket {
                name: Some(name),
                ..Default::default()
            })
            .collect();
        answer(dto::ListBucketsOutput {
            buckets: Some(buckets),
            ..Default::default()
        })
    }

    /// As AWS answers for us-east-1: with nothing.
    async fn get_bucket_location(
        &self,
        req: S3Request<dto::GetBucketLocationInput>,
    ) -> S3Result<S3Response<dto::GetBucketLocationOutput>> {
        self.backend.has_bucket(&req.input.bucket)?;
        answer(dto::GetBucketLocationOutput::default())
    }

    async fn get_bucket_versioning(
        &self,
        req: S3Request<dto::GetBucketVersioningInput>,
    ) -> S3Result<S3Response<dto::GetBucketVersioningOutput>> {
        let versioning = self
            .backend
            .versioning(&req.input.bucket)?
            .unwrap_or_default();
        answer(dto::GetBucketVersioningOutput {
            mfa_delete: None,
            status: versioning.status,
        })
    }

    async fn put_bucket_versioning(
        &self,
        req: S3Request<dto::PutBucketVersioningInput>,
    ) -> S3Result<S3Response<dto::PutBucketVersioningOutput>> {
        self.backend
            .set_versioning(&req.input.bucket, req.input.versioning_configuration)?;
        answer(dto::PutBucketVersioningOutput::default())
    }

    async fn get_bucket_lifecycle_configuration(
        &self,
        req: S3Request<dto::GetBucketLifecycleConfigurationInput>,
    ) -> S3Result<S3Response<dto::GetBucketLifecycleConfigurationOutput>> {
        let rules = self.backend.lifecycle(&req.input.bucket)?;
        let rules = rules.ok_or_else(|| s3_error!(NoSuchLifecycleConfiguration))?;
        answer(dto::GetBucketLifecycleConfigurationOutput {
            rules: Some(rules),
            ..Default::default()
        })
    }

    async fn put_bucket_lifecycle_configuration(
        &self,
        req: S3Request<dto::PutBucketLifecycleConfigurationInput>,
    ) -> S3Result<S3Response<dto::PutBucketLifecycleConfigurationOutput>> {
        let rules = req
            .input
            .lifecycle_configuration
            .map(|configuration| configuration.rules);
        self.backend.set_lifecycle(&req.input.bucket, rules)?;
        answer(dto::PutBucketLifecycleConfigurationOutput::default())
    }

    async fn get_bucket_encryption(
        &self,
        req: S3Request<dto::GetBucketEncryptionInput>,
    ) -> S3Result<S3Response<dto::GetBucketEncryptionOutput>> {
        self.backend.has_bucket(&req.input.bucket)?;
        Err(s3_error!(ServerSideEncryptionConfigurationNotFoundError))
    }

    async fn put_object(
        &self,
        req: S3Request<dto::PutObjectInput>,
    ) -> S3Result<S3Response<dto::PutObjectOutput>> {
        let how = held_so(&req.extensions);
        let input = req.input;
        let expected = expected(input.if_match, input.if_none_match)?;
        let declared = dto::Checksum {
            checksum_crc32: input.checksum_crc32,
            checksum_crc32c: input.checksum_crc32c,
            checksum_crc64nvme: input.checksum_crc64nvme,
            checksum_sha1: input.checksum_sha1,
            checksum_sha256: input.checksum_sha256,
            checksum_type: None,
        };
        let bytes = read_checked(input.body, &declared).await?;
        let content = Content {
            bytes,
            content_type: input.content_type,
            metadata: input.metadata,
            checksum: declared.clone(),
        };
        let object = self
            .write(how, (&input.bucket, &input.key), content, expected)
            .await?;
        answer(dto::PutObjectOutput {
            e_tag: Some(dto::ETag::Strong(object.e_tag.clone())),
            checksum_crc32: declared.checksum_crc32,
            checksum_crc32c: declared.checksum_crc32c,
            checksum_crc64nvme: declared.checksum_crc64nvme,
            checksum_sha1: declared.checksum_sha1,
            checksum_sha256: declared.checksum_sha256,
            ..Default::default()
        })
    }

    async fn get_object(
        &self,
        req: S3Request<dto::GetObjectInput>,
    ) -> S3Result<S3Response<dto::GetObjectOutput>> {
        let input = req.input;
        let object = self.backend.get(&input.bucket, &input.key)?;
        check_read(
            &object,
            input.if_match.as_ref(),
            input.if_none_match.as_ref(),
        )?;
        let whole = &object.content.bytes;
        let (bytes, content_range) = match input.range {
            None => (whole.clone(), None),
            Some(range) => {
                let (bytes, content_range) = slice(whole, range)?;
                (bytes, Some(content_range))
            }
        };
        // A checksum is of the whole object; S3 leaves it out of a range.
        let checksum = if content_range.is_none() {
            object.content.checksum.clone()
        } else {
            Default::default()
        };
        answer(dto::GetObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: i64::try_from(bytes.len()).ok(),
            body: Some(Body::from(bytes).into()),
            content_range,
            content_type: object.content.content_type.clone(),
            metadata: object.content.metadata.clone(),
            e_tag: Some(dto::ETag::Strong(object.e_tag.clone())),
            last_modified: Some(object.modified.into()),
            checksum_crc32: checksum.checksum_crc32,
            checksum_crc32c: checksum.checksum_crc32c,
            checksum_crc64nvme: checksum.checksum_crc64nvme,
            checksum_sha1: checksum.checksum_sha1,
            checksum_sha256: checksum.checksum_sha256,
            ..Default::default()
        })
    }

    async fn head_object(
        &self,
        req: S3Request<dto::HeadObjectInput>,
    ) -> S3Result<S3Response<dto::HeadObjectOutput>> {
        let input = req.input;
        let object = self.backend.get(&input.bucket, &input.key)?;
        check_read(
            &object,
            input.if_match.as_ref(),
            input.if_none_match.as_ref(),
        )?;
        let checksum = object.content.checksum.clone();
        answer(dto::HeadObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: i64::try_from(object.content.bytes.len()).ok(),
            content_type: object.content.content_type.clone(),
            metadata: object.content.metadata.clone(),
            e_tag: Some(dto::ETag::Strong(object.e_tag.clone())),
            last_modified: Some(object.modified.into()),
            checksum_crc32: checksum.checksum_crc32,
            checksum_crc32c: checksum.checksum_crc32c,
            checksum_crc64nvme: checksum.checksum_crc64nvme,
            checksum_sha1: checksum.checksum_sha1,
            checksum_sha256: checksum.checksum_sha256,
            ..Default::default()
        })
    }

    async fn delete_object(
        &self,
        req: S3Request<dto::DeleteObjectInput>,
    ) -> S3Result<S3Response<dto::DeleteObjectOutput>> {
        self.backend.delete(&req.input.bucket, &req.input.key)?;
        answer(dto::DeleteObjectOutput::default())
    }

    async fn delete_objects(
        &self,
        req: S3Request<dto::DeleteObjectsInput>,
    ) -> S3Result<S3Response<dto::DeleteObjectsOutput>> {
        let dto::Delete { objects, quiet } = req.input.delete;
        let mut deleted = Vec::with_capacity(objects.len());
        for object in objects {
            self.backend.delete(&req.input.bucket, &object.key)?;
            deleted.push(dto::DeletedObject {
                key: Some(object.key),
                ..Default::default()
            });
        }
        let deleted = (quiet != Some(true)).then_some(deleted);
        answer(dto::DeleteObjectsOutput {
            deleted,
            ..Default::default()
        })
    }

    async fn list_objects_v2(
        &self,
        req: S3Request<dto::ListObjectsV2Input>,
    ) -> S3Result<S3Response<dto::ListObjectsV2Output>> {
        let is_stale = matches!(fault(&req.extensions), Some(Fault::StaleList));
        let input = req.input;
        let keys_max = input.max_keys.and_then(|keys| usize::try_from(keys).ok());
        let listing = Listing {
            prefix: input.prefix.clone().unwrap_or_default(),
            after: input
                .continuation_token
                .clone()
                .or_else(|| input.start_after.clone()),
            delimiter: input.delimiter.clone(),
            keys_max: keys_max.unwrap_or(PAGE_KEYS_MAX).min(PAGE_KEYS_MAX),
            is_stale,
        };
        let page = self.backend.list(&input.bucket, &listing)?;
        let key_count = page.objects.len() + page.prefixes.len();
        answer(dto::ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: input.prefix,
            delimiter: input.delimiter,
            start_after: input.start_after,
            continuation_token: input.continuation_token,
            max_keys: i32::try_from(listing.keys_max).ok(),
            key_count: i32::try_from(key_count).ok(),
            is_truncated: Some(page.next_after.is_some()),
            next_continuation_token: page.next_after,
            contents: Some(page.objects.into_iter().map(listed).collect()),
            common_prefixes: Some(page.prefixes.into_iter().map(common_prefix).collect()),
            ..Default::default()
        })
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<dto::CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<dto::CreateMultipartUploadOutput>> {
        let dto::CreateMultipartUploadInput {
            bucket,
            key,
            content_type,
            metadata,
            ..
        } = req.input;
        let content = Content {
            content_type,
            metadata,
            ..Default::default()
        };
        let upload = Upload {
            bucket: bucket.clone(),
            key: key.clone(),
            content,
            ..Default::default()
        };
        answer(dto::CreateMultipartUploadOutput {
            upload_id: Some(self.backend.begin_upload(upload)?),
            bucket: Some(bucket),
            key: Some(key),
            ..Default::default()
        })
    }

    async fn upload_part(
        &self,
        req: S3Request<dto::UploadPartInput>,
    ) -> S3Result<S3Response<dto::UploadPartOutput>> {
        let input = req.input;
        let declared = dto::Checksum {
            checksum_crc32: input.checksum_crc32,
            checksum_crc32c: input.checksum_crc32c,
            checksum_crc64nvme: input.checksum_crc64nvme,
            checksum_sha1: input.checksum_sha1,
            checksum_sha256: input.checksum_sha256,
            checksum_type: None,
        };
        let part = read_checked(input.body, &declared).await?;
        let e_tag = self
            .backend
            .put_part(&input.upload_id, input.part_number, part)?;
        answer(dto::UploadPartOutput {
            e_tag: Some(dto::ETag::Strong(e_tag)),
            checksum_crc32: declared.checksum_crc32,
            checksum_crc32c: declared.checksum_crc32c,
            checksum_crc64nvme: declared.checksum_crc64nvme,
            checksum_sha1: declared.checksum_sha1,
            checksum_sha256: declared.checksum_sha256,
            ..Default::default()
        })
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<dto::CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<dto::CompleteMultipartUploadOutput>> {
        let how = held_so(&req.extensions);
        let input = req.input;
        let expected = how.at_write(expected(input.if_match, input.if_none_match)?);
        let named = input
            .multipart_upload
            .and_then(|upload| upload.parts)
            .unwrap_or_default();
        let parts: Vec<_> = named.into_iter().filter_map(named_part).collect();
        let object = self
            .backend
            .complete_upload(&input.upload_id, &parts, &expected)?;
        answer(dto::CompleteMultipartUploadOutput {
            e_tag: Some(dto::ETag::Strong(object.e_tag.clone())),
            bucket: Some(input.bucket),
            key: Some(input.key),
            ..Default::default()
        })
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<dto::AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<dto::AbortMultipartUploadOutput>> {
        self.backend.abort_upload(&req.input.upload_id)?;
        answer(dto::AbortMultipartUploadOutput::default())
    }
}

fn answer<T>(output: T) -> S3Result<S3Response<T>> {
    Ok(S3Response::new(output))
}

fn fault(extensions: &hyper::http::Extensions) -> Option<Fault> {
    extensions.get().copied()
}

fn held_so(extensions: &hyper::http::Extensions) -> Condition {
    match fault(extensions) {
        Some(Fault::Condition(condition)) => condition,
        _ => Condition::Atomic,
    }
}

fn expected(
    if_match: Option<dto::IfMatch>,
    if_none_match: Option<dto::IfNoneMatch>,
) -> S3Result<Expected> {
    match (if_match, if_none_match) {
        (None, None) => Ok(Expected::Anything),
        (None, Some(dto::ETagCondition::Any)) => Ok(Expected::Absent),
        (Some(dto::ETagCondition::ETag(tag)), None) => Ok(Expected::Tag(tag.into_value())),
        _ => Err(s3_error!(NotImplemented, "this combination of conditions")),
    }
}

fn check_read(
    object: &Object,
    if_match: Option<&dto::IfMatch>,
    if_none_match: Option<&dto::IfNoneMatch>,
) -> S3Result<()> {
    let is_it = |condition: &dto::ETagCondition| {
        condition
            .as_etag()
            .is_none_or(|tag| tag.value() == object.e_tag)
    };
    if if_match.is_some_and(|condition| !is_it(condition)) {
        return Err(s3_error!(PreconditionFailed));
    }
    if if_none_match.is_some_and(is_it) {
        return Err(s3_error!(NotModified));
    }
    Ok(())
}

/// Cuts a range out of an object; S3 clamps an end or a suffix that goes too far.
fn slice(whole: &Bytes, range: dto::Range) -> S3Result<(Bytes, String)> {
    let size = whole.len() as u64;
    let (start, end) = match range {
        dto::Range::Int { first, last } => (first, last.map_or(size, |last| last + 1).min(size)),
        dto::Range::Suffix { length } => (size - length.min(size), size),
    };
    if start >= size {
        return Err(s3_error!(InvalidRange));
    }
    let in_memory = |at: u64| usize::try_from(at).map_err(|_| s3_error!(InvalidRange));
    let bytes = whole.slice(in_memory(start)?..in_memory(end)?);
    Ok((bytes, format!("bytes {start}-{}/{size}", end - 1)))
}

/// Reads a body and holds it against every checksum that came with it.
async fn read_checked(
    body: Option<dto::StreamingBlob>,
    declared: &dto::Checksum,
) -> S3Result<Bytes> {
    let bytes = match body {
        None => Bytes::new(),
        Some(body) => read_stream(body).await.map_err(broken_body)?,
    };
    let mut hasher = ChecksumHasher {
        crc32: declared.checksum_crc32.as_ref().map(|_| Default::default()),
        crc32c: declared
            .checksum_crc32c
            .as_ref()
            .map(|_| Default::default()),
        sha1: declared.checksum_sha1.as_ref().map(|_| Default::default()),
        sha256: declared
            .checksum_sha256
            .as_ref()
            .map(|_| Default::default()),
        crc64nvme: declared
            .checksum_crc64nvme
            .as_ref()
            .map(|_| Default::default()),
    };
    hasher.update(&bytes);
    if hasher.finalize() == *declared {
        Ok(bytes)
    } else {
        Err(s3_error!(
            BadDigest,
            "The body does not match the checksum that came with it"
        ))
    }
}

/// The stream's error says why: a wrong payload hash, a bad chunk signature.
fn broken_body(error: StdError) -> S3Error {
    s3_error!(BadDigest, "{error}")
}

fn listed((key, object): (String, Arc<Object>)) -> dto::Object {
    dto::Object {
        key: Some(key),
        size: i64::try_from(object.content.bytes.len()).ok(),
        e_tag: Some(dto::ETag::Strong(object.e_tag.clone())),
        last_modified: Some(object.modified.into()),
        ..Default::default()
    }
}

fn common_prefix(prefix: String) -> dto::CommonPrefix {
    dto::CommonPrefix {
        prefix: Some(prefix),
    }
}

fn named_part(part: dto::CompletedPart) -> Option<(i32, String)> {
    Some((part.part_number?, part.e_tag?.into_value()))
}
