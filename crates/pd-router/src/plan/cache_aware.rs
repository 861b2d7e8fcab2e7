//! To the candidate that has most of the prompt in its cache, as far as its queue is no longer than what the
//! cache saves. What a candidate was given is what it has: nobody is asked.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::ask::Ask;
use super::known::Known;
use super::load::least_first;
use super::policy::{Order, Policy};
use crate::fleet::candidate::Candidate;
use crate::ids::Role;

/// What a request that an engine generates for costs the next one there, in prompt tokens: an estimate. One
/// more in a batch makes each step of the others some tenths of a millisecond longer, over some hundred tokens;
/// prompts are computed at some ten thousand tokens a second.
const TOKENS_A_GENERATION: i64 = 256;

/// When a cached prefix counts, and how much is remembered.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The share of a prompt that a candidate must have for its cache to count, from 0 to 1.
    pub threshold: f64,
    /// By how many requests the most loaded candidate must be ahead for load alone to decide,
    pub balance_abs: i64,
    /// and by which factor.
    pub balance_rel: f64,
    /// Between two sweeps over what is remembered.
    pub eviction_interval: Duration,
    /// All that is remembered, in bytes.
    pub bytes_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            threshold: 0.3,
            balance_abs: 64,
            balance_rel: 1.5,
            eviction_interval: Duration::from_secs(120),
            bytes_max: 1 << 25,
        }
    }
}

/// What candidates were given.
#[derive(Debug)]
pub struct CacheAware {
    settings: Settings,
    known: Known,
    turn: AtomicUsize,
    start: Instant,
    swept: AtomicU64,
}

impl CacheAware {
    /// Remembers nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let known = Known::new(settings.bytes_max);
        Self { settings, known, turn: AtomicUsize::new(0), start: Instant::now(), swept: AtomicU64::new(0) }
    }

    /// Whether one candidate has so many more requests than another that caches do not count.
    #[allow(clippy::cast_precision_loss, reason = "counts of requests are small")]
    fn out_of_balance(&self, pool: &[&Candidate]) -> bool {
        let requests = || pool.iter().map(|one| one.requests());
        let (Some(least), Some(most)) = (requests().min(), requests().max()) else { return false };
        most - least > self.settings.balance_abs && most as f64 > least as f64 * self.settings.balance_rel
    }

    /// Tokens that a candidate would have to compute before this request is done: those that wait there, and
    /// those of this prompt that it does not have.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a number of tokens"
    )]
    fn cost(&self, ask: &Ask, candidate: &Candidate, matched: usize) -> i64 {
        let share = matched as f64 / ask.prefix.bytes().max(1) as f64;
        let share = if share < self.settings.threshold { 0.0 } else { share };
        let waiting = match candidate.engine().role() {
            Role::Prefill => candidate.tokens(),
            // It computes prompts and generates for all of its requests at once.
            Role::Regular => {
                candidate.tokens().saturating_add(candidate.requests().saturating_mul(TOKENS_A_GENERATION))
            }
            // A decode engine works on all of its requests at once; a longer prompt costs each of them little.
            Role::Decode => candidate.requests().saturating_mul(ask.tokens as i64),
        };
        waiting.saturating_add((ask.tokens as f64 * (1.0 - share)) as i64)
    }
}

impl Policy for CacheAware {
    fn rank(&self, ask: &Ask, pool: &[&Candidate], _now: Instant) -> Order {
        if ask.prefix.blocks().is_empty() || self.out_of_balance(pool) {
            return least_first(pool, self.turn.fetch_add(1, Ordering::Relaxed));
        }
        let matched = self.known.matched(&ask.prefix, pool.iter().copied());
        let first = self.turn.load(Ordering::Relaxed) % pool.len().max(1);
        let mut ranked: SmallVec<[(i64, usize); 16]> = (first..pool.len())
            .chain(0..first)
            .filter_map(|index| Some((self.cost(ask, pool.get(index)?, *matched.get(index)?), index)))
            .collect();
        ranked.sort_by_key(|(cost, _)| *cost);
        let order: Order = ranked.into_iter().map(|(_, index)| index).collect();
        // What is new to the candidate chosen ends a turn, what comes back to its cache does not.
        if order.first().and_then(|index| matched.get(*index)) == Some(&0) {
            self.turn.fetch_add(1, Ordering::Relaxed);
        }
        order
    }

    fn took(&self, ask: &Ask, candidate: &Candidate, now: Instant) {
        self.known.insert(&ask.prefix, candidate, now);
    }

    fn forget(&self, candidate: u64) {
        self.known.forget(candidate);
    }

    fn tidy(&self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.start).as_secs();
        if elapsed.saturating_sub(self.swept.load(Ordering::Relaxed))
            >= self.settings.eviction_interval.as_secs()
        {
            self.swept.store(elapsed, Ordering::Relaxed);
            self.known.tidy(now);
        }
    }

    /// What is cached costs nothing: counted in full, a queue of follow-up turns looks several times as long
    /// as it is, and sessions leave their caches for nothing.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a number of tokens"
    )]
    fn tokens(&self, ask: &Ask, candidate: &Candidate) -> u64 {
        if candidate.engine().role() == Role::Decode {
            return ask.tokens;
        }
        let matched = self.known.matched(&ask.prefix, std::iter::once(candidate));
        let share = matched.first().copied().unwrap_or(0) as f64 / ask.prefix.bytes().max(1) as f64;
        (ask.tokens as f64 * (1.0 - share)) as u64
    }

    fn wants_prefix(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::engine::Engine;
    use crate::fleet::url::EngineUrl;
    use crate::observe::Observe;
    use crate::plan::prefix::Prefix;

    fn pool(count: usize) -> Vec<Candidate> {
        let observe = Observe::new(&[]).unwrap();
        let engine = |number| {
            let url = EngineUrl::parse(&format!("http://10.0.0.{number}:1")).unwrap();
            let metrics = observe.engines().engine(Role::Prefill, url.as_str());
            Engine::new(Role::Prefill, url, metrics, crate::fleet::engine::Settings::default())
        };
        let engines: Vec<_> = (0..count).map(engine).collect();
        engines.iter().flat_map(Engine::candidates).collect()
    }

    fn ask(text: &str, tail: &str) -> Ask {
        let text = text.repeat(100) + tail;
        Ask {
            session: None,
            one_off: false,
            prefix: Prefix::of(&[], &[text.as_bytes()]),
            tokens: text.len() as u64 / 4,
        }
    }

    fn send(policy: &CacheAware, pool: &[Candidate], ask: &Ask) -> usize {
        let refs: Vec<&Candidate> = pool.iter().collect();
        let first = policy.rank(ask, &refs, Instant::now())[0];
        policy.took(ask, refs[first], Instant::now());
        first
    }

    #[test]
    fn families_of_prompts_stay_and_new_ones_spread() {
        let (policy, pool) = (CacheAware::new(Settings::default()), pool(3));
        let mut homes = Vec::new();
        for family in 0..6 {
            let name = format!("the text of family {family} ");
            let home = send(&policy, &pool, &ask(&name, "first"));
            homes.push(home);
            for turn in 0..5 {
                assert_eq!(send(&policy, &pool, &ask(&name, &format!("turn {turn}"))), home);
            }
        }
        assert!((0..3).all(|engine| homes.iter().filter(|home| **home == engine).count() >= 1), "{homes:?}");
    }

    #[test]
    fn a_queue_longer_than_what_the_cache_saves_sends_it_elsewhere() {
        let (policy, pool) = (CacheAware::new(Settings::default()), pool(2));
        let ask = ask("the same beginning for all ", "x");
        let home = send(&policy, &pool, &ask);
        let waiting = pool[home].load(ask.tokens / 2);
        assert_eq!(send(&policy, &pool, &ask), home);
        let more = pool[home].load(ask.tokens);
        assert_ne!(send(&policy, &pool, &ask), home);
        drop((waiting, more));
    }

    #[test]
    fn a_small_share_does_not_count_and_imbalance_overrides() {
        let (policy, pool) = (CacheAware::new(Settings::default()), pool(2));
        let home = send(&policy, &pool, &ask("head ", ""));
        let little = ask("head ", &"tail".repeat(2_000));
        let refs: Vec<&Candidate> = pool.iter().collect();
        let costs: Vec<i64> = policy
            .known
            .matched(&little.prefix, refs.iter().copied())
            .iter()
            .zip(&refs)
            .map(|(matched, one)| policy.cost(&little, one, *matched))
            .collect();
        assert_eq!(costs[0], costs[1], "5 % of the prompt is under the threshold");
        let _held: Vec<_> = (0..70).map(|_| pool[home].load(0)).collect();
        assert_ne!(send(&policy, &pool, &ask("head ", "")), home, "70 requests ahead of none");
    }
}
