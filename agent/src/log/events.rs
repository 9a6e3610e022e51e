//! What the pool tells a log's owner.

use esker_proto::types::Offset;
use tokio::sync::watch;

use super::{error::Error, pool::Progress};

/// Something that happened to a log.
#[derive(Clone, Debug)]
pub enum LogEvent {
    /// Everything below is flushed, and readers see it.
    Flushed {
        /// Offset after the last flushed record.
        log_end_offset: Offset,
    },
    /// A file cannot be created since something has run out. What is queued is tried again, and the
    /// log should be given no more meanwhile.
    Short(Error),
    /// What had run out is there again.
    Resumed,
    /// A write, an fsync or a checkpoint failed. The log takes no more, and what was not flushed
    /// before may or may not be in it when it is opened again.
    Failed(Error),
}

/// The events of one log, the newest of each kind: an owner that is slow sees fewer, and no queue
/// grows.
#[derive(Debug)]
pub struct LogEvents {
    progress: watch::Receiver<Progress>,
    reported_offset: Offset,
    is_short: bool,
    has_ended: bool,
}

impl LogEvents {
    pub(super) fn new(mut progress: watch::Receiver<Progress>) -> Self {
        let reported_offset = progress.borrow_and_update().flushed_offset;
        Self {
            progress,
            reported_offset,
            is_short: false,
            has_ended: false,
        }
    }

    /// Waits for the next event. Never returns again after a failure, or when the log is gone.
    ///
    /// Cancel-safe: nothing is lost by dropping the future.
    pub async fn next(&mut self) -> LogEvent {
        while !self.has_ended {
            if let Some(event) = self.take() {
                return event;
            }
            // Once the log is gone nothing changes any more, and the last state was taken above.
            self.has_ended = self.progress.changed().await.is_err();
        }
        std::future::pending().await
    }

    fn take(&mut self) -> Option<LogEvent> {
        let progress = self.progress.borrow_and_update().clone();
        // What was flushed before a failure is flushed: say so first.
        if progress.flushed_offset != self.reported_offset {
            self.reported_offset = progress.flushed_offset;
            return Some(LogEvent::Flushed {
                log_end_offset: progress.flushed_offset,
            });
        }
        if let Some(failure) = progress.failure {
            self.has_ended = true;
            return Some(LogEvent::Failed(failure));
        }
        let is_news = progress.shortage.is_some() != self.is_short;
        self.is_short = progress.shortage.is_some();
        is_news.then(|| progress.shortage.map_or(LogEvent::Resumed, LogEvent::Short))
    }
}
