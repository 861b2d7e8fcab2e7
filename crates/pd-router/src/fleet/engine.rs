//! One engine as the router knows it: where it is, what it is for, how many requests it has from us.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::url::EngineUrl;
use crate::ids::Role;
use crate::observe::engine::EngineMetrics;

/// One vLLM server process.
#[derive(Debug)]
pub struct Engine {
    id: u64,
    role: Role,
    url: EngineUrl,
    metrics: EngineMetrics,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Engine {
    /// An engine under an id that no other engine of this process had or will have.
    #[must_use]
    pub fn new(role: Role, url: EngineUrl, metrics: EngineMetrics) -> Arc<Self> {
        Arc::new(Self { id: NEXT_ID.fetch_add(1, Ordering::Relaxed), role, url, metrics })
    }

    /// Its id in this process; never used again.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// What it is for.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Where it is.
    #[must_use]
    pub const fn url(&self) -> &EngineUrl {
        &self.url
    }

    /// Its metric handles, resolved once.
    #[must_use]
    pub const fn metrics(&self) -> &EngineMetrics {
        &self.metrics
    }

    /// Counts one request in flight until the guard is dropped.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> InFlight {
        self.metrics.in_flight.inc();
        InFlight { engine: Arc::clone(self) }
    }
}

/// One request in flight at an engine; dropping it ends the count.
#[derive(Debug)]
pub struct InFlight {
    engine: Arc<Engine>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.engine.metrics.in_flight.dec();
    }
}
