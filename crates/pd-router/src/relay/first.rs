//! The first event of a stream, held until it is whole: an error there came before any token, so that the
//! request can be done again under the headers that are out already.

use bytes::{Bytes, BytesMut};

use super::{Again, Retrying};
use crate::sse::SseScanner;

/// As much as is held for a first event, in bytes; a longer one goes on.
const HELD_MAX: usize = 64 * 1024;

/// Where the first event stands.
#[derive(Default)]
pub enum First {
    /// It went on, or nothing is held in this answer.
    #[default]
    Passed,
    /// It is not whole yet.
    Held {
        /// What came of it.
        bytes: BytesMut,
        /// How to try again.
        again: Box<dyn Again>,
    },
    /// It was an error, and another try is under way.
    Retrying {
        /// What goes on if that fails.
        error: Bytes,
        /// The try.
        retrying: Retrying,
    },
}

impl std::fmt::Debug for First {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Passed => "Passed",
            Self::Held { .. } => "Held",
            Self::Retrying { .. } => "Retrying",
        })
    }
}

/// What is to be done with what came.
#[derive(Debug)]
pub enum Step {
    /// Wait for more.
    Wait,
    /// Pass this on.
    Pass(Bytes),
    /// Another try has begun.
    Retry,
}

impl First {
    /// Holds the first event where there is a way to try again.
    #[must_use]
    pub fn hold(again: Option<Box<dyn Again>>) -> Self {
        again.map_or(Self::Passed, |again| Self::Held { bytes: BytesMut::new(), again })
    }

    /// Takes bytes that the scanner has seen.
    pub fn take(&mut self, data: Bytes, scanner: &SseScanner) -> Step {
        let Self::Held { bytes, .. } = self else { return Step::Pass(data) };
        bytes.extend_from_slice(&data);
        if scanner.data_events() == 0 && bytes.len() < HELD_MAX {
            return Step::Wait;
        }
        if scanner.failed() && scanner.data_events() > 0 {
            return self.retry();
        }
        Step::Pass(self.pass())
    }

    /// The answer ended, or broke, before its first event was whole: another try, or what was held.
    pub fn retry(&mut self) -> Step {
        let Self::Held { bytes, again } = std::mem::take(self) else { return Step::Pass(Bytes::new()) };
        match again.again() {
            Some(retrying) => {
                *self = Self::Retrying { error: bytes.freeze(), retrying };
                Step::Retry
            }
            None => Step::Pass(bytes.freeze()),
        }
    }

    /// What was held, to go on.
    pub fn pass(&mut self) -> Bytes {
        match std::mem::take(self) {
            Self::Held { bytes, .. } => bytes.freeze(),
            Self::Retrying { error, .. } => error,
            Self::Passed => Bytes::new(),
        }
    }
}
