//! Counters and histograms followed over the last minute, in slots of ten seconds.

use std::collections::VecDeque;

use prometheus::{Histogram, IntCounter};

use super::spread::{Seen, Spread};

/// Slots that are kept: a minute.
const SLOTS: usize = 6;

/// What came in some time, in the order in which it is followed.
#[derive(Clone, Debug, Default)]
pub(super) struct Part {
    counts: Vec<u64>,
    spreads: Vec<Spread>,
}

impl Part {
    pub(super) fn count(&self, place: usize) -> u64 {
        self.counts.get(place).copied().unwrap_or(0)
    }

    pub(super) fn spread(&self, place: usize) -> Spread {
        self.spreads.get(place).cloned().unwrap_or_default()
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        self.spreads.resize_with(self.spreads.len().max(other.spreads.len()), Spread::default);
        for (own, other) in self.counts.iter_mut().zip(&other.counts) {
            *own += other;
        }
        for (own, other) in self.spreads.iter_mut().zip(&other.spreads) {
            own.add(other);
        }
    }
}

/// What is followed.
#[derive(Debug)]
pub(super) struct Track {
    counters: Vec<(IntCounter, u64)>,
    histograms: Vec<Seen>,
    slots: VecDeque<Part>,
}

impl Track {
    /// Follows these from now on.
    pub(super) fn new(counters: &[&IntCounter], histograms: &[(&Histogram, &'static [f64])]) -> Self {
        Self {
            counters: counters.iter().map(|counter| ((*counter).clone(), counter.get())).collect(),
            histograms: histograms.iter().map(|(histogram, bounds)| Seen::new(histogram, bounds)).collect(),
            slots: VecDeque::new(),
        }
    }

    /// Looks again, into a fresh slot or into the last one; returns what is new.
    pub(super) fn look(&mut self, fresh_slot: bool) -> Part {
        let grown = |(counter, before): &mut (IntCounter, u64)| {
            let now = counter.get();
            now.saturating_sub(std::mem::replace(before, now))
        };
        let part = Part {
            counts: self.counters.iter_mut().map(grown).collect(),
            spreads: self.histograms.iter_mut().map(Seen::fresh).collect(),
        };
        if fresh_slot || self.slots.is_empty() {
            self.slots.push_back(Part::default());
        }
        if self.slots.len() > SLOTS {
            self.slots.pop_front();
        }
        if let Some(slot) = self.slots.back_mut() {
            slot.add(&part);
        }
        part
    }

    /// The last minute.
    pub(super) fn minute(&self) -> Part {
        self.last(SLOTS)
    }

    /// The last slots.
    pub(super) fn last(&self, slots: usize) -> Part {
        let mut sum = Part::default();
        self.slots.iter().rev().take(slots).for_each(|slot| sum.add(slot));
        sum
    }
}

/// The seconds that the slots cover, kept beside them.
#[derive(Debug, Default)]
pub(super) struct Clock {
    slots: VecDeque<f64>,
}

impl Clock {
    /// Takes the seconds since the last look; whether a fresh slot begins with them.
    pub(super) fn passed(&mut self, seconds: f64, slot_seconds: f64) -> bool {
        let fresh = self.slots.back().is_none_or(|slot| *slot >= slot_seconds);
        if fresh {
            self.slots.push_back(0.0);
        }
        if self.slots.len() > SLOTS {
            self.slots.pop_front();
        }
        if let Some(slot) = self.slots.back_mut() {
            *slot += seconds;
        }
        fresh
    }

    /// What all slots cover.
    pub(super) fn seconds(&self) -> f64 {
        self.slots.iter().sum()
    }
}
