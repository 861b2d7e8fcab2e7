//! The metric handles of one engine, resolved once so that the request path looks up no label.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::{LEG_SECONDS, TOKEN_SECONDS, counters, gauges, histograms};
use crate::ids::{Leg, Missing, Role};

/// The states of a circuit breaker, as labels.
pub const BREAKER_STATES: [&str; 3] = ["closed", "open", "half_open"];

const MISSING: &str = "Answers of a prefill engine without a handoff that a decode engine could use.";

/// The families that carry the labels `role` and `engine`.
#[derive(Debug)]
pub struct EngineFamilies {
    in_flight: IntGaugeVec,
    legs: IntCounterVec,
    errors: IntCounterVec,
    answer_seconds: HistogramVec,
    handover_seconds: HistogramVec,
    inter_token_seconds: HistogramVec,
    up: IntGaugeVec,
    ejections: IntCounterVec,
    breaker_state: IntGaugeVec,
    breaker_transitions: IntCounterVec,
    pairs_open: IntGaugeVec,
    missing: IntCounterVec,
    known: Mutex<Vec<Weak<EngineMetrics>>>,
}

/// One engine's handles.
#[derive(Debug)]
pub struct EngineMetrics {
    /// Its URL, as in the label `engine`.
    pub url: String,
    /// What it is for.
    pub role: Role,
    /// Requests in flight.
    pub in_flight: IntGauge,
    /// Legs of its role that were sent.
    pub requests: IntCounter,
    /// Legs of paths that need no handoff.
    pub one_hop: IntCounter,
    /// Legs that the engine failed: no connection, no answer, a bad answer, a status from 500.
    pub errors: IntCounter,
    /// Prefill: request to whole answer. Decode: request to the head of the answer.
    pub answer_seconds: Histogram,
    /// Of a decode engine: prefill answer to first event.
    pub handover_seconds: Option<Histogram>,
    /// Of a decode engine: between two events with content.
    pub inter_token_seconds: Option<Histogram>,
    /// 1 while the engine gets traffic, its breaker aside.
    pub up: IntGauge,
    /// How often a live connection that was refused or reset put it out.
    pub ejections: IntCounter,
    /// 1 for the state that its breaker shows, in the order of [`BREAKER_STATES`]; set when somebody asks.
    pub breaker_state: [IntGauge; 3],
    /// How often its breaker went to each state; set when somebody asks.
    pub breaker_transitions: [IntCounter; 3],
    /// Of a decode engine: prefill engines for which the breaker of the pair is open; set when somebody asks.
    pub pairs_open: Option<IntGauge>,
    /// Of a prefill engine: its answers without a usable handoff, in the order of [`Missing::ALL`].
    missing: Option<[IntCounter; Missing::ALL.len()]>,
}

impl EngineFamilies {
    pub(super) fn register(r: &Registry) -> prometheus::Result<Self> {
        let labels = &["role", "engine"];
        let with_state = &["role", "engine", "state"];
        Ok(Self {
            in_flight: gauges(r, "pd_router_in_flight", "Requests in flight at an engine.", labels)?,
            legs: counters(
                r,
                "pd_router_legs_total",
                "Legs sent to an engine: `prefill`, `decode` (giving an unused handoff back is one), `one-hop` for paths that need no handoff.",
                &["role", "engine", "leg"],
            )?,
            errors: counters(
                r,
                "pd_router_leg_errors_total",
                "Legs that an engine failed: no connection, no answer in time, a bad answer, a status from 500 but 501 and 503 with Retry-After, an error event, a stream that broke off or fell silent.",
                labels,
            )?,
            answer_seconds: histograms(
                r,
                "pd_router_leg_answer_seconds",
                "Prefill: request to whole answer. Decode: request to the first byte of the answer. Connecting is part of it.",
                labels,
                LEG_SECONDS,
            )?,
            handover_seconds: histograms(
                r,
                "pd_router_handover_seconds",
                "Prefill answer to decode's first event, of streams: the KV cache moves in it.",
                &["engine"],
                LEG_SECONDS,
            )?,
            inter_token_seconds: histograms(
                r,
                "pd_router_inter_token_seconds",
                "Between two events with content of a stream (ITL), by decode engine; events that come in one read have no gap.",
                &["engine"],
                TOKEN_SECONDS,
            )?,
            up: gauges(r, "pd_router_engine_up", "1 while an engine is up.", labels)?,
            ejections: counters(
                r,
                "pd_router_engine_ejections_total",
                "How often a live connection that was refused or reset put an engine out.",
                labels,
            )?,
            breaker_state: gauges(
                r,
                "pd_router_breaker_state",
                "1 for the state that an engine's circuit breaker is in.",
                with_state,
            )?,
            breaker_transitions: counters(
                r,
                "pd_router_breaker_transitions_total",
                "How often an engine's circuit breaker went to a state.",
                with_state,
            )?,
            pairs_open: gauges(
                r,
                "pd_router_breaker_pairs_open",
                "Prefill engines whose handoffs a decode engine fails: pairs with an open circuit breaker.",
                &["engine"],
            )?,
            missing: counters(r, "pd_router_missing_handoffs_total", MISSING, &["engine", "reason"])?,
            known: Mutex::default(),
        })
    }

    /// The handles of one engine; from now on its series exist.
    #[must_use]
    pub fn engine(&self, role: Role, url: &str) -> Arc<EngineMetrics> {
        let labels = &[role.as_str(), url];
        let own = if role == Role::Prefill { Leg::Prefill } else { Leg::Decode };
        let leg = |leg: Leg| self.legs.with_label_values(&[role.as_str(), url, leg.as_str()]);
        let decodes = role != Role::Prefill;
        let metrics = Arc::new(EngineMetrics {
            url: url.to_owned(),
            role,
            in_flight: self.in_flight.with_label_values(labels),
            requests: leg(own),
            one_hop: leg(Leg::OneHop),
            errors: self.errors.with_label_values(labels),
            answer_seconds: self.answer_seconds.with_label_values(labels),
            handover_seconds: decodes.then(|| self.handover_seconds.with_label_values(&[url])),
            inter_token_seconds: decodes.then(|| self.inter_token_seconds.with_label_values(&[url])),
            up: self.up.with_label_values(labels),
            ejections: self.ejections.with_label_values(labels),
            breaker_state: BREAKER_STATES
                .map(|state| self.breaker_state.with_label_values(&[role.as_str(), url, state])),
            breaker_transitions: BREAKER_STATES
                .map(|state| self.breaker_transitions.with_label_values(&[role.as_str(), url, state])),
            pairs_open: decodes.then(|| self.pairs_open.with_label_values(&[url])),
            missing: (!decodes)
                .then(|| Missing::ALL.map(|reason| self.missing.with_label_values(&[url, reason.as_str()]))),
        });
        let mut known = self.known.lock();
        known.retain(|engine| engine.strong_count() > 0);
        known.push(Arc::downgrade(&metrics));
        metrics
    }

    /// Drops the series of one engine.
    pub(super) fn forget(&self, engine: &EngineMetrics) {
        let (role, url) = (engine.role.as_str(), engine.url.as_str());
        let labels = &[role, url];
        self.known.lock().retain(|known| !std::ptr::eq(known.as_ptr(), engine));
        self.in_flight.remove_label_values(labels).ok();
        self.errors.remove_label_values(labels).ok();
        self.answer_seconds.remove_label_values(labels).ok();
        self.up.remove_label_values(labels).ok();
        self.ejections.remove_label_values(labels).ok();
        for leg in [Leg::Prefill, Leg::Decode, Leg::OneHop] {
            self.legs.remove_label_values(&[role, url, leg.as_str()]).ok();
        }
        for state in BREAKER_STATES {
            self.breaker_state.remove_label_values(&[role, url, state]).ok();
            self.breaker_transitions.remove_label_values(&[role, url, state]).ok();
        }
        for reason in Missing::ALL {
            self.missing.remove_label_values(&[url, reason.as_str()]).ok();
        }
        if engine.role != Role::Prefill {
            self.handover_seconds.remove_label_values(&[url]).ok();
            self.inter_token_seconds.remove_label_values(&[url]).ok();
            self.pairs_open.remove_label_values(&[url]).ok();
        }
    }

    /// The engines that are.
    pub(super) fn known(&self) -> Vec<Arc<EngineMetrics>> {
        self.known.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

impl EngineMetrics {
    /// Counts an answer of a prefill engine without a usable handoff.
    pub fn missing(&self, reason: Missing) {
        if let Some(counter) = self.missing.as_ref().and_then(|missing| missing.get(reason as usize)) {
            counter.inc();
        }
    }

    /// Shows the state of its breaker, a place in [`BREAKER_STATES`], and how often it went to each.
    pub fn show_breaker(&self, state: usize, moves: [u64; 3]) {
        for (place, gauge) in self.breaker_state.iter().enumerate() {
            gauge.set(i64::from(place == state));
        }
        for (counter, moves) in self.breaker_transitions.iter().zip(moves) {
            counter.inc_by(moves.saturating_sub(counter.get()));
        }
    }
}
