//! The circuit breaker, as a pure state machine: what happened and when go in, whether to send comes out.
//!
//! Failures in a row within a window open it; a success in between starts the count again, and what says
//! nothing of the engine (4xx, 429, a client that left) changes nothing. When its time is over one request
//! tries; its slot comes back whatever happens to it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// When a breaker opens and closes.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Failures in a row that open it; 0 means that it never opens.
    pub failure_threshold: u32,
    /// Successes in a row that close it again.
    pub success_threshold: u32,
    /// How long it stays open before one request tries.
    pub open_for: Duration,
    /// Failures further apart than this do not count together.
    pub window: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            failure_threshold: 10,
            success_threshold: 3,
            open_for: Duration::from_secs(60),
            window: Duration::from_secs(120),
        }
    }
}

/// What a request says of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It did what it should.
    Success,
    /// It failed.
    Failure,
    /// Nothing.
    Neutral,
}

/// What a breaker shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Requests go.
    Closed,
    /// None goes.
    Open,
    /// One at a time tries.
    HalfOpen,
}

impl State {
    /// The word in labels and answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

#[derive(Debug)]
enum Inner {
    Closed { failures: u32, first: Option<Instant> },
    Open { until: Instant },
    HalfOpen { successes: u32, trying: bool },
}

impl Inner {
    const fn shows(&self) -> State {
        match self {
            Self::Closed { .. } => State::Closed,
            Self::Open { .. } => State::Open,
            Self::HalfOpen { .. } => State::HalfOpen,
        }
    }
}

/// A breaker that threads share. While it is closed and has seen no failure it takes no lock.
#[derive(Debug)]
pub struct Breaker {
    settings: Settings,
    troubled: AtomicBool,
    inner: Mutex<Inner>,
    moves: [AtomicU64; 3],
}

/// A request's way through a breaker. Whoever holds it says one [`Verdict`] in the end.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    trial: bool,
}

const CLOSED: Inner = Inner::Closed { failures: 0, first: None };

impl Breaker {
    /// A closed breaker.
    #[must_use]
    pub const fn new(settings: Settings) -> Self {
        let moves = [AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)];
        Self { settings, troubled: AtomicBool::new(false), inner: Mutex::new(CLOSED), moves }
    }

    /// How often it went to each state, in the order in which [`State`] has them.
    #[must_use]
    pub fn moves(&self) -> [u64; 3] {
        self.moves.each_ref().map(|moves| moves.load(Ordering::Relaxed))
    }

    /// Puts another state in the place of this one, and counts it where it shows.
    fn go(&self, inner: &mut Inner, next: Inner) {
        if inner.shows() != next.shows()
            && let Some(moves) = self.moves.get(next.shows() as usize)
        {
            moves.fetch_add(1, Ordering::Relaxed);
        }
        *inner = next;
    }

    /// What it shows at this moment.
    #[must_use]
    pub fn state(&self, now: Instant) -> State {
        if !self.troubled.load(Ordering::Acquire) {
            return State::Closed;
        }
        match *self.inner.lock() {
            Inner::Closed { .. } => State::Closed,
            Inner::Open { until } if now < until => State::Open,
            Inner::Open { .. } | Inner::HalfOpen { .. } => State::HalfOpen,
        }
    }

    /// Lets a request through, or not: open, or another one is trying.
    #[must_use]
    pub fn enter(&self, now: Instant) -> Option<Ticket> {
        if !self.troubled.load(Ordering::Acquire) {
            return Some(Ticket { trial: false });
        }
        let mut inner = self.inner.lock();
        let trial = match &mut *inner {
            Inner::Closed { .. } => false,
            Inner::Open { until } if now < *until => return None,
            Inner::HalfOpen { trying: true, .. } => return None,
            Inner::HalfOpen { trying, .. } => {
                *trying = true;
                true
            }
            Inner::Open { .. } => {
                self.go(&mut inner, Inner::HalfOpen { successes: 0, trying: true });
                true
            }
        };
        Some(Ticket { trial })
    }

    /// Lets a request through whatever the state: the last engine of a pool.
    #[must_use]
    pub fn force(&self, now: Instant) -> Ticket {
        self.enter(now).unwrap_or(Ticket { trial: false })
    }

    /// Starts again, closed: the engine has a new life.
    pub fn reset(&self) {
        self.go(&mut self.inner.lock(), CLOSED);
        self.troubled.store(false, Ordering::Release);
    }

    /// Takes what a request says of the engine.
    pub fn say(&self, ticket: Ticket, verdict: Verdict, now: Instant) {
        let trial = ticket.trial;
        if verdict != Verdict::Failure && !self.troubled.load(Ordering::Acquire) {
            return;
        }
        let mut inner = self.inner.lock();
        let next = match (&mut *inner, verdict) {
            (Inner::HalfOpen { trying, .. }, Verdict::Neutral) => {
                *trying &= !trial;
                None
            }
            (Inner::HalfOpen { successes, trying }, Verdict::Success) if trial => {
                *successes += 1;
                *trying = false;
                (*successes >= self.settings.success_threshold).then_some(CLOSED)
            }
            (Inner::HalfOpen { .. }, Verdict::Failure) if trial => {
                Some(Inner::Open { until: now + self.settings.open_for })
            }
            (Inner::Closed { .. }, Verdict::Success) => Some(CLOSED),
            (Inner::Closed { failures, first }, Verdict::Failure) => {
                let fresh = first.is_none_or(|first| now.duration_since(first) > self.settings.window);
                *failures = if fresh { 1 } else { *failures + 1 };
                *first = if fresh { Some(now) } else { *first };
                let opens =
                    self.settings.failure_threshold > 0 && *failures >= self.settings.failure_threshold;
                opens.then_some(Inner::Open { until: now + self.settings.open_for })
            }
            // A late word from an older state changes nothing.
            (Inner::Closed { .. } | Inner::Open { .. } | Inner::HalfOpen { .. }, _) => None,
        };
        if let Some(next) = next {
            self.go(&mut inner, next);
        }
        self.troubled.store(!matches!(*inner, Inner::Closed { failures: 0, .. }), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker() -> (Breaker, Instant) {
        let settings = Settings {
            failure_threshold: 3,
            success_threshold: 2,
            open_for: Duration::from_secs(10),
            window: Duration::from_secs(60),
        };
        (Breaker::new(settings), Instant::now())
    }

    fn say(breaker: &Breaker, now: Instant, verdicts: &[Verdict]) {
        for verdict in verdicts {
            breaker.say(breaker.enter(now).expect("a way through"), *verdict, now);
        }
    }

    use Verdict::{Failure, Neutral, Success};

    #[test]
    fn failures_in_a_row_open_it_and_what_is_neutral_does_not_count() {
        let (breaker, now) = breaker();
        say(&breaker, now, &[Failure, Failure, Success, Failure, Failure, Neutral]);
        assert_eq!(breaker.state(now), State::Closed);
        say(&breaker, now, &[Failure]);
        assert_eq!(breaker.state(now), State::Open);
        assert!(breaker.enter(now).is_none());
        assert!(!breaker.force(now).trial);
    }

    #[test]
    fn failures_outside_the_window_do_not_add_up() {
        let (breaker, now) = breaker();
        say(&breaker, now, &[Failure, Failure]);
        let later = now + Duration::from_secs(61);
        say(&breaker, later, &[Failure, Failure]);
        assert_eq!(breaker.state(later), State::Closed);
    }

    #[test]
    fn one_tries_at_a_time_and_its_slot_comes_back() {
        let (breaker, now) = breaker();
        say(&breaker, now, &[Failure; 3]);
        let later = now + Duration::from_secs(10);
        let trial = breaker.enter(later).expect("the trial");
        assert!(breaker.enter(later).is_none());
        breaker.say(trial, Neutral, later);
        let trial = breaker.enter(later).expect("the slot came back");
        assert!(breaker.enter(later).is_none());
        breaker.say(trial, Success, later);
        assert_eq!(breaker.state(later), State::HalfOpen);
        say(&breaker, later, &[Success]);
        assert_eq!(breaker.state(later), State::Closed);
    }

    #[test]
    fn a_failed_trial_opens_it_again_and_a_late_word_changes_nothing() {
        let (breaker, now) = breaker();
        let late = breaker.enter(now).expect("closed");
        say(&breaker, now, &[Failure; 3]);
        let later = now + Duration::from_secs(10);
        say(&breaker, later, &[Failure]);
        assert_eq!(breaker.state(later), State::Open);
        breaker.say(late, Success, later);
        assert_eq!(breaker.state(later), State::Open);
        breaker.reset();
        assert_eq!(breaker.state(later), State::Closed);
    }
}
