//! What one thread of the generator notes, and the sum over threads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::check::Wrong;
use crate::stats::Times;

/// The notes of one thread; only that thread writes, so no lock is ever waited for while the load runs.
#[derive(Debug, Default)]
pub struct Notes {
    served: AtomicU64,
    events: AtomicU64,
    more: Mutex<More>,
}

#[derive(Clone, Debug, Default)]
struct More {
    failed: u64,
    failures: BTreeMap<&'static str, (u64, String)>,
    ttft: Times,
    itl: Times,
    e2e: Times,
}

/// Everything noted.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Right answers.
    pub served: u64,
    /// Events of streams.
    pub events: u64,
    /// Answers that were wrong, or did not come.
    pub failed: u64,
    /// How many failed in which way, with the first of each.
    pub failures: BTreeMap<&'static str, (u64, String)>,
    /// From a request to its first event.
    pub ttft: Times,
    /// Between two events of a stream.
    pub itl: Times,
    /// From a request to the end of its answer.
    pub e2e: Times,
}

impl Notes {
    pub(super) fn served(&self, e2e: Option<Duration>) {
        self.served.fetch_add(1, Ordering::Relaxed);
        if let Some(e2e) = e2e {
            self.more.lock().e2e.note(e2e);
        }
    }

    pub(super) fn failed(&self, wrong: &Wrong) {
        let mut more = self.more.lock();
        more.failed += 1;
        more.failures.entry(wrong.label()).or_insert_with(|| (0, wrong.to_string())).0 += 1;
    }

    /// Counts events that came together.
    pub(super) fn events(&self, count: u64) {
        self.events.fetch_add(count, Ordering::Relaxed);
    }

    /// Notes the time of the first event, or of one after another; events that came together have no time
    /// between them.
    pub(super) fn event_times(&self, first: Option<Duration>, gap: Option<Duration>, together: u64) {
        let mut more = self.more.lock();
        if let Some(first) = first {
            more.ttft.note(first);
        }
        if let Some(gap) = gap {
            more.itl.note(gap);
        }
        (1..together).for_each(|_| more.itl.note(Duration::ZERO));
    }

    /// Right answers and events, without a look at the times.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.served.load(Ordering::Relaxed), self.events.load(Ordering::Relaxed))
    }

    pub(super) fn totals(&self) -> Totals {
        let more = self.more.lock().clone();
        let (served, events) = self.counts();
        Totals {
            served,
            events,
            failed: more.failed,
            failures: more.failures,
            ttft: more.ttft,
            itl: more.itl,
            e2e: more.e2e,
        }
    }
}

impl Totals {
    pub(super) fn plus(mut self, other: Self) -> Self {
        self.served += other.served;
        self.events += other.events;
        self.failed += other.failed;
        for (label, (count, first)) in other.failures {
            self.failures.entry(label).or_insert_with(|| (0, first)).0 += count;
        }
        self.ttft.add(&other.ttft);
        self.itl.add(&other.itl);
        self.e2e.add(&other.e2e);
        self
    }
}
