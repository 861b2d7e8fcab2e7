//! One engine as the router knows it: where it is, what it is for, how it does, how many requests it has.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::breaker::{self, Breaker, Ticket, Verdict};
use super::candidate::{Candidate, Load, Rank};
use super::health::{self, Health};
use super::rest::{Rest, Resting};
use super::url::EngineUrl;
use crate::ids::Role;
use crate::observe::engine::EngineMetrics;

/// The most engine ids that are remembered of one URL: one a data-parallel rank.
const KNOWN_IDS_MAX: usize = 64;

/// What every engine of a role is held to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// When its breaker opens and closes.
    pub breaker: breaker::Settings,
    /// The most requests in flight at it.
    pub in_flight_max: Option<usize>,
}

/// One vLLM server process.
#[derive(Debug)]
pub struct Engine {
    id: u64,
    role: Role,
    url: EngineUrl,
    metrics: Arc<EngineMetrics>,
    in_flight_max: i64,
    breaker_settings: breaker::Settings,
    breaker: Breaker,
    pairs: ArcSwap<HashMap<u64, Arc<Breaker>>>,
    failed_with: AtomicU64,
    health: Mutex<Health>,
    up: AtomicBool,
    slow: AtomicBool,
    resting: Resting,
    draining: AtomicBool,
    gone: CancellationToken,
    epoch: AtomicU64,
    known_ids: Mutex<Vec<Bytes>>,
    version: ArcSwapOption<String>,
    ranks: ArcSwap<Vec<Arc<Rank>>>,
    probe_now: Notify,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Engine {
    /// An engine under an id that no other engine of this process had or will have; its health is unknown.
    #[must_use]
    pub fn new(role: Role, url: EngineUrl, metrics: Arc<EngineMetrics>, settings: Settings) -> Arc<Self> {
        let Settings { breaker, in_flight_max } = settings;
        let ranks = vec![Rank::new(url.as_str(), None)];
        Arc::new(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            role,
            url,
            metrics,
            in_flight_max: in_flight_max.map_or(i64::MAX, |max| i64::try_from(max).unwrap_or(i64::MAX)),
            breaker_settings: breaker,
            breaker: Breaker::new(breaker),
            pairs: ArcSwap::default(),
            failed_with: AtomicU64::new(0),
            health: Mutex::default(),
            up: AtomicBool::new(false),
            slow: AtomicBool::new(false),
            resting: Resting::default(),
            draining: AtomicBool::new(false),
            gone: CancellationToken::new(),
            epoch: AtomicU64::new(0),
            known_ids: Mutex::default(),
            version: ArcSwapOption::empty(),
            ranks: ArcSwap::from_pointee(ranks),
            probe_now: Notify::new(),
        })
    }

    /// Its id in this process; never used again.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// What it is for.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Where it is.
    #[must_use]
    pub const fn url(&self) -> &EngineUrl {
        &self.url
    }

    /// Its metric handles, resolved once.
    #[must_use]
    pub const fn metrics(&self) -> &Arc<EngineMetrics> {
        &self.metrics
    }

    /// Its breaker.
    #[must_use]
    pub const fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    /// Whether it gets traffic, its breaker aside.
    #[must_use]
    pub fn up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    /// Whether only slow probes put it out: it takes connections and does not say that it is unwell. It gets
    /// traffic where no engine of its role is up: a busy engine is better than none.
    #[must_use]
    pub fn slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed)
    }

    /// Whether it is paused or asleep.
    #[must_use]
    pub const fn resting(&self) -> &Resting {
        &self.resting
    }

    /// Whether it takes requests, as far as it was told; `resting` asks of those that need no awake engine.
    #[must_use]
    pub fn takes(&self, resting: bool) -> bool {
        !self.draining() && (resting || !self.resting.rests())
    }

    /// Whether it takes no new requests until it is gone, or told otherwise.
    #[must_use]
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Has it take no new requests, or take them again.
    pub fn set_draining(&self, draining: bool) {
        self.draining.store(draining, Ordering::Release);
    }

    /// Cancelled when it is no part of the fleet any more.
    #[must_use]
    pub const fn gone(&self) -> &CancellationToken {
        &self.gone
    }

    /// Forgets what it had with a prefill engine that is gone.
    pub fn forget_pair(&self, prefill: u64) {
        if self.pair(prefill).is_some() {
            self.pairs.rcu(|pairs| {
                let mut pairs = HashMap::clone(pairs);
                pairs.remove(&prefill);
                pairs
            });
        }
    }

    /// What is known of it.
    #[must_use]
    pub fn health(&self) -> health::State {
        self.health.lock().state()
    }

    /// Its requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> i64 {
        self.metrics.in_flight.get()
    }

    /// Whether it has fewer requests in flight than it may.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.metrics.in_flight.get() < self.in_flight_max
    }

    /// Counts its lives; engine connections of an older one are not used again.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// What its `/version` said.
    #[must_use]
    pub fn version(&self) -> Option<Arc<String>> {
        self.version.load_full()
    }

    /// Takes what its `/version` said.
    pub fn set_version(&self, version: Option<String>) {
        self.version.store(version.map(Arc::new));
    }

    /// Its candidates: itself, or its data-parallel ranks.
    pub fn candidates(self: &Arc<Self>) -> impl Iterator<Item = Candidate> {
        let ranks = Vec::clone(&self.ranks.load());
        ranks.into_iter().map(|rank| Candidate::new(Arc::clone(self), rank))
    }

    /// Takes the numbers of its data-parallel ranks, none for an engine without; whether that is news. Those
    /// that it had keep their load.
    pub fn set_ranks(&self, numbers: &[u16]) -> bool {
        let wanted: Vec<Option<u16>> =
            if numbers.is_empty() { vec![None] } else { numbers.iter().copied().map(Some).collect() };
        let had = self.ranks.load();
        if had.iter().map(|rank| rank.number()).eq(wanted.iter().copied()) {
            return false;
        }
        let known = |number| had.iter().find(|rank| rank.number() == number).map(Arc::clone);
        let fresh = |number| Rank::new(self.url.as_str(), number);
        self.ranks.store(Arc::new(
            wanted.into_iter().map(|number| known(number).unwrap_or_else(|| fresh(number))).collect(),
        ));
        true
    }

    /// A probe was answered well or not; `slow` where it got a connection and no answer in time.
    pub fn probed(&self, good: bool, slow: bool, settings: health::Settings) {
        let mut health = self.health.lock();
        // A good probe does not end it: until there are enough of them the engine is still out.
        if !good {
            self.slow.store(slow && health.state() != health::State::Unknown, Ordering::Relaxed);
        }
        if health.probed(good, settings) {
            if !good && !slow {
                // It was gone: what it knew is gone too, and its connections are.
                self.new_life();
            }
            self.show(health.state(), "probe");
        }
    }

    /// A live connection was refused or reset: out at once, and probed at once.
    pub fn eject(&self, why: &'static str) {
        let mut health = self.health.lock();
        if health.eject() {
            self.metrics.ejections.inc();
            self.slow.store(false, Ordering::Relaxed);
            self.new_life();
            self.show(health.state(), why);
            self.probe_now.notify_one();
        }
    }

    /// Whether a live connection put it out and probes have not said yet that it is gone.
    #[must_use]
    pub fn ejected(&self) -> bool {
        self.health.lock().ejected()
    }

    /// Waits until a probe is wanted before its time.
    pub async fn probe_wanted(&self) {
        self.probe_now.notified().await;
    }

    /// Notes the engine id of a handoff; one that was never seen of this URL means that the engine restarted.
    pub fn seen_as(&self, id: &Bytes) {
        if id.is_empty() {
            return;
        }
        let mut known = self.known_ids.lock();
        if known.contains(id) {
            return;
        }
        if !known.is_empty() {
            tracing::info!(engine = %self.url, "the engine has a new id: it restarted");
            self.new_life();
        }
        if known.len() == KNOWN_IDS_MAX {
            known.remove(0);
        }
        known.push(id.clone());
    }

    /// The breaker of this decode engine's work for one prefill engine, if that ever failed.
    #[must_use]
    pub fn pair(&self, prefill: u64) -> Option<Arc<Breaker>> {
        let pairs = self.pairs.load();
        if pairs.is_empty() { None } else { pairs.get(&prefill).cloned() }
    }

    /// How many pairs of it have an open breaker.
    #[must_use]
    pub fn pairs_open(&self, now: Instant) -> usize {
        self.pairs.load().values().filter(|pair| pair.state(now) == breaker::State::Open).count()
    }

    /// A decode leg with a handoff failed: the pair is at fault, and the decode engine itself only where it
    /// also failed with another prefill engine since its last success. Returns whether it is.
    pub fn failed_in_pair(&self, prefill: u64, ticket: Option<Ticket>, now: Instant) -> bool {
        let pair = self.pair(prefill).unwrap_or_else(|| {
            let fresh = Arc::new(Breaker::new(self.breaker_settings));
            self.pairs.rcu(|pairs| {
                let mut pairs = HashMap::clone(pairs);
                pairs.entry(prefill).or_insert_with(|| Arc::clone(&fresh));
                pairs
            });
            self.pair(prefill).unwrap_or(fresh)
        });
        pair.say(ticket.unwrap_or_else(|| pair.force(now)), Verdict::Failure, now);
        let before = self.failed_with.swap(prefill, Ordering::AcqRel);
        before != 0 && before != prefill
    }

    /// A decode leg with a handoff went well.
    pub fn succeeded_in_pair(&self) {
        if self.failed_with.load(Ordering::Acquire) != 0 {
            self.failed_with.store(0, Ordering::Release);
        }
    }

    /// Lets one request go to this engine: counted, and past the breaker, until the guard is dropped. None
    /// while the engine has as many as it may, and while the breaker is open or another request tries, unless
    /// `force`.
    #[must_use]
    pub fn begin(self: &Arc<Self>, force: bool) -> Option<InFlight> {
        let now = Instant::now();
        if !self.has_room() {
            return None;
        }
        let ticket = if force { self.breaker.force(now) } else { self.breaker.enter(now)? };
        self.metrics.in_flight.inc();
        Some(InFlight { engine: Arc::clone(self), ticket: Some(ticket), load: None })
    }

    fn new_life(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        self.breaker.reset();
        self.resting.tell(|rest| *rest = Rest::default());
        self.pairs.store(Arc::default());
    }

    fn show(&self, state: health::State, why: &'static str) {
        self.up.store(state == health::State::Up, Ordering::Release);
        if state == health::State::Up {
            self.slow.store(false, Ordering::Relaxed);
        }
        self.metrics.up.set(i64::from(state == health::State::Up));
        let state = state.as_str();
        tracing::info!(engine = %self.url, role = self.role.as_str(), why, "engine is {state}");
    }
}

/// One request in flight at an engine. Dropping it ends the count; without a verdict it says nothing of the
/// engine.
#[derive(Debug)]
pub struct InFlight {
    engine: Arc<Engine>,
    ticket: Option<Ticket>,
    load: Option<Load>,
}

impl InFlight {
    /// The engine.
    #[must_use]
    pub const fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Holds this share of a rank's load as well.
    #[must_use]
    pub fn with_load(mut self, load: Load) -> Self {
        self.load = Some(load);
        self
    }

    /// The data-parallel rank that it goes to, where the engine has ranks.
    #[must_use]
    pub fn rank(&self) -> Option<u16> {
        self.load.as_ref().and_then(|load| load.rank().number())
    }

    /// Says what the request tells of the engine; the first word counts.
    pub fn say(&mut self, verdict: Verdict) {
        if let Some(ticket) = self.ticket.take() {
            self.engine.breaker.say(ticket, verdict, Instant::now());
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.say(Verdict::Neutral);
        self.engine.metrics.in_flight.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::Observe;

    const SETTINGS: health::Settings = health::Settings { failure_threshold: 2, success_threshold: 2 };

    fn engine() -> Arc<Engine> {
        let url = EngineUrl::parse("http://127.0.0.1:1").unwrap();
        let metrics = Observe::new(&[]).unwrap().engines().engine(Role::Decode, url.as_str());
        Engine::new(Role::Decode, url, metrics, Settings::default())
    }

    #[test]
    fn a_slow_engine_stays_one_until_it_is_up_again() {
        let engine = engine();
        engine.probed(true, false, SETTINGS);
        engine.probed(false, true, SETTINGS);
        engine.probed(false, true, SETTINGS);
        assert_eq!((engine.up(), engine.slow()), (false, true));
        engine.probed(true, false, SETTINGS);
        assert_eq!((engine.up(), engine.slow()), (false, true), "one good probe is not enough to be up");
        engine.probed(true, false, SETTINGS);
        assert_eq!((engine.up(), engine.slow()), (true, false));
    }

    #[test]
    fn one_that_refuses_or_is_ejected_is_not_slow() {
        let engine = engine();
        engine.probed(false, true, SETTINGS);
        assert!(!engine.slow(), "nothing is known of it");
        engine.probed(true, false, SETTINGS);
        engine.probed(false, true, SETTINGS);
        engine.probed(false, false, SETTINGS);
        assert_eq!((engine.up(), engine.slow()), (false, false));
        engine.probed(true, false, SETTINGS);
        engine.probed(true, false, SETTINGS);
        engine.probed(false, true, SETTINGS);
        engine.eject("connection reset");
        assert_eq!((engine.up(), engine.slow()), (false, false));
    }
}
