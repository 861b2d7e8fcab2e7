//! Session to candidate by rendezvous hashing (Thaler and Ravishankar, 1998): every candidate gets a score
//! from the session and its own name, the highest wins. Taking a candidate away moves only its own sessions,
//! and routers that do not talk agree. A candidate that has more than its share passes the session on to the
//! next (Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2016).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use smallvec::SmallVec;

use super::ask::Ask;
use super::load::{least_first, saturation};
use super::policy::{Order, Policy};
use crate::fleet::candidate::Candidate;

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
        let bound = saturation(pool);
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

/// A well-mixed number of both (the finaliser of `MurmurHash3`, by Austin Appleby, over their sum).
const fn score(session: u64, key: u64) -> u64 {
    let mut mixed = session ^ key.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 33;
    mixed = mixed.wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^= mixed >> 33;
    mixed = mixed.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ (mixed >> 33)
}
