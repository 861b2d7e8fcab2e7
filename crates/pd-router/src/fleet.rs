//! Which engines exist, as an immutable snapshot that is swapped whole.

pub mod breaker;
pub mod engine;
pub mod health;
pub mod url;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use engine::Engine;

use crate::ids::Role;

/// The engines of both pools at one moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The prefill pool, in the order in which it was given.
    pub prefill: Vec<Arc<Engine>>,
    /// The decode pool, in the order in which it was given.
    pub decode: Vec<Arc<Engine>>,
}

impl Snapshot {
    /// The pool of a role.
    #[must_use]
    pub fn pool(&self, role: Role) -> &[Arc<Engine>] {
        match role {
            Role::Prefill => &self.prefill,
            Role::Decode => &self.decode,
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
        self.pool(role).iter().any(|engine| engine.up() || engine.slow())
    }
}

/// The engines that the router knows.
#[derive(Debug)]
pub struct Fleet {
    snapshot: ArcSwap<Snapshot>,
    mixed_versions: AtomicBool,
}

impl Fleet {
    /// A fleet of these engines.
    #[must_use]
    pub fn new(snapshot: Snapshot) -> Self {
        Self { snapshot: ArcSwap::from_pointee(snapshot), mixed_versions: AtomicBool::new(false) }
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
        let mixed = versions.any(|version| Some(&version) != first.as_ref());
        if mixed && !self.mixed_versions.swap(mixed, Ordering::Relaxed) {
            tracing::warn!(
                "engines of different vLLM versions: only those of one version are paired while there are some"
            );
        }
        self.mixed_versions.store(mixed, Ordering::Relaxed);
    }
}
