//! The last failures, alike ones as one: what a person wants to read first at night. Touched by requests that
//! failed and by none else.

use std::collections::VecDeque;
use std::time::SystemTime;

use parking_lot::Mutex;
use prometheus::IntCounter;

use super::phases::Legs;
use super::record::Outcome;
use crate::ids::Leg;

/// How many kinds of failures are kept.
const KEPT_MAX: usize = 32;

/// Whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The request could not be served as it was.
    Client,
    /// An engine failed it, or none was there.
    Engine,
    /// The router had no room, or was about to end.
    Router,
}

impl Blame {
    /// All, in the order of the numbers that they are.
    pub const ALL: [Self; 3] = [Self::Client, Self::Engine, Self::Router];

    /// The word that is shown.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Engine => "engine",
            Self::Router => "router",
        }
    }
}

/// A leg that failed, within a request.
#[derive(Clone, Debug)]
pub struct LegFailure {
    /// Which leg.
    pub leg: Leg,
    /// The engine's URL, where one was asked.
    pub engine: Option<String>,
    /// Why, in a word.
    pub reason: String,
    /// What else is known.
    pub detail: Option<String>,
}

/// Why a request ended other than well.
#[derive(Clone, Debug)]
pub struct Cause {
    /// How it counts.
    pub outcome: Outcome,
    /// Why, as in the answer's `code`.
    pub code: String,
    /// Whose fault it is.
    pub blame: Blame,
    /// Which leg it was, if it was one.
    pub leg: Option<Leg>,
}

/// A request that failed, or of which a leg did.
#[derive(Clone, Debug)]
pub struct FailedRequest {
    /// When it ended.
    pub at: SystemTime,
    /// Its id.
    pub id: String,
    /// Its API.
    pub api: &'static str,
    /// The leg that failed, where it came that far.
    pub leg: Option<Leg>,
    /// The engine's URL, where one is known.
    pub engine: Option<String>,
    /// Why, as in the answer's `code` or in the label `reason`.
    pub reason: String,
    /// What else is known.
    pub detail: Option<String>,
    /// The status that the client got.
    pub status: Option<u16>,
    /// How the request ended.
    pub outcome: Outcome,
    /// Whose fault it is.
    pub blame: Blame,
}

/// What is known of a request at its end, for [`FailedRequest::of`].
#[derive(Debug)]
pub(super) struct End<'a> {
    pub(super) id: &'a str,
    pub(super) api: &'static str,
    pub(super) status: Option<u16>,
    pub(super) outcome: Outcome,
    pub(super) cause: Option<Cause>,
}

impl FailedRequest {
    /// What to keep of a request, where it failed or one of its legs did.
    pub(super) fn of(end: End<'_>, legs: &Legs) -> Option<Self> {
        let failed = legs.failed.as_deref();
        let well = matches!(end.outcome, Outcome::Ok | Outcome::ClientClosed);
        if well && failed.is_none() {
            return None;
        }
        let last = match (legs.decode.is_some() || legs.prefill.is_none(), end.api == super::ONE_HOP) {
            (_, true) => Leg::OneHop,
            (true, _) => Leg::Decode,
            (false, _) => Leg::Prefill,
        };
        let noted = failed.map(|failed| failed.leg);
        let leg = match &end.cause {
            Some(cause) => cause.leg,
            None => noted.or(Some(last)),
        };
        let (noted, engine) = match failed.filter(|failed| Some(failed.leg) == leg) {
            Some(failed) => (Some(failed), failed.engine.clone()),
            None => (None, leg.and_then(|leg| legs.engine(leg)).map(|engine| engine.url.clone())),
        };
        let reason = match (end.cause.as_ref(), noted, end.outcome) {
            (Some(cause), _, _) => cause.code.clone(),
            (None, Some(failed), _) => failed.reason.clone(),
            (None, None, Outcome::IncompleteStream) => "incomplete_stream".to_owned(),
            (None, None, _) if end.status.is_some_and(|status| status >= 400) => "status".to_owned(),
            (None, None, _) => "error_event".to_owned(),
        };
        Some(Self {
            at: SystemTime::now(),
            id: end.id.to_owned(),
            api: end.api,
            leg,
            engine,
            reason,
            detail: noted.and_then(|failed| failed.detail.clone()),
            status: end.status,
            outcome: end.outcome,
            blame: end.cause.map_or(Blame::Engine, |cause| cause.blame),
        })
    }

    fn is_like(&self, other: &Self) -> bool {
        (self.api, self.leg, self.status, self.outcome) == (other.api, other.leg, other.status, other.outcome)
            && self.engine == other.engine
            && self.reason == other.reason
    }
}

/// Failures alike: the last of them and how many.
#[derive(Clone, Debug)]
pub struct Alike {
    /// The last.
    pub last: FailedRequest,
    /// How many there were since the first one that is kept.
    pub count: u64,
}

/// The failures that are kept, the latest first.
#[derive(Debug)]
pub struct Failures {
    kept: Mutex<VecDeque<Alike>>,
    blamed: [IntCounter; Blame::ALL.len()],
}

impl Failures {
    /// None so far.
    ///
    /// # Errors
    /// None in practice: the counters' name is a good one.
    pub(super) fn new() -> prometheus::Result<Self> {
        // Not registered: `pd_router_requests_total` has them by outcome.
        let counter = || IntCounter::new("blamed", "Requests that failed, by whose fault.");
        Ok(Self { kept: Mutex::default(), blamed: [counter()?, counter()?, counter()?] })
    }

    /// Takes one in; one that is like an earlier one takes its place.
    pub(super) fn push(&self, failed: FailedRequest) {
        if !matches!(failed.outcome, Outcome::Ok | Outcome::ClientClosed)
            && let Some(counter) = self.blamed.get(failed.blame as usize)
        {
            counter.inc();
        }
        let mut kept = self.kept.lock();
        let earlier = kept.iter().position(|alike| alike.last.is_like(&failed));
        let count = earlier.and_then(|place| kept.remove(place)).map_or(0, |alike| alike.count);
        kept.push_front(Alike { last: failed, count: count + 1 });
        kept.truncate(KEPT_MAX);
    }

    /// Requests that failed, by whose fault, in the order of [`Blame::ALL`].
    pub(super) const fn blamed(&self) -> &[IntCounter; Blame::ALL.len()] {
        &self.blamed
    }

    /// What is kept, the latest first.
    #[must_use]
    pub fn latest(&self) -> Vec<Alike> {
        self.kept.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(id: &str, reason: &str) -> FailedRequest {
        FailedRequest {
            at: SystemTime::now(),
            id: id.to_owned(),
            api: "chat",
            leg: Some(Leg::Decode),
            engine: Some("http://d1:8000".to_owned()),
            reason: reason.to_owned(),
            detail: None,
            status: Some(502),
            outcome: Outcome::EngineError,
            blame: Blame::Engine,
        }
    }

    #[test]
    fn alike_ones_are_one_and_the_latest_comes_first() {
        let failures = Failures::new().unwrap();
        for (id, reason) in [("a", "decode_reset"), ("b", "decode_cut"), ("c", "decode_reset")] {
            failures.push(failed(id, reason));
        }
        let shown: Vec<_> = failures.latest().into_iter().map(|alike| (alike.last.id, alike.count)).collect();
        assert_eq!(shown, [("c".to_owned(), 2), ("b".to_owned(), 1)]);
    }

    #[test]
    fn a_bounded_number_is_kept() {
        let failures = Failures::new().unwrap();
        for number in 0..100 {
            failures.push(failed("a", &format!("reason {number}")));
        }
        let latest = failures.latest();
        assert_eq!((latest.len(), latest[0].last.reason.as_str()), (KEPT_MAX, "reason 99"));
    }
}
