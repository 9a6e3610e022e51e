//! The stores the contract is held against, each promise a test of its own.

use std::{sync::Arc, time::Duration};

use esker_tests::s3::{ACCESS_KEY, S3Server, SECRET_KEY, Verb};
use esker_tiering::store::{S3Credentials, Store, StoreOptions, StoreUrl};
use prometheus::Registry;
use tempfile::TempDir;

use super::contract::{self, promises};
use crate::support::BUCKET;

/// A store, and what it needs to live.
pub(crate) struct Place<T> {
    pub(crate) store: Store,
    pub(crate) home: T,
}

pub(crate) fn options() -> StoreOptions {
    let s3_credentials = Some(S3Credentials {
        access_key_id: ACCESS_KEY.to_owned(),
        secret_access_key: SECRET_KEY.to_owned(),
        session_token: None,
    });
    StoreOptions {
        s3_credentials,
        ..StoreOptions::default()
    }
}

pub(crate) async fn open(url: &str, options: StoreOptions) -> Store {
    let url: StoreUrl = url.parse().unwrap();
    Store::open(&url, options, &Registry::new()).await.unwrap()
}

pub(crate) fn s3_url(endpoint: &str, bucket: &str) -> String {
    format!("s3://{bucket}/a/prefix?endpoint={endpoint}&region=us-east-1")
}

pub(crate) async fn memory() -> Place<()> {
    Place {
        store: open("memory:///", options()).await,
        home: (),
    }
}

pub(crate) async fn directory() -> Place<TempDir> {
    let home = TempDir::new().unwrap();
    let store = open(
        &format!("file://{}/bucket", home.path().display()),
        options(),
    )
    .await;
    Place { store, home }
}

pub(crate) async fn s3() -> Place<Arc<S3Server>> {
    let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
    s3_of(server, options()).await
}

/// What is sent to AWS itself: a CRC, and a payload that is not signed.
pub(crate) async fn s3_as_on_aws() -> Place<Arc<S3Server>> {
    let server = S3Server::builder().bucket(BUCKET).start().await.unwrap();
    let url = format!("{}&checksum=crc64nvme", s3_url(&server.url(), BUCKET));
    Place {
        store: open(&url, options()).await,
        home: Arc::new(server),
    }
}

/// A store that gives up soon, for faults that make it wait.
pub(crate) async fn s3_of(server: S3Server, options: StoreOptions) -> Place<Arc<S3Server>> {
    let store = open(&s3_url(&server.url(), BUCKET), options).await;
    Place {
        store,
        home: Arc::new(server),
    }
}

pub(crate) fn hasty_options() -> StoreOptions {
    StoreOptions {
        request_timeout: Duration::from_millis(500),
        call_timeout: Duration::from_secs(5),
        ..options()
    }
}

macro_rules! hold {
    ($($promise:ident,)*) => {
        mod in_memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                super::contract::$promise(&super::memory().await.store).await;
            })*
        }

        mod in_a_directory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                let place = super::directory().await;
                super::contract::$promise(&place.store).await;
                assert!(place.home.path().exists());
            })*
        }

        mod in_process_s3 {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                let place = super::s3().await;
                super::contract::$promise(&place.store).await;
                let bill = place.home.counts();
                assert_eq!(place.store.requests().total(), bill.total() - bill.of(super::Verb::Bucket));
            })*
        }

        mod in_process_s3_as_on_aws {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                let place = super::s3_as_on_aws().await;
                super::contract::$promise(&place.store).await;
                assert!(place.home.counts().total() > 0);
            })*
        }
    };
}
promises!(hold);
