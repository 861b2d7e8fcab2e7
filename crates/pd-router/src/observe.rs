//! What the router tells about itself: the metric families, registered in one place each, and the record of
//! a request.

pub mod engine;
pub mod record;

use std::time::Duration;

use engine::EngineFamilies;
use prometheus::{
    Encoder, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};
use record::Outcome;

use crate::ids::{HandoffEnd, Leg, Missing, WholeReason};

/// The `api` label of paths that need no handoff.
pub const ONE_HOP: &str = "one_hop";

/// Bounds, in seconds, for what an engine takes: from a cached short prompt (1 ms) to the longest prefill.
const LEG_SECONDS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// Bounds, in seconds, for a whole request: generations of RL rollouts reach 30 minutes and more.
const REQUEST_SECONDS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0];

/// The registry and the families that no engine owns.
#[derive(Debug)]
pub struct Observe {
    registry: Registry,
    engines: EngineFamilies,
    requests: IntCounterVec,
    seconds: HistogramVec,
    ttft: HistogramVec,
    whole: IntCounterVec,
    missing: IntCounterVec,
    handoffs: IntCounterVec,
    retries: IntCounterVec,
    /// Members of clients' own handoffs that were cut from bodies.
    pub stripped: IntCounter,
    in_flight: IntGauge,
}

impl Observe {
    /// Registers every family; each has its series from the start. `apis` are the names in the label `api`.
    ///
    /// # Errors
    /// Two families of one name, which is a fault of this code.
    pub fn new(apis: &[&'static str]) -> prometheus::Result<Self> {
        let registry = Registry::new();
        let r = &registry;
        let observe = Self {
            engines: EngineFamilies::register(r)?,
            requests: counters(
                r,
                "pd_router_requests_total",
                "Requests by API and how they ended.",
                &["api", "outcome"],
            )?,
            seconds: histograms(
                r,
                "pd_router_request_seconds",
                "Request head to last byte.",
                &["api"],
                REQUEST_SECONDS,
            )?,
            ttft: histograms(
                r,
                "pd_router_time_to_first_token_seconds",
                "Request head to the first data event of a stream.",
                &["api"],
                REQUEST_SECONDS,
            )?,
            whole: counters(
                r,
                "pd_router_whole_requests_total",
                "Requests that went whole to one decode engine, by why one handoff cannot serve them.",
                &["reason"],
            )?,
            missing: counters(
                r,
                "pd_router_missing_handoffs_total",
                "Prefill answers without a handoff that a decode engine could use.",
                &["reason"],
            )?,
            handoffs: counters(
                r,
                "pd_router_handoffs_total",
                "Handoffs by step: issued = fetched + released + stranded, once all have ended.",
                &["state"],
            )?,
            retries: counters(r, "pd_router_retries_total", "Tries after the first, by leg.", &["leg"])?,
            stripped: IntCounter::new(
                "pd_router_stripped_client_params_total",
                "Members of clients' own handoffs, and routing headers, that were cut from requests.",
            )?,
            in_flight: IntGauge::new("pd_router_requests_in_flight", "Requests in flight.")?,
            registry: registry.clone(),
        };
        r.register(Box::new(observe.stripped.clone()))?;
        r.register(Box::new(observe.in_flight.clone()))?;
        let info = gauges(r, "pd_router_build_info", "Always 1.", &["version"])?;
        info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        observe.start_at_zero(apis);
        Ok(observe)
    }

    fn start_at_zero(&self, apis: &[&str]) {
        for api in apis.iter().copied().chain([ONE_HOP]) {
            for outcome in Outcome::ALL {
                self.requests.with_label_values(&[api, outcome.as_str()]);
            }
            self.seconds.with_label_values(&[api]);
            self.ttft.with_label_values(&[api]);
        }
        for reason in WholeReason::ALL {
            self.whole.with_label_values(&[reason.as_str()]);
        }
        for end in HandoffEnd::ALL {
            self.handoffs.with_label_values(&[end.as_str()]);
        }
        for leg in [Leg::Prefill, Leg::Decode, Leg::OneHop] {
            self.retries.with_label_values(&[leg.as_str()]);
        }
        for reason in Missing::ALL {
            self.missing.with_label_values(&[reason.as_str()]);
        }
    }

    /// The families that engines own series of.
    #[must_use]
    pub const fn engines(&self) -> &EngineFamilies {
        &self.engines
    }

    /// Counts a request that goes whole.
    pub fn whole(&self, reason: WholeReason) {
        self.whole.with_label_values(&[reason.as_str()]).inc();
    }

    /// Counts a prefill answer without a usable handoff.
    pub fn missing(&self, reason: Missing) {
        self.missing.with_label_values(&[reason.as_str()]).inc();
    }

    /// Counts a step of a handoff's way.
    pub fn handoff(&self, end: HandoffEnd) {
        self.handoffs.with_label_values(&[end.as_str()]).inc();
    }

    /// Counts a try after the first, after this leg failed.
    pub fn retry(&self, leg: Leg) {
        self.retries.with_label_values(&[leg.as_str()]).inc();
    }

    fn request(&self, api: &str, outcome: Outcome, took: Duration) {
        self.requests.with_label_values(&[api, outcome.as_str()]).inc();
        self.seconds.with_label_values(&[api]).observe(took.as_secs_f64());
    }

    /// Requests in flight now.
    #[must_use]
    pub fn in_flight(&self) -> i64 {
        self.in_flight.get()
    }

    /// Everything in the Prometheus text format 0.0.4.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::warn!(%error, "the metrics could not be rendered");
        }
        String::from_utf8(text).unwrap_or_default()
    }
}

fn counters(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> prometheus::Result<IntCounterVec> {
    let family = IntCounterVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(family.clone()))?;
    Ok(family)
}

fn gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
    let family = IntGaugeVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(family.clone()))?;
    Ok(family)
}

fn histograms(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
    bounds: &[f64],
) -> prometheus::Result<HistogramVec> {
    let family = HistogramVec::new(HistogramOpts::new(name, help).buckets(bounds.to_vec()), labels)?;
    registry.register(Box::new(family.clone()))?;
    Ok(family)
}
