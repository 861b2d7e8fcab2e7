//! Which candidate was given which prompt blocks: a table of a fixed size, so that its bound holds in a burst
//! too. A block has one place to be, a bucket of eight; a new one takes the place of the one that was longest
//! unused there.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
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
    owners: ArcSwap<HashMap<u64, Owner>>,
    next: AtomicU32,
    start: Instant,
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
            next: AtomicU32::new(0),
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
        let alive = self.owners.load().values().fold(0, |all, owner| all | 1_u64 << owner.bit);
        let mut used = 0;
        for shard in &self.shards {
            for entry in shard.lock().as_chunks_mut::<WORDS>().0 {
                entry[1] &= alive;
                if entry[2] < oldest {
                    entry[1] = 0;
                }
                used |= entry[1];
            }
        }
        // A candidate without a block is no owner; its bit is free for another.
        self.owners.rcu(|owners| {
            let mut owners = HashMap::clone(owners);
            owners.retain(|_, owner| used & (1 << owner.bit) != 0);
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
        let known =
            |owners: &HashMap<u64, Owner>| owners.get(&key).filter(|owner| owner.epoch == epoch).copied();
        if let Some(owner) = known(&self.owners.load()) {
            return Some(owner.bit);
        }
        self.owners.rcu(|owners| {
            let mut owners = HashMap::clone(owners);
            // A bit that was used before is free again once a sweep has taken it from every block.
            let taken = owners.values().fold(0, |all, owner| all | 1_u64 << owner.bit);
            let first = self.next.load(Ordering::Relaxed);
            let free =
                (0..OWNERS_MAX).map(|more| (first + more) % OWNERS_MAX).find(|bit| taken & (1 << bit) == 0);
            if let (None, Some(bit)) = (known(&owners), free) {
                owners.insert(key, Owner { bit, epoch });
                self.next.store(bit + 1, Ordering::Relaxed);
            }
            owners
        });
        known(&self.owners.load()).map(|owner| owner.bit)
    }
}

/// The bit of a candidate as a mask, 0 where nothing is known of this life of its engine.
fn mask(owners: &HashMap<u64, Owner>, candidate: &Candidate) -> u64 {
    owners
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
