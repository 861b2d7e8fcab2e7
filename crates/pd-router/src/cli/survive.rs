//! The flags for engines that die, requests that are tried again, overload and the end.

use std::time::Duration;

use super::secs;
use crate::admit::queue::Queue;
use crate::config::{CONCURRENT_MAX, Config, QUEUE_MAX};
use crate::dispatch::MissingHandoff;
use crate::plan::PrefillFallback;

/// Health, breaker, retries, deadlines, overload, drain.
#[derive(Clone, Debug, clap::Args)]
pub struct Survive {
    /// Time between two health probes of an engine that is up
    #[arg(long, value_name = "SECS", default_value_t = 5, value_parser = secs, help_heading = "Health")]
    pub health_check_interval_secs: u64,

    /// Time that a health probe may take
    #[arg(long, value_name = "SECS", default_value_t = 5, value_parser = secs, help_heading = "Health")]
    pub health_check_timeout_secs: u64,

    /// Failed probes in a row that put an engine down
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Health")]
    pub health_failure_threshold: u32,

    /// Good probes in a row that bring an engine back that probes had put down
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Health")]
    pub health_success_threshold: u32,

    /// Path that a health probe asks for
    #[arg(long, value_name = "PATH", default_value = "/health", help_heading = "Health")]
    pub health_check_endpoint: String,

    /// Taken for vllm-router's sake: this router listens at once and never exits by itself while it waits
    #[arg(long, value_name = "SECS", help_heading = "Health")]
    pub worker_startup_timeout_secs: Option<u64>,

    /// Failures in a row that open an engine's circuit breaker
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Circuit breaker")]
    pub cb_failure_threshold: u32,

    /// Successes in a row that close it again
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Circuit breaker")]
    pub cb_success_threshold: u32,

    /// Time that it stays open before one request tries
    #[arg(long, value_name = "SECS", default_value_t = 60, value_parser = secs, help_heading = "Circuit breaker")]
    pub cb_timeout_duration_secs: u64,

    /// Failures further apart than this do not count together
    #[arg(long, value_name = "SECS", default_value_t = 120, value_parser = secs, help_heading = "Circuit breaker")]
    pub cb_window_duration_secs: u64,

    /// Have no circuit breaker
    #[arg(long, help_heading = "Circuit breaker")]
    pub disable_circuit_breaker: bool,

    /// Tries of a request after the first, before any byte reached its client
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "Retries")]
    pub retry_max_retries: u32,

    /// Wait before the first of them, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 50, help_heading = "Retries")]
    pub retry_initial_backoff_ms: u64,

    /// Longest wait, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 30_000, help_heading = "Retries")]
    pub retry_max_backoff_ms: u64,

    /// By what each wait grows
    #[arg(long, value_name = "FACTOR", default_value_t = 1.5, value_parser = multiplier, help_heading = "Retries")]
    pub retry_backoff_multiplier: f64,

    /// How much of a wait is left to chance, 0 to 1
    #[arg(long, value_name = "PART", default_value_t = 0.2, value_parser = part, help_heading = "Retries")]
    pub retry_jitter_factor: f64,

    /// Try each request once
    #[arg(long, help_heading = "Retries")]
    pub disable_retries: bool,

    /// What a request gets when no prefill engine can serve
    #[arg(long, value_name = "WHAT", value_parser = ["error", "decode-only"], default_value = "error", help_heading = "Retries")]
    pub prefill_fallback: String,

    /// What a request gets when a prefill answer brings no usable handoff
    #[arg(long, value_name = "WHAT", value_parser = ["error", "decode-only"], default_value = "decode-only", help_heading = "Retries")]
    pub missing_handoff: String,

    /// Say in `usage` how many prompt tokens prefill found in its cache (`cached_tokens`), in the place of
    /// decode's count, which takes the whole handoff for a hit. Prefill engines need
    /// --enable-prompt-tokens-details
    #[arg(long, help_heading = "Answers")]
    pub usage_from_prefill: bool,

    /// Age up to which a handoff is used; an older one is given back and prefill runs again
    #[arg(long, value_name = "SECS", default_value_t = 20, value_parser = secs, help_heading = "Deadlines")]
    pub handoff_max_age_secs: u64,

    /// Requests in flight at once, each held to its last byte
    #[arg(long, value_name = "N", default_value_t = CONCURRENT_MAX, help_heading = "Limits")]
    pub max_concurrent_requests: usize,

    /// Requests that wait for a slot, in turn; more get 429
    #[arg(long, value_name = "N", default_value_t = QUEUE_MAX, help_heading = "Limits")]
    pub queue_size: usize,

    /// Time that a request waits for a slot
    #[arg(long, value_name = "SECS", default_value_t = 60, value_parser = secs, help_heading = "Limits")]
    pub queue_timeout_secs: u64,

    /// Requests in flight at one prefill engine [default: no limit]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub max_prefill_per_engine: Option<usize>,

    /// Requests in flight at one decode engine, or one of --worker-urls [default: no limit]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub max_decode_per_engine: Option<usize>,

    /// Time after SIGTERM in which new requests are still served, for load balancers that need to notice
    #[arg(long, value_name = "SECS", default_value_t = 0, help_heading = "The end")]
    pub drain_grace_secs: u64,

    /// Time that requests in flight have to end after SIGTERM
    #[arg(long, value_name = "SECS", default_value_t = 300, value_parser = secs, help_heading = "The end")]
    pub drain_timeout_secs: u64,
}

fn multiplier(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|f: &f64| (1.0..=100.0).contains(f))
        .ok_or_else(|| "give a number from 1 to 100".to_owned())
}

fn part(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|f: &f64| (0.0..=1.0).contains(f))
        .ok_or_else(|| "give a number from 0 to 1".to_owned())
}

impl Survive {
    /// Puts what was typed into the configuration.
    pub fn fill(&self, config: &mut Config) {
        config.probe.interval = Duration::from_secs(self.health_check_interval_secs);
        config.probe.timeout = Duration::from_secs(self.health_check_timeout_secs);
        config.probe.health.failure_threshold = self.health_failure_threshold;
        config.probe.health.success_threshold = self.health_success_threshold;
        config.probe.path = format!("/{}", self.health_check_endpoint.trim_start_matches('/'));
        let opens = !self.disable_circuit_breaker;
        config.breaker.failure_threshold = if opens { self.cb_failure_threshold } else { 0 };
        config.breaker.success_threshold = self.cb_success_threshold;
        config.breaker.open_for = Duration::from_secs(self.cb_timeout_duration_secs);
        config.breaker.window = Duration::from_secs(self.cb_window_duration_secs);
        let retry = &mut config.dispatch.retry;
        retry.max_retries = if self.disable_retries { 0 } else { self.retry_max_retries };
        retry.initial_backoff = Duration::from_millis(self.retry_initial_backoff_ms);
        retry.max_backoff = Duration::from_millis(self.retry_max_backoff_ms);
        retry.multiplier = self.retry_backoff_multiplier;
        retry.jitter = self.retry_jitter_factor;
        config.plan.fallback = match self.prefill_fallback.as_str() {
            "decode-only" => PrefillFallback::DecodeOnly,
            _ => PrefillFallback::Error,
        };
        config.dispatch.usage_from_prefill = self.usage_from_prefill;
        config.dispatch.missing_handoff = match self.missing_handoff.as_str() {
            "error" => MissingHandoff::Error,
            _ => MissingHandoff::DecodeOnly,
        };
        config.dispatch.handoff_age_max = Duration::from_secs(self.handoff_max_age_secs);
        let timeout = Duration::from_secs(self.queue_timeout_secs);
        config.queue = Queue::new(self.max_concurrent_requests, self.queue_size, timeout);
        config.prefill_per_engine_max = self.max_prefill_per_engine;
        config.decode_per_engine_max = self.max_decode_per_engine;
        config.drain.grace = Duration::from_secs(self.drain_grace_secs);
        config.drain.timeout = Duration::from_secs(self.drain_timeout_secs);
    }
}
