//! Faults that an engine can be told to have.

use std::time::Duration;

use serde::Deserialize;

/// One fault, for the next `times` inference requests or for good.
#[derive(Clone, Debug, Deserialize)]
pub struct Fault {
    /// What goes wrong.
    pub kind: FaultKind,
    /// How often; for good where absent.
    #[serde(default)]
    pub times: Option<usize>,
}

/// What goes wrong.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// Takes the request and never answers.
    Stall,
    /// Falls silent after this many events of a stream.
    StallAfter(usize),
    /// Answers with this status.
    Status {
        /// The status.
        status: u16,
        /// The body, JSON.
        body: String,
        /// The Retry-After header, in seconds.
        #[serde(default)]
        retry_after: Option<u32>,
    },
    /// Resets the connection (RST) before any answer.
    Reset,
    /// Closes the connection (FIN) before any answer.
    Close,
    /// Resets the connection after this many events.
    ResetAfter(usize),
    /// Closes the connection after this many events.
    CloseAfter(usize),
    /// Closes the connection within the event after this many.
    CutInside(usize),
    /// Waits before it works, in milliseconds.
    DelayMs(u64),
    /// A prefill answer without a handoff.
    Missing(Missing),
    /// A handoff of another transfer mode.
    TransferMode(String),
    /// Answers 200 with these events: a failed load is an error as the first of them.
    EventStream(String),
    /// Answers 200 with what no engine answers.
    Junk(Junk),
    /// `/health` answers this status.
    Health(u16),
    /// `/health` takes this long, in milliseconds.
    HealthDelayMs(u64),
    /// Refuses connections and resets those it has, until the faults are cleared.
    Refuse,
    /// Likewise for this long, in milliseconds.
    RefuseMs(u64),
    /// Dies, and is back after this long, in milliseconds, with a new id and nothing pinned.
    RestartMs(u64),
}

/// How a handoff is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missing {
    /// No such member.
    Absent,
    /// null.
    Null,
    /// `{}`.
    Empty,
    /// No `remote_port`: hangs, then kills, a real decode engine.
    NoPort,
    /// `remote_block_ids` null: kills a real decode engine.
    NullBlocks,
}

/// What no engine answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Junk {
    /// A page.
    Html,
    /// No bytes.
    Empty,
    /// JSON that ends in the middle.
    Half,
}

impl FaultKind {
    /// The delay that this is, if it is one.
    pub(crate) fn delay(&self) -> Option<Duration> {
        if let FaultKind::DelayMs(ms) = self { Some(Duration::from_millis(*ms)) } else { None }
    }
}

/// The faults in force.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    armed: Vec<Fault>,
}

impl Faults {
    pub(crate) fn arm(&mut self, fault: Fault) {
        self.armed.push(fault);
    }

    pub(crate) fn clear(&mut self) {
        self.armed.clear();
    }

    /// The faults that the next inference request has.
    pub(crate) fn take(&mut self) -> Vec<FaultKind> {
        let inference =
            |fault: &&mut Fault| !matches!(fault.kind, FaultKind::Health(_) | FaultKind::HealthDelayMs(_));
        let kinds = self
            .armed
            .iter_mut()
            .filter(inference)
            .map(|fault| {
                fault.times = fault.times.map(|times| times.saturating_sub(1));
                fault.kind.clone()
            })
            .collect();
        self.armed.retain(|fault| fault.times != Some(0));
        kinds
    }

    /// What `/health` answers.
    pub(crate) fn health(&self) -> u16 {
        let status =
            |fault: &Fault| if let FaultKind::Health(status) = fault.kind { Some(status) } else { None };
        self.armed.iter().rev().find_map(status).unwrap_or(200)
    }

    /// How long `/health` takes.
    pub(crate) fn health_delay(&self) -> Duration {
        let delay = |fault: &Fault| {
            if let FaultKind::HealthDelayMs(ms) = fault.kind { Some(Duration::from_millis(ms)) } else { None }
        };
        self.armed.iter().rev().find_map(delay).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_lasts_as_often_as_it_says() {
        let mut faults = Faults::default();
        faults.arm(Fault { kind: FaultKind::Stall, times: Some(2) });
        faults.arm(Fault { kind: FaultKind::DelayMs(1), times: None });
        assert_eq!((0..3).map(|_| faults.take().len()).collect::<Vec<_>>(), [2, 2, 1]);
        faults.clear();
        assert!(faults.take().is_empty());
    }

    #[test]
    fn faults_of_health_leave_inference_alone() {
        let mut faults = Faults::default();
        faults.arm(Fault { kind: FaultKind::Health(503), times: None });
        faults.arm(Fault { kind: FaultKind::HealthDelayMs(7), times: None });
        assert!(faults.take().is_empty());
        assert_eq!((faults.health(), faults.health_delay()), (503, Duration::from_millis(7)));
    }

    #[test]
    fn faults_are_written_as_json() {
        for text in [
            r#"{"kind":"stall"}"#,
            r#"{"kind":{"stall_after":2},"times":1}"#,
            r#"{"kind":{"status":{"status":429,"body":"{}","retry_after":7}}}"#,
            r#"{"kind":{"missing":"no_port"}}"#,
            r#"{"kind":{"junk":"half"}}"#,
            r#"{"kind":{"restart_ms":100}}"#,
        ] {
            assert!(serde_json::from_str::<Fault>(text).is_ok(), "{text}");
        }
    }
}
