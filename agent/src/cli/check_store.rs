//! `esker-agent check-store`: the conformance probe, for people and scripts.

use std::{process::ExitCode, time::Duration};

use esker_tiering::{
    env::RandomIds,
    probe::check_store,
    store::{Store, StoreOptions},
};
use prometheus::Registry;

use super::failed;
use crate::{config::Settings, start_error::StartError};

/// An unreachable store is reported within this time.
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) async fn run(settings: Settings) -> ExitCode {
    match check(settings).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

async fn check(settings: Settings) -> Result<(), StartError> {
    let Some(url) = &settings.store else {
        return Err(StartError::NoStore);
    };
    let store = Store::open(url, StoreOptions::default(), &Registry::new()).await?;
    let report = check_store(&store, &RandomIds, PROBE_TIMEOUT).await;
    print!("{report}");
    if report.is_fit() {
        Ok(())
    } else {
        Err(StartError::Unfit(report))
    }
}
