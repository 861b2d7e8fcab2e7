//! The paths beside inference: health, models, version, load, metrics, tokenizer, and the simulator's own.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::{Method, StatusCode, Uri};
use serde_json::{Value, json};

use crate::ask::Api;
use crate::engine::Engine;
use crate::fault::Fault;
use crate::json::Doc;
use crate::life;
use crate::prompt::Prompt;

/// An answer that is there at once.
pub(crate) struct Page {
    pub(crate) status: StatusCode,
    pub(crate) kind: &'static str,
    pub(crate) allow: Option<&'static str>,
    pub(crate) text: String,
}

fn page(status: StatusCode, kind: &'static str, text: impl Into<String>) -> Page {
    Page { status, kind, allow: None, text: text.into() }
}

fn json_page(document: &impl ToString) -> Page {
    page(StatusCode::OK, "application/json", document.to_string())
}

const GETS: [&str; 7] = ["/health", "/ping", "/load", "/version", "/v1/models", "/metrics", "/sim/ledger"];
const POSTS: [&str; 6] = [
    "/tokenize",
    "/detokenize",
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/embeddings",
    "/sim/fault",
];

/// Answers a request that is no inference.
pub(crate) fn answer(engine: &Arc<Engine>, method: &Method, uri: &Uri, body: &Bytes) -> Page {
    let path = uri.path();
    if let Some(document) = engine.control.answer(method, path, uri.query().unwrap_or_default()) {
        return json_page(&document);
    }
    let get = matches!(*method, Method::GET | Method::HEAD) || (*method == Method::POST && path == "/ping");
    if *method == Method::DELETE && path == "/sim/fault" {
        life::heal(engine);
        return json_page(&json!({ "armed": false }));
    }
    if GETS.contains(&path) {
        return if get { get_page(engine, path) } else { wrong_method("GET") };
    }
    if POSTS.contains(&path) || Api::on(path).is_some() {
        return if *method == Method::POST { post_page(engine, path, body) } else { wrong_method("POST") };
    }
    page(StatusCode::NOT_FOUND, "application/json", r#"{"detail":"Not Found"}"#)
}

fn wrong_method(allow: &'static str) -> Page {
    let text = r#"{"detail":"Method Not Allowed"}"#;
    Page { allow: Some(allow), ..page(StatusCode::METHOD_NOT_ALLOWED, "application/json", text) }
}

fn get_page(engine: &Engine, path: &str) -> Page {
    match path {
        "/health" => {
            let status = StatusCode::from_u16(engine.faults().health()).unwrap_or(StatusCode::OK);
            page(status, "text/plain", "")
        }
        "/load" => json_page(&json!({ "server_load": engine.running() })),
        "/version" => json_page(&json!({ "version": engine.config().version })),
        "/v1/models" => json_page(&models(engine)),
        "/metrics" => page(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", metrics(engine)),
        "/sim/ledger" => {
            engine.ledger().expire(engine.config().lease);
            json_page(&serde_json::to_string(engine.ledger().view()).unwrap_or_default())
        }
        _ => page(StatusCode::OK, "text/plain", ""),
    }
}

fn post_page(engine: &Arc<Engine>, path: &str, body: &Bytes) -> Page {
    let Ok(document) = serde_json::from_slice::<Value>(body) else {
        return page(StatusCode::BAD_REQUEST, "application/json", r#"{"detail":"JSON decode error"}"#);
    };
    let text = document.get("prompt").and_then(Value::as_str).unwrap_or_default();
    let ids = Prompt::of_text(text).ids;
    match path {
        "/sim/fault" => match serde_json::from_value::<Fault>(document) {
            Ok(fault) => {
                life::arm(engine, fault);
                json_page(&json!({ "armed": true }))
            }
            Err(error) => page(
                StatusCode::BAD_REQUEST,
                "application/json",
                json!({ "detail": error.to_string() }).to_string(),
            ),
        },
        "/tokenize" => json_page(
            &json!({"count": ids.len(), "max_model_len": engine.config().max_model_len, "tokens": ids}),
        ),
        "/detokenize" => {
            let ids = document.get("tokens").and_then(Value::as_array).into_iter().flatten();
            let ids = ids.filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect();
            json_page(&json!({ "prompt": Prompt::of_ids(ids).text }))
        }
        "/v1/embeddings" => json_page(&json!({"object": "list", "data": [], "model": engine.config().model})),
        _ => json_page(&json!({ "token_ids": ids })),
    }
}

fn models(engine: &Engine) -> String {
    let config = engine.config();
    let permission = Doc::new()
        .put("id", "modelperm-sim")
        .put("object", "model_permission")
        .put("created", 0)
        .put("allow_create_engine", false)
        .put("allow_sampling", true)
        .put("allow_logprobs", true)
        .put("allow_search_indices", false)
        .put("allow_view", true)
        .put("allow_fine_tuning", false)
        .put("organization", "*")
        .put("group", ())
        .put("is_blocking", false);
    let model = Doc::new()
        .put("id", &config.model)
        .put("object", "model")
        .put("created", 0)
        .put("owned_by", "vllm")
        .put("root", &config.model)
        .put("parent", ())
        .put("max_model_len", config.max_model_len)
        .put("permission", [permission]);
    Doc::new().put("object", "list").put("data", [model]).text()
}

fn metrics(engine: &Engine) -> String {
    engine.ledger().expire(engine.config().lease);
    let view = engine.ledger().view().clone();
    let config = engine.config();
    let usage = view.pinned_blocks as f64 / config.blocks.max(1) as f64;
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed) as f64;
    let mut text = String::new();
    for (name, kind, value) in [
        ("vllm:num_requests_running", "gauge", engine.running().saturating_sub(engine.waiting()) as f64),
        ("vllm:num_requests_waiting", "gauge", engine.waiting() as f64),
        ("vllm:kv_cache_usage_perc", "gauge", usage),
        ("vllm:prompt_tokens_total", "counter", count(&engine.prompt_tokens)),
        ("vllm:generation_tokens_total", "counter", count(&engine.generated_tokens)),
        ("vllm:request_success_total", "counter", count(&engine.succeeded)),
        ("vllm:nixl_num_kv_expired_reqs_total", "counter", view.expired as f64),
        ("vllm:nixl_num_failed_transfers_total", "counter", count(&engine.failed_transfers)),
        ("vllm:external_prefix_cache_hits_total", "counter", count(&engine.external_tokens)),
    ] {
        // Writing to a String cannot fail.
        writeln!(text, "# HELP {name} As vLLM counts it.\n# TYPE {name} {kind}").ok();
        writeln!(text, "{name}{{engine=\"0\",model_name=\"{}\"}} {value:?}", config.model).ok();
    }
    text
}
