//! The record of one request: made when it comes, closed when its last byte has gone or its client has.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;

use super::Observe;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// An engine's answer below 500 reached the client whole, its own refusals included.
    Ok,
    /// The client left first.
    ClientClosed,
    /// An engine failed it: unreachable, silent, a bad answer, a status from 500, a broken stream.
    EngineError,
    /// The router refused it or failed it.
    RouterError,
    /// Refused for lack of room.
    Shed,
    /// A stream that ended cleanly without its end mark.
    IncompleteStream,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 6] = [
        Self::Ok,
        Self::ClientClosed,
        Self::EngineError,
        Self::RouterError,
        Self::Shed,
        Self::IncompleteStream,
    ];

    /// The metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ClientClosed => "client_closed",
            Self::EngineError => "engine_error",
            Self::RouterError => "router_error",
            Self::Shed => "shed",
            Self::IncompleteStream => "incomplete_stream",
        }
    }
}

/// One request on its way. Dropped without an outcome, it counts as [`Outcome::ClientClosed`]: dropping is
/// how a request is cancelled.
#[derive(Debug)]
pub struct Record {
    observe: Arc<Observe>,
    api: &'static str,
    started: Instant,
    outcome: Option<Outcome>,
    first_event: Option<Duration>,
    slot: Option<OwnedSemaphorePermit>,
}

impl Record {
    /// Opens the record of a request to `api`, a name from the table of APIs.
    #[must_use]
    pub fn open(observe: &Arc<Observe>, api: &'static str) -> Self {
        observe.in_flight.inc();
        Self {
            observe: Arc::clone(observe),
            api,
            started: Instant::now(),
            outcome: None,
            first_event: None,
            slot: None,
        }
    }

    /// The families, for what is counted on the way.
    #[must_use]
    pub fn observe(&self) -> &Observe {
        &self.observe
    }

    /// Holds the request's slot to its end.
    pub fn hold(&mut self, slot: OwnedSemaphorePermit) {
        self.slot = Some(slot);
    }

    /// Says how it ended; the first word counts.
    pub fn end(&mut self, outcome: Outcome) {
        self.outcome.get_or_insert(outcome);
    }

    /// Notes the first data event of a stream.
    pub fn first_event(&mut self) {
        if self.first_event.is_none() {
            self.first_event = Some(self.started.elapsed());
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let outcome = self.outcome.unwrap_or(Outcome::ClientClosed);
        self.observe.in_flight.dec();
        self.observe.request(self.api, outcome, self.started.elapsed());
        if let Some(ttft) = self.first_event {
            self.observe.ttft.with_label_values(&[self.api]).observe(ttft.as_secs_f64());
        }
    }
}
