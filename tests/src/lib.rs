//! Harness for the integration tests and benches: S3 servers that misbehave on request, and agents
//! that can be killed.

pub mod agent;
pub mod s3;
