//! One request's way through the engines, retries included: prefill, handoff, decode; and again, by what was
//! lost, as long as nothing reached the client.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::{Context, MissingHandoff};
use crate::admit::budget::Buffered;
use crate::failure::{Failure, FailureKind, Fault, code_word};
use crate::fleet::candidate::{Candidate, Load};
use crate::fleet::engine::Engine;
use crate::handoff;
use crate::ids::{Leg, Missing, RetryReason, Role};
use crate::leg::decode::{Answer, Call, Pair, decode};
use crate::leg::head::Head;
use crate::leg::pool::{Resend, Sent};
use crate::leg::prefill::{Prefilled, prefill};
use crate::observe::phases::Phases;
use crate::plan::ask::Ask;
use crate::plan::{Candidates, Plan};
use crate::relay::{self, Again, Retrying};
use crate::release::Pinned;
use crate::request::edit::Chain;
use crate::request::view::{Route, View};
use crate::retry::{self, Loss, Tries};

/// A request with all that it takes to do it again.
#[derive(Debug)]
pub(super) struct Work {
    context: Arc<Context>,
    route: Arc<Route>,
    head: Head,
    view: View,
    ask: Ask,
    tries: Tries,
    tried: SmallVec<[u64; 4]>,
    deadline: Instant,
    last: Option<(Leg, u64)>,
    failed: Option<Failure>,
    cached: Option<u64>,
    phases: Arc<Phases>,
    _room: Buffered,
}

/// How far the first leg brought a request.
enum FirstLeg {
    /// On to decode, with a handoff or without.
    Go(Option<Pinned>),
    /// The prefill engine's own word is the answer.
    Answer(Box<Answer>),
}

impl Work {
    pub(super) fn new(
        context: Arc<Context>,
        route: Arc<Route>,
        head: Head,
        view: View,
        ask: Ask,
        room: Buffered,
        phases: Arc<Phases>,
    ) -> Self {
        let settings = context.settings;
        Self {
            route,
            head,
            view,
            ask,
            tries: Tries::new(settings.retry),
            tried: SmallVec::new(),
            deadline: Instant::now() + settings.request_timeout,
            last: None,
            failed: None,
            cached: None,
            phases,
            _room: room,
            context,
        }
    }

    pub(super) fn streams(&self) -> bool {
        self.view.streams()
    }

    /// Tries until an answer can go to the client or no try is left; the last answer or fault stands.
    pub(super) async fn run(&mut self) -> Result<Answer, Fault> {
        loop {
            let end = self.attempt().await;
            let Some(wait) = self.again_after(&end) else { return end.map_err(|fault| self.cause(fault)) };
            if let Err(Fault::Leg(failure)) = end {
                self.failed = Some(failure);
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// Why a request that was tried failed: an engine that its own failure put out is not the cause.
    fn cause(&mut self, fault: Fault) -> Fault {
        match (fault, self.failed.take()) {
            (Fault::NoEngine(_) | Fault::EnginesFull(_), Some(failure)) => Fault::Leg(failure),
            (fault, _) => fault,
        }
    }

    async fn attempt(&mut self) -> Result<Answer, Fault> {
        let context = Arc::clone(&self.context);
        // Decode is chosen first: with no decode engine up prefill is not asked.
        let whole = self.view.whole(self.route.api);
        let plan = || context.planner.plan(&self.ask, whole, &context.fleet, &self.tried);
        let plan = loop {
            match self.phases.planned(plan) {
                Ok(plan) => break plan,
                Err(role) => {
                    let awake = tokio::time::timeout_at(self.deadline, context.awake(role));
                    awake.await.unwrap_or(Err(Fault::Resting(role)))?;
                }
            }
        };
        // Counted from now on, so that the requests that prefill works on do not all choose alike; the decode
        // leg takes this count over.
        let promised = plan.decode.first().map(|one| {
            context.planner.promised(&self.ask, one);
            one.load(self.ask.tokens)
        });
        match self.first_leg(&plan).await? {
            FirstLeg::Answer(answer) => Ok(*answer),
            FirstLeg::Go(pinned) => self.last_leg(&plan.decode, promised, pinned).await,
        }
    }

    /// Prefill, on the first engine that can be reached.
    async fn first_leg(&mut self, plan: &Plan) -> Result<FirstLeg, Fault> {
        let candidates = match &plan.prefill {
            Ok(candidates) => candidates,
            // What one handoff cannot serve goes whole to one decode engine.
            Err(reason) => {
                if self.last.is_none() {
                    self.context.observe.whole(*reason);
                }
                return Ok(FirstLeg::Go(None));
            }
        };
        let context = Arc::clone(&self.context);
        let body = handoff::prefill_body(self.route.api, &self.view);
        let mut failed = Failure::unreachable(Leg::Prefill);
        for (candidate, force) in in_turn(candidates, false) {
            let engine = candidate.engine();
            let tokens = context.planner.tokens(&self.ask, candidate);
            let Some(in_flight) = candidate.begin(tokens, force, &mut None) else { continue };
            context.planner.took(&self.ask, candidate);
            self.last = Some((Leg::Prefill, engine.id()));
            tracing::debug!("Stage 1 - Prefill: {}", engine.url());
            let limit = self.within(context.settings.prefill_timeout);
            match prefill(&context.client, in_flight, &self.head, &body, limit, &self.phases).await {
                Ok(Prefilled::Handoff(handoff, answer)) => {
                    let told = context.settings.usage_from_prefill;
                    self.cached = if told { relay::cached::of(&answer) } else { None };
                    let pinned = context.releaser.pin(handoff, engine.id(), self.head.headers());
                    return Ok(FirstLeg::Go(Some(pinned)));
                }
                Ok(Prefilled::Missing(reason)) => {
                    return self.without_handoff(reason, engine).map(FirstLeg::Go);
                }
                Ok(Prefilled::Refused(answer)) => return Ok(FirstLeg::Answer(answer)),
                Err(failure) => failed = not_reached(engine, failure, &self.phases)?,
            }
        }
        Err(Fault::Leg(failed))
    }

    /// A good prefill answer without a usable handoff.
    fn without_handoff(&self, reason: Missing, engine: &Engine) -> Result<Option<Pinned>, Fault> {
        engine.metrics().missing(reason);
        if reason == Missing::Ended {
            return Ok(None);
        }
        if self.context.missing.due() {
            let reason = reason.as_str();
            tracing::warn!(
                reason,
                engine = %engine.url(),
                "prefill answers bring no usable handoff (once a minute; see pd_router_missing_handoffs_total): does the engine run with --kv-transfer-config and a NixlConnector?"
            );
        }
        match self.context.settings.missing_handoff {
            MissingHandoff::DecodeOnly => Ok(None),
            MissingHandoff::Error => Err(Fault::Leg(Failure::new(Leg::Prefill, FailureKind::MissingHandoff))),
        }
    }

    /// Decode, on the first engine that can be reached: a handoff of which no byte was sent is unspent.
    async fn last_leg(
        &mut self,
        candidates: &Candidates,
        mut promised: Option<Load>,
        pinned: Option<Pinned>,
    ) -> Result<Answer, Fault> {
        let context = Arc::clone(&self.context);
        let body = handoff::decode_body(self.route.api, &self.view, pinned.as_ref().map(Pinned::handoff));
        let unpinned = Sent::default();
        let mut failed = Failure::unreachable(Leg::Decode);
        for (candidate, force) in in_turn(candidates, false) {
            let engine = candidate.engine();
            if pinned.as_ref().is_some_and(|pinned| pinned.too_old(context.settings.handoff_age_max)) {
                // Its lease could end under decode's hands; prefill again instead.
                break;
            }
            let Some(pair) = enter_pair(engine, pinned.as_ref(), force) else { continue };
            let tokens = context.planner.tokens(&self.ask, candidate);
            let Some(in_flight) = candidate.begin(tokens, force, &mut promised) else { continue };
            context.planner.took(&self.ask, candidate);
            self.last = Some((Leg::Decode, engine.id()));
            tracing::debug!("Stage 2 - Decode: {}", engine.url());
            let call = Call {
                leg: Leg::Decode,
                head: &self.head,
                body: &body,
                resend: if pinned.is_some() { Resend::Unsent } else { Resend::Once },
                limit: self.decode_limit(),
                sent: pinned.as_ref().map_or(&unpinned, Pinned::sent),
                phases: &self.phases,
            };
            match decode(&context.client, in_flight, call).await {
                Ok(mut answer) => {
                    answer.pair = pair;
                    answer.cached = self.cached.filter(|_| pinned.is_some());
                    answer.judge_status();
                    return self.begun(answer).await;
                }
                Err(failure) => failed = not_reached(engine, failure, &self.phases)?,
            }
        }
        Err(Fault::Leg(failed))
    }

    /// An answer that is no stream goes on with its first bytes: before them all can be done again.
    async fn begun(&self, mut answer: Answer) -> Result<Answer, Fault> {
        if answer.response.status().is_success() && !relay::is_events(&answer) {
            let first = answer.response.body_mut().await_first();
            let kind = match tokio::time::timeout_at(self.deadline, first).await {
                Ok(Ok(())) => return Ok(answer),
                Ok(Err(_)) => FailureKind::Cut,
                Err(_) => FailureKind::Slow { seconds: self.context.settings.request_timeout.as_secs() },
            };
            let verdict = crate::leg::verdict::of_failure(answer.in_flight.engine(), &kind);
            answer.settle(verdict);
            let failure = Failure::new(Leg::Decode, kind);
            note(&failure, &self.phases);
            return Err(Fault::Leg(failure));
        }
        Ok(answer)
    }

    /// Whether and when to try again.
    fn again_after(&mut self, end: &Result<Answer, Fault>) -> Option<Duration> {
        let (loss, role) = match end {
            Ok(answer) => {
                let response = &answer.response;
                (Loss::of_status(response.status(), response.headers()), role_of(answer.leg))
            }
            Err(Fault::Leg(failure)) => (Loss::of_failure(&failure.kind), role_of(failure.leg)),
            // An engine that a live connection put out is probed at once and may be back in no time.
            Err(Fault::NoEngine(role) | Fault::EnginesFull(role)) => {
                let pool = self.context.fleet.snapshot();
                let back = pool.pool(*role).iter().any(|engine| engine.ejected());
                (if back { Loss::Failed } else { Loss::Final }, *role)
            }
            Err(_) => (Loss::Final, Role::Decode),
        };
        if loss == Loss::Final {
            return None;
        }
        let reason = match end {
            Ok(answer) => {
                let (leg, status) = (answer.leg, answer.response.status());
                self.phases.failed(leg, format!("{}_status", code_word(leg)), Some(status.to_string()));
                retry::reason_of_status(status)
            }
            Err(Fault::Leg(failure)) => retry::reason_of_failure(&failure.kind),
            Err(_) => RetryReason::NoEngine,
        };
        self.lost(loss, role, reason)
    }

    fn lost(&mut self, loss: Loss, role: Role, reason: RetryReason) -> Option<Duration> {
        if let Some((_, engine)) = self.last
            && !self.tried.contains(&engine)
        {
            self.tried.push(engine);
        }
        let fleet = self.context.fleet.snapshot();
        let others = fleet.pool(role).iter().any(|engine| engine.up() && !self.tried.contains(&engine.id()));
        let wait = self.tries.again(loss, others, &self.context.retries)?;
        if Instant::now() + wait >= self.deadline {
            return None;
        }
        self.context.observe.retry(if role == Role::Prefill { Leg::Prefill } else { Leg::Decode }, reason);
        Some(wait)
    }

    fn within(&self, limit: Duration) -> Duration {
        limit.min(self.deadline.saturating_duration_since(Instant::now()))
    }

    fn decode_limit(&self) -> Duration {
        let settings = &self.context.settings;
        self.within(if self.streams() { settings.first_byte_timeout } else { settings.request_timeout })
    }
}

impl Again for Work {
    fn again(mut self: Box<Self>) -> Option<Retrying> {
        self.phases.failed(Leg::Decode, "decode_first_event".to_owned(), None);
        let wait = self.lost(Loss::Failed, Role::Decode, RetryReason::FirstEvent)?;
        Some(Box::pin(async move {
            tokio::time::sleep(wait).await;
            let answer = self.run().await.ok();
            (self as Box<dyn Again>, answer)
        }))
    }
}

/// A path that needs no handoff, on the first engine that can be reached.
pub(super) async fn one_leg(
    context: &Context,
    head: &Head,
    body: Bytes,
    phases: &Phases,
) -> Result<Answer, Fault> {
    let body = Chain::from_iter([body]);
    let sent = Sent::default();
    let mut failed = Failure::unreachable(Leg::OneHop);
    // What only reads is answered while the fleet rests, too.
    let reads = *head.method() != Method::POST;
    let mut candidates = context.planner.any(&context.fleet, reads);
    let last = context.fleet.pools().last();
    if candidates.is_empty() && context.fleet.snapshot().rests(last) {
        context.awake(last).await?;
        candidates = context.planner.any(&context.fleet, reads);
    }
    for (candidate, force) in in_turn(&candidates, reads) {
        let engine = candidate.engine();
        let Some(in_flight) = candidate.begin(0, force, &mut None) else { continue };
        let limit = context.settings.request_timeout;
        let resend = if *head.method() == Method::POST { Resend::Unsent } else { Resend::Once };
        let call = Call { leg: Leg::OneHop, head, body: &body, resend, limit, sent: &sent, phases };
        match decode(&context.client, in_flight, call).await {
            Ok(mut answer) => {
                answer.judge_status();
                return Ok(answer);
            }
            Err(failure) => failed = not_reached(engine, failure, phases)?,
        }
    }
    Err(Fault::Leg(failed))
}

const fn role_of(leg: Leg) -> Role {
    match leg {
        Leg::Prefill => Role::Prefill,
        Leg::Decode | Leg::OneHop => Role::Decode,
    }
}

/// Each candidate, and then, if every breaker said no, the first by force: one is tried rather than failing
/// all. One that takes no more requests since it was chosen is left out.
fn in_turn(candidates: &Candidates, resting: bool) -> impl Iterator<Item = (&Candidate, bool)> {
    let polite = candidates.iter().map(|one| (one, false));
    let forced = candidates.first().map(|one| (one, true));
    polite.chain(forced).filter(move |(one, _)| one.engine().takes(resting))
}

/// The way past the breaker of a pair; `None` while that is open.
#[allow(clippy::option_option, reason = "no way, a way without a pair, a way with one")]
fn enter_pair(engine: &Engine, pinned: Option<&Pinned>, force: bool) -> Option<Option<Pair>> {
    let Some(pinned) = pinned else { return Some(None) };
    let prefill = pinned.prefill();
    let now = std::time::Instant::now();
    let breaker = match engine.pair(prefill) {
        None => None,
        Some(breaker) if force => Some((Arc::clone(&breaker), breaker.force(now))),
        Some(breaker) => Some((Arc::clone(&breaker), breaker.enter(now)?)),
    };
    Some(Some(Pair { prefill, breaker }))
}

fn note(failure: &Failure, phases: &Phases) {
    phases.failed(failure.leg, failure.code(), failure.kind.detail());
}

/// Lets a failure pass after which the next engine may be tried at once; one after any byte was sent is not.
fn not_reached(engine: &Engine, failure: Failure, phases: &Phases) -> Result<Failure, Fault> {
    note(&failure, phases);
    let leg = failure.leg.as_str();
    tracing::warn!(leg, engine = %engine.url(), failure = ?failure.kind, "a leg failed");
    if failure.kind.nothing_sent() { Ok(failure) } else { Err(Fault::Leg(failure)) }
}
