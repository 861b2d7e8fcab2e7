//! Exact turns over the engines of a pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Candidates;
use crate::fleet::engine::Engine;

/// Whose turn it is.
#[derive(Debug, Default)]
pub struct RoundRobin {
    turn: AtomicUsize,
}

impl RoundRobin {
    /// Every engine, starting with the one whose turn it is.
    #[must_use]
    pub fn rank(&self, pool: &[Arc<Engine>]) -> Candidates {
        if pool.is_empty() {
            return Candidates::new();
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % pool.len();
        let (later, first) = pool.split_at(turn);
        first.iter().chain(later).cloned().collect()
    }
}
