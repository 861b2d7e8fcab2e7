//! Which policies run against which workloads: those of the prefill pool beside `power_of_two` for decode,
//! then those of the decode pool.

use pd_router::ids::Role;
use pd_router::plan::name::PolicyName;

use crate::Error;
use crate::bed::{Pair, wants_session};
use crate::run::run;
use crate::stats::Stats;
use crate::workload::{HOT_SESSION, LONG, LONG_HOT, NO_SHARE, SHARED, SHARED_LIGHT, Trace, Workload};

/// What the policies of the prefill pool are compared with.
pub const PREFILL: &[Workload] = &[SHARED, SHARED_LIGHT, NO_SHARE, HOT_SESSION];

/// What those of the decode pool are compared with.
pub const DECODE: &[Workload] = &[SHARED, LONG, LONG_HOT];

/// What was run and what it showed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// The requests.
    pub workload: Workload,
    /// The pool whose policy is compared.
    pub pool: Role,
    /// That policy.
    pub policy: PolicyName,
    /// Requests a second.
    pub rate: f64,
    /// The numbers.
    pub stats: Stats,
}

/// Every policy once, in the order of their names.
#[must_use]
pub fn policies() -> Vec<PolicyName> {
    let mut all: Vec<PolicyName> = Vec::new();
    for (_, policy) in PolicyName::NAMES {
        if !all.contains(&policy) {
            all.push(policy);
        }
    }
    all
}

/// A policy of one pool and the one that stands beside it in the other pool: for decode `power_of_two`, for
/// prefill the best that is there.
#[must_use]
pub fn pair(pool: Role, policy: PolicyName) -> Pair {
    match pool {
        Role::Prefill => Pair { prefill: policy, decode: PolicyName::PowerOfTwo },
        Role::Decode | Role::Regular => Pair { prefill: best_prefill(), decode: policy },
    }
}

/// The prefill policy beside which those of the decode pool are compared.
#[must_use]
pub fn best_prefill() -> PolicyName {
    PolicyName::by_name("cache_aware").unwrap_or(PolicyName::LeastLoaded)
}

/// A workload's requests, at the rate that is asked for. Where prefix hits count, a first run shows how many
/// there are when the engines take turns.
///
/// # Errors
/// See [`Trace::new`] and [`run`].
pub fn trace(workload: Workload, requests: usize, seed: u64) -> Result<Trace, Error> {
    let mut trace = Trace::new(workload, requests, seed)?;
    if workload.hits_count {
        let turns = run(&trace, pair(Role::Prefill, PolicyName::RoundRobin), seed)?;
        trace.pace(turns.hit_rate);
    }
    Ok(trace)
}

/// Runs all of them. A hot session is nothing to a policy that does not look at sessions: its rows would be
/// those of the workload without one.
///
/// # Errors
/// See [`run`].
pub fn all(requests: usize, seed: u64) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for (pool, workloads) in [(Role::Prefill, PREFILL), (Role::Decode, DECODE)] {
        for workload in workloads.iter().copied() {
            let trace = trace(workload, requests, seed)?;
            for policy in policies() {
                if workload.hot && !wants_session(policy)? {
                    continue;
                }
                let stats = run(&trace, pair(pool, policy), seed)?;
                rows.push(Row { workload, pool, policy, rate: trace.rate, stats });
            }
        }
    }
    Ok(rows)
}
