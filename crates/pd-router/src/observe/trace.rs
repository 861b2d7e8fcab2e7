//! The trace of one request: which spans it has, noted on the way; nothing of it exists unless traces are
//! wanted. `spans.rs` makes of it what goes to the collector.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, Uri};
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceState};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};

use super::engine::EngineMetrics;

/// The header of W3C Trace Context that names a trace and the span above.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Spans of one request. A request has about six; each try adds up to three.
const SPANS_MAX: usize = 64;

/// Characters that a client's words (its path, its model) may have in an attribute.
const WORDS_MAX: usize = 256;

/// One request's trace.
#[derive(Debug)]
pub(super) struct Trace {
    /// Its own span.
    pub(super) context: SpanContext,
    /// The client's span; invalid where the client sent none.
    pub(super) parent: SpanId,
    /// Wall clock and timer at its start.
    pub(super) start: (SystemTime, Instant),
    /// The method.
    pub(super) method: Method,
    /// The path, shortened.
    pub(super) path: String,
    /// The model that the client asked for, shortened.
    pub(super) model: Option<String>,
    /// Its parts so far, in the order in which they began.
    pub(super) parts: Vec<Part>,
}

/// A span below the request's.
#[derive(Debug)]
pub(super) struct Part {
    /// `queue`, `plan`, `prefill`, …
    pub(super) name: &'static str,
    /// Its own id, as an engine is told it.
    pub(super) id: SpanId,
    /// Of a leg, where it went.
    pub(super) engine: Option<Arc<EngineMetrics>>,
    /// When it began.
    pub(super) start: Instant,
    /// When it ended; with the request where nothing else is said.
    pub(super) end: Option<Instant>,
    /// Whether it failed.
    pub(super) failed: bool,
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

impl Trace {
    /// Continues the client's trace, or begins one; `sampled` decides for those that the client did not.
    pub(super) fn begin(
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        sampled: impl FnOnce() -> bool,
    ) -> Self {
        let above = TraceContextPropagator::new().extract(&Headers(headers));
        let above = above.span().span_context().clone();
        let ids = RandomIdGenerator::default();
        let (trace_id, flags, state) = if above.is_valid() {
            (above.trace_id(), above.trace_flags(), above.trace_state().clone())
        } else {
            let flags = TraceFlags::default().with_sampled(sampled());
            (ids.new_trace_id(), flags, TraceState::NONE)
        };
        Self {
            context: SpanContext::new(trace_id, ids.new_span_id(), flags, false, state),
            parent: above.span_id(),
            start: (SystemTime::now(), Instant::now()),
            method: method.clone(),
            path: shortened(uri.path()),
            model: None,
            parts: Vec::new(),
        }
    }

    /// Notes the model, a JSON string.
    pub(super) fn model(&mut self, text: &[u8]) {
        self.model = serde_json::from_slice::<String>(text).ok().map(|model| shortened(&model));
    }

    /// A part begins at `start`; what the next engine is to be told of it.
    pub(super) fn part(
        &mut self,
        name: &'static str,
        engine: Option<&Arc<EngineMetrics>>,
        start: Instant,
    ) -> HeaderValue {
        let id = RandomIdGenerator::default().new_span_id();
        if self.context.is_sampled() && self.parts.len() < SPANS_MAX {
            let engine = engine.map(Arc::clone);
            self.parts.push(Part { name, id, engine, start, end: None, failed: false });
        }
        let (trace, flags) = (self.context.trace_id(), self.context.trace_flags().to_u8());
        HeaderValue::from_str(&format!("00-{trace}-{id}-{flags:02x}"))
            .unwrap_or_else(|_| HeaderValue::from_static(""))
    }

    /// The newest part of this name ended.
    pub(super) fn end(&mut self, name: &'static str, end: Instant, failed: bool) {
        let part = self.parts.iter_mut().rev().find(|part| part.name == name && part.end.is_none());
        if let Some(part) = part {
            (part.end, part.failed) = (Some(end), failed);
        }
    }
}

fn shortened(words: &str) -> String {
    words.chars().take(WORDS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(traceparent: &'static str) -> Trace {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, HeaderValue::from_static(traceparent));
        Trace::begin(&Method::POST, &Uri::from_static("/v1/completions"), &headers, || false)
    }

    #[test]
    fn the_clients_trace_and_its_choice_go_on() {
        for flags in ["01", "00"] {
            let parent: &'static str =
                format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}").leak();
            let mut trace = trace(parent);
            let told = trace.part("prefill", None, Instant::now());
            let told: Vec<_> = told.to_str().unwrap().split('-').collect();
            assert_eq!((told[0], told[1], told[3]), ("00", "0af7651916cd43dd8448eb211c80319c", flags));
            assert_ne!(told[2], "b7ad6b7169203331");
            assert_eq!(trace.parent.to_string(), "b7ad6b7169203331");
            assert_eq!(trace.parts.len(), usize::from(flags == "01"));
        }
    }

    #[test]
    fn what_is_no_traceparent_begins_a_trace() {
        for parent in ["", "00-0-0-01", "00-00000000000000000000000000000000-b7ad6b7169203331-01", "x"] {
            let trace = trace(parent);
            assert!(trace.context.is_valid() && !trace.context.is_sampled(), "{parent}");
            assert_eq!(trace.parent, SpanId::INVALID);
        }
    }

    #[test]
    fn parts_are_bounded() {
        let mut trace = trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        for _ in 0..10 * SPANS_MAX {
            trace.part("plan", None, Instant::now());
        }
        assert_eq!(trace.parts.len(), SPANS_MAX);
    }
}
