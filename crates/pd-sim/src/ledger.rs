//! The ledger: every handoff that an engine issued, what became of it, and what a router did wrong.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

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
    /// What went wrong without a router's fault, in words: a prefill engine that is gone, or another life of it.
    pub failures: Vec<String>,
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
    issued: Issued,
    since: Instant,
    state: State,
}

/// A handoff as it was given out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Issued {
    /// The digest of the prompt.
    pub(crate) digest: u64,
    /// The blocks that hold it.
    pub(crate) blocks: Vec<usize>,
    /// The parameters as the client of the prefill leg got them.
    pub(crate) params: Value,
}

/// The ledger of one engine.
#[derive(Debug)]
pub(crate) struct Ledger {
    total: usize,
    free: VecDeque<usize>,
    entries: HashMap<String, Entry>,
    /// Every entry, oldest first.
    order: VecDeque<String>,
    /// Those that may still be pinned, oldest first: leases are all of one length.
    leases: VecDeque<String>,
    view: LedgerView,
}

impl Ledger {
    /// An engine with this many blocks, numbered from 1 as vLLM does.
    pub(crate) fn new(blocks: usize) -> Ledger {
        Ledger {
            total: blocks,
            free: (1..=blocks).collect(),
            entries: HashMap::new(),
            order: VecDeque::new(),
            leases: VecDeque::new(),
            view: LedgerView::default(),
        }
    }

    /// Takes blocks for a prompt that is being computed, if there are enough. A prompt larger than the whole
    /// pool gets all of it.
    pub(crate) fn take(&mut self, count: usize) -> Option<Vec<usize>> {
        let count = count.min(self.total);
        let taken = (count <= self.free.len()).then(|| self.free.drain(..count).collect());
        self.count_blocks();
        taken
    }

    /// Gives blocks back.
    pub(crate) fn give(&mut self, blocks: Vec<usize>) {
        self.free.extend(blocks);
        self.count_blocks();
    }

    /// Issues a handoff for blocks that were taken.
    pub(crate) fn issue(&mut self, id: String, issued: Issued) {
        if self.order.len() == REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.end(&oldest, State::Expired).ok();
            self.entries.remove(&oldest);
        }
        self.order.push_back(id.clone());
        self.leases.push_back(id.clone());
        self.entries.insert(id, Entry { issued, since: Instant::now(), state: State::Pinned });
        self.view.issued += 1;
        self.view.pinned += 1;
    }

    /// A decode engine pulls the blocks; what was issued goes with them.
    pub(crate) fn fetch(&mut self, id: &str) -> Result<Issued, Refusal> {
        self.end(id, State::Fetched)
    }

    /// A decode engine says that it will not come.
    pub(crate) fn release(&mut self, id: &str) -> Result<Issued, Refusal> {
        self.end(id, State::Released)
    }

    /// Ends every lease older than this.
    pub(crate) fn expire(&mut self, lease: Duration) {
        while let Some(id) = self.leases.front() {
            let over = |entry: &Entry| entry.state != State::Pinned || entry.since.elapsed() >= lease;
            if !self.entries.get(id).is_none_or(over) {
                return;
            }
            if let Some(id) = self.leases.pop_front() {
                self.end(&id, State::Expired).ok();
            }
        }
    }

    /// Forgets what was pinned: the engine starts again.
    pub(crate) fn restart(&mut self) {
        self.expire(Duration::ZERO);
        self.entries.clear();
        self.order.clear();
        self.free = (1..=self.total).collect();
        self.count_blocks();
    }

    /// Notes what a router must never do.
    pub(crate) fn violation(&mut self, what: String) {
        if self.view.violations.len() < REMEMBERED {
            self.view.violations.push(what);
        }
    }

    /// Notes what went wrong without a router's fault.
    pub(crate) fn failure(&mut self, what: String) {
        if self.view.failures.len() < REMEMBERED {
            self.view.failures.push(what);
        }
    }

    /// As it is now.
    pub(crate) fn view(&self) -> &LedgerView {
        &self.view
    }

    fn end(&mut self, id: &str, state: State) -> Result<Issued, Refusal> {
        let entry = self.entries.get_mut(id).ok_or(Refusal::Unknown)?;
        match entry.state {
            State::Pinned => {}
            State::Fetched => return Err(Refusal::Served),
            State::Released => return Err(Refusal::Released),
            State::Expired => return Err(Refusal::Expired),
        }
        entry.state = state;
        let issued = std::mem::take(&mut entry.issued);
        self.view.pinned -= 1;
        match state {
            State::Fetched => self.view.fetched += 1,
            State::Released => self.view.released += 1,
            State::Expired => self.view.expired += 1,
            State::Pinned => {}
        }
        self.give(issued.blocks.clone());
        Ok(issued)
    }

    fn count_blocks(&mut self) {
        self.view.pinned_blocks = self.total.saturating_sub(self.free.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issue(ledger: &mut Ledger, id: &str, blocks: usize) {
        let blocks = ledger.take(blocks).unwrap();
        ledger.issue(id.into(), Issued { digest: 7, blocks, params: Value::Null });
    }

    #[test]
    fn a_handoff_ends_once() {
        let mut ledger = Ledger::new(16);
        ["a", "b", "c"].iter().for_each(|id| issue(&mut ledger, id, 2));
        assert_eq!(ledger.view().pinned_blocks, 6);
        assert_eq!(ledger.fetch("a").map(|issued| issued.digest), Ok(7));
        assert_eq!(ledger.fetch("a"), Err(Refusal::Served));
        assert_eq!(ledger.release("a"), Err(Refusal::Served));
        assert_eq!(ledger.release("b").map(|issued| issued.digest), Ok(7));
        assert_eq!(ledger.fetch("b"), Err(Refusal::Released));
        assert_eq!(ledger.fetch("x"), Err(Refusal::Unknown));
        ledger.expire(Duration::from_secs(9));
        assert_eq!(ledger.view().expired, 0);
        ledger.expire(Duration::ZERO);
        assert_eq!(ledger.fetch("c"), Err(Refusal::Expired));
        let view = ledger.view();
        assert_eq!((view.issued, view.fetched, view.released, view.expired), (3, 1, 1, 1));
        assert_eq!((view.pinned, view.pinned_blocks), (0, 0));
    }

    #[test]
    fn blocks_belong_to_one_prompt_at_a_time() {
        let mut ledger = Ledger::new(4);
        let first = ledger.take(3).unwrap();
        assert_eq!(ledger.take(2), None);
        let second = ledger.take(1).unwrap();
        assert!(first.iter().all(|block| !second.contains(block)));
        ledger.give(first);
        assert_eq!(ledger.take(99), None);
        ledger.give(second);
        assert_eq!(ledger.take(99).map(|all| all.len()), Some(4));
    }

    #[test]
    fn a_restart_frees_everything_and_forgets() {
        let mut ledger = Ledger::new(4);
        issue(&mut ledger, "a", 4);
        ledger.restart();
        assert_eq!(ledger.fetch("a"), Err(Refusal::Unknown));
        let view = ledger.view();
        assert_eq!((view.issued, view.expired, view.pinned, view.pinned_blocks), (1, 1, 0, 0));
        assert!(ledger.take(4).is_some());
    }

    #[test]
    fn the_memory_is_bounded_and_what_it_drops_is_freed() {
        let mut ledger = Ledger::new(REMEMBERED + 1);
        (0..=REMEMBERED).for_each(|id| issue(&mut ledger, &id.to_string(), 1));
        assert_eq!(ledger.fetch("0"), Err(Refusal::Unknown));
        assert_eq!((ledger.view().expired, ledger.view().pinned_blocks), (1, REMEMBERED));
    }
}
