//! A new session goes to the candidate with the fewest sessions and stays there until it is finished or idle
//! for too long.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dashmap::{DashMap, Entry};
use smallvec::SmallVec;

use super::ask::Ask;
use super::load::{least_first, load, saturation};
use super::policy::{Order, Policy};
use crate::fleet::candidate::Candidate;

/// The most sessions that are remembered, about 40 bytes each; a further one goes by load.
const SESSIONS_MAX: usize = 500_000;

/// Who has which session.
#[derive(Debug)]
pub struct Sticky {
    idle_max: Duration,
    sessions: DashMap<u64, Session>,
    known: AtomicUsize,
    counts: DashMap<u64, usize>,
    turn: AtomicUsize,
}

#[derive(Clone, Copy, Debug)]
struct Session {
    candidate: u64,
    last: Instant,
}

impl Sticky {
    /// Remembers nothing yet; a session is forgotten once it was idle for `idle_max`.
    #[must_use]
    pub fn new(idle_max: Duration) -> Self {
        Self {
            idle_max,
            sessions: DashMap::new(),
            known: AtomicUsize::new(0),
            counts: DashMap::new(),
            turn: AtomicUsize::new(0),
        }
    }

    /// How many sessions are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.load(Ordering::Relaxed)
    }

    /// Whether no session is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn home(&self, session: u64, now: Instant) -> Option<u64> {
        let entry = self.sessions.get(&session)?;
        (now.saturating_duration_since(entry.last) < self.idle_max).then_some(entry.candidate)
    }

    fn count(&self, candidate: u64) -> usize {
        self.counts.get(&candidate).map_or(0, |count| *count)
    }

    fn more(&self, candidate: u64) {
        *self.counts.entry(candidate).or_insert(0) += 1;
    }

    fn fewer(&self, candidate: u64) {
        // A candidate without sessions needs no entry: engines come and go.
        self.counts.remove_if_mut(&candidate, |_, count| {
            *count = count.saturating_sub(1);
            *count == 0
        });
    }

    fn gone(&self, session: Session) {
        self.known.fetch_sub(1, Ordering::Relaxed);
        self.fewer(session.candidate);
    }
}

/// The session that is worth remembering.
fn session(ask: &Ask) -> Option<u64> {
    ask.session.filter(|_| !ask.one_off)
}

impl Policy for Sticky {
    fn rank(&self, ask: &Ask, pool: &[&Candidate], now: Instant) -> Order {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let Some(session) = session(ask) else { return least_first(pool, turn) };
        let bound = saturation(pool);
        let home = self.home(session, now);
        let first = turn % pool.len().max(1);
        let mut ranked: SmallVec<[_; 16]> = (first..pool.len())
            .chain(0..first)
            .filter_map(|index| {
                let one = pool.get(index)?;
                let (new, full) = (home != Some(one.key()), one.requests() >= bound);
                // One that was away has fewer sessions than the others, and still only so much to give.
                Some(((new, new && full, self.count(one.key()), load(one)), index))
            })
            .collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        ranked.into_iter().map(|(_, index)| index).collect()
    }

    fn took(&self, ask: &Ask, candidate: &Candidate, now: Instant) {
        let Some(session) = session(ask) else { return };
        let fresh = Session { candidate: candidate.key(), last: now };
        let before = match self.sessions.entry(session) {
            Entry::Occupied(mut entry) => Some(entry.insert(fresh)),
            Entry::Vacant(entry) => {
                if self.known.fetch_add(1, Ordering::Relaxed) >= SESSIONS_MAX {
                    self.known.fetch_sub(1, Ordering::Relaxed);
                    return;
                }
                entry.insert(fresh);
                None
            }
        };
        if before.is_none_or(|before| before.candidate != fresh.candidate) {
            self.more(fresh.candidate);
            if let Some(before) = before {
                self.fewer(before.candidate);
            }
        }
    }

    fn promised(&self, ask: &Ask, candidate: &Candidate, now: Instant) {
        self.took(ask, candidate, now);
    }

    fn finish(&self, session: u64) {
        if let Some((_, session)) = self.sessions.remove(&session) {
            self.gone(session);
        }
    }

    fn forget(&self, candidate: u64) {
        let mut gone = 0;
        self.sessions.retain(|_, session| {
            let keep = session.candidate != candidate;
            gone += usize::from(!keep);
            keep
        });
        self.known.fetch_sub(gone, Ordering::Relaxed);
        self.counts.remove(&candidate);
    }

    fn tidy(&self, now: Instant) {
        let mut idle = Vec::new();
        self.sessions.retain(|_, session| {
            let keep = now.saturating_duration_since(session.last) < self.idle_max;
            if !keep {
                idle.push(*session);
            }
            keep
        });
        for session in idle {
            self.gone(session);
        }
    }

    fn wants_session(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::engine::{Engine, Settings};
    use crate::fleet::url::EngineUrl;
    use crate::ids::Role;
    use crate::observe::Observe;

    #[test]
    fn sessions_of_a_candidate_that_is_gone_are_forgotten() {
        let observe = Observe::new(&[]).unwrap();
        let pool: Vec<Candidate> = ["http://10.0.0.1:1", "http://10.0.0.2:1"]
            .iter()
            .flat_map(|url| {
                let metrics = observe.engines().engine(Role::Decode, url);
                let url = EngineUrl::parse(url).unwrap();
                Engine::new(Role::Decode, url, metrics, Settings::default()).candidates().collect::<Vec<_>>()
            })
            .collect();
        let (policy, now) = (Sticky::new(Duration::from_secs(60)), Instant::now());
        for session in 0..10 {
            let ask = Ask { session: Some(session), ..Ask::default() };
            policy.took(&ask, &pool[usize::from(session >= 3)], now);
        }
        policy.forget(pool[0].key());
        assert_eq!((policy.len(), policy.sessions.len(), policy.counts.len()), (7, 7, 1));
        assert_eq!((policy.home(0, now), policy.home(9, now)), (None, Some(pool[1].key())));
    }
}
