//! The least loaded candidate; those with equal load take turns.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::ask::Ask;
use super::load::least_first;
use super::policy::{Order, Policy};
use crate::fleet::candidate::Candidate;

/// Whose turn it is among equals.
#[derive(Debug, Default)]
pub struct LeastLoaded {
    turn: AtomicUsize,
}

impl Policy for LeastLoaded {
    fn rank(&self, _ask: &Ask, pool: &[&Candidate], _now: Instant) -> Order {
        least_first(pool, self.turn.fetch_add(1, Ordering::Relaxed))
    }
}
