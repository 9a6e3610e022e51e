//! How many chunks a reader has fetched ahead of it.
//!
//! The window starts at one chunk and doubles whenever the reader had to wait for a chunk, that is
//! when it is faster than the window; so it settles at what the store's latency and the reader's
//! pace ask for. A chunk fetched ahead that was gone again before it was read halves it.

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
}

impl Window {
    pub(super) const fn new() -> Self {
        Self { chunks: 1 }
    }

    /// Notes how the next chunk in order arrived, and returns how many chunks after it to have
    /// under way. `cap` is the reader's fair share; it may change from call to call.
    pub(super) fn on_chunk(&mut self, arrival: Arrival, cap: usize) -> usize {
        self.chunks = match arrival {
            Arrival::Ready => self.chunks,
            Arrival::Late => self.chunks.saturating_mul(2),
            Arrival::Lost => self.chunks / 2,
        };
        self.chunks = self.chunks.clamp(1, cap.max(1));
        self.chunks.min(cap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_doubles_while_the_reader_waits_and_stops_at_its_share() {
        let mut window = Window::new();

        let sizes: Vec<_> = (0..5).map(|_| window.on_chunk(Arrival::Late, 12)).collect();

        assert_eq!(sizes, [2, 4, 8, 12, 12]);
    }

    #[test]
    fn a_reader_that_finds_its_chunks_ready_keeps_its_window() {
        let mut window = Window::new();
        window.on_chunk(Arrival::Late, 8);

        assert_eq!(window.on_chunk(Arrival::Ready, 8), 2);
    }

    #[test]
    fn the_window_shrinks_with_the_share_and_with_waste() {
        let mut window = Window::new();
        window.on_chunk(Arrival::Late, 8);
        window.on_chunk(Arrival::Late, 8);

        assert_eq!(window.on_chunk(Arrival::Ready, 3), 3);
        assert_eq!(window.on_chunk(Arrival::Lost, 3), 1);
        assert_eq!(window.on_chunk(Arrival::Lost, 3), 1);
        assert_eq!(window.on_chunk(Arrival::Late, 0), 0);
    }
}
