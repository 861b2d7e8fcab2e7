//! Takes engines into the fleet and lets them go: an engine that goes gets no new requests, ends those that it
//! has, and then nothing of it is left, in metrics, policies and probes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thiserror::Error;
use tokio::runtime::Handle;

use crate::fleet::engine::{self, Engine};
use crate::fleet::url::EngineUrl;
use crate::fleet::{Fleet, Pools, report};
use crate::ids::Role;
use crate::observe::Observe;
use crate::plan::Planner;
use crate::probe::Prober;
use crate::task;

/// The most engines of both pools together: each has metric series and is looked at for every request.
const ENGINES_MAX: usize = 1024;

/// Between two looks at whether an engine that goes still has requests.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// What a new engine gets, by role.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Prefill engines.
    pub prefill: engine::Settings,
    /// Decode engines, and those that do both.
    pub decode: engine::Settings,
}

/// Why an engine is not taken in.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// It has a role that this fleet has no pool for.
    #[error("{}", wrong_pools(.0))]
    WrongPools(Pools),
    /// It is there, in the other pool.
    #[error("`{url}` is a {role} engine; remove it first")]
    OtherRole {
        /// Its URL.
        url: String,
        /// Its role.
        role: Role,
    },
    /// There are too many.
    #[error("there are {ENGINES_MAX} engines, as many as may be; remove one first")]
    Full,
}

fn wrong_pools(pools: &Pools) -> &'static str {
    match pools {
        Pools::PrefillDecode => {
            "this router has a prefill and a decode pool: give `worker_type`: prefill or decode"
        }
        Pools::Regular => {
            "this router has one pool (`--worker-urls`): give `worker_type`: regular, or none; for prefill and \
             decode engines start one with `--prefill` and `--decode`"
        }
    }
}

/// Who is in the fleet.
#[derive(Debug)]
pub struct Roster {
    fleet: Arc<Fleet>,
    observe: Arc<Observe>,
    planner: Arc<Planner>,
    prober: Prober,
    settings: Settings,
    runtime: Handle,
    /// The ids of the engines that go; held while the fleet changes.
    leaving: Mutex<HashSet<u64>>,
}

impl Roster {
    /// A roster of an empty fleet. Probes run on the calling runtime.
    #[must_use]
    pub fn new(
        fleet: Arc<Fleet>,
        observe: Arc<Observe>,
        planner: Arc<Planner>,
        prober: Prober,
        settings: Settings,
    ) -> Arc<Self> {
        let runtime = Handle::current();
        Arc::new(Self { fleet, observe, planner, prober, settings, runtime, leaving: Mutex::default() })
    }

    /// Takes an engine in; one that is there and drains takes requests again.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn add(&self, role: Role, url: &EngineUrl) -> Result<Arc<Engine>, Refused> {
        let pools = self.fleet.pools();
        if !pools.roles().contains(&role) {
            return Err(Refused::WrongPools(pools));
        }
        let mut leaving = self.leaving.lock();
        if let Some(engine) = self.fleet.find(url.as_str()) {
            if engine.role() != role {
                return Err(Refused::OtherRole { url: url.as_str().to_owned(), role: engine.role() });
            }
            leaving.remove(&engine.id());
            engine.set_draining(false);
            self.fleet.woke();
            return Ok(engine);
        }
        let snapshot = self.fleet.snapshot();
        if snapshot.prefill.len() + snapshot.decode.len() >= ENGINES_MAX {
            return Err(Refused::Full);
        }
        let settings = match role {
            Role::Prefill => self.settings.prefill,
            Role::Decode | Role::Regular => self.settings.decode,
        };
        let metrics = self.observe.engines().engine(role, url.as_str());
        let engine = Engine::new(role, url.clone(), metrics, settings);
        self.fleet.add(&engine);
        let _runtime = self.runtime.enter();
        self.prober.watch(&engine, &self.fleet);
        Ok(engine)
    }

    /// Has an engine take no new requests.
    pub fn drain(&self, engine: &Engine) {
        let _leaving = self.leaving.lock();
        engine.set_draining(true);
        tracing::info!(engine = %engine.url(), "the engine drains: it gets no new requests");
    }

    /// Has an engine take no new requests, and go when those that it has are done.
    pub fn remove(self: &Arc<Self>, engine: &Arc<Engine>) {
        self.drain(engine);
        if self.leaving.lock().insert(engine.id()) {
            let (roster, engine) = (Arc::clone(self), Arc::clone(engine));
            let _runtime = self.runtime.enter();
            task::background(async move { roster.when_idle(&engine).await });
        }
    }

    async fn when_idle(&self, engine: &Arc<Engine>) {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let mut leaving = self.leaving.lock();
            if !leaving.contains(&engine.id()) {
                return;
            }
            if engine.in_flight() <= 0 {
                leaving.remove(&engine.id());
                self.fleet.remove(engine);
                self.planner.forget(engine);
                report::forget(engine, &self.observe);
                tracing::info!(engine = %engine.url(), role = engine.role().as_str(), "the engine is removed");
                return;
            }
        }
    }
}
