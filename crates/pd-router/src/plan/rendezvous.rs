//! Session to candidate by rendezvous hashing (Thaler and Ravishankar, 1998): every candidate gets a score
//! from the session and its own name, the highest wins. Taking a candidate away moves only its own sessions,
//! and routers that do not talk agree. A candidate that has more than its share passes the session on to the
//! next (Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2016).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use smallvec::SmallVec;

use super::ask::Ask;
use super::load::least_first;
use super::policy::{Order, Policy};
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

/// Scores of a session and a candidate.
#[derive(Debug, Default)]
pub struct Rendezvous {
    turn: AtomicUsize,
}

impl Policy for Rendezvous {
    fn rank(&self, ask: &Ask, pool: &[&Candidate], _now: Instant) -> Order {
        let Some(session) = ask.session else {
            return least_first(pool, self.turn.fetch_add(1, Ordering::Relaxed));
        };
        let bound = bound(pool);
        let mut ranked: SmallVec<[(bool, u64, usize); 16]> = pool
            .iter()
            .enumerate()
            .map(|(index, one)| (one.requests() >= bound, !score(session, one.key()), index))
            .collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(_, _, index)| index).collect()
    }

    fn wants_session(&self) -> bool {
        true
    }
}

/// How many requests make a candidate saturated.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "counts of requests are small"
)]
fn bound(pool: &[&Candidate]) -> i64 {
    let total: i64 = pool.iter().map(|one| one.requests()).sum();
    let fair = (total + 1) as f64 / pool.len().max(1) as f64;
    let slack = match pool.first().map(|one| one.engine().role()) {
        Some(Role::Prefill) => SLACK_PREFILL,
        Some(Role::Decode) | None => SLACK_DECODE,
    };
    ((fair * BOUND).ceil() as i64).max(slack)
}

/// A well-mixed number of both (the finaliser of `MurmurHash3`, by Austin Appleby, over their sum).
const fn score(session: u64, key: u64) -> u64 {
    let mut mixed = session ^ key.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 33;
    mixed = mixed.wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^= mixed >> 33;
    mixed = mixed.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ (mixed >> 33)
}
