//! The load rule that policies share: requests in flight for decode, the tokens of their prompts for prefill.

use super::policy::Order;
use crate::fleet::candidate::Candidate;
use crate::ids::Role;

/// How loaded a candidate is. A prefill engine is busy for as long as its prompts are long, a decode engine
/// for as long as its requests last.
#[must_use]
pub fn load(candidate: &Candidate) -> (i64, i64) {
    match candidate.engine().role() {
        Role::Prefill => (candidate.tokens(), candidate.requests()),
        Role::Decode => (candidate.requests(), candidate.tokens()),
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
