//! Whether and when a request that failed before its first byte is tried again: by what was lost, within
//! limits of its own and of the whole router.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use http::StatusCode;
use http::header::{HeaderMap, RETRY_AFTER};

use crate::failure::FailureKind;
use crate::ids::RetryReason;

/// The limits of one request.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Tries after the first.
    pub max_retries: u32,
    /// The wait before the first of them.
    pub initial_backoff: Duration,
    /// The longest wait.
    pub max_backoff: Duration,
    /// By what each wait grows.
    pub multiplier: f64,
    /// How much of a wait is left to chance, 0 to 1.
    pub jitter: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_retries: 5,
            initial_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(30),
            multiplier: 1.5,
            jitter: 0.2,
        }
    }
}

/// The longest Retry-After that is waited for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(10);

/// What a try ended in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It can end no other way.
    Final,
    /// The engine failed.
    Failed,
    /// The engine is busy (429, 503), and says for how long.
    Busy(Option<Duration>),
}

impl Loss {
    /// What an engine's status means: 408 and 5xx but 501 may go better elsewhere, other 4xx never.
    #[must_use]
    pub fn of_status(status: StatusCode, headers: &HeaderMap) -> Self {
        match status.as_u16() {
            429 | 503 => Self::Busy(retry_after(headers)),
            501 => Self::Final,
            408 | 500..=599 => Self::Failed,
            _ => Self::Final,
        }
    }

    /// What a failure means.
    #[must_use]
    pub const fn of_failure(kind: &FailureKind) -> Self {
        match kind {
            FailureKind::TransferMode(_) => Self::Final,
            FailureKind::Connect(_)
            | FailureKind::ConnectSlow
            | FailureKind::Reset { .. }
            | FailureKind::Cut
            | FailureKind::Slow { .. }
            | FailureKind::BadAnswer(_)
            | FailureKind::MissingHandoff => Self::Failed,
        }
    }
}

/// How a try after an answer of this status is counted.
#[must_use]
pub fn reason_of_status(status: StatusCode) -> RetryReason {
    match status.as_u16() {
        429 | 503 => RetryReason::Busy,
        _ => RetryReason::Status,
    }
}

/// How a try after this failure is counted.
#[must_use]
pub const fn reason_of_failure(kind: &FailureKind) -> RetryReason {
    match kind {
        FailureKind::Connect(_) | FailureKind::ConnectSlow => RetryReason::Connect,
        FailureKind::Reset { .. } => RetryReason::Reset,
        FailureKind::Cut => RetryReason::Cut,
        FailureKind::Slow { .. } => RetryReason::Slow,
        FailureKind::BadAnswer(_) | FailureKind::TransferMode(_) => RetryReason::BadAnswer,
        FailureKind::MissingHandoff => RetryReason::MissingHandoff,
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// The retries of the whole router: a sick fleet is not stormed. Each request brings a fifth of a retry, on
/// top of a reserve.
#[derive(Debug)]
pub struct Budget {
    fifths: AtomicI64,
}

/// The reserve, in fifths of a retry: 1,000 retries.
const RESERVE: i64 = 5_000;

impl Default for Budget {
    fn default() -> Self {
        Self { fifths: AtomicI64::new(RESERVE) }
    }
}

impl Budget {
    /// A request came.
    pub fn deposit(&self) {
        if self.fifths.load(Ordering::Relaxed) < RESERVE {
            self.fifths.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn withdraw(&self) -> bool {
        self.fifths
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| (left >= 5).then(|| left - 5))
            .is_ok()
    }
}

/// The tries of one request.
#[derive(Debug)]
pub struct Tries {
    settings: Settings,
    made: u32,
    moved: bool,
    waited: bool,
}

impl Tries {
    /// None made yet.
    #[must_use]
    pub const fn new(settings: Settings) -> Self {
        Self { settings, made: 0, moved: false, waited: false }
    }

    /// How long to wait before the next try, or `None` to give up. `others`: whether another engine could
    /// take it.
    pub fn again(&mut self, loss: Loss, others: bool, budget: &Budget) -> Option<Duration> {
        if self.made >= self.settings.max_retries {
            return None;
        }
        let wait = match loss {
            Loss::Final => return None,
            Loss::Failed => self.backoff(),
            Loss::Busy(_) if others && !self.moved => {
                self.moved = true;
                Duration::ZERO
            }
            Loss::Busy(Some(after)) if !others && !self.waited && after <= RETRY_AFTER_MAX => {
                self.waited = true;
                after
            }
            Loss::Busy(_) => return None,
        };
        if !budget.withdraw() {
            return None;
        }
        self.made += 1;
        Some(wait)
    }

    fn backoff(&self) -> Duration {
        let grown = self.settings.multiplier.powi(i32::try_from(self.made).unwrap_or(i32::MAX));
        let base = self.settings.initial_backoff.as_secs_f64() * grown;
        let jitter = 1.0 + self.settings.jitter * (fastrand::f64() * 2.0 - 1.0);
        let seconds = (base * jitter).clamp(0.0, self.settings.max_backoff.as_secs_f64());
        Duration::try_from_secs_f64(seconds).unwrap_or(self.settings.max_backoff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tries(max_retries: u32) -> Tries {
        Tries::new(Settings { max_retries, jitter: 0.0, ..Settings::default() })
    }

    #[test]
    fn failures_back_off_and_end() {
        let (mut tries, budget) = (tries(3), Budget::default());
        let waits: Vec<_> = (0..4).map(|_| tries.again(Loss::Failed, true, &budget)).collect();
        let ms = |ms: f64| Some(Duration::from_secs_f64(ms / 1000.0));
        assert_eq!(waits, [ms(50.0), ms(75.0), ms(112.5), None]);
        assert_eq!(self::tries(0).again(Loss::Failed, true, &budget), None);
    }

    #[test]
    fn busy_moves_once_or_waits_once() {
        let budget = Budget::default();
        let after = Some(Duration::from_secs(2));
        let mut moving = tries(5);
        assert_eq!(moving.again(Loss::Busy(after), true, &budget), Some(Duration::ZERO));
        assert_eq!(moving.again(Loss::Busy(after), true, &budget), None);
        let mut waiting = tries(5);
        assert_eq!(waiting.again(Loss::Busy(after), false, &budget), after);
        assert_eq!(waiting.again(Loss::Busy(after), false, &budget), None);
        assert_eq!(tries(5).again(Loss::Busy(None), false, &budget), None);
        assert_eq!(tries(5).again(Loss::Busy(Some(Duration::from_secs(3600))), false, &budget), None);
    }

    #[test]
    fn the_router_has_one_budget() {
        let budget = Budget::default();
        let granted = (0..2000).filter(|_| tries(1).again(Loss::Failed, true, &budget).is_some()).count();
        assert_eq!(granted, 1000);
        (0..10).for_each(|_| budget.deposit());
        let granted = (0..10).filter(|_| tries(1).again(Loss::Failed, true, &budget).is_some()).count();
        assert_eq!(granted, 2);
    }

    #[test]
    fn only_some_statuses_may_go_better_elsewhere() {
        let of = |status: u16| Loss::of_status(StatusCode::from_u16(status).unwrap(), &HeaderMap::new());
        for (status, loss) in [
            (200, Loss::Final),
            (400, Loss::Final),
            (404, Loss::Final),
            (408, Loss::Failed),
            (429, Loss::Busy(None)),
            (500, Loss::Failed),
            (501, Loss::Final),
            (502, Loss::Failed),
            (503, Loss::Busy(None)),
        ] {
            assert_eq!(of(status), loss, "{status}");
        }
    }
}
