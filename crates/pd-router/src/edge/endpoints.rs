//! The one table of what is served beside the inference paths; `docs/reference/endpoints.md` is written from
//! it.

use Who::{AnyEngine, EveryEngine, Router};

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// One engine of either role, unchanged.
    AnyEngine,
    /// Every engine, or with `?role=` those of a pool; one document of all answers.
    EveryEngine,
    /// The router itself.
    Router,
}

/// A method of a path.
#[derive(Debug)]
pub struct Endpoint {
    /// The method; HEAD is served wherever GET is.
    pub method: &'static str,
    /// The path.
    pub path: &'static str,
    /// Who answers.
    pub who: Who,
    /// Whether it needs the admin key or, without one, loopback.
    pub guarded: bool,
    /// What it does, a sentence.
    pub what: &'static str,
}

const fn own(method: &'static str, path: &'static str, what: &'static str) -> Endpoint {
    Endpoint { method, path, who: Router, guarded: false, what }
}

const fn fleet(method: &'static str, path: &'static str, what: &'static str) -> Endpoint {
    Endpoint { method, path, who: Router, guarded: true, what }
}

const fn any(method: &'static str, path: &'static str, what: &'static str) -> Endpoint {
    Endpoint { method, path, who: AnyEngine, guarded: false, what }
}

const fn all(method: &'static str, path: &'static str, what: &'static str) -> Endpoint {
    Endpoint { method, path, who: EveryEngine, guarded: true, what }
}

/// All of them.
pub static ENDPOINTS: [Endpoint; 57] = [
    own("GET", "/liveness", "200 `OK` while the process runs."),
    own(
        "GET",
        "/health",
        "200 while each pool has an engine that can serve (one pool with `--worker-urls`); the body says who is down. With `--strict-health` 503 as soon as any engine is.",
    ),
    own(
        "GET",
        "/readiness",
        "As `/health`; `prefill` and `decode`, or `regular`, have `healthy` and `total`.",
    ),
    own("GET", "/metrics", "Prometheus text."),
    own("GET", "/ui", "A page for people: the last minutes, the last failures, the engines."),
    own("GET", "/ui/state", "What the page shows, as JSON."),
    own("POST", "/finish_session", "Policies forget the session `?session_id=`."),
    own("GET", "/workers", "Every engine: `url`, `worker_type`, `is_healthy`, `load`, state."),
    own("GET", "/list_workers", "Every engine's base URL, in `urls`."),
    own("GET", "/workers/{url}", "One engine; the URL percent-encoded."),
    own("GET", "/get_loads", "Requests an engine has by the router's own count."),
    own("GET", "/get_server_info", "The router's version and policies."),
    fleet(
        "POST",
        "/workers",
        "Takes an engine in: `{\"url\": URL, \"worker_type\": \"prefill\" or \"decode\"}`; with `--worker-urls` `\"regular\"`, or none. One that drains takes requests again.",
    ),
    fleet("POST", "/add_worker", "The same from `?url=` and `&worker_type=`."),
    fleet(
        "DELETE",
        "/workers/{url}",
        "The engine gets no new requests, ends those that it has, and is gone; 404 for one that is unknown.",
    ),
    fleet("POST", "/remove_worker", "The same for `?url=`."),
    fleet("POST", "/workers/{url}/drain", "The engine gets no new requests, and stays."),
    all(
        "POST",
        "/pause",
        "Engines stop to compute, prefill first; requests wait or, with `--paused reject`, get 503.",
    ),
    all("POST", "/resume", "Engines compute again."),
    all("GET", "/is_paused", "`is_paused`, null where engines differ."),
    all("POST", "/sleep", "Engines give memory back, prefill first; they get no requests until they wake."),
    all("POST", "/wake_up", "Engines wake, or the parts of them that `?tags=` names."),
    all("GET", "/is_sleeping", "`is_sleeping`, null where engines differ."),
    all("POST", "/abort_requests", "Engines abort requests."),
    all("POST", "/reset_prefix_cache", "Engines drop their prefix caches."),
    all("POST", "/flush_cache", "`/reset_prefix_cache` under vllm-router's name."),
    all("POST", "/collective_rpc", "A method on every worker of every engine."),
    all("POST", "/start_weight_update", "A weight update begins."),
    all("POST", "/update_weights", "Weights, on all engines at once, as collective transfers need it."),
    all("POST", "/finish_weight_update", "A weight update ends."),
    all("POST", "/update_weight_version", "The version that engines report."),
    all("GET", "/weight_info", "`weight_version`, null where engines differ."),
    all("POST", "/v1/load_lora_adapter", "A LoRA adapter is loaded."),
    all("POST", "/v1/unload_lora_adapter", "A LoRA adapter is unloaded."),
    any("GET", "/v1/models", "The models, from the next engine if one cannot be reached."),
    any("GET", "/v1/models/{id}", "One model."),
    any("GET", "/load", "One engine's load."),
    any("GET", "/version", "One engine's version."),
    any("POST", "/tokenize", "Text to token ids."),
    any("POST", "/detokenize", "Token ids to text."),
    any("POST", "/v1/chat/completions/render", "The prompt of a chat."),
    any("POST", "/v1/completions/render", "The prompt of a completion."),
    any("POST", "/v1/responses/render", "The prompt of a response."),
    any("POST", "/v1/messages/render", "The prompt of messages."),
    any("POST", "/v1/chat/completions/derender", "Tokens to a chat answer."),
    any("POST", "/v1/completions/derender", "Tokens to a completion."),
    any("POST", "/v1/messages/count_tokens", "How many tokens messages have."),
    any("POST", "/v1/embeddings", "Embeddings."),
    any("POST", "/pooling", "Pooled hidden states."),
    any("POST", "/classify", "Classes."),
    any("POST", "/score", "Scores."),
    any("POST", "/v1/score", "Scores."),
    any("POST", "/rerank", "Reranked documents."),
    any("POST", "/v1/rerank", "Reranked documents."),
    any("POST", "/v2/rerank", "Reranked documents."),
    any("POST", "/v1/audio/transcriptions", "Speech to text."),
    any("POST", "/v1/audio/translations", "Speech to English text."),
];
