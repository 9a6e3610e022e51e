//! Promises of the in-flight window: against single answers, and against a model of the agent under
//! random faults.

use std::{collections::HashMap, sync::Arc};

use esker_proto::{
    batch::{Compression, RecordBatch},
    types::{PartitionId, TimestampMs},
};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;
use crate::producer::delivery::{Completion, Promise};

const PRODUCER: (ProducerId, ProducerEpoch) = (ProducerId::new(9), ProducerEpoch::new(0));
const TIMEOUT: Duration = Duration::from_secs(60);

/// A batch of `records` records whose values say which batch it is.
fn filled(name: u32, records: usize, deadline: Instant) -> Filled {
    let mut builder = BatchBuilder::new(Compression::None);
    for _ in 0..records {
        let value = name.to_be_bytes();
        builder
            .push(TimestampMs::new(1), None, Some(&value), &[])
            .unwrap();
    }
    let completion = Arc::new(Completion::new(PartitionId::new(0)));
    Filled {
        builder,
        completion: Promise(completion),
        deadline,
        reserved: 0,
    }
}

fn name_of(bytes: &Bytes) -> u32 {
    let records = RecordBatch::validate(bytes.clone())
        .unwrap()
        .records()
        .unwrap();
    let record = records.iter().next().unwrap().unwrap();
    u32::from_be_bytes(record.value.unwrap().try_into().unwrap())
}

fn refusal(kind: v1::ErrorKind) -> Error {
    Error::from_detail(v1::ErrorDetail {
        kind: kind.into(),
        message: format!("{kind:?}"),
        has_no_side_effects: true,
        is_retryable: kind.is_retryable(),
        retry_after_ms: None,
        leader: None,
        damage_end_offset: None,
        divergent_offset: None,
    })
}

/// A window with `count` batches on their way, the first epoch known to the agent.
fn under_way(count: u32, now: Instant) -> InFlight {
    let mut window = InFlight::new(5, Some(PRODUCER));
    window.push(filled(1000, 1, now + TIMEOUT));
    window.send(Attempt(1000), now).unwrap();
    window
        .on_answer(Attempt(1000), Answer::Written(Offset::ZERO), now)
        .unwrap();
    for name in 0..count {
        window.push(filled(name, 1, now + TIMEOUT));
        assert_eq!(
            name_of(&window.send(Attempt(name.into()), now).unwrap()),
            name
        );
    }
    window
}

fn send_all(window: &mut InFlight, first_attempt: u64, now: Instant) -> Vec<(Attempt, Bytes)> {
    let attempts = (first_attempt..).map(Attempt);
    attempts
        .map_while(|attempt| Some((attempt, window.send(attempt, now)?)))
        .collect()
}

fn stamp_of(bytes: &Bytes) -> (i16, i32) {
    let header = *RecordBatch::validate(bytes.clone()).unwrap().header();
    (header.producer_epoch.get(), header.base_sequence.get())
}

#[tokio::test]
async fn second_batch_waits_until_the_agent_knows_the_producer() {
    let now = Instant::now();
    let mut window = InFlight::new(5, Some(PRODUCER));
    window.push(filled(0, 1, now + TIMEOUT));
    window.send(Attempt(0), now).unwrap();
    assert!(!window.has_room());

    window
        .on_answer(Attempt(0), Answer::Written(Offset::ZERO), now)
        .unwrap();

    assert!(window.has_room());
}

#[tokio::test]
async fn refused_batch_is_sent_again_before_those_behind_it() {
    let now = Instant::now();
    let mut window = under_way(3, now);

    let throttled = Answer::Refused(refusal(v1::ErrorKind::Throttled));
    assert!(window.on_answer(Attempt(0), throttled, now).is_none());
    let later = now + Duration::from_secs(5);
    assert!(
        window.send(Attempt(10), later).is_none(),
        "those behind it are still on their way"
    );
    for attempt in [1, 2] {
        let unordered = Answer::Refused(refusal(v1::ErrorKind::OutOfOrderSequence));
        assert!(window.on_answer(Attempt(attempt), unordered, now).is_none());
    }
    assert!(
        window.send(Attempt(10), now).is_none(),
        "the agent asked for a pause"
    );

    let sent = send_all(&mut window, 10, later);
    let names: Vec<u32> = sent.iter().map(|(_, bytes)| name_of(bytes)).collect();
    assert_eq!(names, [0, 1, 2]);
    let stamps: Vec<_> = sent.iter().map(|(_, bytes)| stamp_of(bytes)).collect();
    assert_eq!(stamps, [(0, 1), (0, 2), (0, 3)], "the same sequences");
}

#[tokio::test]
async fn batches_behind_one_given_up_get_a_new_epoch_once_they_are_certain() {
    let now = Instant::now();
    let mut window = under_way(3, now);

    let corrupt = Answer::Refused(refusal(v1::ErrorKind::CorruptBatch));
    let settled = window.on_answer(Attempt(0), corrupt, now).unwrap();
    assert!(settled.outcome.unwrap_err().has_no_side_effects());
    assert!(
        window.send(Attempt(10), now).is_none(),
        "the others' fate is not certain"
    );
    window.on_broken(&refusal(v1::ErrorKind::ShuttingDown));

    let again = send_all(&mut window, 10, now);
    let stamps: Vec<_> = again.iter().map(|(_, bytes)| stamp_of(bytes)).collect();
    assert_eq!(
        stamps,
        [(0, 2), (0, 3)],
        "an unknown fate is asked for under the old epoch"
    );
    for (attempt, _) in again {
        let unordered = Answer::Refused(refusal(v1::ErrorKind::OutOfOrderSequence));
        assert!(window.on_answer(attempt, unordered, now).is_none());
    }
    let renewed = send_all(&mut window, 20, now);
    let stamps: Vec<_> = renewed.iter().map(|(_, bytes)| stamp_of(bytes)).collect();
    assert_eq!(stamps, [(1, 0), (1, 1)]);
}

#[tokio::test]
async fn batch_behind_a_gap_is_not_sent_over_and_over_while_one_before_it_is_awaited() {
    let now = Instant::now();
    let mut window = under_way(3, now);
    let too_large = Answer::Refused(refusal(v1::ErrorKind::BatchTooLarge));
    window.on_answer(Attempt(1), too_large, now).unwrap();
    let unordered = Answer::Refused(refusal(v1::ErrorKind::OutOfOrderSequence));
    assert!(window.on_answer(Attempt(2), unordered, now).is_none());

    assert!(send_all(&mut window, 10, now).is_empty());

    window
        .on_answer(Attempt(0), Answer::Written(Offset::new(1)), now)
        .unwrap();
    let sent = send_all(&mut window, 20, now);
    assert_eq!(sent.len(), 1);
    assert_eq!(stamp_of(&sent[0].1), (1, 0), "in a new epoch");
}

#[tokio::test]
async fn batch_that_was_on_its_way_when_time_ran_out_has_an_unknown_outcome() {
    let now = Instant::now();
    let mut window = under_way(1, now);
    let settled = window.expire(TIMEOUT, now + TIMEOUT).unwrap();
    let error = settled.outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(!error.has_no_side_effects());
}

#[tokio::test]
async fn batch_that_was_only_ever_refused_surely_is_not_in_the_log_when_time_runs_out() {
    let now = Instant::now();
    let mut window = under_way(1, now);
    let throttled = Answer::Refused(refusal(v1::ErrorKind::Throttled));
    assert!(window.on_answer(Attempt(0), throttled, now).is_none());
    let settled = window.expire(TIMEOUT, now + TIMEOUT).unwrap();
    assert!(settled.outcome.unwrap_err().has_no_side_effects());
}

#[tokio::test]
async fn batch_of_unknown_fate_is_not_renumbered_when_the_agent_forgot_its_producer() {
    let now = Instant::now();
    let mut window = under_way(1, now);
    window.on_broken(&refusal(v1::ErrorKind::ShuttingDown));
    window.send(Attempt(10), now).unwrap();

    let unordered = Answer::Refused(refusal(v1::ErrorKind::OutOfOrderSequence));
    let settled = window.on_answer(Attempt(10), unordered, now).unwrap();

    assert!(!settled.outcome.unwrap_err().has_no_side_effects());
}

/// The agent's side of one partition: what a log with deduplication does.
#[derive(Default)]
struct Model {
    log: Vec<u32>,
    epoch: i16,
    next_sequence: i32,
    /// Sequence and base offset of the last batches.
    recent: VecDeque<(i32, u64)>,
}

impl Model {
    fn append(&mut self, bytes: &Bytes) -> Answer {
        let header = *RecordBatch::validate(bytes.clone()).unwrap().header();
        let (epoch, sequence) = (header.producer_epoch.get(), header.base_sequence.get());
        if epoch < self.epoch {
            return Answer::Refused(refusal(v1::ErrorKind::ProducerFenced));
        }
        if epoch > self.epoch && sequence == 0 {
            (self.epoch, self.next_sequence) = (epoch, 0);
            self.recent.clear();
        }
        let known = self.recent.iter().find(|(known, _)| *known == sequence);
        if let Some((_, offset)) = known.filter(|_| epoch == self.epoch) {
            return Answer::Written(Offset::new(*offset));
        }
        if epoch != self.epoch || sequence != self.next_sequence {
            return Answer::Refused(refusal(v1::ErrorKind::OutOfOrderSequence));
        }
        let offset = self.log.len() as u64;
        self.recent.push_back((sequence, offset));
        self.recent
            .truncate(5.max(self.recent.len().saturating_sub(1)));
        while self.recent.len() > 5 {
            self.recent.pop_front();
        }
        self.next_sequence += i32::try_from(header.record_count).unwrap();
        self.log.push(name_of(bytes));
        Answer::Written(Offset::new(offset))
    }
}

/// One run: random batches, refusals, breaks with late copies, timeouts.
struct Run {
    random: StdRng,
    now: Instant,
    window: InFlight,
    model: Model,
    /// In order, within one connection.
    to_agent: VecDeque<(Attempt, Bytes)>,
    to_client: VecDeque<(Attempt, Answer)>,
    /// Copies that broken connections still hold.
    late: Vec<Bytes>,
    attempts: u64,
    outcomes: HashMap<u32, Result<Offset>>,
}

impl Run {
    fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            now: Instant::now(),
            window: InFlight::new(5, Some(PRODUCER)),
            model: Model::default(),
            to_agent: VecDeque::new(),
            to_client: VecDeque::new(),
            late: Vec::new(),
            attempts: 0,
            outcomes: HashMap::new(),
        }
    }

    fn settle(&mut self, settled: Settled) {
        let name = name_of(&settled.batch.bytes);
        assert!(
            self.outcomes.insert(name, settled.outcome).is_none(),
            "settled twice"
        );
    }

    fn send(&mut self) {
        self.attempts += 1;
        if let Some(bytes) = self.window.send(Attempt(self.attempts), self.now) {
            self.to_agent.push_back((Attempt(self.attempts), bytes));
        }
    }

    fn agent_step(&mut self, is_faulty: bool) {
        let Some((attempt, bytes)) = self.to_agent.pop_front() else {
            return;
        };
        let answer = match self.random.random_range(0..100) {
            0..6 if is_faulty => Answer::Refused(refusal(v1::ErrorKind::Throttled)),
            6..9 if is_faulty => Answer::Refused(refusal(v1::ErrorKind::BatchTooLarge)),
            9..12 if is_faulty => {
                // Written, or not, and the agent does not say which.
                if self.random.random_bool(0.5) {
                    self.model.append(&bytes);
                }
                let detail = v1::ErrorDetail {
                    kind: v1::ErrorKind::TimedOut.into(),
                    is_retryable: true,
                    ..v1::ErrorDetail::default()
                };
                Answer::Refused(Error::from_detail(detail))
            }
            _ => self.model.append(&bytes),
        };
        self.to_client.push_back((attempt, answer));
    }

    fn client_step(&mut self) {
        let Some((attempt, answer)) = self.to_client.pop_front() else {
            return;
        };
        if let Some(settled) = self.window.on_answer(attempt, answer, self.now) {
            self.settle(settled);
        }
    }

    fn break_connection(&mut self) {
        self.late
            .extend(self.to_agent.drain(..).map(|(_, bytes)| bytes));
        self.to_client.clear();
        self.window.on_broken(&refusal(v1::ErrorKind::ShuttingDown));
    }

    fn pass_time(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
        while let Some(settled) = self.window.expire(TIMEOUT, self.now) {
            self.settle(settled);
        }
    }

    fn step(&mut self, next_name: &mut u32) {
        match self.random.random_range(0..100) {
            0..20 if self.window.has_room() => {
                let patience = self.random.random_range(50..4000);
                // Batches are opened one after another: so are their deadlines.
                let deadline = self.now + Duration::from_millis(patience);
                let deadline = self
                    .window
                    .queue
                    .back()
                    .map_or(deadline, |last| deadline.max(last.batch.filled.deadline));
                let records = self.random.random_range(1..4);
                self.window.push(filled(*next_name, records, deadline));
                *next_name += 1;
            }
            20..45 => self.send(),
            45..68 => self.agent_step(true),
            68..90 => self.client_step(),
            90..93 => self.break_connection(),
            93..96 => {
                let count = self.late.len();
                if count > 0 {
                    let bytes = self.late.remove(self.random.random_range(0..count));
                    self.model.append(&bytes);
                }
            }
            _ => {
                let millis = self.random.random_range(1..300);
                self.pass_time(millis);
            }
        }
    }

    /// No more faults: everything must come to an end.
    fn heal(&mut self) {
        for _ in 0..200 {
            self.pass_time(20);
            for _ in 0..6 {
                self.send();
            }
            while !self.to_agent.is_empty() {
                self.agent_step(false);
            }
            while !self.to_client.is_empty() {
                self.client_step();
            }
        }
        assert!(self.window.is_empty(), "something is stuck");
    }

    fn check(&self, names: u32) {
        assert!(
            self.model.log.is_sorted_by(|one, next| one < next),
            "{:?}",
            self.model.log
        );
        for name in 0..names {
            let place = self.model.log.iter().position(|logged| *logged == name);
            match self.outcomes.get(&name).expect("every batch is settled") {
                Ok(offset) => assert_eq!(place, usize::try_from(offset.get()).ok(), "{name}"),
                Err(error) if error.has_no_side_effects() => assert_eq!(place, None, "{name}"),
                Err(_) => {}
            }
        }
    }
}

#[tokio::test]
async fn order_holds_and_nothing_is_doubled_whatever_breaks() {
    let (mut written, mut unknown, mut absent) = (0, 0, 0);
    for seed in 0..3000 {
        let (mut run, mut names) = (Run::new(seed), 0);
        for _ in 0..400 {
            run.step(&mut names);
        }
        run.heal();
        run.check(names);
        for outcome in run.outcomes.values() {
            match outcome {
                Ok(_) => written += 1,
                Err(error) if error.has_no_side_effects() => absent += 1,
                Err(_) => unknown += 1,
            }
        }
    }
    // The faults are not so many, nor so few, that the run proves nothing.
    assert!(
        written > 10_000 && unknown > 1000 && absent > 1000,
        "{written} {unknown} {absent}"
    );
}
