//! The prefill leg: one token, not streamed; its answer is read whole and looked at once.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;

use super::body::AnswerBody;
use super::decode::Answer;
use super::head::Head;
use super::pool::{LegClient, Resend};
use crate::failure::{Failure, FailureKind};
use crate::fleet::engine::Engine;
use crate::handoff::Handoff;
use crate::handoff::nixl::{self, Found};
use crate::ids::{Leg, Missing};
use crate::request::edit::Chain;

/// The longest prefill answer that is read, in bytes. One token's answer is about 1 KiB; with
/// `return_token_ids` it grows with the prompt.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What a prefill engine answered.
#[derive(Debug)]
pub enum Prefilled {
    /// The KV cache is there and decode can pull it.
    Handoff(Handoff),
    /// A good answer that brought none.
    Missing(Missing),
    /// A status other than 2xx: the client's answer.
    Refused(Answer),
}

/// Runs the prefill leg on one engine.
///
/// # Errors
/// [`Failure`] if the engine gave no answer in `limit`, or one that is no engine's.
pub async fn prefill(
    client: &Arc<LegClient>,
    engine: &Arc<Engine>,
    head: &Head,
    body: &Chain,
    limit: Duration,
) -> Result<Prefilled, Failure> {
    let in_flight = engine.begin();
    engine.metrics().requests.inc();
    let timer = engine.metrics().answer_seconds.start_timer();
    let whole = async {
        let make = || head.request(Leg::Prefill, engine.url(), body.clone());
        let answer = client.exchange(engine, Resend::Once, make).await?;
        if !answer.status().is_success() {
            return Ok(Prefilled::Refused(Answer { response: answer, in_flight }));
        }
        look(&read(answer.into_body()).await?)
    };
    let result = tokio::time::timeout(limit, whole)
        .await
        .unwrap_or_else(|_| Err(FailureKind::Slow { seconds: limit.as_secs() }));
    timer.observe_duration();
    if !matches!(&result, Ok(prefilled) if !prefilled.is_error()) {
        engine.metrics().errors.inc();
    }
    result.map_err(|kind| Failure::new(Leg::Prefill, kind))
}

impl Prefilled {
    fn is_error(&self) -> bool {
        matches!(self, Self::Refused(answer) if answer.response.status().is_server_error())
    }
}

fn look(answer: &Bytes) -> Result<Prefilled, FailureKind> {
    match nixl::find(answer) {
        Found::Usable(handoff) => Ok(Prefilled::Handoff(handoff)),
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
