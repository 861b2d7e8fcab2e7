//! Who could take a leg: an engine, or one data-parallel rank of it. Health and breaker are the engine's,
//! load is the rank's.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use xxhash_rust::xxh3::xxh3_64;

use super::engine::{Engine, InFlight};

/// One data-parallel rank of an engine; an engine without ranks has one, without a number.
#[derive(Debug)]
pub struct Rank {
    number: Option<u16>,
    key: u64,
    requests: AtomicI64,
    tokens: AtomicI64,
}

impl Rank {
    /// A rank without load, of the engine at `url`.
    #[must_use]
    pub fn new(url: &str, number: Option<u16>) -> Arc<Self> {
        let name = number.map_or_else(|| url.to_owned(), |number| format!("{url}@{number}"));
        Arc::new(Self {
            number,
            key: xxh3_64(name.as_bytes()),
            requests: AtomicI64::new(0),
            tokens: AtomicI64::new(0),
        })
    }

    /// Its number, as `X-data-parallel-rank` carries it.
    #[must_use]
    pub const fn number(&self) -> Option<u16> {
        self.number
    }
}

/// An engine, or one rank of it, that a policy may choose.
#[derive(Clone, Debug)]
pub struct Candidate {
    engine: Arc<Engine>,
    rank: Arc<Rank>,
}

impl Candidate {
    /// This rank of this engine.
    #[must_use]
    pub const fn new(engine: Arc<Engine>, rank: Arc<Rank>) -> Self {
        Self { engine, rank }
    }

    /// The engine.
    #[must_use]
    pub const fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The rank.
    #[must_use]
    pub const fn rank(&self) -> &Arc<Rank> {
        &self.rank
    }

    /// A number made of its URL and rank only: the same in every process, for policies that must agree.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.rank.key
    }

    /// Requests in flight at it and promised to it.
    #[must_use]
    pub fn requests(&self) -> i64 {
        self.rank.requests.load(Ordering::Relaxed)
    }

    /// Prompt tokens of the requests in flight at it and promised to it, estimated.
    #[must_use]
    pub fn tokens(&self) -> i64 {
        self.rank.tokens.load(Ordering::Relaxed)
    }

    /// Counts a request of `tokens` prompt tokens until the guard is dropped: on its way, or in flight.
    #[must_use]
    pub fn load(&self, tokens: u64) -> Load {
        let tokens = count(tokens);
        self.rank.requests.fetch_add(1, Ordering::Relaxed);
        self.rank.tokens.fetch_add(tokens, Ordering::Relaxed);
        Load { rank: Arc::clone(&self.rank), tokens }
    }

    /// Lets one request go to it; see [`Engine::begin`]. A request that was `promised` to it is counted once,
    /// one that was promised to another is not counted there any more.
    #[must_use]
    pub fn begin(&self, tokens: u64, force: bool, promised: &mut Option<Load>) -> Option<InFlight> {
        let in_flight = self.engine.begin(force)?;
        let kept = promised.take().filter(|load| Arc::ptr_eq(&load.rank, &self.rank));
        Some(in_flight.with_load(kept.map_or_else(|| self.load(tokens), |load| load.of(tokens))))
    }
}

/// One request's share of a rank's load.
#[derive(Debug)]
pub struct Load {
    rank: Arc<Rank>,
    tokens: i64,
}

impl Load {
    /// The rank.
    #[must_use]
    pub const fn rank(&self) -> &Arc<Rank> {
        &self.rank
    }

    /// The same request, now known to have so many tokens.
    fn of(mut self, tokens: u64) -> Self {
        let tokens = count(tokens);
        self.rank.tokens.fetch_add(tokens - self.tokens, Ordering::Relaxed);
        self.tokens = tokens;
        self
    }
}

fn count(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}

impl Drop for Load {
    fn drop(&mut self) {
        self.rank.requests.fetch_sub(1, Ordering::Relaxed);
        self.rank.tokens.fetch_sub(self.tokens, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::engine::Settings;
    use crate::fleet::url::EngineUrl;
    use crate::ids::Role;
    use crate::observe::Observe;

    fn candidate(url: &str) -> Candidate {
        let metrics = Observe::new(&[]).unwrap().engines().engine(Role::Decode, url);
        let engine = Engine::new(Role::Decode, EngineUrl::parse(url).unwrap(), metrics, Settings::default());
        engine.candidates().next().unwrap()
    }

    fn counts(one: &Candidate) -> (i64, i64) {
        (one.requests(), one.tokens())
    }

    #[test]
    fn a_request_counts_once_from_its_promise_to_its_end() {
        let (first, second) = (candidate("http://127.0.0.1:1"), candidate("http://127.0.0.1:2"));
        let mut promised = Some(first.load(100));
        assert_eq!(counts(&first), (1, 100));
        let held = first.begin(40, false, &mut promised).unwrap();
        assert_eq!((counts(&first), promised.is_none()), ((1, 40), true));
        drop(held);
        assert_eq!(counts(&first), (0, 0));
        let mut promised = Some(first.load(100));
        let held = second.begin(40, false, &mut promised).unwrap();
        assert_eq!((counts(&first), counts(&second)), ((0, 0), (1, 40)));
        drop(held);
        assert_eq!(counts(&second), (0, 0));
    }
}
