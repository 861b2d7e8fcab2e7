//! Which policies run against which workloads: those of the prefill pool beside `power_of_two` for decode,
//! then those of the decode pool.

use pd_router::ids::Role;
use pd_router::plan::name::PolicyName;

use crate::Error;
use crate::bed::Pair;
use crate::run::run;
use crate::stats::Stats;
use crate::workload::{Trace, Workload};

/// What was run and what it showed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// The requests.
    pub workload: Workload,
    /// The pool whose policy is compared.
    pub pool: Role,
    /// That policy.
    pub policy: PolicyName,
    /// The numbers.
    pub stats: Stats,
}

/// All rows, and requests a second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Suite {
    /// One a pool, workload and policy.
    pub rows: Vec<Row>,
    /// Requests a second, the same in all.
    pub rate: f64,
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
        Role::Decode => Pair { prefill: best_prefill(), decode: policy },
    }
}

/// The prefill policy beside which those of the decode pool are compared.
#[must_use]
pub fn best_prefill() -> PolicyName {
    PolicyName::by_name("cache_aware").unwrap_or(PolicyName::LeastLoaded)
}

impl Suite {
    /// Runs all of them. A hot session is nothing to a policy that does not look at sessions: its rows would
    /// be those of the workload without one.
    ///
    /// # Errors
    /// See [`run`].
    pub fn run(requests: usize, seed: u64) -> Result<Self, Error> {
        let mut suite = Self::default();
        for workload in Workload::ALL {
            let trace = Trace::new(workload, requests, seed)?;
            suite.rate = trace.rate;
            let hot = workload == Workload::HotSession;
            for pool in [Role::Prefill, Role::Decode] {
                for policy in policies().into_iter().filter(|policy| !hot || policy.make().wants_session()) {
                    let stats = run(&trace, pair(pool, policy), seed)?;
                    suite.rows.push(Row { workload, pool, policy, stats });
                }
            }
        }
        suite.rows.sort_by_key(|row| row.pool == Role::Decode);
        Ok(suite)
    }
}
