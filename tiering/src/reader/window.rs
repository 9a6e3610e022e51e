//! How many chunks a reader has fetched ahead of it.
//!
//! The window starts at one chunk and doubles whenever the reader had to wait for a chunk, that is
//! when it is faster than the window. It stops at what keeps the fastest reader busy at the store's
//! latency: fetches beyond that only wait for each other, and push each other out of the
//! processor's caches. It shrinks by one when the reader has not waited for long, and by half when a
//! chunk fetched ahead was gone again before it was read.

use std::time::Duration;

/// No reader takes more, since no stream carries more: bytes in a second.
const PACE_MAX: u64 = 3_000_000_000;
/// Windows' worth of chunks without a wait before it shrinks.
const CALM_WINDOWS: usize = 8;

/// Chunks in a row that a reader finished undisturbed before it asks for larger ones again.
const CALM_CHUNKS: u32 = 8;

/// How large a reader's chunks are: as small as one index entry once it lost the rest of one to
/// others that needed the memory, and larger again by and by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkSize {
    pub(super) max_bytes: u64,
    calm: u32,
}

impl ChunkSize {
    pub(super) const fn new() -> Self {
        Self {
            max_bytes: u64::MAX,
            calm: 0,
        }
    }

    pub(super) const fn on_loss(&mut self) {
        self.max_bytes = 0;
        self.calm = 0;
    }

    /// Notes a chunk of `bytes` that was read to its end.
    pub(super) fn on_finished(&mut self, bytes: u64) {
        self.calm += 1;
        if self.calm > CALM_CHUNKS {
            self.calm = 0;
            self.max_bytes = self.max_bytes.max(bytes).saturating_mul(2);
        }
    }
}

/// What happened to the chunk a reader moved on to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It was there.
    Ready,
    /// It was on its way, or had not been asked for.
    Late,
    /// It had been fetched ahead and evicted before it was read.
    Lost,
}

/// The window of one reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    chunks: usize,
    /// Chunks in a row that were ready.
    calm: usize,
    /// The least time a fetch took of late.
    latency: Option<Duration>,
}

impl Window {
    pub(super) const fn new() -> Self {
        Self {
            chunks: 1,
            calm: 0,
            latency: None,
        }
    }

    /// Notes how long a fetch took.
    pub(super) fn on_fetch(&mut self, took: Duration) {
        // The least of them, for any of them may have waited; it rises by and by, should the store
        // become slower.
        let least = self.latency.map_or(took, |least| least + least / 64);
        self.latency = Some(least.min(took));
    }

    /// Notes how the next chunk in order arrived, and returns how many chunks of `chunk_bytes` after
    /// it to have under way. `share` is the reader's fair share; it may change from call to call.
    pub(super) fn on_chunk(&mut self, arrival: Arrival, chunk_bytes: u64, share: usize) -> usize {
        match arrival {
            Arrival::Ready => self.on_ready(),
            Arrival::Late => self.chunks = self.chunks.saturating_mul(2),
            Arrival::Lost => self.chunks /= 2,
        }
        if arrival != Arrival::Ready {
            self.calm = 0;
        }
        self.chunks = self
            .chunks
            .clamp(1, share.min(self.useful(chunk_bytes)).max(1));
        self.chunks.min(share)
    }

    const fn on_ready(&mut self) {
        self.calm += 1;
        if self.calm > self.chunks * CALM_WINDOWS {
            self.calm = 0;
            self.chunks -= 1;
        }
    }

    /// Chunks that pass at the highest pace while one is fetched, and one more.
    fn useful(&self, chunk_bytes: u64) -> usize {
        let Some(latency) = self.latency else {
            return 1;
        };
        let bytes = u128::from(PACE_MAX) * latency.as_nanos() / 1_000_000_000;
        let chunks = bytes.div_ceil(u128::from(chunk_bytes.max(1)));
        usize::try_from(chunks)
            .unwrap_or(usize::MAX)
            .saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK_BYTES: u64 = 4 << 20;

    fn window_at(latency: Duration) -> Window {
        let mut window = Window::new();
        window.on_fetch(latency);
        window
    }

    #[test]
    fn the_window_doubles_while_the_reader_waits_and_stops_at_its_share() {
        let mut window = window_at(Duration::from_millis(50));

        let late = |_| window.on_chunk(Arrival::Late, CHUNK_BYTES, 12);
        let sizes: Vec<_> = (0..5).map(late).collect();

        assert_eq!(sizes, [2, 4, 8, 12, 12]);
    }

    #[test]
    fn a_fast_store_needs_no_large_window() {
        let mut window = window_at(Duration::from_millis(1));
        window.on_fetch(Duration::from_millis(90)); // waited for the others

        let late = |_| window.on_chunk(Arrival::Late, CHUNK_BYTES, 16);
        let sizes: Vec<_> = (0..5).map(late).collect();

        assert_eq!(sizes, [2; 5]);
    }

    #[test]
    fn a_store_that_becomes_slow_gets_a_larger_window_by_and_by() {
        let mut window = window_at(Duration::from_millis(1));
        for _ in 0..300 {
            window.on_fetch(Duration::from_millis(50));
        }

        let late = |_| window.on_chunk(Arrival::Late, CHUNK_BYTES, 16);
        assert_eq!((0..5).map(late).max(), Some(16));
    }

    #[test]
    fn a_reader_that_finds_its_chunks_ready_gives_back_what_it_does_not_need() {
        let mut window = window_at(Duration::from_millis(50));
        window.on_chunk(Arrival::Late, CHUNK_BYTES, 8);

        assert_eq!(window.on_chunk(Arrival::Ready, CHUNK_BYTES, 8), 2);
        let calm = |_| window.on_chunk(Arrival::Ready, CHUNK_BYTES, 8);
        let sizes: Vec<_> = (0..100).map(calm).collect();

        assert_eq!(sizes.first(), Some(&2));
        assert_eq!(sizes.last(), Some(&1));
    }

    #[test]
    fn the_window_shrinks_with_the_share_and_with_waste() {
        let mut window = window_at(Duration::from_millis(50));
        window.on_chunk(Arrival::Late, CHUNK_BYTES, 8);
        window.on_chunk(Arrival::Late, CHUNK_BYTES, 8);

        assert_eq!(window.on_chunk(Arrival::Ready, CHUNK_BYTES, 3), 3);
        assert_eq!(window.on_chunk(Arrival::Lost, CHUNK_BYTES, 3), 1);
        assert_eq!(window.on_chunk(Arrival::Lost, CHUNK_BYTES, 3), 1);
        assert_eq!(window.on_chunk(Arrival::Late, CHUNK_BYTES, 0), 0);
    }
}
