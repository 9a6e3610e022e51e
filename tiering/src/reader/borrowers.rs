//! Streams whose peers have copied pieces in hand. A piece that a transport has taken comes back only
//! when its peer reads or its connection ends: where others find no room, whoever stands still for
//! longest is ended.

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// A peer that has taken nothing for so long stands still.
pub(super) const STALLED_AFTER: Duration = Duration::from_secs(5);
/// What an ended stream held is there by then: at most one is ended in this time.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// All of them.
#[derive(Clone, Debug)]
pub(super) struct Borrowers(Arc<All>);

#[derive(Debug)]
struct All {
    start: Instant,
    streams: Mutex<Vec<Weak<Stream>>>,
    ended_at: Mutex<Option<Instant>>,
}

/// One stream.
#[derive(Debug)]
pub(super) struct Borrower {
    stream: Arc<Stream>,
    all: Arc<All>,
}

/// Goes with each copied piece of a stream.
#[derive(Debug)]
pub(super) struct Loan(#[expect(dead_code, reason = "held")] Arc<Stream>);

struct Stream {
    /// When its peer last took a piece, in milliseconds since the start.
    took_at: AtomicU64,
    /// Only pieces are left of it.
    is_over: AtomicBool,
    end: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("took_at", &self.took_at)
            .finish_non_exhaustive()
    }
}

impl Default for Borrowers {
    fn default() -> Self {
        Self(Arc::new(All {
            start: Instant::now(),
            streams: Mutex::default(),
            ended_at: Mutex::default(),
        }))
    }
}

impl Borrowers {
    /// Adds a stream that `end` ends. It leaves with its last piece.
    pub(super) fn add(&self, end: Box<dyn Fn() + Send + Sync>) -> Borrower {
        let took_at = AtomicU64::new(self.0.now());
        let stream = Arc::new(Stream {
            took_at,
            is_over: AtomicBool::new(false),
            end,
        });
        let mut streams = self.0.streams.lock();
        // Swept when it would grow, so that it holds at most twice the living.
        if streams.len() == streams.capacity() {
            streams.retain(|stream| stream.strong_count() > 0);
        }
        streams.push(Arc::downgrade(&stream));
        let all = Arc::clone(&self.0);
        Borrower { stream, all }
    }

    /// Ends the stream that has stood still for longest with a piece in hand, if one has for too long.
    pub(super) fn end_stalled(&self) {
        {
            let mut ended_at = self.0.ended_at.lock();
            if ended_at.is_some_and(|at| at.elapsed() < LOOK_INTERVAL) {
                return;
            }
            *ended_at = Some(Instant::now());
        }
        if let Some(stream) = self.longest() {
            (stream.end)();
        }
    }

    fn longest(&self) -> Option<Arc<Stream>> {
        let stalled_after = u64::try_from(STALLED_AFTER.as_millis()).unwrap_or(u64::MAX);
        let before = self.0.now().checked_sub(stalled_after)?;
        let streams = self.0.streams.lock();
        let lent = streams.iter().filter_map(Weak::upgrade);
        lent.filter(Stream::is_lent)
            .map(|stream| (stream.took_at.load(Ordering::Relaxed), stream))
            .filter(|(took_at, _)| *took_at <= before)
            .min_by_key(|(took_at, _)| *took_at)
            .map(|(_, stream)| stream)
    }
}

impl All {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Stream {
    /// Whether its peer has a piece. The stream itself and who asks hold it too.
    fn is_lent(self: &Arc<Self>) -> bool {
        let others = if self.is_over.load(Ordering::Relaxed) {
            1
        } else {
            2
        };
        Arc::strong_count(self) > others
    }
}

impl Borrower {
    /// Goes with a piece.
    pub(super) fn loan(&self) -> Loan {
        Loan(Arc::clone(&self.stream))
    }

    /// Notes that the peer asks for more.
    pub(super) fn touch(&self) {
        self.stream.took_at.store(self.all.now(), Ordering::Relaxed);
    }
}

impl Drop for Borrower {
    fn drop(&mut self) {
        self.stream.is_over.store(true, Ordering::Relaxed);
    }
}
