//! From a request and the fleet to a plan: which engines, in which order, and with or without a handoff.

pub mod round_robin;

use std::sync::Arc;

use round_robin::RoundRobin;
use smallvec::SmallVec;

use crate::fleet::Snapshot;
use crate::fleet::engine::Engine;
use crate::ids::{Role, WholeReason};
use crate::request::api::Api;
use crate::request::view::View;

/// Engines in the order in which they are to be tried.
pub type Candidates = SmallVec<[Arc<Engine>; 4]>;

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
}

impl Planner {
    /// Chooses for an inference request.
    ///
    /// # Errors
    /// The role whose pool has no engine that can serve.
    pub fn plan(&self, api: &Api, view: &View, fleet: &Snapshot) -> Result<Plan, Role> {
        let decode = some(Role::Decode, self.decode.rank(&fleet.decode))?;
        let prefill = match view.whole(api) {
            Some(reason) => Err(reason),
            None => Ok(some(Role::Prefill, self.prefill.rank(&fleet.prefill))?),
        };
        Ok(Plan { prefill, decode })
    }

    /// Chooses for a path that any engine serves, whatever its role.
    #[must_use]
    pub fn any(&self, fleet: &Snapshot) -> Candidates {
        let both: Candidates = fleet.decode.iter().chain(&fleet.prefill).cloned().collect();
        self.any.rank(&both)
    }
}

fn some(role: Role, candidates: Candidates) -> Result<Candidates, Role> {
    if candidates.is_empty() { Err(role) } else { Ok(candidates) }
}
