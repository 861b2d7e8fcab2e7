//! One run: a trace through the router's planner and the engines' models, event after event in virtual time.
//! What is planned, counted and remembered when is that of `dispatch/work.rs`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use pd_router::fleet::candidate::Load;
use pd_router::fleet::engine::InFlight;
use pd_router::plan::Candidates;
use pd_sim::perf::Mark;

use crate::Error;
use crate::bed::{Bed, Pair};
use crate::stats::{Sample, Stats};
use crate::workload::{Request, Trace};

/// The share of the requests, from the first one on, during which caches fill; they are not measured.
const WARM_UP: f64 = 0.1;

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// This request comes.
    Came(usize),
    /// Its prompt is computed.
    Prefilled(usize),
    /// This decode engine has made one more token for all that it has.
    Stepped(usize),
}

/// A request on its way: what the router holds for it, and what is noted of it.
#[derive(Debug, Default)]
struct Life {
    decode: Candidates,
    promised: Option<Load>,
    in_flight: Option<InFlight>,
    cached_tokens: usize,
    places: (usize, usize),
    first_at: Duration,
    tpot: Option<Duration>,
}

#[derive(Debug)]
struct Run<'a> {
    bed: Bed,
    requests: &'a [Request],
    answer_tokens: usize,
    lives: Vec<Life>,
    events: BinaryHeap<Reverse<(Duration, usize, Event)>>,
    scheduled: usize,
}

/// Runs a trace with these policies.
///
/// # Errors
/// A request that was not served, which no policy may cause.
pub fn run(trace: &Trace, policies: Pair, seed: u64) -> Result<Stats, Error> {
    // The policies that choose at random take this thread's generator.
    fastrand::seed(seed);
    let requests = &trace.requests;
    let lives = requests.iter().map(|_| Life::default()).collect();
    let mut run = Run {
        bed: Bed::new(policies)?,
        requests,
        answer_tokens: trace.answer_tokens,
        lives,
        events: BinaryHeap::new(),
        scheduled: 0,
    };
    if let Some(first) = requests.first() {
        run.schedule(first.at, Event::Came(0));
    }
    while let Some(Reverse((now, _, event))) = run.events.pop() {
        match event {
            Event::Came(request) => run.came(request, now)?,
            Event::Prefilled(request) => run.prefilled(request, now)?,
            Event::Stepped(engine) => run.stepped(engine, now),
        }
    }
    run.stats()
}

impl Run<'_> {
    /// Events at the same time happen in the order in which they were scheduled.
    fn schedule(&mut self, at: Duration, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((at, self.scheduled, event)));
    }

    fn came(&mut self, index: usize, now: Duration) -> Result<(), Error> {
        if let Some(next) = self.requests.get(index + 1) {
            self.schedule(next.at, Event::Came(index + 1));
        }
        let (Some(request), Some(life)) = (self.requests.get(index), self.lives.get_mut(index)) else {
            return Ok(());
        };
        let bed = &mut self.bed;
        let plan = bed.planner.plan(&request.ask, None, &bed.fleet, &[]);
        let plan = plan.map_err(|role| format!("no {role} engine"))?;
        life.promised = plan.decode.first().map(|one| one.load(request.ask.tokens));
        life.decode = plan.decode;
        let candidates = plan.prefill.map_err(|_| "a plan without prefill")?;
        let chosen = candidates.first().ok_or("a plan without a prefill engine")?;
        let tokens = bed.planner.tokens(&request.ask, chosen);
        life.in_flight = Some(chosen.begin(tokens, false, &mut None).ok_or("prefill was refused")?);
        bed.planner.took(&request.ask, chosen);
        life.places.0 = bed.place(chosen);
        let engine = bed.prefill.get_mut(life.places.0).ok_or("an engine without a model")?;
        let prefilled = engine.take(&request.prompt, now);
        life.cached_tokens = prefilled.cached_tokens;
        self.schedule(prefilled.done, Event::Prefilled(index));
        Ok(())
    }

    fn prefilled(&mut self, index: usize, now: Duration) -> Result<(), Error> {
        let (Some(request), Some(life)) = (self.requests.get(index), self.lives.get_mut(index)) else {
            return Ok(());
        };
        // Prefill's load ends with its answer.
        life.in_flight = None;
        let bed = &mut self.bed;
        let chosen = life.decode.first().ok_or("a plan without a decode engine")?;
        let tokens = bed.planner.tokens(&request.ask, chosen);
        let in_flight = chosen.begin(tokens, false, &mut life.promised).ok_or("decode was refused")?;
        life.in_flight = Some(in_flight);
        bed.planner.took(&request.ask, chosen);
        life.places.1 = bed.place(chosen);
        let place = life.places.1;
        let engine = bed.decode.get_mut(place).ok_or("an engine without a model")?;
        if engine.join(index, self.answer_tokens) {
            self.step(place, now);
        }
        Ok(())
    }

    fn step(&mut self, place: usize, now: Duration) {
        if let Some(takes) = self.bed.decode.get_mut(place).and_then(|engine| engine.begin_step()) {
            self.schedule(now + takes, Event::Stepped(place));
        }
    }

    fn stepped(&mut self, place: usize, now: Duration) {
        let gaps = u32::try_from(self.answer_tokens.saturating_sub(1)).unwrap_or(u32::MAX).max(1);
        let marks = self.bed.decode.get_mut(place).map(|engine| engine.end_step());
        for Mark { request, first, last } in marks.into_iter().flatten() {
            let Some(life) = self.lives.get_mut(request) else { continue };
            if first {
                life.first_at = now;
            }
            if last {
                life.in_flight = None;
                life.decode.clear();
                life.tpot = Some((now - life.first_at) / gaps);
            }
        }
        self.step(place, now);
    }

    fn stats(&self) -> Result<Stats, Error> {
        let skip = (self.requests.len() as f64 * WARM_UP) as usize;
        let measured = self.requests.iter().zip(&self.lives).skip(skip);
        let samples = measured.map(|(request, life)| {
            Some(Sample {
                prompt_tokens: request.prompt.tokens(),
                cached_tokens: life.cached_tokens,
                prefill: life.places.0,
                decode: life.places.1,
                ttft: life.first_at - request.at,
                tpot: life.tpot?,
            })
        });
        let samples: Option<Vec<Sample>> = samples.collect();
        Ok(Stats::of(&samples.ok_or("a request was not served")?))
    }
}
