//! The decode leg, and the one leg of paths that need no handoff: the answer's head is awaited, its body
//! goes on as it comes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Response;

use super::body::AnswerBody;
use super::head::{Head, To};
use super::pool::{LegClient, Resend, Sent};
use super::verdict;
use crate::failure::{Failure, FailureKind};
use crate::fleet::breaker::{Breaker, Ticket, Verdict};
use crate::fleet::engine::InFlight;
use crate::ids::Leg;
use crate::observe::phases::Phases;
use crate::request::edit::Chain;

/// An answer on its way, and the count of its request at the engine, to be held to the last byte.
#[derive(Debug)]
pub struct Answer {
    /// Head and body.
    pub response: Response<AnswerBody>,
    /// Held to the last byte.
    pub in_flight: InFlight,
    /// Which leg it answers.
    pub leg: Leg,
    /// The pair that it speaks of, where it came with a handoff.
    pub pair: Option<Pair>,
    /// Prompt tokens that prefill had in its cache, where the client is to be told.
    pub cached: Option<u64>,
}

/// A decode engine's work for one prefill engine, and the way through their breaker.
#[derive(Debug)]
pub struct Pair {
    /// The prefill engine's id.
    pub prefill: u64,
    /// Their breaker, where they ever failed.
    pub breaker: Option<(Arc<Breaker>, Ticket)>,
}

impl Drop for Pair {
    fn drop(&mut self) {
        if let Some((breaker, ticket)) = self.breaker.take() {
            breaker.say(ticket, Verdict::Neutral, Instant::now());
        }
    }
}

impl Answer {
    /// Says what a status other than 2xx tells; what a 2xx tells is known at its end.
    pub fn judge_status(&mut self) {
        let (status, headers) = (self.response.status(), self.response.headers());
        if !status.is_success() {
            let verdict = verdict::of_status(self.in_flight.engine(), status, headers);
            self.settle(verdict);
        }
    }

    /// Says what the answer tells of its engine, and of the pair; the first word counts. A failure with a
    /// handoff is the pair's, and the decode engine's own only where it failed with another pair as well:
    /// else one bad prefill engine would open every decode engine's breaker.
    pub fn settle(&mut self, verdict: Verdict) {
        let Some(mut pair) = self.pair.take() else { return self.in_flight.say(verdict) };
        let now = Instant::now();
        let breaker = pair.breaker.take();
        let own = match verdict {
            Verdict::Failure => {
                let ticket = breaker.map(|(_, ticket)| ticket);
                let blamed = self.in_flight.engine().failed_in_pair(pair.prefill, ticket, now);
                if blamed { Verdict::Failure } else { Verdict::Neutral }
            }
            Verdict::Success | Verdict::Neutral => {
                if let Some((breaker, ticket)) = breaker {
                    breaker.say(ticket, verdict, now);
                }
                if verdict == Verdict::Success {
                    self.in_flight.engine().succeeded_in_pair();
                }
                verdict
            }
        };
        self.in_flight.say(own);
    }
}

/// One request to one engine.
#[derive(Debug)]
pub struct Call<'a> {
    /// Which leg it is.
    pub leg: Leg,
    /// The head.
    pub head: &'a Head,
    /// The body.
    pub body: &'a Chain,
    /// Whether it may be sent again when an idle connection dies under it.
    pub resend: Resend,
    /// How long the head of the answer may take.
    pub limit: Duration,
    /// Whether any byte of the request may have left.
    pub sent: &'a Sent,
    /// Where the leg is noted.
    pub phases: &'a Phases,
}

/// Sends a request to one engine and waits for the head of its answer. The verdict on a 2xx is left to
/// whoever reads the answer.
///
/// # Errors
/// [`Failure`] if there was none in time.
pub async fn decode(
    client: &Arc<LegClient>,
    mut in_flight: InFlight,
    call: Call<'_>,
) -> Result<Answer, Failure> {
    let engine = Arc::clone(in_flight.engine());
    let metrics = engine.metrics();
    if call.leg == Leg::OneHop { &metrics.one_hop } else { &metrics.requests }.inc();
    let traceparent = call.phases.begin(call.leg, metrics);
    let begun = Instant::now();
    let to = To { url: engine.url(), rank: in_flight.rank(), traceparent };
    let make = || call.head.request(call.leg, &to, call.body.clone());
    let exchange = client.exchange(&engine, call.resend, call.sent, make);
    let result = tokio::time::timeout(call.limit, exchange)
        .await
        .unwrap_or_else(|_| Err(FailureKind::Slow { seconds: call.limit.as_secs() }));
    let now = Instant::now();
    // How long a path takes that needs no handoff says nothing of decode.
    if call.leg != Leg::OneHop {
        metrics.answer_seconds.observe(now.duration_since(begun).as_secs_f64());
    }
    call.phases.answered(call.leg, call.sent.at(), now, result.is_ok());
    match result {
        Ok(response) if response.status().is_informational() => {
            metrics.errors.inc();
            in_flight.say(Verdict::Failure);
            Err(Failure::new(call.leg, FailureKind::BadAnswer("no answer to this request")))
        }
        Ok(response) => Ok(Answer { response, in_flight, leg: call.leg, pair: None, cached: None }),
        Err(kind) => {
            in_flight.say(verdict::of_failure(&engine, &kind));
            Err(Failure::new(call.leg, kind))
        }
    }
}
