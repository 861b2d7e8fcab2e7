//! The policies by their names.

use super::Settings;
use super::cache_aware::CacheAware;
use super::least_loaded::LeastLoaded;
use super::policy::Policy;
use super::power_of_two::PowerOfTwo;
use super::random::Random;
use super::rendezvous::Rendezvous;
use super::round_robin::RoundRobin;
use super::sticky::Sticky;

/// A policy, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyName {
    /// Exact turns.
    RoundRobin,
    /// Uniform.
    Random,
    /// The less loaded of two at random.
    PowerOfTwo,
    /// The least loaded, ties in turn.
    LeastLoaded,
    /// Session to engine by rendezvous hashing, with a load bound.
    ConsistentHash,
    /// The longest known prefix, with a load bound.
    CacheAware,
    /// Session to the engine with the fewest sessions, to stay.
    StickyLeastLoaded,
}

impl PolicyName {
    /// What may be typed.
    pub const NAMES: [(&'static str, Self); 8] = [
        ("cache_aware", Self::CacheAware),
        ("round_robin", Self::RoundRobin),
        ("random", Self::Random),
        ("power_of_two", Self::PowerOfTwo),
        ("least_loaded", Self::LeastLoaded),
        ("consistent_hash", Self::ConsistentHash),
        ("rendezvous_hash", Self::ConsistentHash),
        ("sticky_least_loaded", Self::StickyLeastLoaded),
    ];

    /// The policy of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, policy)| *policy)
    }

    /// Its first name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        Self::NAMES.iter().find(|(_, policy)| *policy == self).map_or("", |(name, _)| name)
    }

    /// A fresh one.
    #[must_use]
    pub fn make(self, settings: &Settings) -> Box<dyn Policy> {
        match self {
            Self::CacheAware => Box::new(CacheAware::new(settings.cache)),
            Self::RoundRobin => Box::<RoundRobin>::default(),
            Self::Random => Box::<Random>::default(),
            Self::PowerOfTwo => Box::<PowerOfTwo>::default(),
            Self::LeastLoaded => Box::<LeastLoaded>::default(),
            Self::ConsistentHash => Box::<Rendezvous>::default(),
            Self::StickyLeastLoaded => Box::new(Sticky::new(settings.session_idle_max)),
        }
    }
}
