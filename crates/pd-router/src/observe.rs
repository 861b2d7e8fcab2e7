//! What the router tells about itself: the metric families, registered in one place each, and the record of
//! a request.

pub mod access;
pub mod api;
pub mod code;
pub mod engine;
pub mod failures;
pub mod history;
pub mod meter;
pub mod otlp;
pub mod peer;
pub mod phases;
pub mod process;
mod reasons;
pub mod record;
mod spans;
pub mod spread;
pub mod trace;
mod track;
pub mod usage;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use api::{ApiFamilies, ApiMetrics};
use code::Codes;
use engine::{EngineFamilies, EngineMetrics};
use failures::Failures;
use history::History;
use otlp::Tracing;
use parking_lot::Mutex;
use peer::RankGauges;
use process::Process;
use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};
use reasons::Reasons;

use crate::ids::{HandoffEnd, Leg, RetryReason, WholeReason};

/// The `api` label of paths that need no handoff.
pub const ONE_HOP: &str = "one_hop";

/// The `api` label of paths that are not served, and of methods that a path does not take.
pub const UNKNOWN: &str = "unknown";

/// Bounds, in seconds, for what an engine takes: from a cached short prompt (1 ms) to the longest prefill.
const LEG_SECONDS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// Bounds, in seconds, for a whole request: generations of RL rollouts reach 30 minutes and more.
const REQUEST_SECONDS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0];

/// Bounds, in seconds, for a first token: fine between 50 ms and 2 s, where targets lie.
const FIRST_TOKEN_SECONDS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0,
    30.0, 120.0,
];

/// Bounds, in seconds, for a token: 1 ms is a read that brought several, 5 to 100 ms is usual, beyond 1 s an
/// engine is preempting.
const TOKEN_SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5,
    10.0,
];

/// Bounds, in seconds, for what the router does by itself: 10 µs and up.
const OWN_SECONDS: &[f64] = &[
    0.000_01, 0.000_02, 0.000_03, 0.000_05, 0.000_075, 0.0001, 0.000_15, 0.000_25, 0.0005, 0.001, 0.0025,
    0.005, 0.01, 0.05, 0.25, 1.0, 10.0,
];

/// Bounds, in seconds, for the wait for a slot, 60 s at most by default; no wait at all is below the first.
const WAIT_SECONDS: &[f64] =
    &[0.0001, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Bounds for bodies: powers of four from 256 B to the 512 MiB that one may weigh by default; prompts of
/// 100,000 token ids are about 600 kB.
const BODY_BYTES: &[f64] = &[
    256.0,
    1024.0,
    4096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
    268_435_456.0,
    536_870_912.0,
];

/// The registry, the families that no engine owns, and their handles, resolved once.
#[derive(Debug)]
pub struct Observe {
    registry: Registry,
    engines: Arc<EngineFamilies>,
    apis: Vec<Arc<ApiMetrics>>,
    unknown: Arc<ApiMetrics>,
    codes: Codes,
    added: Histogram,
    queue_wait: Histogram,
    handoff_gap: Histogram,
    reasons: Reasons,
    /// Requests that wait for a slot; set when somebody asks.
    pub queue_depth: IntGauge,
    /// Bytes of request bodies held; set when somebody asks.
    pub buffered_bytes: IntGauge,
    in_flight: IntGauge,
    process: Process,
    ranks: OnceLock<RankGauges>,
    access: AtomicBool,
    tracing: OnceLock<Tracing>,
    scrape: Mutex<()>,
    failures: Failures,
    history: Mutex<History>,
    on_scrape: OnceLock<OnScrape>,
}

/// Reads what is not counted as it happens.
struct OnScrape(Box<dyn Fn(&Observe) + Send + Sync>);

impl std::fmt::Debug for OnScrape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnScrape")
    }
}

impl Observe {
    /// Registers every family; each has its series from the start. `apis` are the names in the label `api`.
    ///
    /// # Errors
    /// Two families of one name, which is a fault of this code.
    pub fn new(apis: &[&'static str]) -> prometheus::Result<Self> {
        let registry = Registry::new();
        let r = &registry;
        let by_api = ApiFamilies::register(r)?;
        let info = gauges(r, "pd_router_build_info", "Always 1; which build it is.", &["version"])?;
        info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let apis: Vec<_> =
            apis.iter().copied().chain([ONE_HOP]).map(|name| Arc::new(by_api.api(name))).collect();
        let unknown = Arc::new(by_api.api(UNKNOWN));
        let added = histogram(
            r,
            "pd_router_added_seconds",
            "The router's own time of a request that was served: end to end, less what engines took, less the arrival of its body and its wait for a slot. Connecting to engines and waits between tries are in it; reading the request head is not.",
            OWN_SECONDS,
        )?;
        let queue_wait = histogram(
            r,
            "pd_router_queue_wait_seconds",
            "Wait for a slot, of requests that got one.",
            WAIT_SECONDS,
        )?;
        let handoff_gap = histogram(
            r,
            "pd_router_handoff_gap_seconds",
            "Prefill answer to the decode request being written; connecting is in it.",
            OWN_SECONDS,
        )?;
        let failures = Failures::new()?;
        let own = [&queue_wait, &handoff_gap, &added];
        let history = History::new(apis.iter().chain([&unknown]), failures.blamed(), own);
        Ok(Self {
            engines: Arc::new(EngineFamilies::register(r)?),
            apis,
            unknown,
            codes: Codes::new(&counters(
                r,
                "pd_router_responses_total",
                "Requests by the status that their client got; 499 for a client that left before any. A status that is rare among engines counts in `other_4xx` and the like.",
                &["code"],
            )?),
            added,
            queue_wait,
            handoff_gap,
            reasons: Reasons::register(r)?,
            queue_depth: gauge(r, "pd_router_queue_depth", "Requests that wait for a slot.")?,
            buffered_bytes: gauge(r, "pd_router_buffered_bytes", "Bytes of request bodies held.")?,
            in_flight: gauge(r, "pd_router_requests_in_flight", "Requests in flight.")?,
            process: Process::register(r)?,
            ranks: OnceLock::new(),
            access: AtomicBool::new(false),
            tracing: OnceLock::new(),
            scrape: Mutex::new(()),
            on_scrape: OnceLock::new(),
            failures,
            history: Mutex::new(history),
            registry: registry.clone(),
        })
    }

    /// Has vllm-router's families too.
    ///
    /// # Errors
    /// Two families of one name, which is a fault of this code.
    pub fn speak_as_peer(&self, settings: peer::Settings) -> prometheus::Result<()> {
        self.ranks.set(RankGauges::register(&self.registry)?).ok();
        let apis: Vec<_> = self.apis.iter().chain([&self.unknown]).map(Arc::clone).collect();
        peer::register(&self.registry, settings, &apis, &self.engines)
    }

    /// Writes an access record of every request that comes from now on.
    pub fn keep_access_record(&self) {
        self.access.store(true, Ordering::Relaxed);
    }

    /// Sends the traces of requests that come from now on.
    pub fn trace(&self, tracing: Tracing) {
        self.tracing.set(tracing).ok();
    }

    /// Sends the spans that are left, before the router ends. Blocks for up to 3 s.
    pub fn flush_traces(&self) {
        if let Some(tracing) = self.tracing.get() {
            tracing.flush();
        }
    }

    fn access_record(&self) -> bool {
        self.access.load(Ordering::Relaxed)
    }

    /// What is read, once, whenever somebody asks for the metrics.
    pub fn on_scrape(&self, read: impl Fn(&Self) + Send + Sync + 'static) {
        self.on_scrape.set(OnScrape(Box::new(read))).ok();
    }

    /// vllm-router's gauges of ranks, where they are wanted.
    #[must_use]
    pub fn ranks(&self) -> Option<&RankGauges> {
        self.ranks.get()
    }

    /// The families that engines own series of.
    #[must_use]
    pub fn engines(&self) -> &EngineFamilies {
        &self.engines
    }

    /// Drops the series of an engine that is gone, and those of its ranks.
    pub fn forget_engine(&self, engine: &EngineMetrics, ranks: &[String]) {
        // A scrape that began before would bring some of them back.
        let _one = self.scrape.lock();
        self.engines.forget(engine);
        if let Some(gauges) = self.ranks.get() {
            gauges.forget(&engine.url, ranks);
        }
    }

    /// The handles of an API; those of unknown paths for a name that is none. There are seven names.
    fn api(&self, name: &str) -> Arc<ApiMetrics> {
        Arc::clone(self.apis.iter().find(|api| api.name == name).unwrap_or(&self.unknown))
    }

    /// Counts a request that goes whole.
    pub fn whole(&self, reason: WholeReason) {
        self.reasons.whole(reason);
    }

    /// Counts a step of a handoff's way.
    pub fn handoff(&self, end: HandoffEnd) {
        self.reasons.handoff(end);
    }

    /// Counts a try after the first, after this leg failed.
    pub fn retry(&self, leg: Leg, reason: RetryReason) {
        self.reasons.retry(leg, reason);
    }

    /// Counts members and headers of a request that were cut.
    pub fn stripped(&self, count: u64) {
        self.reasons.stripped.inc_by(count);
    }

    /// Requests in flight now.
    #[must_use]
    pub fn in_flight(&self) -> i64 {
        self.in_flight.get()
    }

    /// The last failures.
    #[must_use]
    pub const fn failures(&self) -> &Failures {
        &self.failures
    }

    /// Takes a look at what came since the last one, for [`Self::with_history`]; every
    /// [`history::LOOK_INTERVAL`], on no request's path.
    pub fn look(&self) {
        let engines = self.engines.known();
        self.history.lock().look(&engines, Instant::now());
    }

    /// Reads the last minutes.
    pub fn with_history<T>(&self, read: impl FnOnce(&History) -> T) -> T {
        read(&self.history.lock())
    }

    /// Reads what is not counted as it happens, as a scrape does.
    pub fn refresh(&self) {
        let _one = self.scrape.lock();
        self.read();
    }

    fn read(&self) {
        if let Some(OnScrape(read)) = self.on_scrape.get() {
            read(self);
        }
    }

    /// Everything in the Prometheus text format 0.0.4. Takes about a millisecond for a large fleet.
    #[must_use]
    pub fn render(&self) -> String {
        // One at a time: what is read now goes to counters as the difference from what was read before.
        let _one = self.scrape.lock();
        self.process.read();
        self.read();
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::warn!(%error, "the metrics could not be rendered");
        }
        String::from_utf8(text).unwrap_or_default()
    }
}

fn counter(registry: &Registry, name: &str, help: &str) -> prometheus::Result<IntCounter> {
    let counter = IntCounter::new(name, help)?;
    registry.register(Box::new(counter.clone()))?;
    Ok(counter)
}

fn gauge(registry: &Registry, name: &str, help: &str) -> prometheus::Result<IntGauge> {
    let gauge = IntGauge::new(name, help)?;
    registry.register(Box::new(gauge.clone()))?;
    Ok(gauge)
}

fn histogram(registry: &Registry, name: &str, help: &str, bounds: &[f64]) -> prometheus::Result<Histogram> {
    let histogram = Histogram::with_opts(HistogramOpts::new(name, help).buckets(bounds.to_vec()))?;
    registry.register(Box::new(histogram.clone()))?;
    Ok(histogram)
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
