//! The decode leg, and the one leg of paths that need no handoff: the answer's head is awaited, its body
//! goes on as it comes.

use std::sync::Arc;
use std::time::Duration;

use http::Response;

use super::body::AnswerBody;
use super::head::Head;
use super::pool::{LegClient, Resend};
use crate::failure::{Failure, FailureKind};
use crate::fleet::engine::{Engine, InFlight};
use crate::ids::Leg;
use crate::request::edit::Chain;

/// An answer on its way, and the count of its request at the engine, to be held to the last byte.
#[derive(Debug)]
pub struct Answer {
    /// Head and body.
    pub response: Response<AnswerBody>,
    /// Held to the last byte.
    pub in_flight: InFlight,
}

/// Sends a request to one engine and waits for the head of its answer.
///
/// # Errors
/// [`Failure`] if there was none within `limit`.
pub async fn decode(
    client: &Arc<LegClient>,
    engine: &Arc<Engine>,
    leg: Leg,
    head: &Head,
    body: &Chain,
    resend: Resend,
    limit: Duration,
) -> Result<Answer, Failure> {
    let in_flight = engine.begin();
    engine.metrics().requests.inc();
    let timer = engine.metrics().answer_seconds.start_timer();
    let make = || head.request(leg, engine.url(), body.clone());
    let result = tokio::time::timeout(limit, client.exchange(engine, resend, make))
        .await
        .unwrap_or_else(|_| Err(FailureKind::Slow { seconds: limit.as_secs() }));
    timer.observe_duration();
    if !result.as_ref().is_ok_and(|response| !response.status().is_server_error()) {
        engine.metrics().errors.inc();
    }
    result.map(|response| Answer { response, in_flight }).map_err(|kind| Failure::new(leg, kind))
}
