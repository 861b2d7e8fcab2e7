//! The prefill leg: one token, not streamed; its answer is read whole and looked at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;

use super::body::AnswerBody;
use super::decode::Answer;
use super::head::{Head, To};
use super::pool::{LegClient, Resend, Sent};
use super::verdict;
use crate::failure::{Failure, FailureKind};
use crate::fleet::breaker::Verdict;
use crate::fleet::engine::InFlight;
use crate::handoff::Handoff;
use crate::handoff::nixl::{self, Found};
use crate::ids::{Leg, Missing};
use crate::observe::phases::Phases;
use crate::observe::usage::Usage;
use crate::request::edit::Chain;

/// The longest prefill answer that is read, in bytes. One token's answer is about 1 KiB; with
/// `return_token_ids` it grows with the prompt.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What a prefill engine answered.
#[derive(Debug)]
pub enum Prefilled {
    /// The KV cache is there and decode can pull it; with the whole answer.
    Handoff(Handoff, Bytes),
    /// A good answer that brought none.
    Missing(Missing),
    /// A status other than 2xx.
    Refused(Box<Answer>),
}

/// Runs the prefill leg on one engine.
///
/// # Errors
/// [`Failure`] if the engine gave no answer in `limit`, or one that is no engine's.
pub async fn prefill(
    client: &Arc<LegClient>,
    mut in_flight: InFlight,
    head: &Head,
    body: &Chain,
    limit: Duration,
    phases: &Phases,
) -> Result<Prefilled, Failure> {
    let engine = Arc::clone(in_flight.engine());
    engine.metrics().requests.inc();
    let traceparent = phases.begin(Leg::Prefill, engine.metrics());
    let begun = Instant::now();
    let to = To { url: engine.url(), rank: in_flight.rank(), traceparent };
    let sent = Sent::default();
    let whole = async {
        let make = || head.request(Leg::Prefill, &to, body.clone());
        let answer = client.exchange(&engine, Resend::Once, &sent, make).await?;
        if answer.status().is_success() { Ok(Err(read(answer.into_body()).await?)) } else { Ok(Ok(answer)) }
    };
    let result = tokio::time::timeout(limit, whole)
        .await
        .unwrap_or_else(|_| Err(FailureKind::Slow { seconds: limit.as_secs() }));
    let now = Instant::now();
    engine.metrics().answer_seconds.observe(now.duration_since(begun).as_secs_f64());
    let prompt_tokens = match &result {
        Ok(Err(whole)) => Usage::of(whole).prompt,
        Ok(Ok(_)) | Err(_) => None,
    };
    phases.prefilled(sent.at(), now, matches!(result, Ok(Err(_))), prompt_tokens);
    let found = match result {
        Ok(Ok(response)) => {
            in_flight.say(verdict::of_status(&engine, response.status(), response.headers()));
            return Ok(Prefilled::Refused(Box::new(Answer {
                response,
                in_flight,
                leg: Leg::Prefill,
                pair: None,
                cached: None,
            })));
        }
        Ok(Err(bytes)) => look(&bytes),
        Err(kind) => Err(kind),
    };
    match found {
        Ok(found) => {
            if let Prefilled::Handoff(handoff, _) = &found {
                engine.seen_as(handoff.engine_id());
            }
            in_flight.say(Verdict::Success);
            Ok(found)
        }
        Err(kind) => {
            in_flight.say(verdict::of_failure(&engine, &kind));
            Err(Failure::new(Leg::Prefill, kind))
        }
    }
}

fn look(answer: &Bytes) -> Result<Prefilled, FailureKind> {
    match nixl::find(answer) {
        Found::Usable(handoff) => Ok(Prefilled::Handoff(handoff, answer.clone())),
        Found::Missing(_) if nixl::failed(answer) => Err(FailureKind::BadAnswer("a generation that failed")),
        Found::Missing(Missing::Absent) if nixl::ended(answer) => Ok(Prefilled::Missing(Missing::Ended)),
        Found::Missing(reason) => Ok(Prefilled::Missing(reason)),
        Found::OtherMode(mode) => Err(FailureKind::TransferMode(mode)),
        Found::NotJson => Err(FailureKind::BadAnswer("not a JSON object")),
    }
}

async fn read(mut body: AnswerBody) -> Result<Bytes, FailureKind> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| FailureKind::Cut)?;
        let Ok(data) = frame.into_data() else { continue };
        if whole.len() + data.len() > ANSWER_BYTES_MAX {
            return Err(FailureKind::BadAnswer("longer than 64 MiB"));
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_its_one_token_ended_needs_no_handoff() {
        let missing = |answer: &'static str| match look(&Bytes::from_static(answer.as_bytes())) {
            Ok(Prefilled::Missing(reason)) => reason,
            other => panic!("{other:?}"),
        };
        let stopped = r#"{"choices":[{"finish_reason":"stop"}],"kv_transfer_params":null}"#;
        let limited = r#"{"choices":[{"finish_reason":"length"}],"kv_transfer_params":null}"#;
        assert_eq!((missing(stopped), missing(limited)), (Missing::Ended, Missing::Absent));
    }
}
