//! What the page and `pd-router top` show, as one JSON document. Times are in seconds.

use serde::{Deserialize, Serialize};

/// How the router does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// All is well.
    Ok,
    /// It serves, and something is wrong.
    Degraded,
    /// It does not serve.
    Down,
}

/// The whole document.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// The router's version.
    pub version: String,
    /// When this was made, in Unix time.
    pub now: f64,
    /// The worst of the findings.
    pub level: Level,
    /// What is wrong, the worst first.
    pub findings: Vec<Finding>,
    /// The load.
    pub requests: Requests,
    /// Where the time went in the last minute.
    pub times: Times,
    /// The engines.
    pub pools: Vec<Pool>,
    /// The last minutes.
    pub history: Points,
    /// The last failures, the latest first.
    pub failures: Vec<Failure>,
}

/// Something that is wrong.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What it is.
    pub text: String,
}

/// Requests now, of the last seconds and of the last minute.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Requests {
    /// In flight now.
    pub in_flight: i64,
    /// Waiting for a slot now.
    pub waiting: i64,
    /// That ended, a second, in the last ten seconds.
    pub per_second: f64,
    /// That failed by an engine's or the router's fault, a second, in the last ten seconds.
    pub failed_per_second: f64,
    /// Tokens generated, a second, in the last ten seconds.
    pub tokens_per_second: f64,
    /// What the numbers of the last minute cover; less after a start.
    pub minute_seconds: f64,
    /// That ended in the last minute, by outcome.
    pub ended: Ended,
    /// That failed in the last minute, by whose fault.
    pub failed: ByBlame,
}

/// Requests by outcome, as in `pd_router_requests_total`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are those of the metric label")]
pub struct Ended {
    pub ok: u64,
    pub client_closed: u64,
    pub client_error: u64,
    pub engine_error: u64,
    pub router_error: u64,
    pub shed: u64,
    pub incomplete_stream: u64,
}

/// Failed requests by whose fault it was.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ByBlame {
    /// The request could not be served as it was.
    pub client: u64,
    /// An engine failed it, or none was there.
    pub engine: u64,
    /// No room, or the router was about to end.
    pub router: u64,
}

/// How long something took in the last minute.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Time {
    /// How often it was measured.
    pub count: u64,
    /// Half of them took less; null where there are none.
    pub p50: Option<f64>,
    /// 99 of 100 took less; null where there are none.
    pub p99: Option<f64>,
}

/// The times of a request and of its parts.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Times {
    /// TTFT as the client sees it, of streams.
    pub first_token: Time,
    /// ITL.
    pub inter_token: Time,
    /// Head to last byte.
    pub total: Time,
    /// Wait for a slot.
    pub queue_wait: Time,
    /// Prefill request to its whole answer.
    pub prefill: Time,
    /// Prefill answer to the decode request.
    pub handoff_gap: Time,
    /// Decode request to the head of its answer.
    pub decode: Time,
    /// Prefill answer to decode's first event, of streams: the KV cache moves in it.
    pub handover: Time,
    /// The router's own.
    pub added: Time,
}

/// The engines of a role.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pool {
    /// `prefill` or `decode`.
    pub role: String,
    /// How many are up.
    pub up: usize,
    /// Each.
    pub engines: Vec<Engine>,
}

/// An engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Engine {
    /// Its URL.
    pub url: String,
    /// `up`, `paused` or `asleep` by a call to it, `down`, `unknown`, or `slow`: down, but only because it
    /// answers probes slowly.
    pub state: String,
    /// `closed`, `open` or `half_open`.
    pub breaker: String,
    /// Of a decode engine: prefill engines whose handoffs it fails.
    pub pairs_open: usize,
    /// Requests in flight at it.
    pub in_flight: i64,
    /// Requests in flight at it and promised to it.
    pub load_requests: i64,
    /// Their prompt tokens, estimated.
    pub load_tokens: i64,
    /// Its data-parallel ranks; 1 for an engine without.
    pub ranks: usize,
    /// vLLM's version.
    pub vllm: Option<String>,
    /// Legs sent in the last minute.
    pub legs: u64,
    /// Legs that it failed in the last minute.
    pub errors: u64,
    /// Prefill: request to whole answer. Decode: request to the head of the answer.
    pub answer: Time,
    /// Of a decode engine: ITL.
    pub inter_token: Time,
}

/// The last minutes, the oldest first; null where nothing was measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it; as in `Requests` and `Times`")]
pub struct Points {
    /// Between two points.
    pub interval: f64,
    pub per_second: Vec<f64>,
    pub failed_per_second: Vec<f64>,
    pub tokens_per_second: Vec<f64>,
    pub first_token_p50: Vec<Option<f64>>,
    pub first_token_p99: Vec<Option<f64>>,
    pub inter_token_p50: Vec<Option<f64>>,
    pub inter_token_p99: Vec<Option<f64>>,
}

/// Failures alike: the last of them and how many.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// When the last one ended, in Unix time.
    pub at: f64,
    /// How many were alike.
    pub count: u64,
    /// The last one's request id.
    pub request_id: String,
    /// Its API.
    pub api: String,
    /// The leg that failed: `prefill`, `decode`, `one-hop`; null where it came to none.
    pub leg: Option<String>,
    /// The engine that failed it.
    pub engine: Option<String>,
    /// Why: the `code` of the answer where there was one.
    pub reason: String,
    /// What else is known.
    pub detail: Option<String>,
    /// The status that the client got; null for one that left before.
    pub status: Option<u16>,
    /// How the request ended; `ok` where another try went well.
    pub outcome: String,
    /// Whose fault it is: `client`, `engine`, `router`.
    pub blame: String,
}
