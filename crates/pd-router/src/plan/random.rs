//! Every candidate is as likely as any other.

use std::time::Instant;

use super::ask::Ask;
use super::policy::{Order, Policy};
use crate::fleet::candidate::Candidate;

/// A uniform order.
#[derive(Debug, Default)]
pub struct Random;

impl Policy for Random {
    fn rank(&self, _ask: &Ask, pool: &[&Candidate], _now: Instant) -> Order {
        let mut order: Order = (0..pool.len()).collect();
        fastrand::shuffle(&mut order);
        order
    }
}
