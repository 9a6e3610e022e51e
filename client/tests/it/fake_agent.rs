//! An agent in memory, with deduplication as the real one has it, and faults by script.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use esker_proto::{
    batch::RecordBatch,
    error::encode_detail,
    types::{LeaderEpoch, Offset, TopicId},
    v1::{
        self, ErrorKind,
        admin_server::{Admin, AdminServer},
        log_server::{Log, LogServer},
    },
};
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{Notify, mpsc, watch},
    task::JoinSet,
    time::{Duration, sleep},
};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream, wrappers::TcpListenerStream};
use tonic::{Code, Request, Response, Status, Streaming};

/// What goes wrong with one produce request; taken in the order requests arrive.
#[derive(Clone, Debug)]
pub(crate) enum ProduceFault {
    /// Nothing.
    None,
    /// Refused; changes nothing.
    Refuse(v1::ErrorDetail),
    /// Written, and the producer asked to pause for so many milliseconds.
    Throttle(u32),
    /// Written, and the stream broken before the answer.
    WriteAndBreak,
    /// Not written, and the stream broken.
    Break,
    /// Kept, neither written nor answered: see [`FakeAgent::release`].
    Keep,
}

/// What goes wrong with one fetch; taken in the order fetches are opened.
#[derive(Clone, Debug)]
pub(crate) enum FetchFault {
    /// Refused at once.
    Refuse(v1::ErrorDetail),
    /// Broken after so many responses.
    BreakAfter(usize),
    /// Ended without an error after so many responses.
    EndAfter(usize),
    /// Silent after so many responses, for as long as the client listens.
    HangAfter(usize),
    /// One bit of the first response is flipped.
    FlipBit,
    /// The first batch is left out.
    Skip,
}

/// How long a fetch at the end of the log is left without an answer.
const IDLE: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Partition {
    log_start: u64,
    /// How often its end was cut off, each time under a new leader.
    truncations: u32,
    batches: Vec<RecordBatch>,
    /// Batches that are served with a flipped bit.
    damaged: BTreeSet<usize>,
    producers: HashMap<i64, Producer>,
}

#[derive(Default)]
struct Producer {
    epoch: i16,
    next_sequence: i32,
    recent: VecDeque<(i32, u64)>,
}

impl Partition {
    fn end(&self) -> u64 {
        self.batches
            .last()
            .map_or(self.log_start, |batch| batch.header().next_offset().get())
    }

    /// Checks that the record before `next_offset` is of this epoch.
    fn check_read(&self, next_offset: u64, leader_epoch: u32) -> Result<(), v1::ErrorDetail> {
        if next_offset <= self.log_start {
            return Ok(());
        }
        let last = Offset::new(next_offset - 1);
        let mut batches = self.batches.iter().map(RecordBatch::header);
        let found = batches.find(|header| header.offsets().contains(&last));
        if found.is_some_and(|header| header.leader_epoch.get() == leader_epoch) {
            return Ok(());
        }
        let known = self.batches.iter().map(RecordBatch::header);
        let known = known.filter(|header| header.leader_epoch.get() <= leader_epoch);
        Err(v1::ErrorDetail {
            divergent_offset: known.last().map(|header| header.next_offset().get()),
            ..detail(ErrorKind::LogTruncated, "log was truncated")
        })
    }

    fn append(&mut self, bytes: Bytes) -> Result<v1::ProduceAck, v1::ErrorDetail> {
        let batch = RecordBatch::validate(bytes)
            .map_err(|error| detail(ErrorKind::CorruptBatch, &error.to_string()))?;
        let header = *batch.header();
        if header.producer_id.is_some()
            && let Some(base_offset) = self.check(&batch)?
        {
            return Ok(v1::ProduceAck {
                base_offset,
                duplicate: true,
                throttle_ms: 0,
            });
        }
        let base_offset = self.end();
        let epoch = LeaderEpoch::new(1 + self.truncations);
        let (head, body) = batch.stamped(Offset::new(base_offset), epoch);
        let bytes = Bytes::from([&head[..], &body[..]].concat());
        self.batches
            .push(RecordBatch::validate(bytes).expect("stamping keeps a batch valid"));
        Ok(v1::ProduceAck {
            base_offset,
            duplicate: false,
            throttle_ms: 0,
        })
    }

    fn check(&mut self, batch: &RecordBatch) -> Result<Option<u64>, v1::ErrorDetail> {
        let header = batch.header();
        let (epoch, sequence) = (header.producer_epoch.get(), header.base_sequence.get());
        let end = self.end();
        let unordered = || detail(ErrorKind::OutOfOrderSequence, "out of order");
        let known = self.producers.get(&header.producer_id.get());
        if known.is_none() && sequence != 0 {
            return Err(unordered());
        }
        let producer = self.producers.entry(header.producer_id.get()).or_default();
        if epoch < producer.epoch {
            return Err(detail(ErrorKind::ProducerFenced, "fenced"));
        }
        if epoch > producer.epoch {
            if sequence != 0 {
                return Err(unordered());
            }
            *producer = Producer {
                epoch,
                ..Producer::default()
            };
        }
        if let Some((_, offset)) = producer.recent.iter().find(|(known, _)| *known == sequence) {
            return Ok(Some(*offset));
        }
        if sequence != producer.next_sequence {
            return Err(unordered());
        }
        producer.next_sequence += i32::try_from(header.record_count).unwrap();
        producer.recent.push_back((sequence, end));
        if producer.recent.len() > 5 {
            producer.recent.pop_front();
        }
        Ok(None)
    }
}

pub(crate) fn detail(kind: ErrorKind, message: &str) -> v1::ErrorDetail {
    v1::ErrorDetail {
        kind: kind.into(),
        message: message.to_owned(),
        has_no_side_effects: true,
        is_retryable: kind.is_retryable(),
        retry_after_ms: None,
        leader: None,
        damage_end_offset: None,
        divergent_offset: None,
    }
}

fn status(detail: &v1::ErrorDetail) -> Status {
    let code = match detail.kind() {
        ErrorKind::OffsetOutOfRange | ErrorKind::LogTruncated => Code::OutOfRange,
        ErrorKind::UnknownTopic | ErrorKind::UnknownTopicId => Code::NotFound,
        _ => Code::Unavailable,
    };
    Status::with_details(
        code,
        detail.message.clone(),
        encode_detail(code.into(), detail),
    )
}

#[derive(Default)]
struct State {
    topics: Mutex<BTreeMap<String, Vec<Partition>>>,
    changed: Notify,
    produce_faults: Mutex<VecDeque<ProduceFault>>,
    fetch_faults: Mutex<VecDeque<FetchFault>>,
    list_faults: Mutex<VecDeque<v1::ErrorDetail>>,
    offset_faults: Mutex<VecDeque<v1::ErrorDetail>>,
    /// Partitions that are not served, and why.
    offline: Mutex<HashMap<u32, v1::ErrorDetail>>,
    /// What each fetch asked for.
    max_bytes: Mutex<Vec<u32>>,
    kept: Mutex<Vec<v1::ProduceRequest>>,
    producer_ids: AtomicI64,
    /// Largest batch taken; 0: any.
    batch_bytes_max: AtomicU32,
    /// How often topic `t` was created again.
    recreated: AtomicU8,
    /// Batches of one response; 0: one.
    batches_per_response: AtomicUsize,
    /// Appended to partition 0 right after a search by time was answered.
    after_search: Mutex<VecDeque<Bytes>>,
    /// Responses without records.
    idle_answers: watch::Sender<usize>,
    fetches: AtomicUsize,
    leader: Mutex<String>,
    /// Requests received and not answered, most ever.
    unanswered: [AtomicUsize; 2],
}

/// The agent, and a proxy before it whose connections can be cut.
#[derive(Clone)]
pub(crate) struct FakeAgent {
    state: Arc<State>,
    proxy: Arc<Proxy>,
}

struct Proxy {
    address: String,
    /// Whoever still tries a stopped agent must not meet that of another test.
    _reserved: Reserved,
    connections: Mutex<JoinSet<()>>,
    /// Number of connections that were ever opened.
    opened: AtomicUsize,
    tasks: Mutex<JoinSet<()>>,
}

/// An address that refuses connections, and is nobody else's for as long as this lives.
pub(crate) struct Reserved(TcpSocket);

impl Reserved {
    pub(crate) fn new() -> Self {
        Self(Self::bound("127.0.0.1:0".parse().unwrap()))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    /// Takes connections there, until what it returns is dropped.
    fn listen(&self) -> TcpListener {
        Self::bound(self.address()).listen(1024).unwrap()
    }

    fn bound(address: SocketAddr) -> TcpSocket {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(address).unwrap();
        socket
    }
}

impl FakeAgent {
    /// Starts an agent with one topic, `t`.
    pub(crate) async fn start(partitions: usize) -> Self {
        let state = Arc::new(State::default());
        let topic = (0..partitions).map(|_| Partition::default()).collect();
        state.topics.lock().insert("t".to_owned(), topic);
        let inner = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let reserved = Reserved::new();
        let outer = reserved.listen();
        let inner_address = inner.local_addr().unwrap();
        let proxy = Arc::new(Proxy {
            address: reserved.address().to_string(),
            _reserved: reserved,
            connections: Mutex::default(),
            opened: AtomicUsize::default(),
            tasks: Mutex::default(),
        });
        let service = Service(Arc::clone(&state));
        let server = tonic::transport::Server::builder()
            .max_frame_size(1 << 20)
            .add_service(LogServer::new(service.clone()).max_decoding_message_size(64 << 20))
            .add_service(AdminServer::new(service))
            .serve_with_incoming(TcpListenerStream::new(inner));
        let shared = Arc::clone(&proxy);
        let forward = async move {
            while let Ok((mut client, _)) = outer.accept().await {
                shared.opened.fetch_add(1, Ordering::SeqCst);
                shared.connections.lock().spawn(async move {
                    if let Ok(mut agent) = TcpStream::connect(inner_address).await {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut agent).await;
                    }
                });
            }
        };
        proxy.tasks.lock().spawn(forward);
        proxy
            .tasks
            .lock()
            .spawn(async move { server.await.unwrap() });
        Self { state, proxy }
    }

    pub(crate) fn address(&self) -> &str {
        &self.proxy.address
    }

    /// Number of connections that were ever opened.
    pub(crate) fn connections(&self) -> usize {
        self.proxy.opened.load(Ordering::SeqCst)
    }

    /// Cuts every connection.
    pub(crate) fn cut(&self) {
        self.proxy.connections.lock().abort_all();
    }

    /// Cuts every connection and takes no others: whoever tries from now on is refused.
    pub(crate) async fn stop(&self) {
        for tasks in [&self.proxy.tasks, &self.proxy.connections] {
            // Until they have ended the system takes connections for them.
            let mut ended = std::mem::take(&mut *tasks.lock());
            ended.shutdown().await;
        }
    }

    pub(crate) fn on_produce(&self, faults: impl IntoIterator<Item = ProduceFault>) {
        self.state.produce_faults.lock().extend(faults);
    }

    pub(crate) fn on_fetch(&self, faults: impl IntoIterator<Item = FetchFault>) {
        self.state.fetch_faults.lock().extend(faults);
    }

    /// Refuses searches for offsets.
    pub(crate) fn on_list(&self, faults: impl IntoIterator<Item = v1::ErrorDetail>) {
        self.state.list_faults.lock().extend(faults);
    }

    /// Refuses the offset of one partition, in answers that name those of the others.
    pub(crate) fn on_offset(&self, faults: impl IntoIterator<Item = v1::ErrorDetail>) {
        self.state.offset_faults.lock().extend(faults);
    }

    /// Takes a partition offline, or back.
    pub(crate) fn set_offline(&self, partition: u32, reason: Option<v1::ErrorDetail>) {
        let mut offline = self.state.offline.lock();
        match reason {
            Some(reason) => _ = offline.insert(partition, reason),
            None => _ = offline.remove(&partition),
        }
    }

    /// Returns how large the responses may be that each fetch asked for.
    pub(crate) fn max_bytes(&self) -> Vec<u32> {
        self.state.max_bytes.lock().clone()
    }

    /// Says that another agent leads all partitions.
    pub(crate) fn set_leader(&self, address: &str) {
        address.clone_into(&mut self.state.leader.lock());
    }

    /// Deletes topic `t` and creates it again, empty.
    pub(crate) fn recreate(&self) {
        let mut topics = self.state.topics.lock();
        let topic = topics.get_mut("t").unwrap();
        topic.iter_mut().for_each(|at| *at = Partition::default());
        self.state.recreated.fetch_add(1, Ordering::SeqCst);
    }

    /// Serves a batch with a flipped bit.
    pub(crate) fn damage(&self, partition: usize, batch: usize) {
        let mut topics = self.state.topics.lock();
        topics.get_mut("t").unwrap()[partition]
            .damaged
            .insert(batch);
    }

    pub(crate) fn set_batch_bytes_max(&self, bytes: u32) {
        let state = &self.state.batch_bytes_max;
        state.store(bytes, Ordering::SeqCst);
    }

    pub(crate) fn set_batches_per_response(&self, batches: usize) {
        let state = &self.state.batches_per_response;
        state.store(batches, Ordering::SeqCst);
    }

    pub(crate) fn append_after_search(&self, batch: Bytes) {
        self.state.after_search.lock().push_back(batch);
    }

    /// Waits for another answer without records.
    pub(crate) async fn idle_answer(&self) {
        let mut answers = self.state.idle_answers.subscribe();
        answers.changed().await.unwrap();
    }

    pub(crate) fn forget_producers(&self) {
        for partition in self.state.topics.lock().get_mut("t").unwrap() {
            partition.producers.clear();
        }
    }

    pub(crate) fn trim(&self, partition: usize, log_start: u64) {
        let mut topics = self.state.topics.lock();
        let partition = &mut topics.get_mut("t").unwrap()[partition];
        partition.log_start = log_start;
        partition
            .batches
            .retain(|batch| batch.header().next_offset().get() > log_start);
    }

    /// Loses the batches from an offset on. What is appended from now on is another leader's.
    pub(crate) fn truncate(&self, partition: usize, end: u64) {
        let mut topics = self.state.topics.lock();
        let partition = &mut topics.get_mut("t").unwrap()[partition];
        let is_kept = |batch: &RecordBatch| batch.header().next_offset().get() <= end;
        partition.batches.retain(is_kept);
        partition.truncations += 1;
    }

    /// Writes what was kept, late. Returns the answers nobody gets.
    pub(crate) fn release(&self) -> Vec<Result<v1::ProduceAck, v1::ErrorDetail>> {
        let kept = std::mem::take(&mut *self.state.kept.lock());
        kept.into_iter()
            .map(|request| self.state.append(request))
            .collect()
    }

    /// Takes back what was to go wrong with fetches.
    #[cfg(feature = "cli")]
    pub(crate) fn fetch_well(&self) {
        self.state.fetch_faults.lock().clear();
    }

    /// The number that the next producer gets.
    #[cfg(feature = "cli")]
    pub(crate) fn number_producers_from(&self, id: i64) {
        self.state.producer_ids.store(id, Ordering::SeqCst);
    }

    /// Waits until so many requests were kept.
    pub(crate) async fn until_kept(&self, requests: usize) {
        loop {
            let changed = self.state.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if self.state.kept.lock().len() >= requests {
                return;
            }
            changed.await;
        }
    }

    /// Number of requests that were kept.
    #[cfg(feature = "cli")]
    pub(crate) fn kept(&self) -> usize {
        self.state.kept.lock().len()
    }

    /// Most requests that were ever unanswered at one time.
    pub(crate) fn unanswered_max(&self) -> usize {
        self.state.unanswered[1].load(Ordering::SeqCst)
    }

    pub(crate) fn fetches(&self) -> usize {
        self.state.fetches.load(Ordering::SeqCst)
    }

    /// The values of a partition, in its order.
    pub(crate) fn values(&self, partition: usize) -> Vec<String> {
        let topics = self.state.topics.lock();
        let mut values = Vec::new();
        for batch in &topics["t"][partition].batches {
            for record in &batch.records().unwrap() {
                let value = record.unwrap().value.unwrap_or_default().to_vec();
                values.push(String::from_utf8(value).unwrap());
            }
        }
        values
    }

    pub(crate) fn batches(&self, partition: usize) -> usize {
        self.state.topics.lock()["t"][partition].batches.len()
    }
}

impl State {
    fn batch_bytes_max(&self) -> Option<u32> {
        let bytes = self.batch_bytes_max.load(Ordering::SeqCst);
        (bytes > 0).then_some(bytes)
    }

    fn offset_error(&self, partition: u32) -> Option<v1::ErrorDetail> {
        let offline = self.offline.lock().get(&partition).cloned();
        offline.or_else(|| self.offset_faults.lock().pop_front())
    }

    fn topic_id(&self) -> [u8; 16] {
        [self.recreated.load(Ordering::SeqCst); 16]
    }

    fn check_id(&self, topic_id: &[u8]) -> Result<(), v1::ErrorDetail> {
        match topic_id == self.topic_id() {
            true => Ok(()),
            false => Err(detail(ErrorKind::UnknownTopicId, "topic has another id")),
        }
    }

    fn append(&self, request: v1::ProduceRequest) -> Result<v1::ProduceAck, v1::ErrorDetail> {
        self.check_id(&request.topic_id)?;
        if self
            .batch_bytes_max()
            .is_some_and(|max| request.batch.len() > max as usize)
        {
            return Err(detail(ErrorKind::BatchTooLarge, "batch is too large"));
        }
        let mut topics = self.topics.lock();
        let topic = topics.get_mut(&request.topic);
        let topic = topic.ok_or_else(|| detail(ErrorKind::UnknownTopic, "no such topic"))?;
        let acked = topic[request.partition as usize].append(request.batch);
        self.changed.notify_waiters();
        acked
    }
}

#[derive(Clone)]
struct Service(Arc<State>);

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Service {
    /// `Err`: the stream breaks.
    fn produce_one(&self, request: v1::ProduceRequest) -> Result<Option<v1::ProduceResponse>, ()> {
        use v1::produce_response::Result as Answer;
        let request_id = request.request_id;
        let fault = self
            .0
            .produce_faults
            .lock()
            .pop_front()
            .unwrap_or(ProduceFault::None);
        let result = match fault {
            ProduceFault::None => match self.0.append(request) {
                Ok(ack) => Answer::Ack(ack),
                Err(error) => Answer::Error(error),
            },
            ProduceFault::Refuse(error) => Answer::Error(error),
            ProduceFault::Throttle(throttle_ms) => Answer::Ack(v1::ProduceAck {
                throttle_ms,
                ..self.0.append(request).unwrap()
            }),
            ProduceFault::WriteAndBreak => {
                self.0.append(request).unwrap();
                return Err(());
            }
            ProduceFault::Break => return Err(()),
            ProduceFault::Keep => {
                self.0.kept.lock().push(request);
                self.0.changed.notify_waiters();
                return Ok(None);
            }
        };
        Ok(Some(v1::ProduceResponse {
            request_id,
            result: Some(result),
        }))
    }

    async fn produce_all(
        self,
        mut requests: Streaming<v1::ProduceRequest>,
        answers: mpsc::Sender<Result<v1::ProduceResponse, Status>>,
    ) {
        let [now, most] = &self.0.unanswered;
        while let Some(Ok(request)) = requests.next().await {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            // Whatever else has arrived is counted before this one is answered.
            tokio::task::yield_now().await;
            let answer = self.produce_one(request);
            now.fetch_sub(1, Ordering::SeqCst);
            match answer {
                Ok(Some(answer)) => _ = answers.send(Ok(answer)).await,
                Ok(None) => {}
                Err(()) => {
                    _ = answers
                        .send(Err(Status::unavailable("broken by script")))
                        .await;
                    return;
                }
            }
        }
    }

    /// What the log has from the request's offset on; `None` while there is nothing. Like an
    /// agent's, a stream outlives neither its topic nor a truncation: that is why it has to say how
    /// many it knew.
    fn next_response(
        &self,
        request: &v1::FetchRequest,
        truncations: u32,
    ) -> Result<Option<v1::FetchResponse>, Status> {
        let topics = self.0.topics.lock();
        let same = self.0.check_id(&request.topic_id);
        same.map_err(|error| status(&error))?;
        let partition = &topics[&request.topic][request.partition as usize];
        if partition.truncations != truncations {
            return Err(Status::unavailable("another leader serves this log"));
        }
        let batches = partition.batches.iter().enumerate();
        let from = batches
            .skip_while(|(_, batch)| batch.header().next_offset().get() <= request.offset)
            .take(self.0.batches_per_response.load(Ordering::SeqCst).max(1));
        let (mut bytes, mut next_offset) = (Vec::new(), None);
        for (index, batch) in from {
            bytes.extend_from_slice(batch.bytes());
            if partition.damaged.contains(&index) {
                *bytes.last_mut().unwrap() ^= 1;
            }
            next_offset = Some(batch.header().next_offset().get());
        }
        Ok(next_offset.map(|next_offset| v1::FetchResponse {
            batches: bytes.into(),
            next_offset,
            high_watermark: partition.end(),
            log_start_offset: partition.log_start,
            source: v1::FetchSource::Tail.into(),
            ..v1::FetchResponse::default()
        }))
    }

    fn idle_response(&self, request: &v1::FetchRequest) -> v1::FetchResponse {
        let topics = self.0.topics.lock();
        let partition = &topics[&request.topic][request.partition as usize];
        v1::FetchResponse {
            next_offset: request.offset,
            high_watermark: partition.end(),
            log_start_offset: partition.log_start,
            ..v1::FetchResponse::default()
        }
    }

    fn in_range(&self, request: &v1::FetchRequest) -> Result<(), Status> {
        let topics = self.0.topics.lock();
        let partition = &topics[&request.topic][request.partition as usize];
        match (partition.log_start..=partition.end()).contains(&request.offset) {
            true => Ok(()),
            false => Err(status(&detail(
                ErrorKind::OffsetOutOfRange,
                "offset out of range",
            ))),
        }
    }

    /// Checks that the log still has what the reader has read. Returns how often it was truncated.
    fn was_read(&self, request: &v1::FetchRequest) -> Result<u32, Status> {
        let topics = self.0.topics.lock();
        let partition = &topics[&request.topic][request.partition as usize];
        if let Some(epoch) = request.leader_epoch {
            let checked = partition.check_read(request.offset, epoch);
            checked.map_err(|error| status(&error))?;
        }
        Ok(partition.truncations)
    }

    async fn fetch_all(
        self,
        mut request: v1::FetchRequest,
        truncations: u32,
        fault: Option<FetchFault>,
        responses: mpsc::Sender<Result<v1::FetchResponse, Status>>,
    ) {
        for count in 0.. {
            match fault {
                Some(FetchFault::BreakAfter(max)) if max == count => {
                    _ = responses
                        .send(Err(Status::unavailable("broken by script")))
                        .await;
                    return;
                }
                Some(FetchFault::EndAfter(max)) if max == count => return,
                Some(FetchFault::HangAfter(max)) if max == count => {
                    responses.closed().await;
                    return;
                }
                _ => {}
            }
            let changed = self.0.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if request.end_offset.is_some_and(|end| request.offset >= end) {
                return;
            }
            let response = match self.next_response(&request, truncations) {
                Ok(response) => response,
                Err(gone) => {
                    _ = responses.send(Err(gone)).await;
                    return;
                }
            };
            let Some(mut response) = response else {
                tokio::select! {
                    () = changed => continue,
                    () = responses.closed() => return,
                    () = sleep(IDLE) => {}
                }
                let idle = self.idle_response(&request);
                if responses.send(Ok(idle)).await.is_err() {
                    return;
                }
                self.0.idle_answers.send_modify(|answers| *answers += 1);
                continue;
            };
            request.offset = response.next_offset;
            match (&fault, count) {
                (Some(FetchFault::Skip), 0) => continue,
                (Some(FetchFault::FlipBit), 0) => {
                    let mut bytes = response.batches.to_vec();
                    *bytes.last_mut().unwrap() ^= 1;
                    response.batches = bytes.into();
                }
                _ => {}
            }
            if responses.send(Ok(response)).await.is_err() {
                return;
            }
        }
    }
}

#[tonic::async_trait]
impl Log for Service {
    type ProduceStream = Responses<v1::ProduceResponse>;
    type FetchStream = Responses<v1::FetchResponse>;

    #[expect(clippy::disallowed_methods, reason = "tests have no task set")]
    async fn produce(
        &self,
        request: Request<Streaming<v1::ProduceRequest>>,
    ) -> Result<Response<Self::ProduceStream>, Status> {
        let (answers, stream) = mpsc::channel(16);
        tokio::spawn(self.clone().produce_all(request.into_inner(), answers));
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    #[expect(clippy::disallowed_methods, reason = "tests have no task set")]
    async fn fetch(
        &self,
        request: Request<v1::FetchRequest>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        self.0.fetches.fetch_add(1, Ordering::SeqCst);
        self.0.max_bytes.lock().push(request.get_ref().max_bytes);
        let fault = self.0.fetch_faults.lock().pop_front();
        if let Some(FetchFault::Refuse(error)) = &fault {
            return Err(status(error));
        }
        if let Some(reason) = self.0.offline.lock().get(&request.get_ref().partition) {
            return Err(status(reason));
        }
        let topic_id = &request.get_ref().topic_id;
        self.0.check_id(topic_id).map_err(|error| status(&error))?;
        let truncations = self.was_read(request.get_ref())?;
        self.in_range(request.get_ref())?;
        let (responses, stream) = mpsc::channel(1);
        tokio::spawn(
            self.clone()
                .fetch_all(request.into_inner(), truncations, fault, responses),
        );
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn list_offsets(
        &self,
        request: Request<v1::ListOffsetsRequest>,
    ) -> Result<Response<v1::ListOffsetsResponse>, Status> {
        use v1::list_offsets_request::Position;
        let request = request.into_inner();
        if let Some(error) = self.0.list_faults.lock().pop_front() {
            return Err(status(&error));
        }
        let checked = self.0.check_id(&request.topic_id);
        checked.map_err(|error| status(&error))?;
        let topics = self.0.topics.lock();
        let offset = |partition: &Partition| match request.position.unwrap() {
            Position::Earliest(_) => Some(partition.log_start),
            Position::Latest(_) => Some(partition.end()),
            Position::TimestampMs(at) => partition.batches.iter().find_map(|batch| {
                let records = batch.records().unwrap();
                let mut records = records.iter().map(Result::unwrap);
                let first = records.find(|record| record.timestamp.get() >= at)?;
                Some(first.offset.get())
            }),
        };
        let offsets = topics[&request.topic]
            .iter()
            .enumerate()
            .filter_map(|(index, partition)| {
                let index = u32::try_from(index).unwrap();
                let is_wanted =
                    request.partitions.is_empty() || request.partitions.contains(&index);
                is_wanted.then(|| v1::PartitionOffset {
                    partition: index,
                    offset: offset(partition),
                    timestamp_ms: None,
                    error: self.0.offset_error(index),
                })
            });
        let offsets = offsets.collect();
        drop(topics);
        if matches!(request.position, Some(Position::TimestampMs(_)))
            && let Some(batch) = self.0.after_search.lock().pop_front()
        {
            let mut topics = self.0.topics.lock();
            topics.get_mut("t").unwrap()[0].append(batch).unwrap();
        }
        Ok(Response::new(v1::ListOffsetsResponse { offsets }))
    }

    async fn init_producer(
        &self,
        _: Request<v1::InitProducerRequest>,
    ) -> Result<Response<v1::InitProducerResponse>, Status> {
        let producer_id = self.0.producer_ids.fetch_add(1, Ordering::SeqCst);
        Ok(Response::new(v1::InitProducerResponse {
            producer_id,
            producer_epoch: 0,
        }))
    }

    async fn append(
        &self,
        _: Request<v1::AppendRequest>,
    ) -> Result<Response<v1::AppendResponse>, Status> {
        Err(Status::unimplemented("not in the fake"))
    }
}

/// Calls that no test makes, as `async_trait` would write them.
macro_rules! unimplemented_calls {
    ($($name:ident($request:ident) -> $response:ident;)*) => {$(
        fn $name<'this, 'call>(
            &'this self,
            _: Request<v1::$request>,
        ) -> Pin<Box<dyn Future<Output = Result<Response<v1::$response>, Status>> + Send + 'call>>
        where
            'this: 'call,
            Self: 'call,
        {
            Box::pin(async { Err(Status::unimplemented("not in the fake")) })
        }
    )*};
}

#[tonic::async_trait]
impl Admin for Service {
    async fn describe_topic(
        &self,
        request: Request<v1::DescribeTopicRequest>,
    ) -> Result<Response<v1::DescribeTopicResponse>, Status> {
        let topics = self.0.topics.lock();
        let Some(partitions) = topics.get(&request.get_ref().name) else {
            return Err(status(&detail(ErrorKind::UnknownTopic, "no such topic")));
        };
        let leader = self.0.leader.lock().clone();
        let partitions = (0..partitions.len()).map(|partition| v1::PartitionDescription {
            partition: u32::try_from(partition).unwrap(),
            leader: leader.clone(),
            ..v1::PartitionDescription::default()
        });
        Ok(Response::new(v1::DescribeTopicResponse {
            topic: Some(v1::TopicSummary {
                topic_id: TopicId::from_bytes(self.0.topic_id()).to_string(),
                settings: Some(v1::TopicSettings {
                    batch_bytes_max: self.0.batch_bytes_max(),
                    ..v1::TopicSettings::default()
                }),
                ..v1::TopicSummary::default()
            }),
            partitions: partitions.collect(),
        }))
    }

    unimplemented_calls! {
        create_topic(CreateTopicRequest) -> CreateTopicResponse;
        delete_topic(DeleteTopicRequest) -> DeleteTopicResponse;
        alter_topic(AlterTopicRequest) -> AlterTopicResponse;
        list_topics(ListTopicsRequest) -> ListTopicsResponse;
        trim_partition(TrimPartitionRequest) -> TrimPartitionResponse;
        seal_topic(SealTopicRequest) -> SealTopicResponse;
        describe_cluster(DescribeClusterRequest) -> DescribeClusterResponse;
    }
}
