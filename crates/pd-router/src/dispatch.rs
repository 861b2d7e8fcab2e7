//! The life of one request.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body::Body;

use crate::admit;
use crate::failure::{Failure, Fault};
use crate::fleet::Fleet;
use crate::fleet::engine::Engine;
use crate::handoff;
use crate::ids::{Leg, RequestId};
use crate::leg::decode::{Answer, decode};
use crate::leg::head::{Head, ROUTING};
use crate::leg::pool::{LegClient, Resend};
use crate::leg::prefill::{Prefilled, prefill};
use crate::observe::record::Record;
use crate::observe::{ONE_HOP, Observe};
use crate::plan::Planner;
use crate::relay::{self, body::Relay};
use crate::request::api::StreamError;
use crate::request::edit::Chain;
use crate::request::view::{Route, View};

/// How long each part of a request may take.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Prefill request to its whole answer.
    pub prefill_timeout: Duration,
    /// Decode request to the head of its answer, for streams.
    pub first_byte_timeout: Duration,
    /// The longest silence within a stream.
    pub idle_timeout: Duration,
    /// Decode request to the head of its answer, for answers that come whole.
    pub request_timeout: Duration,
}

/// What every request of one worker works with.
#[derive(Clone, Debug)]
pub struct Context {
    /// The engines.
    pub fleet: Arc<Fleet>,
    /// The policies.
    pub planner: Arc<Planner>,
    /// The metric families.
    pub observe: Arc<Observe>,
    /// This worker's engine connections.
    pub client: Arc<LegClient>,
    /// The limits on bodies.
    pub admit: admit::Settings,
    /// The deadlines.
    pub settings: Settings,
}

/// A request without an answer from an engine, and its record, still open.
#[derive(Debug)]
pub struct Failed {
    /// Why.
    pub fault: Fault,
    /// To be ended by whoever answers.
    pub record: Record,
}

/// Serves an inference request: prefill, handoff, decode, relay.
///
/// # Errors
/// [`Failed`] where no engine's answer can be relayed.
pub async fn inference<B>(
    context: &Context,
    route: &Route,
    id: &RequestId,
    request: Request<B>,
) -> Result<Response<Relay>, Failed>
where
    B: Body<Data = Bytes>,
{
    let record = Record::open(&context.observe, route.api.name);
    let method = request.method().clone();
    let answer = two_legs(context, route, id, request).await;
    pass_on(context, answer, record, &method, Some(route.api.stream_error))
}

/// Serves a path that needs no handoff: one engine, everything unchanged.
///
/// # Errors
/// [`Failed`] where no engine's answer can be relayed.
pub async fn one_hop<B>(
    context: &Context,
    id: &RequestId,
    request: Request<B>,
) -> Result<Response<Relay>, Failed>
where
    B: Body<Data = Bytes>,
{
    let record = Record::open(&context.observe, ONE_HOP);
    let method = request.method().clone();
    let answer = one_leg(context, id, request).await;
    pass_on(context, answer, record, &method, None)
}

async fn two_legs<B>(
    context: &Context,
    route: &Route,
    id: &RequestId,
    request: Request<B>,
) -> Result<Answer, Fault>
where
    B: Body<Data = Bytes>,
{
    let (parts, body) = request.into_parts();
    // The whole body, within its limits; its room is held until decode has answered.
    let (bytes, _room) = admit::receive(&context.admit, &parts.headers, body).await?;
    // Spans over the client's bytes, which stay as they came.
    let view = View::read(route, bytes).map_err(Fault::Body)?;
    context.observe.stripped.inc_by(steering(&parts.headers) + view.client_handoffs(route.api) as u64);
    // Both engines are chosen before prefill runs, decode first.
    let plan = context.planner.plan(route.api, &view, &context.fleet.snapshot()).map_err(Fault::NoEngine)?;
    let head = Head::new(parts.method, &parts.uri, parts.headers, id);

    let handoff = match plan.prefill {
        // What one handoff cannot serve goes whole to one decode engine.
        Err(reason) => {
            context.observe.whole(reason);
            None
        }
        Ok(candidates) => {
            let body = handoff::prefill_body(route.api, &view);
            match first_leg(context, &candidates, &head, &body).await? {
                Prefilled::Handoff(handoff) => Some(handoff),
                // Decode computes everything itself.
                Prefilled::Missing(reason) => {
                    context.observe.missing(reason);
                    None
                }
                // The engine's own word to the client; decode is never called.
                Prefilled::Refused(answer) => return Ok(answer),
            }
        }
    };

    // Between prefill's answer and decode's request nothing waits.
    let body = handoff::decode_body(route.api, &view, handoff.as_ref());
    let resend = if handoff.is_some() { Resend::Unsent } else { Resend::Once };
    let limit =
        if view.streams() { context.settings.first_byte_timeout } else { context.settings.request_timeout };
    // A handoff of which no byte was sent is unspent, and may go to the next engine.
    last_leg(context, Leg::Decode, &plan.decode, &head, &body, resend, limit).await
}

async fn one_leg<B>(context: &Context, id: &RequestId, request: Request<B>) -> Result<Answer, Fault>
where
    B: Body<Data = Bytes>,
{
    let (parts, body) = request.into_parts();
    let (bytes, _room) = admit::receive(&context.admit, &parts.headers, body).await?;
    context.observe.stripped.inc_by(steering(&parts.headers));
    let head = Head::new(parts.method, &parts.uri, parts.headers, id);
    let candidates = context.planner.any(&context.fleet.snapshot());
    let body = Chain::from_iter([bytes]);
    let limit = context.settings.request_timeout;
    last_leg(context, Leg::OneHop, &candidates, &head, &body, Resend::Once, limit).await
}

/// Prefill on the first engine that can be reached.
async fn first_leg(
    context: &Context,
    candidates: &[Arc<Engine>],
    head: &Head,
    body: &Chain,
) -> Result<Prefilled, Fault> {
    let mut last = Failure::unreachable(Leg::Prefill);
    for engine in candidates {
        tracing::debug!("Stage 1 - Prefill: {}", engine.url());
        match prefill(&context.client, engine, head, body, context.settings.prefill_timeout).await {
            Ok(prefilled) => return Ok(prefilled),
            Err(failure) => last = not_reached(engine, failure)?,
        }
    }
    Err(Fault::Leg(last))
}

/// The leg whose answer the client reads, on the first engine that can be reached.
async fn last_leg(
    context: &Context,
    leg: Leg,
    candidates: &[Arc<Engine>],
    head: &Head,
    body: &Chain,
    resend: Resend,
    limit: Duration,
) -> Result<Answer, Fault> {
    let mut last = Failure::unreachable(leg);
    for engine in candidates {
        tracing::debug!("Stage 2 - Decode: {}", engine.url());
        match decode(&context.client, engine, leg, head, body, resend, limit).await {
            Ok(answer) => return Ok(answer),
            Err(failure) => last = not_reached(engine, failure)?,
        }
    }
    Err(Fault::Leg(last))
}

/// Lets a failure pass after which the next engine may be tried; one after any byte was sent is final.
fn not_reached(engine: &Engine, failure: Failure) -> Result<Failure, Fault> {
    let leg = failure.leg.as_str();
    tracing::warn!(leg, engine = %engine.url(), failure = ?failure.kind, "a leg failed");
    if failure.kind.nothing_sent() { Ok(failure) } else { Err(Fault::Leg(failure)) }
}

fn pass_on(
    context: &Context,
    answer: Result<Answer, Fault>,
    record: Record,
    method: &Method,
    stream_error: Option<StreamError>,
) -> Result<Response<Relay>, Failed> {
    match answer {
        Ok(answer) => {
            let settings = relay::Settings { stream_error, idle_timeout: context.settings.idle_timeout };
            Ok(relay::relay(answer, record, method, settings))
        }
        Err(fault) => Err(Failed { fault, record }),
    }
}

/// How many headers the client sent with which it could steer an engine.
fn steering(headers: &HeaderMap) -> u64 {
    ROUTING.iter().filter(|name| headers.contains_key(*name)).count() as u64
}
