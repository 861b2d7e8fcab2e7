//! Which engines exist, as an immutable snapshot that is swapped whole.

pub mod breaker;
pub mod candidate;
pub mod engine;
pub mod health;
pub mod report;
pub mod rest;
pub mod url;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use candidate::Candidate;
use engine::Engine;
use tokio::sync::Notify;

use crate::ids::Role;

/// How often who waits for an engine to wake looks without being told.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Which pools a fleet has, for as long as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pools {
    /// A prefill and a decode pool.
    #[default]
    PrefillDecode,
    /// One pool of engines that do both.
    Regular,
}

impl Pools {
    /// The roles that its engines have.
    #[must_use]
    pub const fn roles(self) -> &'static [Role] {
        match self {
            Self::PrefillDecode => &[Role::Prefill, Role::Decode],
            Self::Regular => &[Role::Regular],
        }
    }

    /// The role of the engines whose answer the client reads.
    #[must_use]
    pub const fn last(self) -> Role {
        match self {
            Self::PrefillDecode => Role::Decode,
            Self::Regular => Role::Regular,
        }
    }
}

/// The engines of all pools at one moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The prefill pool, in the order in which it was given.
    pub prefill: Vec<Arc<Engine>>,
    /// The decode pool, or the only one, in the order in which it was given.
    pub decode: Vec<Arc<Engine>>,
    candidates: [Vec<Candidate>; 2],
}

impl Snapshot {
    /// These engines, each with its ranks as they are now.
    #[must_use]
    pub fn new(prefill: Vec<Arc<Engine>>, decode: Vec<Arc<Engine>>) -> Self {
        let candidates = |pool: &[Arc<Engine>]| pool.iter().flat_map(Engine::candidates).collect();
        Self { candidates: [candidates(&prefill), candidates(&decode)], prefill, decode }
    }

    /// The engines of a role, or their ranks, that a policy may choose among.
    #[must_use]
    pub fn candidates(&self, role: Role) -> &[Candidate] {
        let [prefill, decode] = &self.candidates;
        match role {
            Role::Prefill => prefill,
            Role::Decode | Role::Regular => decode,
        }
    }

    /// The pool of a role.
    #[must_use]
    pub fn pool(&self, role: Role) -> &[Arc<Engine>] {
        match role {
            Role::Prefill => &self.prefill,
            Role::Decode | Role::Regular => &self.decode,
        }
    }

    /// How many engines of a role are up.
    #[must_use]
    pub fn up(&self, role: Role) -> usize {
        self.pool(role).iter().filter(|engine| engine.up()).count()
    }

    /// Whether a role has an engine that can serve: one that is up or, failing that, one that is only slow.
    #[must_use]
    pub fn can_serve(&self, role: Role) -> bool {
        self.pool(role).iter().any(|engine| !engine.draining() && (engine.up() || engine.slow()))
    }

    /// Whether a role has engines that would serve if they had room.
    #[must_use]
    pub fn full(&self, role: Role) -> bool {
        let serves = |engine: &&Arc<Engine>| engine.up() && engine.takes(false);
        let mut serving = self.pool(role).iter().filter(serves).peekable();
        serving.peek().is_some() && serving.all(|engine| !engine.has_room())
    }

    /// Whether a role has engines that are up, and all of those rest.
    #[must_use]
    pub fn rests(&self, role: Role) -> bool {
        let mut up = self.pool(role).iter().filter(|engine| engine.up() && !engine.draining()).peekable();
        up.peek().is_some() && up.all(|engine| engine.resting().rests())
    }
}

/// The engines that the router knows.
#[derive(Debug)]
pub struct Fleet {
    snapshot: ArcSwap<Snapshot>,
    pools: Pools,
    mixed_versions: AtomicBool,
    woke: Notify,
}

impl Fleet {
    /// A fleet of these engines, which are those of prefill and decode pools.
    #[must_use]
    pub fn new(snapshot: Snapshot) -> Self {
        Self { snapshot: ArcSwap::from_pointee(snapshot), ..Self::of(Pools::PrefillDecode) }
    }

    /// A fleet without engines yet.
    #[must_use]
    pub fn of(pools: Pools) -> Self {
        Self {
            snapshot: ArcSwap::default(),
            pools,
            mixed_versions: AtomicBool::new(false),
            woke: Notify::new(),
        }
    }

    /// Which pools it has.
    #[must_use]
    pub const fn pools(&self) -> Pools {
        self.pools
    }

    /// The engines as they are now.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Puts other engines in the place of these.
    pub fn swap(&self, snapshot: Snapshot) {
        self.snapshot.store(Arc::new(snapshot));
    }

    /// Engines may have woken: who waits for that looks again.
    pub fn woke(&self) {
        self.woke.notify_waiters();
    }

    /// Waits while every engine of a role that is up rests.
    pub async fn awake(&self, role: Role) {
        loop {
            let woke = self.woke.notified();
            if !self.snapshot().rests(role) {
                return;
            }
            // Engines also wake by what probes find and by going down.
            tokio::time::timeout(LOOK_AGAIN, woke).await.ok();
        }
    }

    /// The engine at a URL.
    #[must_use]
    pub fn find(&self, url: &str) -> Option<Arc<Engine>> {
        let snapshot = self.snapshot();
        snapshot.prefill.iter().chain(&snapshot.decode).find(|engine| engine.url().as_str() == url).cloned()
    }

    /// Takes an engine in.
    pub fn add(&self, engine: &Arc<Engine>) {
        self.change(|pool, role| {
            if engine.role() == role {
                pool.push(Arc::clone(engine));
            }
        });
    }

    /// Lets an engine go, and what others know of it.
    pub fn remove(&self, gone: &Engine) {
        self.change(|pool, _| pool.retain(|engine| engine.id() != gone.id()));
        for engine in &self.snapshot().decode {
            engine.forget_pair(gone.id());
        }
        gone.gone().cancel();
        self.note_versions();
        self.woke();
    }

    fn change(&self, change: impl Fn(&mut Vec<Arc<Engine>>, Role)) {
        self.snapshot.rcu(|now| {
            let (mut prefill, mut decode) = (now.prefill.clone(), now.decode.clone());
            change(&mut prefill, Role::Prefill);
            change(&mut decode, self.pools.last());
            Snapshot::new(prefill, decode)
        });
    }

    /// Takes the numbers of an engine's data-parallel ranks; see [`Engine::set_ranks`].
    pub fn set_ranks(&self, engine: &Engine, numbers: &[u16]) {
        if engine.set_ranks(numbers) {
            tracing::info!(engine = %engine.url(), ranks = ?numbers, "the engine's data-parallel ranks");
            self.snapshot.rcu(|now| Snapshot::new(now.prefill.clone(), now.decode.clone()));
        }
    }

    /// Whether engines of different vLLM versions are in it, which never hand over to each other.
    #[must_use]
    pub fn mixed_versions(&self) -> bool {
        self.mixed_versions.load(Ordering::Relaxed)
    }

    /// Compares the versions again, after one became known.
    pub fn note_versions(&self) {
        let snapshot = self.snapshot();
        let mut versions =
            snapshot.prefill.iter().chain(&snapshot.decode).filter_map(|engine| engine.version());
        let first = versions.next();
        let differ = versions.any(|version| Some(&version) != first.as_ref());
        // Engines of one pool need not agree.
        let mixed = differ && self.pools == Pools::PrefillDecode;
        if mixed && !self.mixed_versions.swap(mixed, Ordering::Relaxed) {
            tracing::warn!(
                "engines of different vLLM versions: only those of one version are paired while there are some"
            );
        }
        self.mixed_versions.store(mixed, Ordering::Relaxed);
    }
}
