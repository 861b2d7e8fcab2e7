//! Which engines a request went to and how long each leg took: written by the legs, read when the request
//! ends, also where its client left in the middle.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::HeaderValue;
use parking_lot::Mutex;

use super::engine::EngineMetrics;
use super::failures::LegFailure;
use super::trace::Trace;
use crate::ids::Leg;

/// The legs of one request so far. The request's record and its work share it.
#[derive(Debug, Default)]
pub struct Phases {
    legs: Mutex<Legs>,
    trace: Option<Mutex<Trace>>,
}

/// What is known of the legs; where a leg was tried several times, of the last try.
#[derive(Clone, Debug, Default)]
pub struct Legs {
    /// The prefill engine.
    pub prefill: Option<Arc<EngineMetrics>>,
    /// The decode engine, or the one of a path that needs no handoff.
    pub decode: Option<Arc<EngineMetrics>>,
    /// Prefill request to its whole answer.
    pub prefill_took: Option<Duration>,
    /// When that answer was there.
    pub prefilled: Option<Instant>,
    /// When the decode request was handed to its connection.
    pub decode_sent: Option<Instant>,
    /// When the head of decode's answer was there.
    pub decode_head: Option<Instant>,
    /// What engines took in legs that ended: those that failed too, the decode leg in progress not.
    pub engine_time: Duration,
    /// Tokens of the prompt, as the prefill answer says.
    pub prompt_tokens: Option<u64>,
    /// Legs sent.
    pub sent: u32,
    /// The leg that failed last, if one did.
    pub failed: Option<Box<LegFailure>>,
}

impl Phases {
    /// Those of a request whose trace is wanted, if it is.
    pub(super) fn new(trace: Option<Trace>) -> Self {
        Self { legs: Mutex::default(), trace: trace.map(Mutex::new) }
    }

    /// A leg goes to an engine; what the engine is to be told as `traceparent`, where traces are wanted.
    #[must_use]
    pub fn begin(&self, leg: Leg, engine: &Arc<EngineMetrics>) -> Option<HeaderValue> {
        self.note(leg, engine);
        self.with_trace(|trace| trace.part(leg.as_str(), Some(engine), Instant::now()))
    }

    fn note(&self, leg: Leg, engine: &Arc<EngineMetrics>) {
        let mut legs = self.legs.lock();
        legs.sent += 1;
        if let (Some(sent), Some(_)) = (legs.decode_sent.take(), legs.decode_head.take()) {
            // An answer that was given up.
            legs.engine_time += sent.elapsed();
        }
        match leg {
            Leg::Prefill => {
                legs.prefill = Some(Arc::clone(engine));
                (legs.prefill_took, legs.prefilled, legs.decode) = (None, None, None);
            }
            Leg::Decode | Leg::OneHop => legs.decode = Some(Arc::clone(engine)),
        }
    }

    /// The prefill leg ended at `now`, `answered` or not; `sent` is when its request was handed to the connection.
    pub fn prefilled(&self, sent: Option<Instant>, now: Instant, answered: bool, prompt_tokens: Option<u64>) {
        self.ended(Leg::Prefill, now, !answered);
        let mut legs = self.legs.lock();
        let took = sent.map(|sent| now.saturating_duration_since(sent));
        legs.engine_time += took.unwrap_or_default();
        legs.prompt_tokens = prompt_tokens.or(legs.prompt_tokens);
        if answered {
            (legs.prefill_took, legs.prefilled) = (took, Some(now));
        }
    }

    /// The head of a decode answer is there at `now`, or the leg failed.
    pub fn answered(&self, leg: Leg, sent: Option<Instant>, now: Instant, answered: bool) {
        let mut legs = self.legs.lock();
        if answered {
            (legs.decode_sent, legs.decode_head) = (sent, Some(now));
        } else {
            self.ended(leg, now, true);
            legs.engine_time += sent.map(|sent| now.saturating_duration_since(sent)).unwrap_or_default();
        }
    }

    /// A leg failed at the engine that has it.
    pub fn failed(&self, leg: Leg, reason: String, detail: Option<String>) {
        let mut legs = self.legs.lock();
        let engine = legs.engine(leg).map(|engine| engine.url.clone());
        legs.failed = Some(Box::new(LegFailure { leg, engine, reason, detail }));
    }

    /// Chooses engines, as a part of the request.
    pub fn planned<T>(&self, plan: impl FnOnce() -> T) -> T {
        self.with_trace(|trace| trace.part("plan", None, Instant::now()));
        let planned = plan();
        self.with_trace(|trace| trace.end("plan", Instant::now(), false));
        planned
    }

    /// Takes the request's model, a JSON string.
    pub fn model(&self, text: Option<&[u8]>) {
        if let Some(text) = text {
            self.with_trace(|trace| trace.model(text));
        }
    }

    fn ended(&self, leg: Leg, now: Instant, failed: bool) {
        self.with_trace(|trace| trace.end(leg.as_str(), now, failed));
    }

    /// What is known now.
    #[must_use]
    pub fn legs(&self) -> Legs {
        self.legs.lock().clone()
    }

    pub(super) fn take(&self) -> Legs {
        std::mem::take(&mut *self.legs.lock())
    }

    pub(super) fn with_trace<T>(&self, read: impl FnOnce(&mut Trace) -> T) -> Option<T> {
        Some(read(&mut self.trace.as_ref()?.lock()))
    }
}

impl Legs {
    /// The engine that has, or had last, this leg.
    #[must_use]
    pub fn engine(&self, leg: Leg) -> Option<&Arc<EngineMetrics>> {
        match leg {
            Leg::Prefill => self.prefill.as_ref(),
            Leg::Decode | Leg::OneHop => self.decode.as_ref(),
        }
    }

    /// Prefill answer to decode request.
    #[must_use]
    pub fn handoff_gap(&self) -> Option<Duration> {
        Some(self.decode_sent?.saturating_duration_since(self.prefilled?))
    }

    /// Decode request to the head of its answer.
    #[must_use]
    pub fn decode_took(&self) -> Option<Duration> {
        Some(self.decode_head?.saturating_duration_since(self.decode_sent?))
    }

    /// What engines took of a request whose answer had come whole at `done`.
    #[must_use]
    pub fn engines_took(&self, done: Instant) -> Duration {
        let decode = self.decode_sent.map(|sent| done.saturating_duration_since(sent));
        self.engine_time + decode.unwrap_or_default()
    }
}
