//! Whether an engine rests, paused or asleep: by what the router told it to, and by what it says itself.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// What an engine has stopped. Sleep takes parts of an engine away, which wake one by one (vLLM's tags).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rest {
    /// It keeps what it has and computes nothing.
    pub paused: bool,
    /// It sleeps without giving memory back (level 0).
    pub scheduling: bool,
    /// Its weights are not there.
    pub weights: bool,
    /// Its KV cache is not there.
    pub kv_cache: bool,
}

impl Rest {
    /// Whether it sleeps, with any part of it.
    #[must_use]
    pub const fn asleep(self) -> bool {
        self.scheduling || self.weights || self.kv_cache
    }

    /// The word in answers and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match (self.asleep(), self.paused) {
            (true, _) => "asleep",
            (false, true) => "paused",
            (false, false) => "awake",
        }
    }
}

/// An engine's rest, as far as it is known.
#[derive(Debug, Default)]
pub struct Resting {
    now: Mutex<(Rest, u64)>,
    rests: AtomicBool,
}

impl Resting {
    /// Whether it rests.
    #[must_use]
    pub fn rests(&self) -> bool {
        self.rests.load(Ordering::Acquire)
    }

    /// What it has stopped.
    #[must_use]
    pub fn now(&self) -> Rest {
        self.now.lock().0
    }

    /// Counts what the router told it; for [`Resting::seen`].
    #[must_use]
    pub fn told(&self) -> u64 {
        self.now.lock().1
    }

    /// The router tells it something; returns what was before.
    pub fn tell(&self, change: impl FnOnce(&mut Rest)) -> Rest {
        let mut now = self.now.lock();
        let before = now.0;
        change(&mut now.0);
        now.1 += 1;
        self.rests.store(now.0 != Rest::default(), Ordering::Release);
        before
    }

    /// It said itself whether it is paused or asleep. Not news where the router has told it something since
    /// `told`: the answer may be older.
    pub fn seen(&self, paused: Option<bool>, asleep: Option<bool>, told: u64) {
        let mut now = self.now.lock();
        if now.1 != told {
            return;
        }
        if let Some(paused) = paused {
            now.0.paused = paused;
        }
        match asleep {
            Some(false) => now.0 = Rest { paused: now.0.paused, ..Rest::default() },
            // Which of its parts sleep it does not say.
            Some(true) if !now.0.asleep() => {
                now.0 = Rest { scheduling: true, weights: true, kv_cache: true, ..now.0 };
            }
            Some(true) | None => {}
        }
        self.rests.store(now.0 != Rest::default(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_from_before_the_last_word_is_no_news() {
        let resting = Resting::default();
        let told = resting.told();
        resting.tell(|rest| rest.paused = true);
        resting.seen(Some(false), Some(false), told);
        assert!(resting.rests());
        resting.seen(Some(false), None, resting.told());
        assert!(!resting.rests());
    }

    #[test]
    fn an_engine_is_awake_when_all_its_parts_are() {
        let resting = Resting::default();
        resting.tell(|rest| (rest.weights, rest.kv_cache) = (true, true));
        resting.tell(|rest| rest.weights = false);
        assert_eq!((resting.rests(), resting.now().as_str()), (true, "asleep"));
        resting.seen(None, Some(true), resting.told());
        assert!(!resting.now().weights, "what the router knows better");
        resting.tell(|rest| rest.kv_cache = false);
        assert!(!resting.rests());
        resting.seen(Some(true), Some(true), resting.told());
        assert!(resting.now().asleep() && resting.now().paused);
    }
}
