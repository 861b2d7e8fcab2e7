//! Which candidate was given which prompt blocks: a table of a fixed size, so that its bound holds in a burst
//! too. A block has one place to be, a bucket of eight; a new one takes the place of the one that was longest
//! unused there.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::prefix::{Block, Prefix};
use crate::fleet::candidate::Candidate;

/// Blocks in a bucket.
const WAYS: usize = 8;

/// Words of a block: its hash, its owners (a bit each), when it was last used.
const WORDS: usize = 3;

/// Bytes of a block.
const BLOCK_SIZE: usize = WORDS * size_of::<u64>();

/// Locks over the table. Sixteen workers that each hold one for 0.1 µs rarely meet.
const SHARDS: usize = 64;

/// The most candidates that are told apart, one a bit; further ones are known to have nothing.
const OWNERS_MAX: u32 = 64;

/// Blocks that nobody used for this long are forgotten: an engine's own cache has lost them by then.
const IDLE_MAX: Duration = Duration::from_secs(3600);

/// What is known of every candidate's cache.
#[derive(Debug)]
pub struct Known {
    shards: Vec<Mutex<Vec<u64>>>,
    buckets: usize,
    owners: ArcSwap<Owners>,
    start: Instant,
}

/// Whose bits there are.
#[derive(Clone, Debug, Default)]
struct Owners {
    by_key: HashMap<u64, Owner>,
    /// Bits that have no owner any more and may still be in blocks: nobody's until a sweep has been.
    unswept: u64,
}

/// A candidate's bit, and the life of its engine that it stands for.
#[derive(Clone, Copy, Debug)]
struct Owner {
    bit: u32,
    epoch: u64,
}

impl Known {
    /// An empty table of at most this many bytes. Memory is taken as blocks come.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        let buckets = (bytes_max / SHARDS / (WAYS * BLOCK_SIZE)).max(1);
        let table = || Mutex::new(vec![0; buckets * WAYS * WORDS]);
        Self {
            shards: std::iter::repeat_with(table).take(SHARDS).collect(),
            buckets,
            owners: ArcSwap::default(),
            start: Instant::now(),
        }
    }

    /// How many bytes of the prompt each candidate has been given before, up to its first unknown block.
    #[must_use]
    pub fn matched<'a>(
        &self,
        prefix: &Prefix,
        pool: impl Iterator<Item = &'a Candidate>,
    ) -> smallvec::SmallVec<[usize; 16]> {
        let owners = self.owners.load();
        let bits: smallvec::SmallVec<[u64; 16]> = pool.map(|one| mask(&owners, one)).collect();
        let mut matched: smallvec::SmallVec<[usize; 16]> = bits.iter().map(|_| 0).collect();
        let mut left = bits.iter().fold(0, |all, bit| all | bit);
        for block in prefix.blocks() {
            left &= self.owners_of(block);
            if left == 0 {
                break;
            }
            for (bit, bytes) in bits.iter().zip(&mut matched) {
                if bit & left != 0 {
                    *bytes = block.end;
                }
            }
        }
        matched
    }

    /// Notes that a candidate is given this prompt.
    pub fn insert(&self, prefix: &Prefix, candidate: &Candidate, now: Instant) {
        if prefix.blocks().is_empty() {
            return;
        }
        let Some(bit) = self.bit(candidate) else { return };
        let stamp = self.stamp(now);
        for block in prefix.blocks() {
            self.bucket(block, |bucket| note(bucket, block.hash, bit, stamp));
        }
    }

    /// Forgets what was unused for long, and what engines had that restarted or are gone.
    pub fn tidy(&self, now: Instant) {
        let oldest = self.stamp(now).saturating_sub(IDLE_MAX.as_secs());
        let before = self.owners.load_full();
        let alive = before.bits();
        let mut used = 0;
        for shard in &self.shards {
            for entry in shard.lock().as_chunks_mut::<WORDS>().0 {
                // What was never used is left alone: writing to it would take its memory.
                if entry[1] & !alive != 0 || (entry[1] != 0 && entry[2] < oldest) {
                    entry[1] = if entry[2] < oldest { 0 } else { entry[1] & alive };
                }
                used |= entry[1];
            }
        }
        // A candidate without a block is no owner; its bit is free for another.
        self.owners.rcu(|owners| {
            let mut owners = Owners::clone(owners);
            owners.by_key.retain(|_, owner| used & (1 << owner.bit) != 0 || alive & (1 << owner.bit) == 0);
            // What became nobody's during the sweep may be in blocks that it had passed.
            owners.unswept &= !before.unswept;
            owners
        });
    }

    /// A candidate, by its key, is gone: another of its name has nothing of what it had.
    pub fn forget(&self, key: u64) {
        self.owners.rcu(|owners| {
            let mut owners = Owners::clone(owners);
            if let Some(former) = owners.by_key.remove(&key) {
                owners.unswept |= 1 << former.bit;
            }
            owners
        });
    }

    /// Seconds since the start, and one more: 0 is an empty place.
    fn stamp(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_secs() + 1
    }

    fn owners_of(&self, block: &Block) -> u64 {
        self.bucket(block, |bucket| {
            let found = bucket.as_chunks::<WORDS>().0.iter().find(|entry| entry[0] == block.hash);
            found.map_or(0, |entry| entry[1])
        })
    }

    fn bucket<T: Default>(&self, block: &Block, work: impl FnOnce(&mut [u64]) -> T) -> T {
        let hash = usize::try_from(block.hash >> 8).unwrap_or(0);
        let Some(shard) = self.shards.get(hash % SHARDS) else { return T::default() };
        let at = hash / SHARDS % self.buckets * WAYS * WORDS;
        shard.lock().get_mut(at..at + WAYS * WORDS).map_or_else(T::default, work)
    }

    /// The bit of a candidate, a new one for a candidate or a life of an engine that is new.
    fn bit(&self, candidate: &Candidate) -> Option<u32> {
        let (key, epoch) = (candidate.key(), candidate.engine().epoch());
        let known = |owners: &Owners| owners.by_key.get(&key).filter(|owner| owner.epoch == epoch).copied();
        if let Some(owner) = known(&self.owners.load()) {
            return Some(owner.bit);
        }
        self.owners.rcu(|owners| {
            let mut owners = Owners::clone(owners);
            if known(&owners).is_some() {
                return owners;
            }
            if let Some(former) = owners.by_key.remove(&key) {
                owners.unswept |= 1 << former.bit;
            }
            let taken = owners.bits() | owners.unswept;
            if let Some(bit) = (0..OWNERS_MAX).find(|bit| taken & (1 << bit) == 0) {
                owners.by_key.insert(key, Owner { bit, epoch });
            }
            owners
        });
        known(&self.owners.load()).map(|owner| owner.bit)
    }
}

impl Owners {
    fn bits(&self) -> u64 {
        self.by_key.values().fold(0, |all, owner| all | 1 << owner.bit)
    }
}

/// The bit of a candidate as a mask, 0 where nothing is known of this life of its engine.
fn mask(owners: &Owners, candidate: &Candidate) -> u64 {
    owners
        .by_key
        .get(&candidate.key())
        .filter(|owner| owner.epoch == candidate.engine().epoch())
        .map_or(0, |owner| 1 << owner.bit)
}

fn note(bucket: &mut [u64], hash: u64, bit: u32, stamp: u64) {
    let entries = bucket.as_chunks_mut::<WORDS>().0;
    if let Some(entry) = entries.iter_mut().find(|entry| entry[0] == hash) {
        entry[1] |= 1 << bit;
        entry[2] = stamp;
    } else if let Some(entry) = entries.iter_mut().min_by_key(|entry| entry[2]) {
        *entry = [hash, 1 << bit, stamp];
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fleet::engine::Engine;
    use crate::fleet::url::EngineUrl;
    use crate::ids::Role;
    use crate::observe::Observe;

    fn pool(count: usize) -> Vec<Candidate> {
        let observe = Observe::new(&[]).unwrap();
        let engine = |number| {
            let url = EngineUrl::parse(&format!("http://10.0.0.{number}:1")).unwrap();
            let metrics = observe.engines().engine(Role::Prefill, url.as_str());
            let engine = Engine::new(Role::Prefill, url, metrics, crate::fleet::engine::Settings::default());
            engine.probed(
                true,
                false,
                crate::fleet::health::Settings { failure_threshold: 1, success_threshold: 1 },
            );
            engine
        };
        (0..count).map(engine).collect::<Vec<Arc<Engine>>>().iter().flat_map(Engine::candidates).collect()
    }

    fn prompt(words: &str, times: usize) -> Prefix {
        Prefix::of(&[], &[words.repeat(times).as_bytes()])
    }

    #[test]
    fn each_candidate_is_known_by_what_it_was_given() {
        let (known, pool, now) = (Known::new(1 << 20), pool(3), Instant::now());
        let (short, long) = (prompt("0123456789abcdef", 32), prompt("0123456789abcdef", 200));
        known.insert(&short, &pool[0], now);
        known.insert(&long, &pool[1], now);
        assert_eq!(known.matched(&long, pool.iter()).as_slice(), [512, 3072, 0]);
        assert_eq!(known.matched(&short, pool.iter()).as_slice(), [512, 512, 0]);
        assert_eq!(known.matched(&prompt("other words here", 200), pool.iter()).as_slice(), [0, 0, 0]);
    }

    #[test]
    fn a_restarted_engine_has_nothing_any_more() {
        let (known, pool, now) = (Known::new(1 << 20), pool(2), Instant::now());
        let long = prompt("0123456789abcdef", 200);
        known.insert(&long, &pool[0], now);
        pool[0].engine().eject("test");
        assert_eq!(known.matched(&long, pool.iter()).as_slice(), [0, 0]);
        known.insert(&prompt("0123456789abcdef", 16), &pool[0], now);
        assert_eq!(
            known.matched(&long, pool.iter()).as_slice(),
            [256, 0],
            "only what its new life was given"
        );
        known.tidy(now);
        assert_eq!(known.matched(&long, pool.iter()).as_slice(), [256, 0]);
        known.tidy(now + IDLE_MAX + Duration::from_secs(2));
        assert_eq!(known.matched(&long, pool.iter()).as_slice(), [0, 0], "unused for too long");
    }

    #[test]
    fn one_that_is_gone_is_forgotten_under_its_name() {
        let (known, now) = (Known::new(1 << 20), Instant::now());
        let (before, after) = (pool(1), pool(1));
        let long = prompt("0123456789abcdef", 200);
        known.insert(&long, &before[0], now);
        assert_eq!(known.matched(&long, after.iter()).as_slice(), [3072], "the same name, the same life");
        known.forget(before[0].key());
        assert_eq!(known.matched(&long, after.iter()).as_slice(), [0]);
        known.insert(&prompt("0123456789abcdef", 16), &after[0], now);
        assert_eq!(known.matched(&long, after.iter()).as_slice(), [256]);
    }

    #[test]
    fn a_bit_has_no_other_owner_before_a_sweep() {
        let (known, pool, now) = (Known::new(1 << 20), pool(64), Instant::now());
        let prompts: Vec<Prefix> = (0..64).map(|n| prompt(&format!("prompt number {n:04}"), 40)).collect();
        for (one, prompt) in pool.iter().zip(&prompts) {
            known.insert(prompt, one, now);
        }
        pool[0].engine().eject("test");
        let fresh = prompt("a prompt after it", 40);
        known.insert(&fresh, &pool[0], now);
        pool[1].engine().eject("test");
        known.insert(&fresh, &pool[1], now);
        let owners = |prompt: &Prefix| known.matched(prompt, pool.iter()).iter().filter(|b| **b > 0).count();
        assert_eq!((owners(&prompts[0]), owners(&prompts[1])), (0, 0), "lost, and nobody else's");
        assert_eq!(owners(&fresh), 0, "no bit is free before a sweep");
        known.tidy(now);
        known.insert(&fresh, &pool[0], now);
        known.insert(&fresh, &pool[1], now);
        assert_eq!(owners(&fresh), 2);
        assert_eq!((owners(&prompts[0]), owners(&prompts[2])), (0, 1));
    }

    #[test]
    fn the_table_keeps_its_size_and_the_newest() {
        let (known, pool, now) = (Known::new(1 << 16), pool(1), Instant::now());
        let size =
            || known.shards.iter().map(|shard| shard.lock().capacity() * size_of::<u64>()).sum::<usize>();
        let before = size();
        for number in 0..2_000 {
            let at = now + Duration::from_secs(number);
            known.insert(&prompt(&format!("prompt number {number:05} "), 60), &pool[0], at);
        }
        assert!(size() == before && before <= 1 << 16, "{before}");
        let last = prompt("prompt number 01999 ", 60);
        assert_eq!(known.matched(&last, pool.iter()).as_slice(), [1024]);
        assert_eq!(known.matched(&prompt("prompt number 00001 ", 60), pool.iter()).as_slice(), [0]);
    }

    #[test]
    fn more_candidates_than_bits_are_served_all_the_same() {
        let (known, pool, now) = (Known::new(1 << 20), pool(100), Instant::now());
        let long = prompt("0123456789abcdef", 200);
        for one in &pool {
            known.insert(&long, one, now);
        }
        let matched = known.matched(&long, pool.iter());
        assert_eq!(matched.iter().filter(|bytes| **bytes > 0).count(), 64);
    }
}
