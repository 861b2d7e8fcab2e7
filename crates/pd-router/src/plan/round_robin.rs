//! Exact turns over the candidates of a pool.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::ask::Ask;
use super::policy::{Order, Policy};
use crate::fleet::candidate::Candidate;

/// Whose turn it is.
#[derive(Debug, Default)]
pub struct RoundRobin {
    turn: AtomicUsize,
}

impl Policy for RoundRobin {
    fn rank(&self, _ask: &Ask, pool: &[&Candidate], _now: Instant) -> Order {
        let first = self.turn.fetch_add(1, Ordering::Relaxed) % pool.len().max(1);
        (first..pool.len()).chain(0..first).collect()
    }
}
