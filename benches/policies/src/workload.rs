//! The requests: who asks when, with which prompt. Written down before a run, so that every policy gets the
//! same ones.

use std::time::Duration;

use fastrand::Rng;
use pd_router::plan::ask::Ask;
use pd_sim::perf::{Blocks, DecodeSpeed};

use crate::Error;
use crate::bed::{DECODE, ENGINES, PREFILL_TOKENS_PER_SECOND, Reader};

/// Sessions, of which the most active is chosen as often as Zipf's law with exponent 1 has it.
pub const SESSIONS: usize = 500;

/// Turns of a conversation; then its session begins another one.
pub const TURNS: usize = 8;

/// System prompts, each that of 25 sessions.
pub const SYSTEMS: usize = 20;

/// Tokens of a system prompt.
pub const SYSTEM_TOKENS: usize = 1000;

/// Tokens that a user adds in a turn.
pub const TURN_TOKENS: usize = 300;

/// Tokens of an answer, which the next turn's prompt holds: about the median of 129 in the conversations of
/// "Splitwise: Efficient Generative LLM Inference Using Phase Splitting" (Patel et al., 2024).
pub const ANSWER_TOKENS: usize = 128;

/// Tokens of a long answer.
pub const LONG_ANSWER_TOKENS: usize = 1000;

/// How much of the fleet's capacity is asked for.
pub const LOAD: f64 = 0.7;

/// The hot session's share of the requests; an engine's fair share is a quarter.
pub const HOT: f64 = 0.4;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its name in the table.
    pub name: &'static str,
    /// Conversations over shared system prompts; else prompts as long as those, none of which shares
    /// anything with another, and each of a session of its own.
    pub shared: bool,
    /// Four of ten requests are of one session: more than the engine of that session can do.
    pub hot: bool,
    /// Tokens of every answer.
    pub answer_tokens: usize,
    /// Whether prefix hits count as capacity: those that taking turns would have.
    pub hits_count: bool,
}

/// Conversations.
pub const SHARED: Workload =
    Workload { name: "shared", shared: true, hot: false, answer_tokens: ANSWER_TOKENS, hits_count: true };

/// Conversations at a load that the fleet could serve without any cache.
pub const SHARED_LIGHT: Workload = Workload { name: "shared, light load", hits_count: false, ..SHARED };

/// Nothing in common.
pub const NO_SHARE: Workload = Workload { name: "no-share", shared: false, hits_count: false, ..SHARED };

/// Nothing in common but a session.
pub const HOT_SESSION: Workload = Workload { name: "hot session", hot: true, ..NO_SHARE };

/// Answers so long that the decode pool is the tighter one.
pub const LONG: Workload = Workload { name: "long answers", answer_tokens: LONG_ANSWER_TOKENS, ..NO_SHARE };

/// Those with a hot session.
pub const LONG_HOT: Workload = Workload { name: "long answers, hot session", hot: true, ..LONG };

/// One request.
#[derive(Debug)]
pub struct Request {
    /// When it comes.
    pub at: Duration,
    /// What the router's policies see of it.
    pub ask: Ask,
    /// What a prefix cache sees of it.
    pub prompt: Blocks,
}

/// All requests of a run.
#[derive(Debug)]
pub struct Trace {
    /// In the order of time.
    pub requests: Vec<Request>,
    /// Requests a second.
    pub rate: f64,
    /// Tokens of every answer.
    pub answer_tokens: usize,
}

/// One turn: whose, and the how manieth of its conversation.
struct Turn {
    session: usize,
    turn: usize,
}

impl Turn {
    const fn prompt_tokens(&self) -> usize {
        SYSTEM_TOKENS + TURN_TOKENS + self.turn * (TURN_TOKENS + ANSWER_TOKENS)
    }
}

impl Trace {
    /// Writes this many requests down, at a rate of [`LOAD`] times what the fleet can serve without any
    /// prefix hit.
    ///
    /// # Errors
    /// The router's, if it would refuse one.
    pub fn new(workload: Workload, requests: usize, seed: u64) -> Result<Self, Error> {
        let turns = turns(requests, &mut Rng::with_seed(seed));
        let answer_tokens = workload.answer_tokens;
        let mut gaps = Rng::with_seed(seed ^ 0x6761_7073);
        let mut at = 0.0;
        let mut text = Text::new(workload, seed);
        let reader = Reader::new()?;
        let requests = turns.iter().enumerate().map(|(index, turn)| {
            at += -(1.0 - gaps.f64()).ln();
            let (session, prompt) = text.next(index, turn);
            let ask = reader.ask(&session, &prompt)?;
            Ok(Request { at: Duration::from_secs_f64(at), ask, prompt: Blocks::of(&prompt) })
        });
        let requests = requests.collect::<Result<_, Error>>()?;
        let mut trace = Self { requests, rate: 1.0, answer_tokens };
        trace.pace(0.0);
        Ok(trace)
    }

    /// Sets the rate to [`LOAD`] times what the fleet can serve with this share of prefix hits.
    pub fn pace(&mut self, hit_rate: f64) {
        let rate = LOAD * self.capacity(hit_rate);
        for request in &mut self.requests {
            request.at = request.at.mul_f64(self.rate / rate);
        }
        self.rate = rate;
    }

    /// Requests a second that the tighter pool can serve, its batches full.
    fn capacity(&self, hit_rate: f64) -> f64 {
        let tokens: usize = self.requests.iter().map(|one| one.prompt.tokens()).sum();
        let computed = tokens as f64 * (1.0 - hit_rate) / self.requests.len().max(1) as f64;
        let prefill = ENGINES as f64 * PREFILL_TOKENS_PER_SECOND / computed.max(1.0);
        let decode = DECODE.iter().map(DecodeSpeed::tokens_per_second).sum::<f64>();
        prefill.min(decode / self.answer_tokens as f64)
    }
}

fn turns(requests: usize, rng: &mut Rng) -> Vec<Turn> {
    let weights: Vec<f64> = (1..=SESSIONS).map(|rank| 1.0 / rank as f64).collect();
    let total: f64 = weights.iter().sum();
    let mut taken = vec![0; SESSIONS];
    let mut draw = || {
        let mut left = rng.f64() * total;
        let session = weights.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        let session = session.unwrap_or(SESSIONS - 1);
        let turn = taken.get_mut(session).map_or(0, |taken| std::mem::replace(taken, *taken + 1) % TURNS);
        Turn { session, turn }
    };
    (0..requests).map(|_| draw()).collect()
}

/// Token ids, the same for the same workload and seed.
struct Text {
    workload: Workload,
    rng: Rng,
    hot: Rng,
    systems: Vec<Vec<u32>>,
    conversations: Vec<Vec<u32>>,
}

impl Text {
    fn new(workload: Workload, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x7465_7874);
        let systems = (0..SYSTEMS).map(|_| ids(&mut rng, SYSTEM_TOKENS)).collect();
        let hot = Rng::with_seed(seed ^ 0x686f_7421);
        Self { workload, rng, hot, systems, conversations: vec![Vec::new(); SESSIONS] }
    }

    /// The session's name and the prompt of a turn.
    fn next(&mut self, index: usize, turn: &Turn) -> (String, Vec<u32>) {
        if self.workload.shared {
            return (format!("session-{}", turn.session), self.turn(turn));
        }
        let prompt = ids(&mut self.rng, turn.prompt_tokens());
        let hot = self.workload.hot && self.hot.f64() < HOT;
        (if hot { "hot".to_owned() } else { format!("new-{index}") }, prompt)
    }

    fn turn(&mut self, turn: &Turn) -> Vec<u32> {
        let Some(conversation) = self.conversations.get_mut(turn.session) else { return Vec::new() };
        if turn.turn == 0 {
            *conversation = self.systems.get(turn.session % SYSTEMS).cloned().unwrap_or_default();
        }
        conversation.extend(ids(&mut self.rng, TURN_TOKENS));
        let prompt = conversation.clone();
        conversation.extend(ids(&mut self.rng, ANSWER_TOKENS));
        prompt
    }
}

/// Ids of five digits, as most ids of today's vocabularies have.
fn ids(rng: &mut Rng, count: usize) -> Vec<u32> {
    (0..count).map(|_| rng.u32(10_000..100_000)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_grows_and_then_begins_again_under_the_same_system_prompt() {
        let mut text = Text::new(SHARED, 1);
        let mut ask = |session, turn| text.next(0, &Turn { session, turn }).1;
        let first = ask(3, 0);
        let second = ask(3, 1);
        assert_eq!((first.len(), second.len()), (1300, 1728));
        assert_eq!(second[..1300], first);
        let other = ask(3 + SYSTEMS, 0);
        assert_eq!((&other[..1000], other[1000..] == first[1000..]), (&first[..1000], false));
        assert_ne!(ask(4, 0)[..1000], first[..1000]);
        let fresh = ask(3, 0);
        assert_eq!((fresh.len(), fresh[1000..] == first[1000..]), (1300, false));
    }

    #[test]
    fn every_workload_has_the_same_sizes_at_the_same_times() {
        let of = |workload| Trace::new(workload, 200, 7).unwrap();
        let sizes = |trace: &Trace| {
            trace.requests.iter().map(|one| (one.at, one.prompt.tokens(), one.ask.tokens)).collect::<Vec<_>>()
        };
        let shared = sizes(&of(SHARED));
        assert!(shared.iter().all(|(_, tokens, estimate)| *tokens as u64 == *estimate));
        assert_eq!(shared, sizes(&of(NO_SHARE)));
        assert_eq!(shared, sizes(&of(HOT_SESSION)));
    }

    #[test]
    fn the_first_session_is_as_frequent_as_zipf_has_it() {
        let turns = turns(20_000, &mut Rng::with_seed(1));
        let first = turns.iter().filter(|turn| turn.session == 0).count() as f64 / 20_000.0;
        assert!((first - 1.0 / 6.793).abs() < 0.01, "1 / H(500) is 0.147, and it was {first}");
    }

    #[test]
    fn capacity_is_that_of_the_tighter_pool() {
        let of = |answer_tokens, hit_rate| {
            let prompt = Blocks::of(&[7; 1300]);
            let request = Request { at: Duration::from_secs(1), ask: Ask::default(), prompt };
            let mut trace = Trace { requests: vec![request], rate: 1.0, answer_tokens };
            trace.pace(hit_rate);
            assert!((trace.requests[0].at.as_secs_f64() - 1.0 / trace.rate).abs() < 1e-6);
            trace.rate / LOAD
        };
        let close = |value: f64, wanted: f64| (value - wanted).abs() < 1e-9;
        assert!(close(of(128, 0.0), 40_000.0 / 1300.0));
        assert!(close(of(128, 0.2), 40_000.0 / 1040.0));
        // A full batch of 64 takes steps of 40 ms; the fleet is as fast as 3.5 engines.
        assert!(close(of(1000, 0.0), 3.5 * 64.0 / 0.04 / 1000.0));
    }
}
