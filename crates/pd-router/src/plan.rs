//! From a request and the fleet to a plan: which candidates, in which order, and with or without a handoff.

pub mod ask;
pub mod cache_aware;
pub mod known;
pub mod least_loaded;
pub mod load;
pub mod name;
pub mod policy;
pub mod power_of_two;
pub mod prefix;
pub mod random;
pub mod rendezvous;
pub mod round_robin;
pub mod sticky;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ask::Ask;
use http::{HeaderMap, HeaderName};
use known::Known;
use name::PolicyName;
use policy::{Policy, Pool};
use prefix::Prefix;
use round_robin::RoundRobin;
use smallvec::SmallVec;

use crate::fleet::breaker::State;
use crate::fleet::candidate::Candidate;
use crate::fleet::engine::Engine;
use crate::fleet::{Fleet, Pools, Snapshot};
use crate::ids::{Role, WholeReason};
use crate::request::api::Api;
use crate::request::view::View;

/// Candidates in the order in which they are to be tried.
pub type Candidates = SmallVec<[Candidate; 4]>;

/// The most candidates that one plan names; a request that fails on all of them is planned again.
const CANDIDATES_MAX: usize = 8;

/// What to do when no prefill engine can serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefillFallback {
    /// Refuse.
    #[default]
    Error,
    /// Send the request whole to a decode engine.
    DecodeOnly,
}

/// How engines are chosen.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The policy of the prefill pool, or of the only one.
    pub prefill: PolicyName,
    /// The policy of the decode pool.
    pub decode: PolicyName,
    /// What cache_aware goes by.
    pub cache: cache_aware::Settings,
    /// How long a sticky session may be idle.
    pub session_idle_max: Duration,
    /// Prompts of fewer tokens skip prefill; 0 for none.
    pub min_prefill_tokens: u64,
    /// Headers that name a session, before anything in the body.
    pub session_headers: Vec<HeaderName>,
    /// What to do when no prefill engine can serve.
    pub fallback: PrefillFallback,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            prefill: PolicyName::CacheAware,
            decode: PolicyName::PowerOfTwo,
            cache: cache_aware::Settings::default(),
            session_idle_max: Duration::from_secs(7200),
            min_prefill_tokens: 0,
            session_headers: ask::SESSION_HEADERS.to_vec(),
            fallback: PrefillFallback::Error,
        }
    }
}

/// What was chosen for one request.
#[derive(Debug)]
pub struct Plan {
    /// Prefill candidates, best first; none where the request goes whole.
    pub prefill: Result<Candidates, WholeReason>,
    /// Decode candidates, best first.
    pub decode: Candidates,
}

/// The policies of both pools; each pool has its own state.
#[derive(Debug)]
pub struct Planner {
    prefill: Box<dyn Policy>,
    decode: Box<dyn Policy>,
    any: RoundRobin,
    given: Option<Known>,
    session_headers: Vec<HeaderName>,
    min_prefill_tokens: u64,
    fallback: PrefillFallback,
}

impl Planner {
    /// A planner with fresh policies.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        let tables =
            [settings.prefill, settings.decode].map(|one| usize::from(one == PolicyName::CacheAware));
        let given = settings.min_prefill_tokens > 0;
        // The bound is for the whole process, so each table gets its share.
        let tables = tables.iter().sum::<usize>() + usize::from(given);
        let mut cache = settings.cache;
        cache.bytes_max /= tables.max(1);
        let make = |name: PolicyName| name.make(&Settings { cache, ..settings.clone() });
        Self {
            prefill: make(settings.prefill),
            decode: make(settings.decode),
            any: RoundRobin::default(),
            given: given.then(|| Known::new(cache.bytes_max)),
            session_headers: settings.session_headers.clone(),
            min_prefill_tokens: settings.min_prefill_tokens,
            fallback: settings.fallback,
        }
    }

    /// What the policies want to know of a request, and no more.
    #[must_use]
    pub fn look(&self, api: &Api, headers: &HeaderMap, view: &View) -> Ask {
        let session = self.prefill.wants_session() || self.decode.wants_session();
        let prefix = self.prefill.wants_prefix() || self.decode.wants_prefix() || self.given.is_some();
        let named = if session { ask::session(headers, &self.session_headers, view) } else { None };
        let one_off = if session && named.is_none() { ask::one_off(headers) } else { None };
        Ask {
            session: named.or(one_off),
            one_off: one_off.is_some(),
            prefix: if prefix { ask::prefix(api, view) } else { Prefix::default() },
            tokens: ask::tokens(api, view),
        }
    }

    /// Chooses for an inference request; `whole` is why one handoff cannot serve it, if so. Engines that
    /// failed it already, `tried`, come last.
    ///
    /// # Errors
    /// The role whose pool has no engine that can serve.
    pub fn plan(
        &self,
        ask: &Ask,
        whole: Option<WholeReason>,
        fleet: &Fleet,
        tried: &[u64],
    ) -> Result<Plan, Role> {
        let snapshot = fleet.snapshot();
        let mut decode = self.rank(ask, &snapshot, fleet.pools().last(), tried)?;
        if fleet.pools() == Pools::Regular {
            return Ok(Plan { prefill: Err(WholeReason::Regular), decode });
        }
        let whole = whole.or_else(|| self.skips_prefill(ask, decode.first()?));
        let prefill = match (whole, self.fallback) {
            (Some(reason), _) => Err(reason),
            (None, PrefillFallback::Error) => Ok(self.rank(ask, &snapshot, Role::Prefill, tried)?),
            (None, PrefillFallback::DecodeOnly) => {
                self.rank(ask, &snapshot, Role::Prefill, tried).map_err(|_| WholeReason::NoPrefill)
            }
        };
        let prefill = prefill.map(|mut prefill| {
            if fleet.mixed_versions() {
                pair_versions(&mut prefill, &mut decode);
            }
            prefill
        });
        Ok(Plan { prefill, decode })
    }

    /// How many prompt tokens a candidate would have to compute, about; asked before it took the request.
    #[must_use]
    pub fn tokens(&self, ask: &Ask, candidate: &Candidate) -> u64 {
        self.policy(candidate.engine().role()).tokens(ask, candidate)
    }

    /// A candidate will be asked once another leg is done: its policy may remember it now, so that the next
    /// request of a session follows.
    pub fn promised(&self, ask: &Ask, candidate: &Candidate) {
        self.policy(candidate.engine().role()).promised(ask, candidate, Instant::now());
    }

    /// A candidate took a request: its policy remembers.
    pub fn took(&self, ask: &Ask, candidate: &Candidate) {
        let (role, now) = (candidate.engine().role(), Instant::now());
        self.policy(role).took(ask, candidate, now);
        if let (Role::Decode, Some(given)) = (role, &self.given) {
            given.insert(&ask.prefix, candidate, now);
        }
    }

    /// Whether decode alone is the shorter way: the prompt is short, or what is new in it since the chosen
    /// engine was given its beginning.
    fn skips_prefill(&self, ask: &Ask, decode: &Candidate) -> Option<WholeReason> {
        let given = self.given.as_ref()?;
        if ask.tokens < self.min_prefill_tokens {
            return Some(WholeReason::ShortPrompt);
        }
        let matched =
            given.matched(&ask.prefix, std::iter::once(decode)).first().copied().unwrap_or(0) as u64;
        let bytes = (ask.prefix.bytes() as u64).max(1);
        let fresh = ask.tokens.saturating_mul(bytes.saturating_sub(matched)) / bytes;
        (fresh < self.min_prefill_tokens).then_some(WholeReason::CachedPrompt)
    }

    /// A session will not come again: policies forget it.
    pub fn finish(&self, session: &str) {
        let key = ask::session_key(session.as_bytes());
        self.prefill.finish(key);
        self.decode.finish(key);
    }

    /// An engine is gone: policies forget what they knew of it.
    pub fn forget(&self, engine: &Arc<Engine>) {
        for one in engine.candidates() {
            self.policy(engine.role()).forget(one.key());
            if let Some(given) = &self.given {
                given.forget(one.key());
            }
        }
    }

    /// Policies forget what is too old.
    pub fn tidy(&self) {
        let now = Instant::now();
        self.prefill.tidy(now);
        self.decode.tidy(now);
        if let Some(given) = &self.given {
            given.tidy(now);
        }
    }

    /// Chooses for a path that any engine serves, whatever its role; an engine that rests only where `resting`.
    #[must_use]
    pub fn any(&self, fleet: &Fleet, resting: bool) -> Candidates {
        let snapshot = fleet.snapshot();
        let mut both = serving(snapshot.candidates(Role::Decode), resting);
        both.extend(serving(snapshot.candidates(Role::Prefill), resting));
        ranked(&self.any, &Ask::default(), &both)
    }

    fn rank(&self, ask: &Ask, snapshot: &Snapshot, role: Role, tried: &[u64]) -> Result<Candidates, Role> {
        let pool = serving(snapshot.candidates(role), false);
        if pool.is_empty() {
            return Err(role);
        }
        let mut ranked = ranked(self.policy(role), ask, &pool);
        ranked.sort_by_key(|one| tried.contains(&one.engine().id()));
        ranked.truncate(CANDIDATES_MAX);
        Ok(ranked)
    }

    fn policy(&self, role: Role) -> &dyn Policy {
        match role {
            // Engines that do both keep the prompts' caches, as prefill engines do.
            Role::Prefill | Role::Regular => self.prefill.as_ref(),
            Role::Decode => self.decode.as_ref(),
        }
    }
}

fn ranked(policy: &dyn Policy, ask: &Ask, pool: &[&Candidate]) -> Candidates {
    policy
        .rank(ask, pool, Instant::now())
        .into_iter()
        .filter_map(|index| pool.get(index))
        .map(|one| Candidate::clone(one))
        .collect()
}

/// The candidates whose engine is up, takes requests, has room and has no open breaker; where every breaker is open, all of
/// them. Where none is up, those that are only slow to answer probes.
fn serving(all: &[Candidate], resting: bool) -> Pool<'_> {
    let now = Instant::now();
    let ready = |one: &&Candidate| one.engine().has_room() && one.engine().takes(resting);
    let mut up: Pool<'_> = all.iter().filter(|one| one.engine().up() && ready(one)).collect();
    if up.is_empty() && !all.iter().any(|one| one.engine().up()) {
        up = all.iter().filter(|one| one.engine().slow() && ready(one)).collect();
    }
    let open = |one: &&Candidate| one.engine().breaker().state(now) == State::Open;
    if up.iter().any(open) && !up.iter().all(open) {
        up.retain(|one| !open(&&**one));
    }
    up
}

/// Engines of different versions never hand over: a prefill engine with a partner comes first, and its
/// partners are the first of the decode engines.
fn pair_versions(prefill: &mut Candidates, decode: &mut Candidates) {
    prefill.sort_by_key(|one| !decode.iter().any(|other| other.engine().version() == one.engine().version()));
    if let Some(first) = prefill.first() {
        decode.sort_by_key(|other| other.engine().version() != first.engine().version());
    }
}
