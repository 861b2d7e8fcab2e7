//! What every policy does: put the candidates of a pool in order.

use std::fmt::Debug;
use std::time::Instant;

use smallvec::SmallVec;

use super::ask::Ask;
use crate::fleet::candidate::Candidate;

/// Those of a pool that can take a leg now, in the pool's own order; never empty when a policy sees it.
pub type Pool<'a> = SmallVec<[&'a Candidate; 16]>;

/// Positions in a pool, best first. What is left out counts as worse than all that is named.
pub type Order = SmallVec<[usize; 16]>;

/// How to choose: no I/O, and nothing is remembered without a bound.
pub trait Policy: Debug + Send + Sync {
    /// The candidates in the order in which they are to be tried.
    fn rank(&self, ask: &Ask, pool: &[&Candidate], now: Instant) -> Order;

    /// This candidate took the request: what a policy remembers, it remembers here.
    fn took(&self, _ask: &Ask, _candidate: &Candidate, _now: Instant) {}

    /// This candidate will be asked, once prefill is done.
    fn promised(&self, _ask: &Ask, _candidate: &Candidate, _now: Instant) {}

    /// This session will not come again.
    fn finish(&self, _session: u64) {}

    /// This candidate, by [`Candidate::key`], is gone.
    fn forget(&self, _candidate: u64) {}

    /// Forgets what is too old; called about once a minute, off the request path.
    fn tidy(&self, _now: Instant) {}

    /// How many prompt tokens this candidate would have to compute, about: what its load grows by.
    fn tokens(&self, ask: &Ask, _candidate: &Candidate) -> u64 {
        ask.tokens
    }

    /// Whether it looks at [`Ask::session`].
    fn wants_session(&self) -> bool {
        false
    }

    /// Whether it looks at [`Ask::prefix`].
    fn wants_prefix(&self) -> bool {
        false
    }
}
