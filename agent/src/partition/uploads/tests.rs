use super::*;

struct Outage {
    uploads: Uploads,
    sealed_in: watch::Sender<Sealed>,
    sealed: watch::Receiver<Sealed>,
    others: watch::Sender<u64>,
}

impl Outage {
    /// A bucket that failed so often that the wait is at its longest.
    fn after_many_failures() -> Self {
        let (others, others_out) = watch::channel(0);
        let (sealed_in, sealed) = watch::channel(Sealed::default());
        let mut uploads = Uploads::new(others_out);
        (0..12).for_each(|_| {
            let _wait = uploads.failed(&outage(), false);
        });
        Self {
            uploads,
            sealed_in,
            sealed,
            others,
        }
    }

    /// How long it takes until the next try, by a clock that stands still while anything runs.
    async fn wait(&mut self) -> Duration {
        let start = Instant::now();
        assert!(self.uploads.due(&mut self.sealed).await);
        start.elapsed()
    }
}

fn outage() -> Error {
    Error::Timeout {
        operation: "put",
        key: String::new(),
        waited: Duration::ZERO,
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_early_once_somebody_waits_for_the_upload() {
    let mut outage = Outage::after_many_failures();
    outage
        .sealed_in
        .send_modify(|sealed| sealed.is_awaited = true);
    assert!(outage.wait().await <= SHORT_WAIT);
    assert!(outage.uploads.failed(&self::outage(), true) <= SHORT_WAIT);
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_early_once_another_partition_succeeds() {
    let mut outage = Outage::after_many_failures();
    outage.others.send_modify(|count| *count += 1);
    assert!(outage.wait().await <= SHORT_WAIT);

    // A success before the failure says nothing of what comes after it.
    outage.others.send_modify(|count| *count += 1);
    outage.uploads.failed(&self::outage(), false);
    assert!(outage.wait().await > SHORT_WAIT);
}

#[tokio::test(start_paused = true)]
async fn a_fault_of_its_own_waits_its_turn_whatever_the_others_do() {
    let mut outage = Outage::after_many_failures();
    outage
        .uploads
        .failed(&Error::corrupt("file", "damaged"), false);
    outage.others.send_modify(|count| *count += 1);
    assert!(outage.wait().await > SHORT_WAIT);
}

#[tokio::test(start_paused = true)]
async fn what_is_sealed_during_an_outage_starts_no_try_of_its_own() {
    let mut outage = Outage::after_many_failures();
    outage.sealed_in.send_modify(|_| {});
    assert!(outage.wait().await > SHORT_WAIT);
}
