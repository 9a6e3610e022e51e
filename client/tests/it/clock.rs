//! Time that passes at once, so that no test depends on how fast it runs.

use std::time::Duration;

/// How much time passes between two looks at what is awaited.
const STEP: Duration = Duration::from_millis(100);

/// Lets so much time pass at once.
pub(crate) async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Waits for something while time passes in steps, between which everybody comes to work.
pub(crate) async fn while_time_passes<T>(awaited: impl Future<Output = T>) -> T {
    let passing = async {
        loop {
            pass(STEP).await;
        }
    };
    tokio::select! {
        outcome = awaited => outcome,
        () = passing => unreachable!("time never ends"),
    }
}
