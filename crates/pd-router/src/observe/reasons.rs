//! What is counted by why it happened: handles resolved once, one a reason.

use prometheus::{IntCounter, IntCounterVec, Registry};

use super::{counter, counters};
use crate::ids::{HandoffEnd, Leg, RetryReason, WholeReason};

/// The counters.
#[derive(Debug)]
pub(super) struct Reasons {
    whole: [IntCounter; WholeReason::ALL.len()],
    handoffs: [IntCounter; HandoffEnd::ALL.len()],
    retries: [[IntCounter; RetryReason::ALL.len()]; 2],
    pub(super) stripped: IntCounter,
}

impl Reasons {
    pub(super) fn register(r: &Registry) -> prometheus::Result<Self> {
        let whole = counters(
            r,
            "pd_router_whole_requests_total",
            "Requests that went whole to one decode engine, by why one handoff cannot serve them.",
            &["reason"],
        )?;
        let handoffs = counters(
            r,
            "pd_router_handoffs_total",
            "Handoffs by step: issued = fetched + released + stranded, once all have ended.",
            &["state"],
        )?;
        let retries = counters(
            r,
            "pd_router_retries_total",
            "Tries after the first, by the leg that failed and why.",
            &["leg", "reason"],
        )?;
        let retries_of =
            |leg: Leg| RetryReason::ALL.map(|why| retries.with_label_values(&[leg.as_str(), why.as_str()]));
        Ok(Self {
            whole: each(&whole, WholeReason::ALL.map(WholeReason::as_str)),
            handoffs: each(&handoffs, HandoffEnd::ALL.map(HandoffEnd::as_str)),
            retries: [retries_of(Leg::Prefill), retries_of(Leg::Decode)],
            stripped: counter(
                r,
                "pd_router_stripped_client_params_total",
                "Members of clients' own handoffs, and routing headers, that were cut from requests.",
            )?,
        })
    }

    pub(super) fn whole(&self, reason: WholeReason) {
        count(&self.whole, reason as usize);
    }

    pub(super) fn handoff(&self, end: HandoffEnd) {
        count(&self.handoffs, end as usize);
    }

    pub(super) fn retry(&self, leg: Leg, reason: RetryReason) {
        let [prefill, decode] = &self.retries;
        count(if leg == Leg::Prefill { prefill } else { decode }, reason as usize);
    }
}

/// One counter a value of the only label.
fn each<const N: usize>(family: &IntCounterVec, values: [&'static str; N]) -> [IntCounter; N] {
    values.map(|value| family.with_label_values(&[value]))
}

fn count(counters: &[IntCounter], place: usize) {
    if let Some(counter) = counters.get(place) {
        counter.inc();
    }
}
