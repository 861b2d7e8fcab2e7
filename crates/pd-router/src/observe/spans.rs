//! What of a request's trace goes to the collector: one span for the request and one for each part, with the
//! names of OpenTelemetry's semantic conventions for GenAI and HTTP where they have one.

use std::borrow::Cow;
use std::time::{Duration, Instant, SystemTime};

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use super::engine::EngineMetrics;
use super::phases::Legs;
use super::record::Outcome;
use super::trace::{Part, Trace};

/// How a request ended, as its span says it.
#[derive(Debug)]
pub(super) struct End<'a> {
    pub(super) api: &'static str,
    pub(super) id: &'a str,
    pub(super) status: Option<u16>,
    pub(super) outcome: Outcome,
    pub(super) first_token: Option<Duration>,
    pub(super) prompt_tokens: Option<u64>,
    pub(super) generated_tokens: Option<u64>,
    /// When its answer had come whole, or when it was given up.
    pub(super) done: Instant,
    pub(super) now: Instant,
}

/// The spans of a trace; none where it is not sampled.
pub(super) fn of(
    trace: &mut Trace,
    legs: &Legs,
    queue: Option<(Instant, Instant)>,
    end: &End<'_>,
) -> Vec<SpanData> {
    if !trace.context.is_sampled() {
        return Vec::new();
    }
    if let Some((start, stop)) = queue {
        trace.part("queue", None, start);
        trace.end("queue", stop, false);
    }
    if let (Some(from), Some(to)) = (legs.prefilled, legs.decode_sent) {
        trace.part("handoff", None, from);
        trace.end("handoff", to, false);
    }
    if let Some(head) = legs.decode_head {
        trace.part("relay", None, head);
        trace.end("relay", end.now, failed(end.outcome));
    }
    let mut parts = std::mem::take(&mut trace.parts);
    parts.sort_by_key(|part| part.start);
    let mut spans = vec![request(trace, end)];
    spans.extend(parts.into_iter().map(|part| below(trace, part, end)));
    spans
}

/// A server's span is no error where the client is at fault, by OpenTelemetry's conventions for HTTP.
const fn failed(outcome: Outcome) -> bool {
    !matches!(outcome, Outcome::Ok | Outcome::ClientClosed | Outcome::ClientError)
}

fn request(trace: &Trace, end: &End<'_>) -> SpanData {
    let mut attributes = vec![
        KeyValue::new("http.request.method", trace.method.as_str().to_owned()),
        KeyValue::new("url.path", trace.path.clone()),
        KeyValue::new("pd_router.request_id", end.id.to_owned()),
        KeyValue::new("pd_router.api", end.api),
        KeyValue::new("pd_router.outcome", end.outcome.as_str()),
    ];
    let operation = operation(end.api);
    if let Some(operation) = operation {
        attributes.push(KeyValue::new("gen_ai.operation.name", operation));
        attributes.push(KeyValue::new("gen_ai.provider.name", "vllm"));
    }
    if let Some(model) = &trace.model {
        attributes.push(KeyValue::new("gen_ai.request.model", model.clone()));
    }
    let count = |name: &'static str, value: Option<u64>| {
        value.map(|value| KeyValue::new(name, i64::try_from(value).unwrap_or(i64::MAX)))
    };
    attributes.extend(count("http.response.status_code", end.status.map(u64::from)));
    attributes.extend(count("gen_ai.usage.input_tokens", end.prompt_tokens));
    attributes.extend(count("gen_ai.usage.output_tokens", end.generated_tokens));
    // As vLLM names it in its own spans.
    let first = end.first_token.map(|time| time.as_secs_f64());
    attributes.extend(first.map(|time| KeyValue::new("gen_ai.latency.time_to_first_token", time)));
    let failed = failed(end.outcome);
    if failed {
        attributes.push(KeyValue::new("error.type", end.outcome.as_str()));
    }
    let name = match (operation, &trace.model) {
        (Some(operation), Some(model)) => Cow::Owned(format!("{operation} {model}")),
        (Some(operation), None) => Cow::Borrowed(operation),
        (None, _) => Cow::Owned(trace.method.as_str().to_owned()),
    };
    let mut span =
        span(trace, trace.context.span_id(), trace.parent, name, (trace.start.1, end.now), attributes);
    span.parent_span_is_remote = trace.parent != SpanId::INVALID;
    span.span_kind = SpanKind::Server;
    span.status = status(failed);
    span
}

fn below(trace: &Trace, part: Part, end: &End<'_>) -> SpanData {
    let attributes = part.engine.as_deref().map(engine).unwrap_or_default();
    let kind = if part.engine.is_some() { SpanKind::Client } else { SpanKind::Internal };
    // The leg in progress ends with the answer, or with the client that left.
    let failed = if part.end.is_some() { part.failed } else { failed(end.outcome) };
    let times = (part.start, part.end.unwrap_or(end.done));
    let mut span = span(trace, part.id, trace.context.span_id(), Cow::Borrowed(part.name), times, attributes);
    span.span_kind = kind;
    span.status = status(failed);
    span
}

fn engine(engine: &EngineMetrics) -> Vec<KeyValue> {
    let mut attributes = vec![
        KeyValue::new("pd_router.engine", engine.url.clone()),
        KeyValue::new("pd_router.role", engine.role.as_str()),
    ];
    if let Ok(url) = url::Url::parse(&engine.url) {
        attributes.extend(url.host_str().map(|host| KeyValue::new("server.address", host.to_owned())));
        let port = url.port_or_known_default().map(i64::from);
        attributes.extend(port.map(|port| KeyValue::new("server.port", port)));
    }
    attributes
}

fn status(failed: bool) -> Status {
    if failed { Status::error("") } else { Status::Unset }
}

fn span(
    trace: &Trace,
    id: SpanId,
    parent: SpanId,
    name: Cow<'static, str>,
    (start, end): (Instant, Instant),
    attributes: Vec<KeyValue>,
) -> SpanData {
    let (wall, origin) = trace.start;
    let at = |time: Instant| -> SystemTime { wall + time.saturating_duration_since(origin) };
    let own = &trace.context;
    SpanData {
        span_context: SpanContext::new(
            own.trace_id(),
            id,
            own.trace_flags(),
            false,
            own.trace_state().clone(),
        ),
        parent_span_id: parent,
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name,
        start_time: at(start),
        end_time: at(end.max(start)),
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: InstrumentationScope::builder("pd-router")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    }
}

/// `gen_ai.operation.name` of an API that generates.
fn operation(api: &str) -> Option<&'static str> {
    match api {
        "chat" | "responses" | "messages" => Some("chat"),
        "completions" | "generate" => Some("text_completion"),
        _ => None,
    }
}
