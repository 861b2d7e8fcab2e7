//! The metric handles of one engine, resolved once so that the request path looks up no label.

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::{LEG_SECONDS, counters, gauges, histograms};
use crate::ids::Role;

/// The families that carry the labels `role` and `engine`.
#[derive(Clone, Debug)]
pub struct EngineFamilies {
    in_flight: IntGaugeVec,
    requests: IntCounterVec,
    errors: IntCounterVec,
    answer_seconds: HistogramVec,
    up: IntGaugeVec,
    ejections: IntCounterVec,
}

/// One engine's handles.
#[derive(Clone, Debug)]
pub struct EngineMetrics {
    /// Requests in flight.
    pub in_flight: IntGauge,
    /// Legs sent.
    pub requests: IntCounter,
    /// Legs that the engine failed: no connection, no answer, a bad answer, a status from 500.
    pub errors: IntCounter,
    /// Prefill: request to whole answer. Decode: request to the head of the answer.
    pub answer_seconds: Histogram,
    /// 1 while the engine gets traffic, its breaker aside.
    pub up: IntGauge,
    /// How often a live connection that was refused or reset put it out.
    pub ejections: IntCounter,
}

impl EngineFamilies {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let labels = &["role", "engine"];
        Ok(Self {
            in_flight: gauges(registry, "pd_router_in_flight", "Requests in flight at an engine.", labels)?,
            requests: counters(registry, "pd_router_legs_total", "Legs sent to an engine.", labels)?,
            errors: counters(
                registry,
                "pd_router_leg_errors_total",
                "Legs that an engine failed: no connection, no answer, a bad answer, a status from 500.",
                labels,
            )?,
            answer_seconds: histograms(
                registry,
                "pd_router_leg_answer_seconds",
                "Prefill: request to whole answer. Decode: request to the head of the answer.",
                labels,
                LEG_SECONDS,
            )?,
            up: gauges(registry, "pd_router_engine_up", "1 while an engine is up.", labels)?,
            ejections: counters(
                registry,
                "pd_router_engine_ejections_total",
                "How often a live connection that was refused or reset put an engine out.",
                labels,
            )?,
        })
    }

    /// The handles of one engine; from now on its series exist.
    #[must_use]
    pub fn engine(&self, role: Role, url: &str) -> EngineMetrics {
        let labels = &[role.as_str(), url];
        EngineMetrics {
            in_flight: self.in_flight.with_label_values(labels),
            requests: self.requests.with_label_values(labels),
            errors: self.errors.with_label_values(labels),
            answer_seconds: self.answer_seconds.with_label_values(labels),
            up: self.up.with_label_values(labels),
            ejections: self.ejections.with_label_values(labels),
        }
    }
}
