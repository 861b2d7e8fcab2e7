//! What the metrics say of the fleet at the moment in which somebody asks: breakers, and vllm-router's gauges
//! of ranks.

use std::sync::Arc;
use std::time::Instant;

use super::Snapshot;
use super::engine::Engine;
use crate::ids::Role;
use crate::observe::Observe;

/// Shows the fleet as it is now.
pub fn report(fleet: &Snapshot, observe: &Observe) {
    let now = Instant::now();
    for engine in fleet.prefill.iter().chain(&fleet.decode) {
        let breaker = engine.breaker();
        engine.metrics().show_breaker(breaker.state(now) as usize, breaker.moves());
        if let Some(gauge) = &engine.metrics().pairs_open {
            gauge.set(i64::try_from(engine.pairs_open(now)).unwrap_or(i64::MAX));
        }
    }
    let Some(ranks) = observe.ranks() else { return };
    for one in fleet.candidates(Role::Prefill) {
        ranks.show_prefill(
            one.engine().url().as_str(),
            &rank(one.rank().number()),
            one.requests(),
            one.tokens(),
        );
    }
    let decode = fleet.candidates(Role::Decode).iter().filter(|one| one.engine().role() == Role::Decode);
    for one in decode {
        let (pending, active) = match one.rank().number() {
            None => split(one.engine(), one.requests()),
            Some(_) => (0, one.requests()),
        };
        ranks.show_decode(one.engine().url().as_str(), &rank(one.rank().number()), pending, active);
    }
}

/// Shows nothing of an engine any more: it is gone.
pub fn forget(engine: &Arc<Engine>, observe: &Observe) {
    let ranks: Vec<String> = engine.candidates().map(|one| rank(one.rank().number())).collect();
    observe.forget_engine(engine.metrics(), &ranks);
}

/// vllm-router calls the rank of an engine without ranks 0.
fn rank(number: Option<u16>) -> String {
    number.unwrap_or(0).to_string()
}

/// Requests that wait for their prefill, and those that the engine has.
fn split(engine: &Engine, load: i64) -> (i64, i64) {
    let active = engine.metrics().in_flight.get();
    ((load - active).max(0), active)
}
