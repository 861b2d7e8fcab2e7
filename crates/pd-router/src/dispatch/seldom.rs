//! A warning that would come with every request comes once a minute.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Between two warnings.
const PAUSE: Duration = Duration::from_secs(60);

/// When the last warning was given.
#[derive(Debug, Default)]
pub struct Seldom {
    last: Mutex<Option<Instant>>,
}

impl Seldom {
    /// Whether a warning is due; if so it counts as given.
    #[must_use]
    pub fn due(&self) -> bool {
        let Some(mut last) = self.last.try_lock() else { return false };
        let due = last.is_none_or(|last| last.elapsed() >= PAUSE);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::Seldom;

    #[test]
    fn the_second_of_a_minute_is_not_due() {
        let seldom = Seldom::default();
        assert!(seldom.due() && !seldom.due());
    }
}
