//! The ledger: every handoff that an engine issued, what became of it, and what a router did wrong.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use serde::Serialize;

/// How many handoffs and violations are remembered.
const REMEMBERED: usize = 65_536;

/// Counts and violations at one moment. `issued = fetched + released + expired + pinned` at every moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LedgerView {
    /// Handoffs given out.
    pub issued: usize,
    /// Those that a decode engine fetched.
    pub fetched: usize,
    /// Those given back unused.
    pub released: usize,
    /// Those whose lease ran out.
    pub expired: usize,
    /// Those that still pin blocks.
    pub pinned: usize,
    /// Blocks in use.
    pub pinned_blocks: usize,
    /// What a router must never do, in words.
    pub violations: Vec<String>,
}

/// Why a handoff cannot be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Unknown,
    Served,
    Released,
    Expired,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Pinned,
    Fetched,
    Released,
    Expired,
}

#[derive(Debug)]
struct Entry {
    digest: u64,
    blocks: usize,
    since: Instant,
    state: State,
}

/// The ledger of one engine.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    entries: HashMap<String, Entry>,
    order: VecDeque<String>,
    view: LedgerView,
}

impl Ledger {
    /// Takes blocks for a prompt that is being computed.
    pub(crate) fn pin(&mut self, blocks: usize) {
        self.view.pinned_blocks += blocks;
    }

    /// Gives blocks back.
    pub(crate) fn unpin(&mut self, blocks: usize) {
        self.view.pinned_blocks = self.view.pinned_blocks.saturating_sub(blocks);
    }

    /// Issues a handoff for blocks that are pinned already.
    pub(crate) fn issue(&mut self, id: String, digest: u64, blocks: usize) {
        if self.order.len() == REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.entries.remove(&oldest);
        }
        self.order.push_back(id.clone());
        self.entries.insert(id, Entry { digest, blocks, since: Instant::now(), state: State::Pinned });
        self.view.issued += 1;
        self.view.pinned += 1;
    }

    /// A decode engine pulls the blocks; the digest of the prompt goes with them.
    pub(crate) fn fetch(&mut self, id: &str) -> Result<u64, Refusal> {
        let digest = self.end(id, State::Fetched)?;
        self.view.fetched += 1;
        Ok(digest)
    }

    /// A decode engine says that it will not come.
    pub(crate) fn release(&mut self, id: &str) -> Result<u64, Refusal> {
        let digest = self.end(id, State::Released)?;
        self.view.released += 1;
        Ok(digest)
    }

    /// Ends every lease older than this.
    pub(crate) fn expire(&mut self, lease: Duration) {
        let over = |entry: &&mut Entry| entry.state == State::Pinned && entry.since.elapsed() >= lease;
        for entry in self.entries.values_mut().filter(over) {
            entry.state = State::Expired;
            self.view.pinned -= 1;
            self.view.expired += 1;
            self.view.pinned_blocks = self.view.pinned_blocks.saturating_sub(entry.blocks);
        }
    }

    /// Forgets what was pinned: the engine starts again.
    pub(crate) fn restart(&mut self) {
        self.expire(Duration::ZERO);
        self.entries.clear();
        self.order.clear();
        self.view.pinned_blocks = 0;
    }

    /// Notes what a router must never do.
    pub(crate) fn violation(&mut self, what: String) {
        if self.view.violations.len() < REMEMBERED {
            self.view.violations.push(what);
        }
    }

    /// As it is now.
    pub(crate) fn view(&self) -> &LedgerView {
        &self.view
    }

    fn end(&mut self, id: &str, state: State) -> Result<u64, Refusal> {
        let entry = self.entries.get_mut(id).ok_or(Refusal::Unknown)?;
        match entry.state {
            State::Pinned => {}
            State::Fetched => return Err(Refusal::Served),
            State::Released => return Err(Refusal::Released),
            State::Expired => return Err(Refusal::Expired),
        }
        entry.state = state;
        self.view.pinned -= 1;
        self.view.pinned_blocks = self.view.pinned_blocks.saturating_sub(entry.blocks);
        Ok(entry.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handoff_ends_once() {
        let mut ledger = Ledger::default();
        for id in ["a", "b", "c"] {
            ledger.pin(2);
            ledger.issue(id.into(), 7, 2);
        }
        assert_eq!(ledger.fetch("a"), Ok(7));
        assert_eq!(ledger.fetch("a"), Err(Refusal::Served));
        assert_eq!(ledger.release("a"), Err(Refusal::Served));
        assert_eq!(ledger.release("b"), Ok(7));
        assert_eq!(ledger.fetch("b"), Err(Refusal::Released));
        assert_eq!(ledger.fetch("x"), Err(Refusal::Unknown));
        ledger.expire(Duration::ZERO);
        assert_eq!(ledger.fetch("c"), Err(Refusal::Expired));
        let view = ledger.view();
        assert_eq!((view.issued, view.fetched, view.released, view.expired), (3, 1, 1, 1));
        assert_eq!((view.pinned, view.pinned_blocks), (0, 0));
    }
}
