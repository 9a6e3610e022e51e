//! Whether the agent is alive, and whether it serves: gRPC health and HTTP ask the same place.

use std::sync::Arc;

use tokio::sync::watch;

/// How far the agent has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Recovering; not serving yet.
    Starting,
    /// Serving.
    Serving,
    /// Uploading its tail before it goes.
    Draining,
    /// Another agent has taken over.
    Fenced,
}

impl Phase {
    /// The word for it in answers.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Serving => "serving",
            Self::Draining => "draining",
            Self::Fenced => "fenced",
        }
    }
}

/// The agent's phase. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Health(Arc<watch::Sender<Phase>>);

impl Health {
    /// Starts in [`Phase::Starting`].
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Phase::Starting)))
    }

    /// Enters a phase.
    pub(crate) fn enter(&self, phase: Phase) {
        self.0.send_replace(phase);
    }

    /// Returns the phase.
    pub(crate) fn phase(&self) -> Phase {
        *self.0.borrow()
    }

    /// Follows the phase.
    pub(crate) fn watch(&self) -> watch::Receiver<Phase> {
        self.0.subscribe()
    }
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}
