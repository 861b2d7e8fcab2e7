//! One inference request: faults, checks, work, and the answer on its way out.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use serde_json::Value;

use crate::ask::{self, Api};
use crate::body::{Broken, Open, SimBody, Step};
use crate::engine::Engine;
use crate::error::ApiError;
use crate::events;
use crate::fault::{FaultKind, Junk};
use crate::work::{self, Leg};

/// Serves one request.
pub(crate) async fn infer(
    api: Api,
    headers: &HeaderMap,
    body: Bytes,
    mut open: Open,
) -> Result<Response<SimBody>, Broken> {
    let engine = Arc::clone(&open.engine);
    let faults = engine.faults().take();
    if engine.control.rests() {
        engine.violation("inference came to an engine that is paused or asleep");
    }
    open.running = Some(engine.run());
    if let Some(early) = before(&faults, &mut open).await? {
        return Ok(reply(early, open));
    }
    match check(&engine, api, headers, &body, faults).await {
        Ok(leg) if leg.ask.stream => Ok(streamed(leg, open)),
        Ok(leg) => Ok(whole(leg, open).await),
        Err(error) => Ok(reply(error.parts(), open)),
    }
}

const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");

/// Faults before any work.
async fn before(
    faults: &[FaultKind],
    open: &mut Open,
) -> Result<Option<(StatusCode, HeaderMap, String)>, Broken> {
    for fault in faults {
        if let Some(delay) = fault.delay() {
            tokio::time::sleep(delay).await;
        }
        match fault {
            FaultKind::Stall => std::future::pending::<()>().await,
            FaultKind::Reset | FaultKind::Close => {
                open.reset.store(matches!(fault, FaultKind::Reset), Ordering::Relaxed);
                open.ended = true;
                return Err(Broken);
            }
            FaultKind::Status { status, body, retry_after } => {
                let mut headers = HeaderMap::new();
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                if let Some(seconds) = retry_after {
                    headers.insert(RETRY_AFTER, HeaderValue::from(*seconds));
                }
                let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                return Ok(Some((status, headers, body.clone())));
            }
            FaultKind::Junk(junk) => {
                let (kind, text) = match junk {
                    Junk::Html => ("text/html", "<html>oops</html>"),
                    Junk::Empty => ("application/json", ""),
                    Junk::Half => ("application/json", "{\"id\":\"p\",\"choices\":["),
                };
                let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
                return Ok(Some((StatusCode::OK, headers, text.to_owned())));
            }
            FaultKind::EventStream(events) => {
                let headers = HeaderMap::from_iter([(CONTENT_TYPE, EVENT_STREAM)]);
                return Ok(Some((StatusCode::OK, headers, events.clone())));
            }
            FaultKind::StallAfter(_)
            | FaultKind::ResetAfter(_)
            | FaultKind::CloseAfter(_)
            | FaultKind::CutInside(_)
            | FaultKind::DelayMs(_)
            | FaultKind::Missing(_)
            | FaultKind::TransferMode(_)
            | FaultKind::Health(_)
            | FaultKind::HealthDelayMs(_)
            | FaultKind::Refuse
            | FaultKind::RefuseMs(_)
            | FaultKind::RestartMs(_) => {}
        }
    }
    Ok(None)
}

/// Reads and checks a request.
async fn check(
    engine: &Arc<Engine>,
    api: Api,
    headers: &HeaderMap,
    body: &Bytes,
    faults: Vec<FaultKind>,
) -> Result<Leg, ApiError> {
    let document: Value =
        serde_json::from_slice(body).map_err(|_| ApiError::unreadable("JSON decode error").early())?;
    client_params(engine, api, &document);
    match ask::read(engine.config(), api, &document) {
        Ok(ask) => {
            let id = request_id(api, headers);
            Ok(Leg { engine: Arc::clone(engine), ask, id, faults })
        }
        Err(error) => {
            let params = document.get("kv_transfer_params").unwrap_or(&Value::Null);
            if error.parsed && params.get("do_remote_prefill") == Some(&Value::Bool(true)) {
                // A refused decode leg tells prefill, which frees the blocks.
                work::release(params, engine.config().load_timeout).await;
            }
            Err(error)
        }
    }
}

/// A client's own transfer parameters, where the engine would find them.
fn client_params(engine: &Engine, api: Api, document: &Value) {
    for name in ["kv_transfer_params", "ec_transfer_params"] {
        if ask::side_door(api, document).is_some_and(|door| door.get(name).is_some()) {
            engine.violation(format!("a client's own {name} came by the side door"));
        }
    }
    if document.get("ec_transfer_params").is_some_and(|params| !params.is_null()) {
        engine.violation("a client's own ec_transfer_params came through");
    }
}

fn request_id(api: Api, headers: &HeaderMap) -> String {
    let given = headers.get("x-request-id").and_then(|id| id.to_str().ok()).filter(|_| api != Api::Responses);
    let id = given.map_or_else(|| format!("{:016x}", fastrand::u64(..)), str::to_owned);
    format!("{}{id}", api.id_prefix())
}

/// Works, then writes the whole answer down, with the faults that it has on the way.
async fn whole(leg: Leg, open: Open) -> Response<SimBody> {
    let (itl, faults) = (leg.engine.config().latency.itl, leg.faults.clone());
    let computed = match leg.work().await {
        Ok(computed) => computed,
        Err(error) => return reply(error.parts(), open),
    };
    let text = Bytes::from(computed.document().text());
    let length = text.len();
    let longest = computed.choices.iter().map(|choice| choice.ids.len()).max().unwrap_or(0);
    let gaps = u32::try_from(longest.saturating_sub(1)).unwrap_or(u32::MAX);
    let steps = with_faults(vec![Step::Data(itl.saturating_mul(gaps), text)], &faults);
    let mut response = Response::new(SimBody::new(steps, open));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    response
}

/// Answers at once; what follows the head is known when the work is done.
fn streamed(leg: Leg, open: Open) -> Response<SimBody> {
    let body = SimBody::later(events_of(leg), open);
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, EVENT_STREAM);
    response
}

async fn events_of(leg: Leg) -> Vec<Step> {
    let (itl, faults) = (leg.engine.config().latency.itl, leg.faults.clone());
    let computed = match leg.work().await {
        Ok(computed) => computed,
        Err(error) => {
            let text = format!("{}data: [DONE]\n\n", error.event());
            return vec![Step::Data(Duration::ZERO, text.into())];
        }
    };
    let mut first = true;
    let mut steps = Vec::new();
    for event in events::all(&computed) {
        let delay = if event.token && !first { itl } else { Duration::ZERO };
        first &= !event.token;
        steps.push(Step::Data(delay, event.text));
    }
    with_faults(steps, &faults)
}

fn with_faults(mut steps: Vec<Step>, faults: &[FaultKind]) -> Vec<Step> {
    for fault in faults {
        let (after, end) = match fault {
            FaultKind::StallAfter(after) => (*after, Step::Hang),
            FaultKind::ResetAfter(after) => (*after, Step::Break { reset: true }),
            FaultKind::CloseAfter(after) | FaultKind::CutInside(after) => {
                (*after, Step::Break { reset: false })
            }
            FaultKind::Stall
            | FaultKind::Status { .. }
            | FaultKind::Reset
            | FaultKind::Close
            | FaultKind::DelayMs(_)
            | FaultKind::Missing(_)
            | FaultKind::TransferMode(_)
            | FaultKind::Junk(_)
            | FaultKind::EventStream(_)
            | FaultKind::Health(_)
            | FaultKind::HealthDelayMs(_)
            | FaultKind::Refuse
            | FaultKind::RefuseMs(_)
            | FaultKind::RestartMs(_) => continue,
        };
        let next = steps.get(after).cloned();
        steps.truncate(after);
        if let (FaultKind::CutInside(_), Some(Step::Data(delay, bytes))) = (fault, next) {
            steps.push(Step::Data(delay, bytes.slice(..bytes.len() / 2)));
        }
        // What was written has to leave before the connection ends.
        steps.push(Step::Data(Duration::from_millis(20), Bytes::from_static(b"")));
        steps.push(end);
        steps.retain(|step| !matches!(step, Step::Data(delay, bytes) if bytes.is_empty() && delay.is_zero()));
    }
    steps
}

fn reply((status, headers, text): (StatusCode, HeaderMap, String), open: Open) -> Response<SimBody> {
    let length = text.len();
    let steps =
        if text.is_empty() { Vec::new() } else { vec![Step::Data(Duration::ZERO, Bytes::from(text))] };
    let mut response = Response::new(SimBody::new(steps, open));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    response
}
