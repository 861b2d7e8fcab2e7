//! What an answer or a failure says of the engine: only what the engine did counts.

use http::StatusCode;
use http::header::{HeaderMap, RETRY_AFTER};

use crate::failure::FailureKind;
use crate::fleet::breaker::Verdict;
use crate::fleet::engine::Engine;

/// The verdict on a status: a status from 500 is a failure, but for 501 and for 503 with Retry-After, by
/// which an engine says that it is busy; one below says nothing, but for 2xx.
pub fn of_status(engine: &Engine, status: StatusCode, headers: &HeaderMap) -> Verdict {
    let busy = status == StatusCode::SERVICE_UNAVAILABLE && headers.contains_key(RETRY_AFTER);
    if status.is_success() {
        Verdict::Success
    } else if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED && !busy {
        engine.metrics().errors.inc();
        Verdict::Failure
    } else {
        Verdict::Neutral
    }
}

/// Counts a failure against the engine, and puts it out where its connection was refused or reset.
pub fn of_failure(engine: &Engine, kind: &FailureKind) -> Verdict {
    engine.metrics().errors.inc();
    match kind {
        FailureKind::Connect(_) => engine.eject("connection refused"),
        FailureKind::Reset { reused: false } | FailureKind::Cut => engine.eject("connection reset"),
        // An idle connection may have been closed by the engine's own timer.
        FailureKind::Reset { reused: true } => return Verdict::Neutral,
        FailureKind::ConnectSlow
        | FailureKind::Slow { .. }
        | FailureKind::BadAnswer(_)
        | FailureKind::MissingHandoff
        | FailureKind::TransferMode(_) => {}
    }
    Verdict::Failure
}
