//! Two candidates at random, the less loaded one first. It herds less than the least loaded one would where
//! several routers share a pool and none sees the others' requests (Mitzenmacher, "The Power of Two Choices
//! in Randomized Load Balancing", 2001).

use std::time::Instant;

use super::ask::Ask;
use super::load::load;
use super::policy::{Order, Policy};
use crate::fleet::candidate::Candidate;

/// No memory.
#[derive(Debug, Default)]
pub struct PowerOfTwo;

impl Policy for PowerOfTwo {
    fn rank(&self, _ask: &Ask, pool: &[&Candidate], _now: Instant) -> Order {
        let mut order: Order = (0..pool.len()).collect();
        fastrand::shuffle(&mut order);
        let at = |place: usize| order.get(place).and_then(|index| pool.get(*index)).map(|one| load(one));
        if let (Some(first), Some(second)) = (at(0), at(1))
            && second < first
        {
            order.swap(0, 1);
        }
        order
    }
}
