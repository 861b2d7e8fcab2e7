//! Whether an engine gets traffic, as a pure state machine fed by probes and by live requests.

/// How many probes change the state.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Failed probes in a row that put an engine down.
    pub failure_threshold: u32,
    /// Good probes in a row that bring an engine back that probes had put down.
    pub success_threshold: u32,
}

/// What is known of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing yet: no traffic.
    Unknown,
    /// It answers.
    Up,
    /// It does not.
    Down,
}

impl State {
    /// The word in answers and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

/// The state and what leads to the next.
#[derive(Clone, Copy, Debug)]
pub struct Health {
    state: State,
    failures: u32,
    successes: u32,
    ejected: bool,
}

impl Default for Health {
    fn default() -> Self {
        Self { state: State::Unknown, failures: 0, successes: 0, ejected: false }
    }
}

impl Health {
    /// The state now.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Whether a live connection put it out and probes have not said yet that it is gone.
    #[must_use]
    pub const fn ejected(&self) -> bool {
        self.ejected
    }

    /// A probe was answered well or not; returns whether the state changed.
    pub fn probed(&mut self, good: bool, settings: Settings) -> bool {
        let before = self.state;
        if good {
            self.failures = 0;
            self.successes = self.successes.saturating_add(1);
            // One good probe is enough for an engine that only a live connection had put down.
            let enough =
                if self.state == State::Down && !self.ejected { settings.success_threshold } else { 1 };
            if self.successes >= enough {
                self.state = State::Up;
                self.ejected = false;
            }
        } else {
            self.successes = 0;
            self.failures = self.failures.saturating_add(1);
            if self.state == State::Up && self.failures >= settings.failure_threshold {
                self.state = State::Down;
            }
            // It failed a probe as well, so that it has to prove itself.
            self.ejected &= self.failures < settings.failure_threshold;
        }
        self.state != before
    }

    /// A live connection was refused or reset: down at once, until the next good probe. Returns whether the
    /// state changed.
    pub fn eject(&mut self) -> bool {
        if self.state != State::Up {
            return false;
        }
        *self = Self { state: State::Down, failures: 0, successes: 0, ejected: true };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings = Settings { failure_threshold: 3, success_threshold: 2 };

    fn after(health: &mut Health, probes: &[bool]) -> State {
        for good in probes {
            health.probed(*good, SETTINGS);
        }
        health.state()
    }

    #[test]
    fn unknown_is_up_after_one_good_probe_and_never_down() {
        assert_eq!(after(&mut Health::default(), &[false, false, false, false]), State::Unknown);
        assert_eq!(after(&mut Health::default(), &[false, true]), State::Up);
    }

    #[test]
    fn it_takes_some_in_a_row_to_go_down_and_to_come_back() {
        let mut health = Health::default();
        assert_eq!(after(&mut health, &[true, false, false, true, false, false]), State::Up);
        assert_eq!(after(&mut health, &[false]), State::Down);
        assert_eq!(after(&mut health, &[true, false, true]), State::Down);
        assert_eq!(after(&mut health, &[true]), State::Up);
    }

    #[test]
    fn an_ejected_engine_comes_back_with_the_next_good_probe() {
        let mut health = Health::default();
        assert!(!health.eject());
        after(&mut health, &[true]);
        assert!(health.eject());
        assert_eq!(after(&mut health, &[true]), State::Up);
        health.eject();
        assert_eq!(after(&mut health, &[false, false, false, true]), State::Down);
        assert_eq!(after(&mut health, &[true]), State::Up);
    }
}
