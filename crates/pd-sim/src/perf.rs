//! How long a prefill engine and a decode engine take, as arithmetic over virtual time: no clock, no I/O.
//!
//! A prefill engine computes one prompt after the other and remembers prefixes in whole blocks, the least
//! recently used given up first. A decode engine makes one token for every running request in each step, and
//! steps get longer as the batch grows. What happens when is the caller's.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

use crate::model;

/// Tokens in one block of a prefix cache (vLLM's default on GPUs).
pub const BLOCK_TOKENS: usize = 16;

/// The batch at which a decode step takes twice as long as for one request alone.
const BATCH_DOUBLES: f64 = 64.0;

/// A prompt as a prefix cache sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    tokens: usize,
    hashes: Vec<u64>,
}

impl Blocks {
    /// The whole blocks of these token ids, each hashed with all that comes before it.
    #[must_use]
    pub fn of(ids: &[u32]) -> Self {
        let chain = ids.chunks_exact(BLOCK_TOKENS).scan(0, |before, block| {
            *before = model::digest_after(*before, block);
            Some(*before)
        });
        Self { tokens: ids.len(), hashes: chain.collect() }
    }

    /// How many tokens the prompt has.
    #[must_use]
    pub const fn tokens(&self) -> usize {
        self.tokens
    }
}

/// A key that is a good hash already.
#[derive(Debug, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

/// A prefix cache: so many blocks, the least recently used is given up first.
#[derive(Debug)]
pub struct PrefixCache {
    blocks_max: usize,
    used_at: HashMap<u64, u64, BuildHasherDefault<Hashed>>,
    /// Uses, oldest first. Only the last use of a block counts; the others stay until they are met or swept.
    uses: VecDeque<(u64, u64)>,
    now: u64,
}

impl PrefixCache {
    /// An empty cache for this many tokens.
    #[must_use]
    pub fn new(tokens_max: usize) -> Self {
        Self {
            blocks_max: tokens_max / BLOCK_TOKENS,
            used_at: HashMap::default(),
            uses: VecDeque::new(),
            now: 0,
        }
    }

    /// Computes a prompt: how many of its tokens were there. As in vLLM at least one token is always
    /// computed, since the next one follows from it.
    pub fn compute(&mut self, prompt: &Blocks) -> usize {
        let known = prompt.hashes.iter().take_while(|block| self.used_at.contains_key(block)).count();
        // Last block first, so that a prefix never goes before what follows it.
        for block in prompt.hashes.iter().rev() {
            self.now += 1;
            self.used_at.insert(*block, self.now);
            self.uses.push_back((*block, self.now));
        }
        self.evict();
        known.min(prompt.tokens.saturating_sub(1) / BLOCK_TOKENS) * BLOCK_TOKENS
    }

    fn evict(&mut self) {
        while self.used_at.len() > self.blocks_max
            && let Some((block, at)) = self.uses.pop_front()
        {
            if self.used_at.get(&block) == Some(&at) {
                self.used_at.remove(&block);
            }
        }
        if self.uses.len() > 2 * self.blocks_max + 1024 {
            let used_at = &self.used_at;
            self.uses.retain(|(block, at)| used_at.get(block) == Some(at));
        }
    }
}

/// A prefill engine: one prompt at a time, first come, first served.
#[derive(Debug)]
pub struct Prefill {
    cache: PrefixCache,
    tokens_per_second: f64,
    free_at: Duration,
}

/// When a prompt is computed, and how much of it was cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefilled {
    /// When it is done.
    pub done: Duration,
    /// Tokens that did not have to be computed.
    pub cached_tokens: usize,
}

impl Prefill {
    /// An idle engine with an empty cache.
    #[must_use]
    pub fn new(cache_tokens: usize, tokens_per_second: f64) -> Self {
        Self { cache: PrefixCache::new(cache_tokens), tokens_per_second, free_at: Duration::ZERO }
    }

    /// Takes a prompt that comes in `now`; prompts come in the order of time.
    pub fn take(&mut self, prompt: &Blocks, now: Duration) -> Prefilled {
        let cached_tokens = self.cache.compute(prompt);
        let tokens = prompt.tokens - cached_tokens;
        let takes = Duration::from_secs_f64(tokens as f64 / self.tokens_per_second);
        self.free_at = self.free_at.max(now) + takes;
        Prefilled { done: self.free_at, cached_tokens }
    }
}

/// How fast a decode engine is.
#[derive(Clone, Copy, Debug)]
pub struct DecodeSpeed {
    /// A step with an empty batch: the time between two tokens of a request that is alone.
    pub itl: Duration,
    /// Requests in one batch; the rest waits.
    pub batch_max: usize,
    /// 1 for a whole engine, 0.5 for one at half speed.
    pub factor: f64,
}

impl DecodeSpeed {
    /// A step with this batch: ITL × (1 + batch ÷ 64) ÷ factor.
    #[must_use]
    pub fn step(&self, batch: usize) -> Duration {
        self.itl.mul_f64((1.0 + batch as f64 / BATCH_DOUBLES) / self.factor)
    }

    /// The most tokens in a second: those of a full batch.
    #[must_use]
    pub fn tokens_per_second(&self) -> f64 {
        self.batch_max as f64 / self.step(self.batch_max).as_secs_f64()
    }
}

/// A decode engine: a batch that requests join and leave between steps.
#[derive(Debug)]
pub struct Decode {
    speed: DecodeSpeed,
    running: Vec<Sequence>,
    waiting: VecDeque<Sequence>,
}

#[derive(Debug)]
struct Sequence {
    request: usize,
    tokens_left: usize,
    begun: bool,
}

/// A token that matters to somebody who measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Whose.
    pub request: usize,
    /// It is the first of the answer.
    pub first: bool,
    /// It is the last.
    pub last: bool,
}

impl Decode {
    /// An idle engine.
    #[must_use]
    pub const fn new(speed: DecodeSpeed) -> Self {
        Self { speed, running: Vec::new(), waiting: VecDeque::new() }
    }

    /// A request whose answer has this many tokens, at least one, joins the batch with the next step.
    /// Whether the engine was idle: then the caller begins a step.
    pub fn join(&mut self, request: usize, tokens: usize) -> bool {
        let idle = self.running.is_empty() && self.waiting.is_empty();
        self.waiting.push_back(Sequence { request, tokens_left: tokens.max(1), begun: false });
        idle
    }

    /// Begins a step: how long it takes, `None` where nothing is to be done.
    pub fn begin_step(&mut self) -> Option<Duration> {
        let room = self.speed.batch_max.saturating_sub(self.running.len()).min(self.waiting.len());
        self.running.extend(self.waiting.drain(..room));
        (!self.running.is_empty()).then(|| self.speed.step(self.running.len()))
    }

    /// Ends a step: every running request has one more token. The first and last ones of answers.
    pub fn end_step(&mut self) -> Vec<Mark> {
        let mut marks = Vec::new();
        self.running.retain_mut(|one| {
            let first = !std::mem::replace(&mut one.begun, true);
            one.tokens_left -= 1;
            let last = one.tokens_left == 0;
            if first || last {
                marks.push(Mark { request: one.request, first, last });
            }
            !last
        });
        marks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn prompt(from: u32, tokens: u32) -> Blocks {
        Blocks::of(&(from..from + tokens).collect::<Vec<_>>())
    }

    #[test]
    fn a_prefix_is_cached_in_whole_blocks_and_one_token_is_always_computed() {
        let mut cache = PrefixCache::new(1600);
        assert_eq!(cache.compute(&prompt(0, 100)), 0);
        assert_eq!(cache.compute(&prompt(0, 100)), 96);
        assert_eq!(cache.compute(&prompt(0, 96)), 80, "the last token is computed again");
        assert_eq!(cache.compute(&prompt(1, 100)), 0, "a block is of all that comes before it");
        assert_eq!(cache.compute(&prompt(0, 200)), 96);
    }

    #[test]
    fn the_least_recently_used_goes_first_and_its_end_before_its_beginning() {
        let mut cache = PrefixCache::new(10 * BLOCK_TOKENS);
        cache.compute(&prompt(0, 65));
        cache.compute(&prompt(1000, 65));
        cache.compute(&prompt(0, 65));
        cache.compute(&prompt(2000, 65));
        assert_eq!(cache.compute(&prompt(0, 65)), 64);
        assert_eq!(cache.compute(&prompt(1000, 65)), 32, "two of its four blocks were given up");
    }

    #[test]
    fn its_memory_is_bounded_whatever_is_asked() {
        let mut cache = PrefixCache::new(100 * BLOCK_TOKENS);
        for round in 0..10_000 {
            cache.compute(&prompt(round % 7 * 1000, 800));
        }
        assert!(cache.used_at.len() <= 100);
        assert!(cache.uses.len() <= 2 * 100 + 1024 + 50);
    }

    #[test]
    fn prompts_are_computed_one_after_the_other() {
        let mut engine = Prefill::new(200_000, 10_000.0);
        let prompt = prompt(0, 1000);
        assert_eq!(engine.take(&prompt, 5 * MS), Prefilled { done: 105 * MS, cached_tokens: 0 });
        let again = engine.take(&prompt, 10 * MS);
        assert_eq!(again, Prefilled { done: 105 * MS + MS * 8 / 10, cached_tokens: 992 });
        assert_eq!(engine.take(&Blocks::default(), 500 * MS).done, 500 * MS);
    }

    #[test]
    fn a_step_slows_with_the_batch_and_the_rest_waits() {
        let speed = DecodeSpeed { itl: 20 * MS, batch_max: 2, factor: 0.5 };
        assert_eq!(speed.step(0), 40 * MS);
        assert_eq!(speed.step(64), 80 * MS);
        let mut engine = Decode::new(speed);
        assert_eq!(engine.begin_step(), None);
        assert!(engine.join(0, 2));
        assert!(!engine.join(1, 1));
        assert!(!engine.join(2, 1));
        assert_eq!(engine.begin_step(), Some(speed.step(2)));
        let mark = |request, first, last| Mark { request, first, last };
        assert_eq!(engine.end_step(), [mark(0, true, false), mark(1, true, true)]);
        assert_eq!(engine.begin_step(), Some(speed.step(2)));
        assert_eq!(engine.end_step(), [mark(0, false, true), mark(2, true, true)]);
        assert_eq!(engine.begin_step(), None);
        assert!(engine.join(3, 0), "idle again");
    }
}
