//! One inference request: faults, checks, prefill or fetch, answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use serde_json::{Value, json};

use crate::answer::{self, Computed, Params};
use crate::ask::{self, Api, Ask};
use crate::body::{Broken, Open, SimBody, Step};
use crate::engine::Engine;
use crate::error::ApiError;
use crate::events;
use crate::fault::{FaultKind, Junk, Missing};
use crate::json::Doc;
use crate::model;
use crate::side::{self, Op, Reply};

/// Serves one request.
pub(crate) async fn infer(
    api: Api,
    headers: &HeaderMap,
    body: Bytes,
    mut open: Open,
) -> Result<Response<SimBody>, Broken> {
    let engine = Arc::clone(&open.engine);
    let faults = engine.faults().take();
    open.running = Some(engine.run());
    if let Some(early) = before(&faults, &mut open).await? {
        return Ok(reply(early, open));
    }
    match work(&engine, api, headers, &body, &faults).await {
        Ok(computed) => {
            engine.succeeded.fetch_add(1, Ordering::Relaxed);
            engine.generated_tokens.fetch_add(computed.generated() as u64, Ordering::Relaxed);
            Ok(write(&engine, &computed, &faults, open))
        }
        Err(error) if error.in_stream => {
            let text = format!("{}data: [DONE]\n\n", error.error.event());
            let mut response = Response::new(SimBody::new([Step::Data(Duration::ZERO, text.into())], open));
            response.headers_mut().insert(CONTENT_TYPE, EVENT_STREAM);
            Ok(response)
        }
        Err(error) => Ok(reply(error.error.parts(), open)),
    }
}

const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");

/// A refusal, as a status or as the first event of a stream.
struct Refused {
    error: ApiError,
    in_stream: bool,
}

impl From<ApiError> for Refused {
    fn from(error: ApiError) -> Self {
        Self { error, in_stream: false }
    }
}

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
            | FaultKind::Health(_) => {}
        }
    }
    Ok(None)
}

async fn work(
    engine: &Arc<Engine>,
    api: Api,
    headers: &HeaderMap,
    body: &Bytes,
    faults: &[FaultKind],
) -> Result<Computed, Refused> {
    let document: Value =
        serde_json::from_slice(body).map_err(|_| ApiError::unreadable("JSON decode error").early())?;
    side_doors(engine, api, &document);
    let config = engine.config();
    let ask = match ask::read(config, api, &document) {
        Ok(ask) => ask,
        Err(error) => {
            let params = document.get("kv_transfer_params").unwrap_or(&Value::Null);
            if error.parsed && params.get("do_remote_prefill") == Some(&Value::Bool(true)) {
                // A refused decode leg tells prefill, which frees the blocks.
                side::call(Op::Release, params, config.load_timeout).await.ok();
            }
            return Err(error.into());
        }
    };
    let mut digests: Vec<_> = ask.prompts.iter().map(|prompt| model::digest(&prompt.ids)).collect();
    let id = request_id(api, headers);
    let mut params = if api == Api::Messages { Params::Absent } else { Params::Null };
    if ask.remote_decode() && config.role.prefills() {
        judge_prefill(engine, &ask);
        params = prefill(engine, &ask, &id, digests.first().copied().unwrap_or(0), faults).await;
    } else if ask.remote_prefill() && !matches!(config.role, crate::Role::Plain) {
        let fetched = fetch(engine, &ask, &digests).await?;
        digests = vec![fetched];
    } else {
        compute(engine, ask.prompt_tokens()).await;
    }
    Ok(Computed {
        choices: answer::choices(&ask, &digests),
        id,
        model: config.model.clone(),
        created: SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
        ask,
        params,
    })
}

/// A client's own handoff, where the engine would find it.
fn side_doors(engine: &Engine, api: Api, document: &Value) {
    let door = match api {
        Api::Generate => document.pointer("/sampling_params/extra_args"),
        Api::Completions | Api::Chat | Api::Responses | Api::Messages => document.get("vllm_xargs"),
    };
    for name in ["kv_transfer_params", "ec_transfer_params"] {
        if door.is_some_and(|door| door.get(name).is_some()) {
            engine.violation(format!("a client's own {name} came by the side door"));
        }
    }
}

fn judge_prefill(engine: &Engine, ask: &Ask) {
    for (wrong, what) in [
        (ask.stream, "a prefill leg streams"),
        (ask.max_tokens != 1, "a prefill leg asks for more than one token"),
        (ask.n != 1, "a prefill leg asks for several choices"),
        (ask.prompts.len() != 1, "a prefill leg has several prompts"),
    ] {
        if wrong {
            engine.violation(what);
        }
    }
}

async fn compute(engine: &Engine, tokens: usize) {
    let latency = &engine.config().latency;
    engine.prompt_tokens.fetch_add(tokens as u64, Ordering::Relaxed);
    let per_token = latency.prefill_per_token.saturating_mul(u32::try_from(tokens).unwrap_or(u32::MAX));
    let took = latency.prefill_base + per_token;
    if !took.is_zero() {
        tokio::time::sleep(took).await;
    }
}

/// Blocks of a prompt that is being computed; given back when its client leaves.
struct Blocks<'a> {
    engine: &'a Engine,
    count: usize,
}

impl Drop for Blocks<'_> {
    fn drop(&mut self) {
        self.engine.ledger().unpin(self.count);
    }
}

async fn prefill(engine: &Arc<Engine>, ask: &Ask, id: &str, digest: u64, faults: &[FaultKind]) -> Params {
    let tokens = ask.prompt_tokens();
    let count = tokens.div_ceil(engine.config().block_size.max(1)).max(1);
    engine.ledger().pin(count);
    let mut blocks = Blocks { engine, count };
    compute(engine, tokens).await;
    let missing = faults.iter().find_map(|f| if let FaultKind::Missing(how) = f { Some(*how) } else { None });
    match missing {
        Some(Missing::Absent) => return Params::Absent,
        Some(Missing::Null) => return Params::Null,
        Some(Missing::Empty) => return Params::Some(Box::new(Doc::new())),
        Some(Missing::NoPort | Missing::NullBlocks) | None => {}
    }
    // From here on the ledger knows them.
    blocks.count = 0;
    let remote = format!("{id}-{:08x}", fastrand::u32(..));
    engine.ledger().issue(remote.clone(), digest, count);
    let mode =
        faults.iter().find_map(|f| if let FaultKind::TransferMode(mode) = f { Some(mode) } else { None });
    let ids: Vec<usize> = (1..=count).collect();
    let doc = Doc::new()
        .put("do_remote_prefill", true)
        .put("do_remote_decode", false)
        .put(
            "remote_block_ids",
            if missing == Some(Missing::NullBlocks) { Value::Null } else { json!([ids]) },
        )
        .put("remote_engine_id", engine.id())
        .put("remote_request_id", remote)
        .put("remote_host", &engine.config().host)
        .put("remote_port", engine.side_port())
        .put("tp_size", 1)
        .put("dcp_size", 1)
        .put("pp_size", 1)
        .put("remote_num_tokens", tokens)
        .put("remote_blocks_expiry_time", ())
        .put("transfer_mode", mode.map_or("pull", String::as_str))
        .put("remote_prefill_cached_tokens", 0);
    let doc = if missing == Some(Missing::NoPort) { doc.without("remote_port") } else { doc };
    Params::Some(Box::new(doc))
}

/// Pulls a handoff and compares it with the prompt that came with it.
async fn fetch(engine: &Arc<Engine>, ask: &Ask, digests: &[u64]) -> Result<u64, Refused> {
    let dead = || Refused::from(ApiError::dead_core());
    if ask.prompts.len() != 1 || ask.prompt_logprobs || ask.echo || ask.n != 1 {
        engine.violation("a handoff came with several prompts or choices, prompt_logprobs or echo");
        return Err(dead());
    }
    if !ask.params.get("remote_block_ids").is_some_and(Value::is_array)
        || !ask.params.get("remote_port").is_some_and(Value::is_u64)
    {
        engine.violation("a handoff without block ids or port, which kills a decode engine");
        return Err(dead());
    }
    let failed = Refused { error: ApiError::failed_load(), in_stream: ask.stream };
    let own = digests.first().copied().unwrap_or(0);
    let tokens = ask.prompt_tokens();
    let transfer =
        engine.config().latency.transfer_per_token.saturating_mul(u32::try_from(tokens).unwrap_or(0));
    let digest = match side::call(Op::Fetch, &ask.params, engine.config().load_timeout).await {
        Ok(Reply::Done(digest)) => digest,
        Ok(Reply::Expired) => {
            engine.violation("a handoff was used after its lease");
            // A real engine reads blocks that hold another prompt by now.
            own.rotate_left(7) ^ 1
        }
        Ok(Reply::OtherEngine) | Err(_) if engine.config().recompute => {
            compute(engine, tokens).await;
            own
        }
        Ok(Reply::OtherEngine) | Err(_) => return Err(failed),
        Ok(other @ (Reply::Served | Reply::Released | Reply::Unknown)) => {
            engine.violation(format!("a handoff that cannot be fetched: {other:?}"));
            return Err(failed);
        }
    };
    engine.external_tokens.fetch_add(tokens as u64, Ordering::Relaxed);
    if digest != own {
        engine.violation("a handoff of another prompt");
    }
    if !transfer.is_zero() {
        tokio::time::sleep(transfer).await;
    }
    Ok(digest)
}

fn request_id(api: Api, headers: &HeaderMap) -> String {
    let given = headers.get("x-request-id").and_then(|id| id.to_str().ok()).filter(|_| api != Api::Responses);
    let id = given.map_or_else(|| format!("{:016x}", fastrand::u64(..)), str::to_owned);
    format!("{}{id}", api.id_prefix())
}

/// Writes an answer down, with the faults that it has on the way.
fn write(engine: &Engine, computed: &Computed, faults: &[FaultKind], open: Open) -> Response<SimBody> {
    if !computed.ask.stream {
        let text = Bytes::from(computed.document().text());
        let length = text.len();
        let itl = engine.config().latency.itl;
        let delay = itl.saturating_mul(u32::try_from(computed.ask.max_tokens - 1).unwrap_or(0));
        let steps = with_faults(vec![Step::Data(delay, text)], faults);
        let mut response = Response::new(SimBody::new(steps, open));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
        return response;
    }
    let mut first = true;
    let mut steps = Vec::new();
    for event in events::all(computed) {
        let delay = if event.token && !first { engine.config().latency.itl } else { Duration::ZERO };
        first &= !event.token;
        steps.push(Step::Data(delay, event.text));
    }
    let mut response = Response::new(SimBody::new(with_faults(steps, faults), open));
    response.headers_mut().insert(CONTENT_TYPE, EVENT_STREAM);
    response
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
            | FaultKind::Health(_) => continue,
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
