//! The two sides of the simulation: the router's planner and fleet, and the engines' models behind them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use pd_router::fleet::candidate::Candidate;
use pd_router::fleet::engine::{Engine, Settings as EngineSettings};
use pd_router::fleet::health;
use pd_router::fleet::url::EngineUrl;
use pd_router::fleet::{Fleet, Snapshot};
use pd_router::ids::Role;
use pd_router::observe::Observe;
use pd_router::plan::ask::Ask;
use pd_router::plan::name::PolicyName;
use pd_router::plan::{Planner, Settings};
use pd_router::request::api::Api;
use pd_router::request::view::{Route, View};
use pd_sim::perf::{Decode, DecodeSpeed, Prefill};

use crate::Error;

/// Engines of each role.
pub const ENGINES: usize = 4;

/// Tokens that a prefill engine's prefix cache holds.
pub const CACHE_TOKENS: usize = 200_000;

/// Uncached prompt tokens that a prefill engine computes in a second.
pub const PREFILL_TOKENS_PER_SECOND: f64 = 10_000.0;

/// Requests in one decode batch.
const BATCH_MAX: usize = 64;

/// How fast each decode engine is: the last one has half the speed.
pub const DECODE: [DecodeSpeed; ENGINES] = [speed(1.0), speed(1.0), speed(1.0), speed(0.5)];

const fn speed(factor: f64) -> DecodeSpeed {
    DecodeSpeed { itl: Duration::from_millis(20), batch_max: BATCH_MAX, factor }
}

/// The policies of both pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// That of the prefill pool.
    pub prefill: PolicyName,
    /// That of the decode pool.
    pub decode: PolicyName,
}

/// A router and its engines, both without a past.
#[derive(Debug)]
pub struct Bed {
    /// The router's planner.
    pub planner: Planner,
    /// The engines as the router knows them, all up.
    pub fleet: Fleet,
    /// The models behind the prefill pool, in its order.
    pub prefill: Vec<Prefill>,
    /// The models behind the decode pool, in its order.
    pub decode: Vec<Decode>,
}

impl Bed {
    /// A fresh bed.
    ///
    /// # Errors
    /// None in practice: the engines' names are good.
    pub fn new(policies: Pair) -> Result<Self, Error> {
        let observe = Observe::new(&[])?;
        let pool = |role| (0..ENGINES).map(|index| engine(&observe, role, index)).collect::<Result<_, _>>();
        let fleet = Fleet::new(Snapshot::new(pool(Role::Prefill)?, pool(Role::Decode)?));
        Ok(Self {
            planner: planner(policies),
            fleet,
            prefill: (0..ENGINES).map(|_| Prefill::new(CACHE_TOKENS, PREFILL_TOKENS_PER_SECOND)).collect(),
            decode: DECODE.into_iter().map(Decode::new).collect(),
        })
    }

    /// Where in its pool a candidate's engine is.
    #[must_use]
    pub fn place(&self, candidate: &Candidate) -> usize {
        let engine = candidate.engine();
        let snapshot = self.fleet.snapshot();
        let mut pool = snapshot.pool(engine.role()).iter();
        pool.position(|one| one.id() == engine.id()).unwrap_or_default()
    }
}

fn planner(policies: Pair) -> Planner {
    Planner::new(&Settings { prefill: policies.prefill, decode: policies.decode, ..Settings::default() })
}

fn engine(observe: &Observe, role: Role, index: usize) -> Result<Arc<Engine>, Error> {
    let url = EngineUrl::parse(&format!("http://{role}-{index}:8000"))?;
    let metrics = observe.engines().engine(role, url.as_str());
    let engine = Engine::new(role, url, metrics, EngineSettings::default());
    engine.probed(true, false, health::Settings { failure_threshold: 1, success_threshold: 1 });
    Ok(engine)
}

/// The router's eye: from a body and a header to what policies see of a request.
#[derive(Debug)]
pub struct Reader {
    planner: Planner,
    api: &'static Api,
    route: Route,
}

impl Reader {
    /// Reads `/v1/completions`, and all that any policy could want.
    ///
    /// # Errors
    /// None in practice: the API is in the table.
    pub fn new() -> Result<Self, Error> {
        let one = |policy| Self::with(Pair { prefill: policy, decode: policy });
        let mut pair = Pair { prefill: PolicyName::RoundRobin, decode: PolicyName::RoundRobin };
        for (_, policy) in PolicyName::NAMES {
            let seen = one(policy)?.ask("a", &[10_000; 200])?;
            if !seen.prefix.blocks().is_empty() {
                pair.prefill = policy;
            }
            if seen.session.is_some() {
                pair.decode = policy;
            }
        }
        Self::with(pair)
    }

    fn with(policies: Pair) -> Result<Self, Error> {
        let api = Api::by_name("completions").ok_or("the API `completions` is not in the table")?;
        Ok(Self { planner: planner(policies), api, route: Route::new(api, api.path) })
    }

    /// What the policies see of a request of this session with this prompt.
    ///
    /// # Errors
    /// The router's, if it would refuse the request or send it whole to one engine.
    pub fn ask(&self, session: &str, prompt: &[u32]) -> Result<Ask, Error> {
        let mut headers = HeaderMap::new();
        headers.insert("x-session-id", HeaderValue::from_str(session)?);
        let view = View::read(&self.route, body(prompt))?;
        if view.whole(self.api).is_some() {
            return Err("the router would send this prompt whole to one engine".into());
        }
        Ok(self.planner.look(self.api, &headers, &view))
    }
}

/// Whether a policy looks at sessions.
///
/// # Errors
/// See [`Reader::ask`].
pub fn wants_session(policy: PolicyName) -> Result<bool, Error> {
    let reader = Reader::with(Pair { prefill: policy, decode: policy })?;
    Ok(reader.ask("a", &[10_000])?.session.is_some())
}

/// A completion request as a client writes it, its prompt as token ids.
fn body(prompt: &[u32]) -> Bytes {
    let mut text = Vec::with_capacity(prompt.len() * 6 + 64);
    text.extend_from_slice(br#"{"model":"m","stream":true,"prompt":["#);
    for (index, id) in prompt.iter().enumerate() {
        if index > 0 {
            text.push(b',');
        }
        number(&mut text, *id);
    }
    text.extend_from_slice(b"]}");
    text.into()
}

/// A number in digits. `write!` would take a fifth of a whole run.
fn number(text: &mut Vec<u8>, number: u32) {
    let from = text.len();
    let mut left = number;
    loop {
        text.push(b'0' + (left % 10) as u8);
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if let Some(digits) = text.get_mut(from..) {
        digits.reverse();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_router_counts_token_ids_and_knows_sessions() {
        let reader = Reader::new().unwrap();
        let prompt: Vec<u32> = (10_000..11_234).collect();
        let ask = reader.ask("a", &prompt).unwrap();
        assert_eq!(ask.tokens, 1234);
        assert_eq!(ask.session, reader.ask("a", &prompt[..10]).unwrap().session);
        assert_ne!(ask.session, reader.ask("b", &prompt).unwrap().session);
        let cached = PolicyName::by_name("cache_aware").is_some();
        assert_eq!(!ask.prefix.blocks().is_empty(), cached);
        assert!(wants_session(PolicyName::ConsistentHash).unwrap());
        assert!(!wants_session(PolicyName::Random).unwrap());
    }

    #[test]
    fn a_body_is_json() {
        assert_eq!(body(&[10_000, 7, 0]), &br#"{"model":"m","stream":true,"prompt":[10000,7,0]}"#[..]);
    }

    #[test]
    fn every_engine_is_a_candidate_with_its_own_place() {
        let pair = Pair { prefill: PolicyName::RoundRobin, decode: PolicyName::RoundRobin };
        let bed = Bed::new(pair).unwrap();
        let plan = bed.planner.plan(&Ask::default(), None, &bed.fleet, &[]).unwrap();
        let places =
            |candidates: &[Candidate]| candidates.iter().map(|one| bed.place(one)).collect::<Vec<_>>();
        assert_eq!(places(&plan.prefill.unwrap()), [0, 1, 2, 3]);
        assert_eq!(places(&plan.decode), [0, 1, 2, 3]);
    }
}
