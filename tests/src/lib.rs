//! Harness for the integration tests and benches: S3 servers that misbehave on request.

pub mod s3;
