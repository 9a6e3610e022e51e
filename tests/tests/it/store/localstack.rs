//! The contract on LocalStack, where a Docker daemon and the image are at hand.
//!
//! `tests/localstack/build-image.sh` builds the image. Without it the suite says that it was
//! skipped, and why; with `ESKER_REQUIRE_LOCALSTACK=1` it fails instead.

use std::{
    io::Write,
    process::{Command, Stdio},
    time::Duration,
};

use testcontainers_modules::{
    localstack::LocalStack,
    testcontainers::{ContainerAsync, ImageExt, runners::AsyncRunner},
};

use super::{
    contract::{self, promises},
    places::{Place, open, options, s3_url},
};
use crate::support::{BUCKET, ask};

/// The newest version that needs no account.
const TAG: &str = "4.13.1";
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Starts LocalStack with an empty bucket in it, or says why it cannot.
pub(crate) async fn start() -> Result<Place<ContainerAsync<LocalStack>>, String> {
    let image = format!("localstack/localstack:{TAG}");
    if !docker(&["version"])? {
        return Err("no Docker daemon answers".to_owned());
    }
    if !docker(&["image", "inspect", &image])? {
        return Err(format!(
            "no image {image}: run tests/localstack/build-image.sh"
        ));
    }
    let starting = LocalStack::default()
        .with_tag(TAG)
        .with_startup_timeout(START_TIMEOUT)
        .start();
    let home = starting.await.map_err(|error| error.to_string())?;
    let host = home.get_host().await.map_err(|error| error.to_string())?;
    let port = home
        .get_host_port_ipv4(4566)
        .await
        .map_err(|error| error.to_string())?;
    let endpoint = format!("http://{host}:{port}");
    let created = ask(&endpoint, "PUT", &format!("/{BUCKET}")).await;
    if !created.starts_with("HTTP/1.1 200") {
        return Err(format!("cannot create a bucket: {created}"));
    }
    Ok(Place {
        store: open(&s3_url(&endpoint, BUCKET), options()).await,
        home,
    })
}

/// Starts LocalStack; or says so, unless it was required.
pub(crate) async fn start_or_skip(suite: &str) -> Option<Place<ContainerAsync<LocalStack>>> {
    let reason = match start().await {
        Ok(place) => return Some(place),
        Err(reason) => reason,
    };
    assert!(
        std::env::var_os("ESKER_REQUIRE_LOCALSTACK").is_none_or(|required| required != "1"),
        "{suite} on LocalStack is required: {reason}"
    );
    // Not by a print macro: the test harness hides what passing tests print.
    writeln!(
        std::io::stderr().lock(),
        "skipped: {suite} on LocalStack: {reason}"
    )
    .unwrap();
    None
}

fn docker(arguments: &[&str]) -> Result<bool, String> {
    let mut command = Command::new("docker");
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let status = command
        .status()
        .map_err(|error| format!("docker cannot be run: {error}"))?;
    Ok(status.success())
}

macro_rules! hold_all {
    ($($promise:ident,)*) => {
        /// One test for all, since they share a container.
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn localstack_keeps_the_store_contract() {
            let Some(place) = start_or_skip("store suite").await else { return };
            $(
                println!("{}", stringify!($promise));
                contract::$promise(&place.store).await;
            )*
            place.home.rm().await.unwrap();
        }
    };
}
promises!(hold_all);
