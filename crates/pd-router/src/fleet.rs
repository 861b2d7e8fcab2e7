//! Which engines exist, as an immutable snapshot that is swapped whole.

pub mod engine;
pub mod url;

use std::sync::Arc;

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
}

/// The engines that the router knows.
#[derive(Debug)]
pub struct Fleet {
    snapshot: ArcSwap<Snapshot>,
}

impl Fleet {
    /// A fleet of these engines.
    #[must_use]
    pub fn new(snapshot: Snapshot) -> Self {
        Self { snapshot: ArcSwap::from_pointee(snapshot) }
    }

    /// The engines as they are now.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }
}
