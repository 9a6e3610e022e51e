//! Decides when the high watermark moves, and which acknowledgements are due. Does no I/O and
//! reads no clock.
//!
//! Batches are `appended`, then `flushed` at the leader, then `committed`: flushed at every in-sync
//! replica. With one replica the last two are the same.

use std::collections::VecDeque;

use esker_proto::types::{AgentId, Offset};

/// How far a batch must have come before its producer is told so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// Flushed at the leader.
    Leader,
    /// Flushed at every in-sync replica.
    All,
}

/// Something that happened to the partition's replicas.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// Everything below is on the leader's disk.
    Flushed(Offset),
    /// Everything below is on an in-sync follower's disk.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "followers come with replication")
    )]
    Replicated {
        agent_id: AgentId,
        log_end_offset: Offset,
    },
}

/// The leader's view of one partition; `T` is what waits for an acknowledgement.
#[derive(Debug)]
pub(crate) struct LeaderEngine<T> {
    flushed_offset: Offset,
    high_watermark: Offset,
    /// In-sync followers, each with what it has flushed.
    in_sync: Vec<(AgentId, Offset)>,
    awaiting_leader: VecDeque<(Offset, T)>,
    awaiting_all: VecDeque<(Offset, T)>,
}

impl<T> LeaderEngine<T> {
    /// Starts at a log end below which everything is committed.
    pub(crate) fn new(in_sync: impl IntoIterator<Item = AgentId>, log_end_offset: Offset) -> Self {
        Self {
            flushed_offset: log_end_offset,
            high_watermark: log_end_offset,
            in_sync: in_sync
                .into_iter()
                .map(|agent_id| (agent_id, log_end_offset))
                .collect(),
            awaiting_leader: VecDeque::new(),
            awaiting_all: VecDeque::new(),
        }
    }

    /// Everything below it is visible to consumers.
    pub(crate) const fn high_watermark(&self) -> Offset {
        self.high_watermark
    }

    /// Has `waiter` wait until the log below `next_offset` has come as far as `acks` asks.
    ///
    /// The caller goes on in offset order, and asks [`LeaderEngine::due`] afterwards: what is
    /// awaited may be there already.
    pub(crate) fn await_ack(&mut self, acks: Acks, next_offset: Offset, waiter: T) {
        match acks {
            Acks::Leader => self.awaiting_leader.push_back((next_offset, waiter)),
            Acks::All => self.awaiting_all.push_back((next_offset, waiter)),
        }
    }

    /// Applies one event.
    pub(crate) fn on_event(&mut self, event: Event) {
        match event {
            Event::Flushed(offset) => self.flushed_offset = self.flushed_offset.max(offset),
            Event::Replicated {
                agent_id,
                log_end_offset,
            } => {
                if let Some((_, end)) = self.in_sync.iter_mut().find(|(id, _)| *id == agent_id) {
                    *end = log_end_offset.max(*end);
                }
            }
        }
        let followers = self.in_sync.iter().map(|(_, end)| *end).min();
        let committed = followers.map_or(self.flushed_offset, |end| end.min(self.flushed_offset));
        self.high_watermark = self.high_watermark.max(committed);
    }

    /// Takes the next waiter whose acknowledgement is due; those of one kind in offset order.
    pub(crate) fn due(&mut self) -> Option<T> {
        take_below(&mut self.awaiting_leader, self.flushed_offset)
            .or_else(|| take_below(&mut self.awaiting_all, self.high_watermark))
    }

    /// Takes every waiter: the log takes no more.
    pub(crate) fn abandon(&mut self) -> impl Iterator<Item = T> {
        let leader = std::mem::take(&mut self.awaiting_leader);
        leader
            .into_iter()
            .chain(std::mem::take(&mut self.awaiting_all))
            .map(|(_, waiter)| waiter)
    }
}

fn take_below<T>(waiters: &mut VecDeque<(Offset, T)>, reached: Offset) -> Option<T> {
    let (_, waiter) = waiters.pop_front_if(|(next_offset, _)| *next_offset <= reached)?;
    Some(waiter)
}

#[cfg(test)]
mod tests {
    use esker_proto::types::AgentId;
    use uuid::Uuid;

    use super::*;

    const fn at(offset: u64) -> Offset {
        Offset::new(offset)
    }

    fn due(engine: &mut LeaderEngine<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| engine.due()).collect()
    }

    #[test]
    fn one_replica_commits_what_it_has_flushed() {
        let mut engine = LeaderEngine::new([], at(10));
        engine.await_ack(Acks::All, at(15), "a");
        engine.await_ack(Acks::All, at(20), "b");
        assert!(due(&mut engine).is_empty());

        engine.on_event(Event::Flushed(at(15)));
        assert_eq!(due(&mut engine), ["a"]);

        engine.on_event(Event::Flushed(at(20)));
        assert_eq!(due(&mut engine), ["b"]);
        assert_eq!(engine.high_watermark(), at(20));
    }

    #[test]
    fn all_acks_wait_for_the_slowest_in_sync_replica() {
        let [one, two] = [1, 2].map(|n| AgentId::new(Uuid::from_u128(n)));
        let mut engine = LeaderEngine::new([one, two], at(0));
        engine.await_ack(Acks::All, at(9), "all");
        engine.await_ack(Acks::Leader, at(9), "leader");

        engine.on_event(Event::Flushed(at(9)));
        assert_eq!(due(&mut engine), ["leader"]);
        engine.on_event(Event::Replicated {
            agent_id: one,
            log_end_offset: at(9),
        });
        engine.on_event(Event::Replicated {
            agent_id: two,
            log_end_offset: at(8),
        });
        assert!(due(&mut engine).is_empty());
        assert_eq!(engine.high_watermark(), at(8));

        engine.on_event(Event::Replicated {
            agent_id: two,
            log_end_offset: at(9),
        });
        assert_eq!(due(&mut engine), ["all"]);
    }

    #[test]
    fn the_high_watermark_never_falls() {
        let mut engine: LeaderEngine<()> = LeaderEngine::new([], at(10));
        engine.on_event(Event::Flushed(at(3)));
        assert_eq!(engine.high_watermark(), at(10));
    }

    #[test]
    fn what_is_already_there_is_due_at_once() {
        let mut engine = LeaderEngine::new([], at(10));
        engine.await_ack(Acks::All, at(10), "duplicate");
        assert_eq!(due(&mut engine), ["duplicate"]);
    }
}
