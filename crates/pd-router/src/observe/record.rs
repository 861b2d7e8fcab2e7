//! The record of one request: made when it comes, closed when its last byte has gone or its client has. What
//! happens on the way is kept here and goes to the families once, at the end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, Method, StatusCode, Uri};
use tokio::sync::OwnedSemaphorePermit;

use super::access::Line;
use super::api::ApiMetrics;
use super::engine::EngineMetrics;
use super::failures::{Cause, End, FailedRequest};
use super::meter::{Events, Meter};
use super::phases::{Legs, Phases};
use super::{Observe, code, spans};
use crate::ids::RequestId;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// An engine's good answer reached the client whole.
    Ok,
    /// The client left first.
    ClientClosed,
    /// It could not be served as it was: refused by the router, or by an engine with a status from 400, but
    /// for 408 and 429.
    ClientError,
    /// An engine failed it: none was there, unreachable, silent, a bad answer, 408 or a status from 500, a
    /// broken stream.
    EngineError,
    /// The router failed it.
    RouterError,
    /// Refused for lack of room, by the router or by an engine's 429.
    Shed,
    /// A stream that ended cleanly without its end mark.
    IncompleteStream,
}

impl Outcome {
    /// Every outcome, in the order of the numbers that they are.
    pub const ALL: [Self; 7] = [
        Self::Ok,
        Self::ClientClosed,
        Self::ClientError,
        Self::EngineError,
        Self::RouterError,
        Self::Shed,
        Self::IncompleteStream,
    ];

    /// What an engine's answer of this status, whole at the client, is.
    #[must_use]
    pub fn of_status(status: StatusCode) -> Self {
        match status.as_u16() {
            429 => Self::Shed,
            408 | 500.. => Self::EngineError,
            400.. => Self::ClientError,
            _ => Self::Ok,
        }
    }

    /// The metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ClientClosed => "client_closed",
            Self::ClientError => "client_error",
            Self::EngineError => "engine_error",
            Self::RouterError => "router_error",
            Self::Shed => "shed",
            Self::IncompleteStream => "incomplete_stream",
        }
    }
}

/// One request on its way. Dropped without an outcome, it counts as [`Outcome::ClientClosed`]: dropping is
/// how a request is cancelled.
#[derive(Debug)]
pub struct Record {
    observe: Arc<Observe>,
    api: Arc<ApiMetrics>,
    id: RequestId,
    started: Instant,
    body: Option<(u64, Duration)>,
    queued: Option<Duration>,
    status: Option<u16>,
    outcome: Option<Outcome>,
    cause: Option<Cause>,
    done: Option<Instant>,
    sent_bytes: u64,
    meter: Meter,
    phases: Arc<Phases>,
    slot: Option<OwnedSemaphorePermit>,
}

impl Record {
    /// Opens the record of a request to `api`, a name from the table of APIs; `traced` is what its trace
    /// begins with, where it may have one.
    #[must_use]
    pub fn open(
        observe: &Arc<Observe>,
        api: &'static str,
        id: &RequestId,
        traced: Option<(&Method, &Uri, &HeaderMap)>,
    ) -> Self {
        observe.in_flight.inc();
        let begin = |(method, uri, headers)| Some(observe.tracing.get()?.begin(method, uri, headers));
        let trace = traced.and_then(begin);
        Self {
            api: observe.api(api),
            id: id.clone(),
            observe: Arc::clone(observe),
            started: Instant::now(),
            body: None,
            queued: None,
            status: None,
            outcome: None,
            cause: None,
            done: None,
            sent_bytes: 0,
            meter: Meter::default(),
            phases: Arc::new(Phases::new(trace)),
            slot: None,
        }
    }

    /// The families, for what is counted on the way.
    #[must_use]
    pub fn observe(&self) -> &Observe {
        &self.observe
    }

    /// Where its legs are noted.
    #[must_use]
    pub const fn phases(&self) -> &Arc<Phases> {
        &self.phases
    }

    /// Its body is there.
    pub fn received(&mut self, bytes: usize) {
        self.body = Some((bytes as u64, self.started.elapsed()));
    }

    /// Holds the request's slot, for which it waited so long, to its end.
    pub fn hold(&mut self, slot: OwnedSemaphorePermit, waited: Duration) {
        self.slot = Some(slot);
        self.queued = Some(waited);
    }

    /// The client gets this status.
    pub const fn answered(&mut self, status: u16) {
        self.status = Some(status);
    }

    /// Says how it ended; the first word counts.
    pub fn end(&mut self, outcome: Outcome) {
        if self.outcome.is_none() {
            self.outcome = Some(outcome);
            self.done = Some(Instant::now());
        }
    }

    /// Says why it ended other than well; the first word counts.
    pub fn end_for(&mut self, cause: Cause) {
        if self.outcome.is_none() {
            self.end(cause.outcome);
            self.cause = Some(cause);
        }
    }

    /// A stream of this engine begins.
    pub fn stream(&mut self, engine: &Arc<EngineMetrics>) {
        self.meter.begin(engine);
    }

    /// Bytes of an answer go to the client.
    pub const fn sent(&mut self, bytes: usize) {
        self.sent_bytes += bytes as u64;
    }

    /// A frame of a stream was read from the engine at `now`.
    pub fn frame(&mut self, data: &[u8], events: Events, now: Instant) {
        self.meter.frame(data, events, now);
    }

    /// A part of an answer that is no stream was read.
    pub fn part(&mut self, data: &[u8]) {
        self.meter.part(data);
    }

    fn ended(&self, legs: &Legs) -> Ended {
        let now = Instant::now();
        let outcome = self.outcome.unwrap_or(Outcome::ClientClosed);
        let total = now.saturating_duration_since(self.started);
        let answered = matches!(outcome, Outcome::Ok | Outcome::IncompleteStream | Outcome::ClientError);
        let served = answered && legs.sent > 0;
        let waited = self.body.map(|(_, took)| took).unwrap_or_default() + self.queued.unwrap_or_default();
        let engines = legs.engines_took(self.done.unwrap_or(now));
        let success = self.status.is_some_and(|status| (200..300).contains(&status));
        let usage = if success { self.meter.usage() } else { super::usage::Usage::default() };
        let first_token = self.meter.first_token();
        Ended {
            outcome,
            total,
            added: served.then(|| total.saturating_sub(engines).saturating_sub(waited)),
            first_token: first_token.map(|at| at.saturating_duration_since(self.started)),
            prompt_tokens: usage.prompt.or(legs.prompt_tokens),
            generated_tokens: usage.generated,
        }
    }

    fn count(&mut self, ended: &Ended, legs: &Legs) {
        let (api, observe) = (&self.api, &self.observe);
        if let Some(counter) = api.outcome(ended.outcome) {
            counter.inc();
        }
        observe.codes.count(self.status.unwrap_or(code::NONE));
        let time = |family: &prometheus::Histogram, time: Option<Duration>| {
            if let Some(time) = time {
                family.observe(time.as_secs_f64());
            }
        };
        time(&api.seconds, Some(ended.total));
        time(&api.first_token, ended.first_token);
        time(&api.per_token, self.meter.per_token(ended.generated_tokens));
        time(&observe.queue_wait, self.queued);
        time(&observe.added, ended.added);
        time(&observe.handoff_gap, legs.handoff_gap());
        api.prompt_tokens.inc_by(ended.prompt_tokens.unwrap_or(0));
        api.generated_tokens.inc_by(ended.generated_tokens.unwrap_or(0));
        api.response_bytes.inc_by(self.sent_bytes);
        if let Some((bytes, _)) = self.body {
            #[allow(clippy::cast_precision_loss, reason = "bodies are far below 2^52 bytes")]
            api.request_bytes.observe(bytes as f64);
        }
        let handover = legs.decode.as_ref().and_then(|decode| decode.handover_seconds.as_ref());
        if let (Some(family), Some(from), Some(to)) = (handover, legs.prefilled, self.meter.first_event()) {
            family.observe(to.saturating_duration_since(from).as_secs_f64());
        }
        if let (Some(family), Some(head)) = (api.to_decode_head.get(), legs.decode_head) {
            family.observe(head.saturating_duration_since(self.started).as_secs_f64());
        }
        self.meter.flush();
    }

    fn line(&self, ended: &Ended, legs: &Legs) {
        Line {
            id: self.id.as_str(),
            api: self.api.name,
            prefill: legs.prefill.as_ref().map(|engine| engine.url.as_str()),
            decode: legs.decode.as_ref().map(|engine| engine.url.as_str()),
            status: self.status,
            outcome: ended.outcome.as_str(),
            legs: legs.sent,
            total: ended.total,
            body: self.body.map(|(_, took)| took),
            queue: self.queued,
            prefill_took: legs.prefill_took,
            handoff_gap: legs.handoff_gap(),
            decode_took: legs.decode_took(),
            first_token: ended.first_token,
            added: ended.added,
            prompt_tokens: ended.prompt_tokens,
            generated_tokens: ended.generated_tokens,
            request_bytes: self.body.map(|(bytes, _)| bytes),
            response_bytes: self.sent_bytes,
        }
        .write();
    }
}

impl Record {
    /// Sends the request's spans, if they are wanted.
    fn trace(&self, ended: &Ended, legs: &Legs) {
        let Some(tracing) = self.observe.tracing.get() else { return };
        let now = self.started + ended.total;
        let end = spans::End {
            api: self.api.name,
            id: self.id.as_str(),
            status: self.status,
            outcome: ended.outcome,
            first_token: ended.first_token,
            prompt_tokens: ended.prompt_tokens,
            generated_tokens: ended.generated_tokens,
            done: self.done.unwrap_or(now),
            now,
        };
        let received = self.body.map_or(self.started, |(_, took)| self.started + took);
        let queue = self.queued.map(|queued| (received, received + queued));
        let spans = self.phases.with_trace(|trace| spans::of(trace, legs, queue, &end));
        tracing.send(spans.unwrap_or_default());
    }
}

/// What is known once a request has ended.
struct Ended {
    outcome: Outcome,
    total: Duration,
    added: Option<Duration>,
    first_token: Option<Duration>,
    prompt_tokens: Option<u64>,
    generated_tokens: Option<u64>,
}

impl Drop for Record {
    fn drop(&mut self) {
        let legs = self.phases.take();
        let ended = self.ended(&legs);
        self.count(&ended, &legs);
        if self.observe.access_record() {
            self.line(&ended, &legs);
        }
        self.trace(&ended, &legs);
        let (id, api, status) = (self.id.as_str(), self.api.name, self.status);
        let end = End { id, api, status, outcome: ended.outcome, cause: self.cause.take() };
        if let Some(failed) = FailedRequest::of(end, &legs) {
            self.observe.failures.push(failed);
        }
        // Last: who sees that nothing is in flight sees all of it counted.
        self.observe.in_flight.dec();
    }
}
