//! The load rule that policies share: the tokens of their prompts for prefill, requests in flight for all others.

use super::policy::Order;
use crate::fleet::candidate::Candidate;
use crate::ids::Role;

/// How many times the mean number of requests a candidate may have before sessions pass on.
const BOUND: f64 = 1.25;

/// Requests that any prefill candidate may have before it counts as saturated. They are computed one after
/// the other: with 8 the p99 of TTFT behind a hot session is half as long again, and the hit rate is the same
/// (`benches/policies`).
const SLACK_PREFILL: i64 = 4;

/// The same for decode, which computes them together: with fewer no engine is busy.
const SLACK_DECODE: i64 = 8;

/// How loaded a candidate is. A prefill engine is busy for as long as its prompts are long, any other for as
/// long as its requests last.
#[must_use]
pub fn load(candidate: &Candidate) -> (i64, i64) {
    match candidate.engine().role() {
        Role::Prefill => (candidate.tokens(), candidate.requests()),
        Role::Decode | Role::Regular => (candidate.requests(), candidate.tokens()),
    }
}

/// The least loaded first; those with equal load in the order of the pool, starting at `turn`.
#[must_use]
pub fn least_first(pool: &[&Candidate], turn: usize) -> Order {
    let first = turn % pool.len().max(1);
    let mut ranked: smallvec::SmallVec<[((i64, i64), usize); 16]> = (first..pool.len())
        .chain(0..first)
        .filter_map(|index| Some((load(pool.get(index)?), index)))
        .collect();
    ranked.sort_by_key(|(load, _)| *load);
    ranked.into_iter().map(|(_, index)| index).collect()
}

/// How many requests make a candidate saturated, so that sessions pass on to another.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "counts of requests are small"
)]
#[must_use]
pub fn saturation(pool: &[&Candidate]) -> i64 {
    let total: i64 = pool.iter().map(|one| one.requests()).sum();
    let fair = (total + 1) as f64 / pool.len().max(1) as f64;
    let slack = match pool.first().map(|one| one.engine().role()) {
        Some(Role::Prefill) => SLACK_PREFILL,
        Some(Role::Decode | Role::Regular) | None => SLACK_DECODE,
    };
    ((fair * BOUND).ceil() as i64).max(slack)
}
