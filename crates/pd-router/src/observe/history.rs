//! The last minutes, for a person who watches: every two seconds what the families took in since the last
//! look. Requests do nothing for it; what they count at their end is read here.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use prometheus::{Histogram, IntCounter};

use super::api::ApiMetrics;
use super::engine::EngineMetrics;
use super::failures::Blame;
use super::record::Outcome;
use super::spread::Spread;
use super::track::{Clock, Part, Track};
use super::{FIRST_TOKEN_SECONDS, LEG_SECONDS, OWN_SECONDS, REQUEST_SECONDS, TOKEN_SECONDS, WAIT_SECONDS};
use crate::ids::Role;

/// Between two looks.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// Points that are kept: ten minutes.
const POINTS_MAX: usize = 300;

/// How long a slot is.
const SLOT_SECONDS: f64 = 10.0;

/// Slots that a point of the times is made of: the last ten to twenty seconds.
const POINT_SLOTS: usize = 2;

/// How many outcomes there are.
const OUTCOMES: usize = Outcome::ALL.len();

/// Of the last seconds, for a chart.
#[derive(Clone, Copy, Debug, Default)]
pub struct Point {
    /// Requests that ended, a second.
    pub requests: f64,
    /// Those of them that failed by the fault of engines or of the router.
    pub failed: f64,
    /// Tokens generated, a second.
    pub tokens: f64,
    /// TTFT in seconds: p50 and p99.
    pub first_token: Option<[f64; 2]>,
    /// ITL in seconds: p50 and p99.
    pub inter_token: Option<[f64; 2]>,
}

/// The last minute of the router.
#[derive(Clone, Debug, Default)]
pub struct Minute {
    /// What it covers, in seconds.
    pub seconds: f64,
    /// Requests that ended, in the order of [`Outcome::ALL`].
    pub ended: [u64; OUTCOMES],
    /// Those that failed by whose fault, in the order of [`Blame::ALL`].
    pub blamed: [u64; Blame::ALL.len()],
    /// Tokens generated.
    pub tokens: u64,
    /// Head to last byte.
    pub total: Spread,
    /// Head to the first event with content.
    pub first_token: Spread,
    /// Between two events with content.
    pub inter_token: Spread,
    /// Wait for a slot.
    pub queue_wait: Spread,
    /// Prefill request to its whole answer.
    pub prefill: Spread,
    /// Prefill answer to the decode request.
    pub handoff_gap: Spread,
    /// Decode request to the head of its answer.
    pub decode: Spread,
    /// Prefill answer to decode's first event.
    pub handover: Spread,
    /// The router's own time.
    pub added: Spread,
}

/// The last minute of an engine.
#[derive(Clone, Debug, Default)]
pub struct EngineMinute {
    /// Legs sent.
    pub legs: u64,
    /// Legs that it failed.
    pub errors: u64,
    /// Prefill: request to whole answer. Decode: request to the head of the answer.
    pub answer: Spread,
    /// Of a decode engine: between two events with content.
    pub inter_token: Spread,
}

/// What is followed and what came of it.
#[derive(Debug)]
pub struct History {
    apis: Vec<Track>,
    own: Track,
    engines: HashMap<usize, (Weak<EngineMetrics>, Role, Track)>,
    clock: Clock,
    looked: Instant,
    points: VecDeque<Point>,
}

/// The counters of an API: its outcomes, then its tokens.
fn api_track(api: &ApiMetrics) -> Track {
    let outcomes = Outcome::ALL.iter().filter_map(|outcome| api.outcome(*outcome));
    let counters: Vec<_> = outcomes.chain([&api.generated_tokens]).collect();
    Track::new(&counters, &[(&api.first_token, FIRST_TOKEN_SECONDS), (&api.seconds, REQUEST_SECONDS)])
}

fn engine_track(engine: &EngineMetrics) -> Track {
    let mut histograms = vec![(&engine.answer_seconds, LEG_SECONDS)];
    histograms.extend(engine.handover_seconds.as_ref().map(|family| (family, LEG_SECONDS)));
    histograms.extend(engine.inter_token_seconds.as_ref().map(|family| (family, TOKEN_SECONDS)));
    Track::new(&[&engine.requests, &engine.one_hop, &engine.errors], &histograms)
}

impl History {
    /// Follows these APIs, the counters of who is to blame, and the families of the wait for a slot, the
    /// handoff gap and the router's own time.
    pub(super) fn new<'a>(
        apis: impl Iterator<Item = &'a Arc<ApiMetrics>>,
        blamed: &[IntCounter; Blame::ALL.len()],
        [queue_wait, handoff_gap, added]: [&Histogram; 3],
    ) -> Self {
        let own = [(queue_wait, WAIT_SECONDS), (handoff_gap, OWN_SECONDS), (added, OWN_SECONDS)];
        Self {
            apis: apis.map(|api| api_track(api)).collect(),
            own: Track::new(&blamed.each_ref(), &own),
            engines: HashMap::new(),
            clock: Clock::default(),
            looked: Instant::now(),
            points: VecDeque::new(),
        }
    }

    /// Looks at everything again; `engines` are those that are now.
    #[allow(clippy::cast_precision_loss, reason = "counts of seconds are far below 2^52")]
    pub(super) fn look(&mut self, engines: &[Arc<EngineMetrics>], now: Instant) {
        let seconds = now.saturating_duration_since(self.looked).as_secs_f64();
        self.looked = now;
        let fresh = self.clock.passed(seconds, SLOT_SECONDS);
        self.engines.retain(|_, (engine, _, _)| engine.strong_count() > 0);
        for engine in engines {
            // The address is this engine's as long as its weak reference is kept.
            let follow = || (Arc::downgrade(engine), engine.role, engine_track(engine));
            self.engines.entry(Arc::as_ptr(engine).addr()).or_insert_with(follow);
        }
        let own = self.own.look(fresh);
        self.engines.values_mut().for_each(|(_, _, track)| drop(track.look(fresh)));
        let mut came = Part::default();
        self.apis.iter_mut().for_each(|api| came.add(&api.look(fresh)));
        let recent = |tracks: &mut dyn Iterator<Item = &Track>, place| {
            let mut sum = Spread::default();
            tracks.for_each(|track| sum.add(&track.last(POINT_SLOTS).spread(place)));
            Some([sum.quantile(0.5)?, sum.quantile(0.99)?])
        };
        let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let point = Point {
            requests: rate(counts::<OUTCOMES>(&came).iter().sum()),
            failed: rate(own.count(Blame::Engine as usize) + own.count(Blame::Router as usize)),
            tokens: rate(came.count(OUTCOMES)),
            first_token: recent(&mut self.apis.iter(), 0),
            inter_token: recent(&mut self.decoding(), 2),
        };
        self.points.push_back(point);
        if self.points.len() > POINTS_MAX {
            self.points.pop_front();
        }
    }

    fn of(&self, wanted: fn(Role) -> bool) -> impl Iterator<Item = &Track> {
        self.engines.values().filter(move |(_, its, _)| wanted(*its)).map(|(_, _, track)| track)
    }

    /// The engines whose answers clients read.
    fn decoding(&self) -> impl Iterator<Item = &Track> {
        self.of(|role| role != Role::Prefill)
    }

    /// The points that are kept, the oldest first.
    #[must_use]
    pub fn points(&self) -> Vec<Point> {
        self.points.iter().copied().collect()
    }

    /// The last minute, or what there was of it.
    #[must_use]
    pub fn minute(&self) -> Minute {
        let sum = |tracks: &mut dyn Iterator<Item = &Track>| {
            let mut sum = Part::default();
            tracks.for_each(|track| sum.add(&track.minute()));
            sum
        };
        let apis = sum(&mut self.apis.iter());
        let (prefill, decode) = (sum(&mut self.of(|role| role == Role::Prefill)), sum(&mut self.decoding()));
        let own = self.own.minute();
        Minute {
            seconds: self.clock.seconds(),
            ended: counts(&apis),
            blamed: counts(&own),
            tokens: apis.count(OUTCOMES),
            first_token: apis.spread(0),
            total: apis.spread(1),
            queue_wait: own.spread(0),
            handoff_gap: own.spread(1),
            added: own.spread(2),
            prefill: prefill.spread(0),
            decode: decode.spread(0),
            handover: decode.spread(1),
            inter_token: decode.spread(2),
        }
    }

    /// The last minute of an engine.
    #[must_use]
    pub fn engine(&self, engine: &Arc<EngineMetrics>) -> EngineMinute {
        let Some((_, _, track)) = self.engines.get(&Arc::as_ptr(engine).addr()) else {
            return EngineMinute::default();
        };
        let part = track.minute();
        EngineMinute {
            legs: part.count(0) + part.count(1),
            errors: part.count(2),
            answer: part.spread(0),
            inter_token: part.spread(2),
        }
    }
}

fn counts<const N: usize>(part: &Part) -> [u64; N] {
    std::array::from_fn(|place| part.count(place))
}
