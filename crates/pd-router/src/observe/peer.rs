//! The families by which dashboards made for vllm-router 0.1.17 show this router: the same names and labels,
//! computed from the router's own when somebody asks, so that a request pays for one histogram only.

use std::collections::HashMap;
use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType, Summary};
use prometheus::{IntGaugeVec, Registry};

use super::api::ApiMetrics;
use super::engine::{EngineFamilies, EngineMetrics};
use super::{gauges, histograms};
use crate::ids::Role;

/// vllm-router's own bounds, in seconds.
const SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0,
    240.0,
];

/// What the families are made of.
#[derive(Debug)]
pub struct Settings {
    /// The label `route` of each API: its path.
    pub routes: Vec<(&'static str, &'static str)>,
    /// The names of the policies of the prefill and the decode pool.
    pub policies: [&'static str; 2],
}

/// The gauges of an engine's ranks; set when somebody asks.
#[derive(Debug)]
pub struct RankGauges {
    occupancy: IntGaugeVec,
    tokens: IntGaugeVec,
    unknown: IntGaugeVec,
    pending: IntGaugeVec,
    active: IntGaugeVec,
}

impl RankGauges {
    pub(super) fn register(r: &Registry) -> prometheus::Result<Self> {
        let labels = &["worker", "rank"];
        Ok(Self {
            occupancy: gauges(r, "vllm_router_pd_prefill_occupancy", "Prefill requests in flight.", labels)?,
            tokens: gauges(
                r,
                "vllm_router_pd_active_prefill_tokens",
                "Prompt tokens of the prefill requests in flight, estimated.",
                labels,
            )?,
            unknown: gauges(
                r,
                "vllm_router_pd_unknown_prefill_requests",
                "Prefill requests whose prompt tokens are not estimated: none here.",
                labels,
            )?,
            pending: gauges(
                r,
                "vllm_router_pd_pending_decode_requests",
                "Requests promised to a decode engine whose prefill still runs.",
                labels,
            )?,
            active: gauges(
                r,
                "vllm_router_pd_active_decode_requests",
                "Decode requests in flight; of an engine with several ranks also those promised.",
                labels,
            )?,
        })
    }

    /// Shows the load of a prefill engine's rank.
    pub fn show_prefill(&self, worker: &str, rank: &str, requests: i64, tokens: i64) {
        let labels = &[worker, rank];
        self.occupancy.with_label_values(labels).set(requests);
        self.tokens.with_label_values(labels).set(tokens);
        self.unknown.with_label_values(labels).set(0);
    }

    /// Drops the series of an engine's ranks; of its role's families, but both are asked.
    pub(super) fn forget(&self, worker: &str, ranks: &[String]) {
        for rank in ranks {
            for family in [&self.occupancy, &self.tokens, &self.unknown, &self.pending, &self.active] {
                family.remove_label_values(&[worker, rank]).ok();
            }
        }
    }

    /// Shows the load of a decode engine's rank.
    pub fn show_decode(&self, worker: &str, rank: &str, pending: i64, active: i64) {
        let labels = &[worker, rank];
        self.pending.with_label_values(labels).set(pending);
        self.active.with_label_values(labels).set(active);
    }
}

/// Computes the families whose numbers the router has under names of its own.
struct Mirror {
    settings: Settings,
    apis: Vec<Arc<ApiMetrics>>,
    engines: Arc<EngineFamilies>,
    descs: Vec<Desc>,
}

/// Registers what is computed, and the one family that is not.
pub(super) fn register(
    r: &Registry,
    settings: Settings,
    apis: &[Arc<ApiMetrics>],
    engines: &Arc<EngineFamilies>,
) -> prometheus::Result<()> {
    let seconds = histograms(
        r,
        "vllm_router_pd_request_duration_seconds",
        "Request head to the head of decode's answer.",
        &["route"],
        SECONDS,
    )?;
    for api in apis {
        api.to_decode_head.set(seconds.with_label_values(&[settings.route(api.name)])).ok();
    }
    let mut mirror =
        Mirror { settings, apis: apis.to_vec(), engines: Arc::clone(engines), descs: Vec::new() };
    mirror.descs = mirror.families().iter().map(desc).collect::<prometheus::Result<_>>()?;
    r.register(Box::new(mirror))
}

fn desc(family: &MetricFamily) -> prometheus::Result<Desc> {
    Desc::new(family.name().to_owned(), family.help().to_owned(), Vec::new(), HashMap::new())
}

impl Settings {
    fn route(&self, api: &'static str) -> &'static str {
        self.routes.iter().find(|(name, _)| *name == api).map_or(api, |(_, path)| path)
    }

    const fn policy(&self, role: Role) -> &'static str {
        let [prefill, decode] = self.policies;
        match role {
            Role::Prefill | Role::Regular => prefill,
            Role::Decode => decode,
        }
    }
}

impl Mirror {
    fn families(&self) -> Vec<MetricFamily> {
        let engines = self.engines.known();
        let of = |role: Role| engines.iter().filter(move |engine| engine.role == role);
        let legs = |engine: &EngineMetrics| engine.requests.get();
        let errors = |engine: &EngineMetrics| engine.errors.get();
        let worker = |engine: &Arc<EngineMetrics>, count: u64| counter(&[("worker", &engine.url)], count);
        let by_worker = |role, count: fn(&EngineMetrics) -> u64| -> Vec<Metric> {
            of(role).map(|engine| worker(engine, count(engine))).collect()
        };
        let requests =
            self.apis.iter().map(|api| counter(&[("route", self.settings.route(api.name))], api.requests()));
        let decisions = engines.iter().map(|engine| {
            counter(&[("policy", self.settings.policy(engine.role)), ("worker", &engine.url)], legs(engine))
        });
        let health = engines.iter().map(|engine| gauge(&[("worker", &engine.url)], engine.up.get()));
        let total = |name: &str, help: &str, metrics| family(name, help, MetricType::COUNTER, metrics);
        vec![
            total("vllm_router_pd_requests_total", "Requests.", requests.collect()),
            total(
                "vllm_router_pd_prefill_requests_total",
                "Prefill legs sent.",
                by_worker(Role::Prefill, |engine| engine.requests.get()),
            ),
            total(
                "vllm_router_pd_decode_requests_total",
                "Decode legs sent.",
                by_worker(Role::Decode, |engine| engine.requests.get()),
            ),
            total(
                "vllm_router_pd_prefill_errors_total",
                "Legs that a prefill engine failed.",
                of(Role::Prefill).map(|engine| worker(engine, errors(engine))).collect(),
            ),
            total(
                "vllm_router_pd_decode_errors_total",
                "Legs that a decode engine failed.",
                of(Role::Decode).map(|engine| worker(engine, errors(engine))).collect(),
            ),
            total(
                "vllm_router_processed_requests_total",
                "Legs sent to an engine.",
                engines.iter().map(|engine| worker(engine, legs(engine))).collect(),
            ),
            total(
                "vllm_router_policy_decisions_total",
                "How often a policy's choice was an engine.",
                decisions.collect(),
            ),
            family(
                "vllm_router_worker_health",
                "1 while an engine is up.",
                MetricType::GAUGE,
                health.collect(),
            ),
            family(
                "vllm_router_pd_decode_pending_seconds",
                "Prefill request to its whole answer; without quantiles.",
                MetricType::SUMMARY,
                vec![summary(of(Role::Prefill))],
            ),
        ]
    }
}

impl Collector for Mirror {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.families()
    }
}

fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(format!("As vllm-router has it. {help}"));
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

fn labelled(labels: &[(&str, &str)]) -> Metric {
    let pair = |(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    Metric::from_label(labels.iter().map(pair).collect())
}

#[allow(clippy::cast_precision_loss, reason = "the text format has floating-point numbers only")]
fn counter(labels: &[(&str, &str)], count: u64) -> Metric {
    let (mut metric, mut counter) = (labelled(labels), Counter::default());
    counter.set_value(count as f64);
    metric.set_counter(counter);
    metric
}

#[allow(clippy::cast_precision_loss, reason = "the text format has floating-point numbers only")]
fn gauge(labels: &[(&str, &str)], value: i64) -> Metric {
    let (mut metric, mut gauge) = (labelled(labels), Gauge::default());
    gauge.set_value(value as f64);
    metric.set_gauge(gauge);
    metric
}

fn summary<'a>(engines: impl Iterator<Item = &'a Arc<EngineMetrics>>) -> Metric {
    let (mut metric, mut summary) = (labelled(&[]), Summary::default());
    let (mut count, mut sum) = (0, 0.0);
    for engine in engines {
        count += engine.answer_seconds.get_sample_count();
        sum += engine.answer_seconds.get_sample_sum();
    }
    summary.set_sample_count(count);
    summary.set_sample_sum(sum);
    metric.set_summary(summary);
    metric
}
