//! The metric handles of one API, resolved once.

use std::sync::OnceLock;

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, Registry};

use super::record::Outcome;
use super::{BODY_BYTES, FIRST_TOKEN_SECONDS, REQUEST_SECONDS, TOKEN_SECONDS, counters, histograms};

/// The families that carry the label `api`.
#[derive(Debug)]
pub(super) struct ApiFamilies {
    requests: IntCounterVec,
    seconds: HistogramVec,
    first_token: HistogramVec,
    per_token: HistogramVec,
    prompt_tokens: IntCounterVec,
    generated_tokens: IntCounterVec,
    request_bytes: HistogramVec,
    response_bytes: IntCounterVec,
}

/// One API's handles.
#[derive(Debug)]
pub struct ApiMetrics {
    /// The label.
    pub name: &'static str,
    /// By outcome, in the order of [`Outcome::ALL`].
    outcomes: Vec<IntCounter>,
    /// Head to last byte.
    pub seconds: Histogram,
    /// Head to the first event with content.
    pub first_token: Histogram,
    /// Mean time of a token after the first.
    pub per_token: Histogram,
    /// Tokens of prompts.
    pub prompt_tokens: IntCounter,
    /// Tokens generated.
    pub generated_tokens: IntCounter,
    /// Request bodies.
    pub request_bytes: Histogram,
    /// Answer bodies.
    pub response_bytes: IntCounter,
    /// vllm-router's duration, where that is wanted.
    pub(super) to_decode_head: OnceLock<Histogram>,
}

impl ApiFamilies {
    pub(super) fn register(r: &Registry) -> prometheus::Result<Self> {
        let api = &["api"];
        Ok(Self {
            requests: counters(
                r,
                "pd_router_requests_total",
                "Requests by API and how they ended. `ok`: a good answer reached the client whole. `client_closed`: the client left first. `client_error`: it could not be served as it was, said the router or, by a 4xx but 408 and 429, an engine. `engine_error`: an engine failed it, or none was there. `router_error`: the router failed it. `shed`: refused for lack of room, by the router or by an engine's 429. `incomplete_stream`: a stream ended without its end mark.",
                &["api", "outcome"],
            )?,
            seconds: histograms(
                r,
                "pd_router_request_seconds",
                "End to end: request head to last byte.",
                api,
                REQUEST_SECONDS,
            )?,
            first_token: histograms(
                r,
                "pd_router_time_to_first_token_seconds",
                "Request head to the first data event with content, as the client sees it; of streams. Neither comments nor the chat event that only names the role count.",
                api,
                FIRST_TOKEN_SECONDS,
            )?,
            per_token: histograms(
                r,
                "pd_router_time_per_output_token_seconds",
                "Of each stream with two tokens or more: first to last event with content, divided by the tokens after the first.",
                api,
                TOKEN_SECONDS,
            )?,
            prompt_tokens: counters(
                r,
                "pd_router_prompt_tokens_total",
                "Tokens of prompts, from `usage` of the answer or of prefill's answer.",
                api,
            )?,
            generated_tokens: counters(
                r,
                "pd_router_generated_tokens_total",
                "Tokens generated, from `usage` of the answer; without one, events with content.",
                api,
            )?,
            request_bytes: histograms(
                r,
                "pd_router_request_body_bytes",
                "Bodies of requests that came whole.",
                api,
                BODY_BYTES,
            )?,
            response_bytes: counters(
                r,
                "pd_router_response_body_bytes_total",
                "Bytes of engines' answers that went to clients.",
                api,
            )?,
        })
    }

    /// The handles of one API; from now on its series exist.
    pub(super) fn api(&self, name: &'static str) -> ApiMetrics {
        let api = &[name];
        ApiMetrics {
            name,
            outcomes: Outcome::ALL
                .iter()
                .map(|outcome| self.requests.with_label_values(&[name, outcome.as_str()]))
                .collect(),
            seconds: self.seconds.with_label_values(api),
            first_token: self.first_token.with_label_values(api),
            per_token: self.per_token.with_label_values(api),
            prompt_tokens: self.prompt_tokens.with_label_values(api),
            generated_tokens: self.generated_tokens.with_label_values(api),
            request_bytes: self.request_bytes.with_label_values(api),
            response_bytes: self.response_bytes.with_label_values(api),
            to_decode_head: OnceLock::new(),
        }
    }
}

impl ApiMetrics {
    /// The counter of an outcome.
    #[must_use]
    pub fn outcome(&self, outcome: Outcome) -> Option<&IntCounter> {
        self.outcomes.get(outcome as usize)
    }

    /// Requests that ended, however.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.outcomes.iter().map(prometheus::core::GenericCounter::get).sum()
    }
}
