//! From a request and the fleet to a plan: which engines, in which order, and with or without a handoff.

pub mod round_robin;

use std::sync::Arc;
use std::time::Instant;

use round_robin::RoundRobin;
use smallvec::SmallVec;

use crate::fleet::breaker::State;
use crate::fleet::engine::Engine;
use crate::fleet::{Fleet, Snapshot};
use crate::ids::{Role, WholeReason};
use crate::request::api::Api;
use crate::request::view::View;

/// Engines in the order in which they are to be tried.
pub type Candidates = SmallVec<[Arc<Engine>; 4]>;

/// What to do when no prefill engine can serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefillFallback {
    /// Refuse.
    #[default]
    Error,
    /// Send the request whole to a decode engine.
    DecodeOnly,
}

/// What was chosen for one request.
#[derive(Debug)]
pub struct Plan {
    /// Prefill engines, best first; none where the request goes whole.
    pub prefill: Result<Candidates, WholeReason>,
    /// Decode engines, best first.
    pub decode: Candidates,
}

/// The policies of both pools; each pool has its own state.
#[derive(Debug, Default)]
pub struct Planner {
    prefill: RoundRobin,
    decode: RoundRobin,
    any: RoundRobin,
    fallback: PrefillFallback,
}

impl Planner {
    /// A planner with fresh policies.
    #[must_use]
    pub fn new(fallback: PrefillFallback) -> Self {
        Self { fallback, ..Self::default() }
    }

    /// Chooses for an inference request. Engines that failed it already, `tried`, come last.
    ///
    /// # Errors
    /// The role whose pool has no engine that can serve.
    pub fn plan(&self, api: &Api, view: &View, fleet: &Fleet, tried: &[u64]) -> Result<Plan, Role> {
        let snapshot = fleet.snapshot();
        let mut decode = rank(&self.decode, &snapshot, Role::Decode, tried)?;
        let prefill = match (view.whole(api), self.fallback) {
            (Some(reason), _) => Err(reason),
            (None, PrefillFallback::Error) => Ok(rank(&self.prefill, &snapshot, Role::Prefill, tried)?),
            (None, PrefillFallback::DecodeOnly) => {
                rank(&self.prefill, &snapshot, Role::Prefill, tried).map_err(|_| WholeReason::NoPrefill)
            }
        };
        let prefill = prefill.map(|mut prefill| {
            if fleet.mixed_versions() {
                pair_versions(&mut prefill, &mut decode);
            }
            prefill
        });
        Ok(Plan { prefill, decode })
    }

    /// Chooses for a path that any engine serves, whatever its role.
    #[must_use]
    pub fn any(&self, fleet: &Fleet) -> Candidates {
        let snapshot = fleet.snapshot();
        let both: Candidates = snapshot.decode.iter().chain(&snapshot.prefill).cloned().collect();
        self.any.rank(&serving(&both))
    }
}

/// The engines that are up, have room and whose breaker is not open; where every breaker is, all of them.
/// Where none is up, those that are only slow to answer probes.
fn serving(pool: &[Arc<Engine>]) -> Candidates {
    let now = Instant::now();
    let mut up: Candidates = pool.iter().filter(|engine| engine.up() && engine.has_room()).cloned().collect();
    if up.is_empty() && !pool.iter().any(|engine| engine.up()) {
        up = pool.iter().filter(|engine| engine.slow() && engine.has_room()).cloned().collect();
    }
    let open = |engine: &Arc<Engine>| engine.breaker().state(now) == State::Open;
    if up.iter().any(open) && !up.iter().all(open) {
        return up.into_iter().filter(|engine| !open(engine)).collect();
    }
    up
}

fn rank(policy: &RoundRobin, snapshot: &Snapshot, role: Role, tried: &[u64]) -> Result<Candidates, Role> {
    let mut ranked = policy.rank(&serving(snapshot.pool(role)));
    if ranked.is_empty() {
        return Err(role);
    }
    ranked.sort_by_key(|engine| tried.contains(&engine.id()));
    Ok(ranked)
}

/// Engines of different versions never hand over: a prefill engine with a partner comes first, and its
/// partners are the first of the decode engines.
fn pair_versions(prefill: &mut Candidates, decode: &mut Candidates) {
    prefill.sort_by_key(|one| !decode.iter().any(|other| other.version() == one.version()));
    if let Some(first) = prefill.first() {
        decode.sort_by_key(|other| other.version() != first.version());
    }
}
