//! Carries out what the rules say about a request, around the S3 service.

use std::{fmt, sync::Arc};

use bytes::{Bytes, BytesMut};
use hyper::{
    Request, StatusCode,
    body::Incoming,
    header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue},
    http::request::Parts,
};
use parking_lot::Mutex;
use s3s::{Body, HttpRequest, HttpResponse, service::S3Service};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    body::{BrokenBody, read_request, read_stream},
    counts::Counters,
    fault::{ELSEWHERE, Fault, Release, Status},
    permission::Permission,
    request::{Asked, Verb},
    rule::{Rules, Verdict},
};

/// Requests held for [`Release::OnCall`]; one more is applied at once.
const LATE_REQUESTS_MAX: usize = 1024;

/// Says of a permission whether it is granted.
type Policy = dyn Fn(&Permission) -> bool + Send + Sync;

/// The connection is closed without an answer.
#[derive(Debug)]
pub(super) struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("closed by rule")
    }
}

impl std::error::Error for Closed {}

/// A request read whole, so that it can be applied twice, later, or not at all.
#[derive(Clone, Debug)]
struct Whole {
    parts: Parts,
    body: Bytes,
}

impl From<Whole> for HttpRequest {
    fn from(whole: Whole) -> Self {
        Self::from_parts(whole.parts, Body::from(whole.body))
    }
}

/// The S3 service with faults in front.
pub(super) struct Injector {
    pub(super) inner: S3Service,
    pub(super) rules: Mutex<Rules>,
    pub(super) counters: Counters,
    /// Without one everything is granted.
    pub(super) policy: Mutex<Option<Arc<Policy>>>,
    late: Mutex<Vec<Whole>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl fmt::Debug for Injector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Injector")
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

impl Injector {
    pub(super) fn new(
        inner: S3Service,
        rules: Rules,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        Self {
            inner,
            rules: Mutex::new(rules),
            counters: Counters::default(),
            policy: Mutex::new(None),
            late: Mutex::new(Vec::new()),
            tasks,
            stop,
        }
    }

    /// Answers one request as the rules have it.
    pub(super) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<HttpResponse, Closed> {
        let (parts, incoming) = request.into_parts();
        let asked = Asked::read(&parts);
        self.counters.received(asked.verb);
        let Verdict { delay, fault } = self.rules.lock().judge(&asked);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if let Some(Fault::Reset { after_bytes }) = fault
            && asked.verb != Verb::Get
        {
            // Whether the bytes came or the client left first, the connection ends here.
            let _ = read_request(incoming, Some(after_bytes)).await;
            return Err(Closed);
        }
        // Read before any answer: else hyper closes the connection under a client still writing.
        let body = read_request(incoming, None).await.map_err(|_| Closed)?;
        if !self.allows(&asked, &parts, &body) {
            self.counters.refused();
            return Ok(refusal(Status::Forbidden));
        }
        self.perform(asked.verb, Whole { parts, body }, fault).await
    }

    async fn perform(
        &self,
        verb: Verb,
        mut whole: Whole,
        fault: Option<Fault>,
    ) -> Result<HttpResponse, Closed> {
        let Some(fault) = fault else {
            return self.apply(whole).await;
        };
        tracing::debug!(%verb, uri = %whole.parts.uri, ?fault, "fault");
        match fault {
            Fault::Delay(_) => self.apply(whole).await,
            Fault::Hang => {
                self.stop.cancelled().await;
                Err(Closed)
            }
            Fault::Drop => Err(Closed),
            Fault::Answer(status) => Ok(refusal(status)),
            Fault::ReplyLost => {
                self.apply(whole).await?;
                Err(Closed)
            }
            Fault::AppliedThen(status) => {
                self.apply(whole).await?;
                Ok(refusal(status))
            }
            Fault::LateApply(release) => {
                self.hold(whole, release).await;
                Err(Closed)
            }
            Fault::AppliedTwice => {
                self.apply(whole.clone()).await?;
                self.apply(whole).await
            }
            Fault::Reset { after_bytes } => {
                let break_off = |body: &Bytes| Body::http_body(BrokenBody::new(body, after_bytes));
                self.apply_and_spoil(whole, break_off).await
            }
            Fault::Truncate { to_bytes } => {
                let cut = |body: &Bytes| Body::from(body.slice(..to_bytes.min(body.len())));
                self.apply_and_spoil(whole, cut).await
            }
            Fault::BitFlip if verb == Verb::Get => {
                self.apply_and_spoil(whole, |body| Body::from(self.flip_bit(body)))
                    .await
            }
            Fault::BitFlip => {
                whole.body = self.flip_bit(&whole.body);
                self.apply(whole).await
            }
            Fault::StaleList | Fault::Condition(_) => {
                whole.parts.extensions.insert(fault);
                self.apply(whole).await
            }
            Fault::OkWithError => Ok(error_answer(StatusCode::OK, "InternalError", "")),
        }
    }

    /// Applies every request held for [`Release::OnCall`], and returns how many there were.
    pub(super) async fn release_late(&self) -> usize {
        let late = std::mem::take(&mut *self.late.lock());
        let count = late.len();
        for whole in late {
            // Nobody is left to hear the answer.
            let _ = self.apply(whole).await;
        }
        count
    }

    async fn apply(&self, whole: Whole) -> Result<HttpResponse, Closed> {
        self.inner.call(whole.into()).await.map_err(|_| Closed)
    }

    async fn apply_and_spoil(
        &self,
        whole: Whole,
        spoil: impl FnOnce(&Bytes) -> Body,
    ) -> Result<HttpResponse, Closed> {
        let (mut parts, body) = self.apply(whole).await?.into_parts();
        let body = spoil(&read_stream(body).await.map_err(|_| Closed)?);
        let size = hyper::body::Body::size_hint(&body)
            .exact()
            .unwrap_or_default();
        parts
            .headers
            .insert(CONTENT_LENGTH, HeaderValue::from(size));
        Ok(HttpResponse::from_parts(parts, body))
    }

    async fn hold(&self, whole: Whole, release: Release) {
        match release {
            Release::After(delay) => self.apply_after(delay, whole),
            Release::OnCall if self.late.lock().len() >= LATE_REQUESTS_MAX => {
                let _ = self.apply(whole).await;
            }
            Release::OnCall => self.late.lock().push(whole),
        }
    }

    fn apply_after(&self, delay: std::time::Duration, whole: Whole) {
        let (inner, stop) = (self.inner.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(delay) => { let _ = inner.call(whole.into()).await; }
            }
        });
    }

    fn allows(&self, asked: &Asked, parts: &Parts, body: &[u8]) -> bool {
        let Some(grants) = self.policy.lock().clone() else {
            return true;
        };
        // Each is asked for, also behind one that is denied.
        let wanted = Permission::wanted(asked, parts, body);
        wanted.iter().filter(|wanted| !grants(wanted)).count() == 0
    }

    fn flip_bit(&self, body: &Bytes) -> Bytes {
        if body.is_empty() {
            return body.clone();
        }
        let bit = self.rules.lock().draw_below(body.len() * 8);
        let mut flipped = BytesMut::from(&body[..]);
        flipped[bit / 8] ^= 1 << (bit % 8);
        flipped.freeze()
    }
}

fn refusal(status: Status) -> HttpResponse {
    let code = StatusCode::from_u16(status.code()).unwrap_or_default();
    let mut response = match status {
        Status::WrongRegion => error_answer(code, status.name(), &element("Region", ELSEWHERE)),
        _ => error_answer(code, status.name(), ""),
    };
    if status == Status::Redirect {
        let region = HeaderValue::from_static(ELSEWHERE);
        response.headers_mut().insert("x-amz-bucket-region", region);
    }
    response
}

fn element(name: &str, text: &str) -> String {
    format!("<{name}>{text}</{name}>")
}

fn error_answer(status: StatusCode, code: &str, more: &str) -> HttpResponse {
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <Error><Code>{code}</Code><Message>by rule</Message>{more}</Error>"
    );
    let mut response = HttpResponse::new(Body::from(body));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}
