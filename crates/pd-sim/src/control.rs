//! The paths with which a trainer steers an engine: pause, sleep, weights. They change only whether it rests.

use std::sync::atomic::{AtomicU8, Ordering};

use http::Method;
use serde_json::{Value, json};

const PAUSED: u8 = 1;
const WEIGHTS: u8 = 2;
const KV_CACHE: u8 = 4;

const POSTS: [&str; 12] = [
    "/pause",
    "/resume",
    "/sleep",
    "/wake_up",
    "/abort_requests",
    "/reset_prefix_cache",
    "/collective_rpc",
    "/start_weight_update",
    "/update_weights",
    "/finish_weight_update",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
];

/// What an engine has stopped.
#[derive(Debug, Default)]
pub(crate) struct Control(AtomicU8);

impl Control {
    pub(crate) fn rests(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// The answer to a call, if it is one of these.
    pub(crate) fn answer(&self, method: &Method, path: &str, query: &str) -> Option<Value> {
        let now = self.0.load(Ordering::Relaxed);
        if *method == Method::GET {
            return match path {
                "/is_paused" => Some(json!({ "is_paused": now & PAUSED != 0 })),
                "/is_sleeping" => Some(json!({ "is_sleeping": now & !PAUSED != 0 })),
                "/weight_info" => Some(json!({ "weight_version": "0" })),
                _ => None,
            };
        }
        if *method != Method::POST || !POSTS.contains(&path) {
            return None;
        }
        let tag = |tag: &str| !query.contains("tags=") || query.contains(&format!("tags={tag}"));
        let woken = if tag("weights") { WEIGHTS } else { 0 } | if tag("kv_cache") { KV_CACHE } else { 0 };
        let next = match path {
            "/pause" => now | PAUSED,
            "/resume" => now & !PAUSED,
            "/sleep" => now | WEIGHTS | KV_CACHE,
            "/wake_up" => now & !woken,
            _ => now,
        };
        self.0.store(next, Ordering::Relaxed);
        Some(json!({ "status": "ok" }))
    }

    /// A new life is awake.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
