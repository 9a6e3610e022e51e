//! Clients for the servers under test.

use std::time::Duration;

use esker_tests::s3::{ACCESS_KEY, S3Server, SECRET_KEY};
use object_store::{
    ClientOptions, Error, ObjectStore, PutMode, PutOptions, PutResult, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, Checksum},
    path::Path,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

pub(crate) const BUCKET: &str = "esker-test";

pub(crate) async fn server() -> S3Server {
    S3Server::builder().bucket(BUCKET).start().await.unwrap()
}

pub(crate) fn builder(url: &str) -> AmazonS3Builder {
    let retries = RetryConfig {
        max_retries: 0,
        ..RetryConfig::default()
    };
    AmazonS3Builder::new()
        .with_endpoint(url)
        .with_allow_http(true)
        .with_bucket_name(BUCKET)
        .with_region("us-east-1")
        .with_access_key_id(ACCESS_KEY)
        .with_secret_access_key(SECRET_KEY)
        .with_checksum_algorithm(Checksum::SHA256)
        .with_retry(retries)
}

/// A client that never tries twice.
pub(crate) fn client(server: &S3Server) -> AmazonS3 {
    builder(&server.url()).build().unwrap()
}

/// One that gives up soon.
pub(crate) fn hasty_client(server: &S3Server) -> AmazonS3 {
    let options = ClientOptions::new()
        .with_timeout(Duration::from_millis(300))
        .with_allow_http(true);
    builder(&server.url())
        .with_client_options(options)
        .build()
        .unwrap()
}

pub(crate) async fn create(
    store: &dyn ObjectStore,
    key: &str,
    body: &[u8],
) -> Result<PutResult, Error> {
    let options = PutOptions {
        mode: PutMode::Create,
        ..PutOptions::default()
    };
    store
        .put_opts(&Path::from(key), body.to_vec().into(), options)
        .await
}

/// Asks without a client library and without a signature, and returns the whole answer.
pub(crate) async fn ask(url: &str, method: &str, target: &str) -> String {
    let host = url.trim_start_matches("http://");
    let mut socket = TcpStream::connect(host).await.unwrap();
    let request = format!(
        "{method} {target} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    answer
}
