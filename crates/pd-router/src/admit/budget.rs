//! All buffered bodies together: one bound, counted by guards.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bound and what is used of it, in bytes.
#[derive(Debug)]
pub struct Budget {
    used: AtomicUsize,
    max: usize,
}

impl Budget {
    /// A budget of `max` bytes.
    #[must_use]
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), max })
    }

    /// A guard that counts no byte yet.
    #[must_use]
    pub fn buffered(self: &Arc<Self>) -> Buffered {
        Buffered { budget: Arc::clone(self), bytes: 0 }
    }

    /// Bytes counted now.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// The bytes of one body; dropping it gives them back.
#[derive(Debug)]
pub struct Buffered {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Buffered {
    /// Counts `bytes` more; false, and nothing counted, if they do not fit.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let fits = self
            .budget
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|used| *used <= self.budget.max)
            })
            .is_ok();
        if fits {
            self.bytes += bytes;
        }
        fits
    }
}

impl Drop for Buffered {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_and_dropping_gives_back() {
        let budget = Budget::new(10);
        let mut one = budget.buffered();
        let mut two = budget.buffered();
        assert!(one.grow(6) && !two.grow(5) && two.grow(4));
        assert_eq!(budget.used(), 10);
        drop(one);
        assert!(two.grow(6) && !two.grow(usize::MAX));
        drop(two);
        assert_eq!(budget.used(), 0);
    }
}
