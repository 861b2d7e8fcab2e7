//! The life of one request.

pub mod seldom;
mod work;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, Uri};
use http_body::Body;
use seldom::Seldom;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use work::Work;

use crate::admit::queue::Queue;
use crate::admit::{self};
use crate::failure::Fault;
use crate::fleet::Fleet;
use crate::ids::{RequestId, Role};
use crate::leg::decode::Answer;
use crate::leg::head::{Head, ROUTING};
use crate::leg::key::EngineKey;
use crate::leg::pool::LegClient;
use crate::observe::record::Record;
use crate::observe::{ONE_HOP, Observe};
use crate::plan::Planner;
use crate::relay::{self, body::Relay};
use crate::release::Releaser;
use crate::request::api::Place;
use crate::request::view::{Route, View};
use crate::retry;

/// What to do with a good prefill answer that brings no usable handoff.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingHandoff {
    /// Decode computes everything itself.
    #[default]
    DecodeOnly,
    /// The request fails, on this prefill engine at least.
    Error,
}

/// What to do with a request while every engine that could serve it is paused or asleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Paused {
    /// It waits in the queue, within the queue's bounds.
    #[default]
    Wait,
    /// It is refused at once.
    Reject,
}

/// How long each part of a request may take, and what is done when it fails.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Prefill request to its whole answer.
    pub prefill_timeout: Duration,
    /// Decode request to the head of its answer and to its first byte, for streams.
    pub first_byte_timeout: Duration,
    /// The longest silence within a stream.
    pub idle_timeout: Duration,
    /// The whole of a request whose answer comes whole; of a stream up to its first byte.
    pub request_timeout: Duration,
    /// Whether `request_timeout` is for the whole of a stream as well.
    pub request_timeout_for_streams: bool,
    /// How old a handoff may be when it is used.
    pub handoff_age_max: Duration,
    /// What a good prefill answer without a handoff means.
    pub missing_handoff: MissingHandoff,
    /// What is done while engines are paused or asleep.
    pub paused: Paused,
    /// Whether an answer's `cached_tokens` are prefill's.
    pub usage_from_prefill: bool,
    /// The limits of retrying.
    pub retry: retry::Settings,
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
    /// Gives unused handoffs back.
    pub releaser: Releaser,
    /// The retries of the whole router.
    pub retries: Arc<retry::Budget>,
    /// The limits on bodies.
    pub admit: admit::Settings,
    /// The cap on requests in flight.
    pub queue: Arc<Queue>,
    /// The key that engines get from the router.
    pub key: Option<EngineKey>,
    /// Cancelled when new requests are refused.
    pub refuse: CancellationToken,
    /// Cancelled when requests in flight are not waited for any longer.
    pub cut: CancellationToken,
    /// Warns of missing handoffs.
    pub missing: Arc<Seldom>,
    /// Deadlines and failures.
    pub settings: Settings,
}

impl Context {
    /// Waits, as far as the settings and the queue allow, while the engines of a role rest.
    async fn awake(&self, role: Role) -> Result<(), Fault> {
        let fleet = self.fleet.snapshot();
        if !fleet.rests(role) {
            return Err(if fleet.full(role) { Fault::EnginesFull(role) } else { Fault::NoEngine(role) });
        }
        if self.settings.paused == Paused::Reject {
            return Err(Fault::Resting(role));
        }
        let awake = self.queue.wait(self.fleet.awake(role));
        match self.refuse.run_until_cancelled(awake).await {
            Some(Err(Fault::QueueSlow { .. })) => Err(Fault::Resting(role)),
            Some(waited) => waited,
            None => Err(Fault::Draining),
        }
    }
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
    context: &Arc<Context>,
    route: &Arc<Route>,
    id: &RequestId,
    request: Request<B>,
) -> Result<Response<Relay>, Failed>
where
    B: Body<Data = Bytes>,
{
    let mut record = Record::open(&context.observe, route.api.name, id, Some(origin(&request)));
    let started = Instant::now();
    context.retries.deposit();
    let mut work = match receive(context, route, id, request, &mut record).await {
        Ok(work) => work,
        Err(fault) => return Err(Failed { fault, record }),
    };
    match work.run().await {
        Ok(answer) => {
            let total = !work.streams() || context.settings.request_timeout_for_streams;
            let settings = relay::Settings {
                stream_error: Some(route.api.stream_error),
                deadline: total.then(|| started + context.settings.request_timeout),
                ..relay_settings(context)
            };
            // A stream may still fail before its first event; then the same work is done again.
            Ok(relay::relay(answer, record, &Method::POST, settings, Some(Box::new(work))))
        }
        Err(fault) => Err(Failed { fault, record }),
    }
}

/// What happens before any engine is asked: the body within its limits, a slot, a look at the members that
/// matter.
async fn receive<B>(
    context: &Arc<Context>,
    route: &Arc<Route>,
    id: &RequestId,
    request: Request<B>,
    record: &mut Record,
) -> Result<Work, Fault>
where
    B: Body<Data = Bytes>,
{
    let (parts, body) = request.into_parts();
    if context.refuse.is_cancelled() {
        return Err(Fault::Draining);
    }
    let (bytes, room) = admit::receive(&context.admit, &parts.headers, body).await?;
    record.received(bytes.len());
    // Spans over the client's bytes, which stay as they came.
    let view = View::read(route, bytes).map_err(Fault::Body)?;
    // Queued with its body, so that a client that leaves is seen to leave.
    let (slot, waited) = context.queue.enter().await?;
    record.hold(slot, waited);
    context.observe.stripped(steering(&parts.headers) + view.client_handoffs(route.api) as u64);
    let ask = context.planner.look(route.api, &parts.headers, &view);
    let head = head(context, parts, id);
    let phases = Arc::clone(record.phases());
    phases.model(view.get(Place::Top, "model"));
    Ok(Work::new(Arc::clone(context), Arc::clone(route), head, view, ask, room, phases))
}

/// Serves a path that needs no handoff: one engine, everything unchanged; one that cannot be reached passes
/// the request on to the next.
///
/// # Errors
/// [`Failed`] where no engine's answer can be relayed.
pub async fn one_hop<B>(
    context: &Arc<Context>,
    id: &RequestId,
    request: Request<B>,
) -> Result<Response<Relay>, Failed>
where
    B: Body<Data = Bytes>,
{
    let mut record = Record::open(&context.observe, ONE_HOP, id, Some(origin(&request)));
    let method = request.method().clone();
    match one_leg(context, id, request, &mut record).await {
        Ok(answer) => {
            let deadline =
                (!relay::is_events(&answer)).then(|| Instant::now() + context.settings.request_timeout);
            let settings = relay::Settings { deadline, ..relay_settings(context) };
            Ok(relay::relay(answer, record, &method, settings, None))
        }
        Err(fault) => Err(Failed { fault, record }),
    }
}

async fn one_leg<B>(
    context: &Context,
    id: &RequestId,
    request: Request<B>,
    record: &mut Record,
) -> Result<Answer, Fault>
where
    B: Body<Data = Bytes>,
{
    let (parts, body) = request.into_parts();
    let (bytes, _room) = admit::receive(&context.admit, &parts.headers, body).await?;
    record.received(bytes.len());
    context.observe.stripped(steering(&parts.headers));
    let head = head(context, parts, id);
    work::one_leg(context, &head, bytes, record.phases()).await
}

fn origin<B>(request: &Request<B>) -> (&Method, &Uri, &HeaderMap) {
    (request.method(), request.uri(), request.headers())
}

/// What engines get of a client's head.
fn head(context: &Context, mut parts: Parts, id: &RequestId) -> Head {
    if let Some(key) = &context.key {
        key.put(&mut parts.headers);
    }
    Head::new(parts.method, &parts.uri, parts.headers, id)
}

fn relay_settings(context: &Context) -> relay::Settings {
    relay::Settings {
        stream_error: None,
        first_byte_timeout: context.settings.first_byte_timeout,
        idle_timeout: context.settings.idle_timeout,
        deadline: None,
        cut: context.cut.clone(),
    }
}

/// How many headers the client sent with which it could steer an engine.
fn steering(headers: &HeaderMap) -> u64 {
    ROUTING.iter().filter(|name| headers.contains_key(*name)).count() as u64
}
