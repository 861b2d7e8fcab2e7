//! What one engine holds: its identity, its ledger, what it was asked, its faults and its counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::config::SimConfig;
use crate::control::Control;
use crate::door::Door;
use crate::fault::Faults;
use crate::ledger::Ledger;
use crate::log::Log;
use crate::task::Tasks;

/// The state of one engine.
#[derive(Debug)]
pub(crate) struct Engine {
    config: SimConfig,
    door: Door,
    /// The ids of all lives, the present one last.
    ids: Mutex<Vec<String>>,
    side_port: AtomicUsize,
    ledger: Mutex<Ledger>,
    log: Mutex<Log>,
    faults: Mutex<Faults>,
    /// What ends with the present life.
    tasks: Mutex<Tasks>,
    /// What ends with the sim.
    lasting: Tasks,
    blocks_freed: Notify,
    slots: Semaphore,
    running: AtomicUsize,
    waiting: AtomicUsize,
    pub(crate) control: Control,
    pub(crate) connections: AtomicUsize,
    pub(crate) prompt_tokens: AtomicU64,
    pub(crate) generated_tokens: AtomicU64,
    pub(crate) external_tokens: AtomicU64,
    pub(crate) succeeded: AtomicU64,
    pub(crate) failed_transfers: AtomicU64,
}

/// One request that runs; dropping it ends the count.
#[derive(Debug)]
pub(crate) struct Running(Arc<Engine>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One request that waits for room; dropping it ends the count.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How often a request that waits for blocks looks whether a lease has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

impl Engine {
    pub(crate) fn new(config: SimConfig, door: Door, runtime: Handle) -> Arc<Engine> {
        Arc::new(Engine {
            door,
            ids: Mutex::new(vec![new_id()]),
            side_port: AtomicUsize::new(0),
            ledger: Mutex::new(Ledger::new(config.blocks)),
            log: Mutex::default(),
            faults: Mutex::default(),
            tasks: Mutex::new(Tasks::new(runtime.clone())),
            lasting: Tasks::new(runtime),
            blocks_freed: Notify::new(),
            slots: Semaphore::new(config.max_running.min(Semaphore::MAX_PERMITS)),
            config,
            running: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            control: Control::default(),
            connections: AtomicUsize::new(0),
            prompt_tokens: AtomicU64::new(0),
            generated_tokens: AtomicU64::new(0),
            external_tokens: AtomicU64::new(0),
            succeeded: AtomicU64::new(0),
            failed_transfers: AtomicU64::new(0),
        })
    }

    /// A new life: new id, nothing pinned.
    pub(crate) fn begin_life(&self) {
        self.ids.lock().push(new_id());
        self.ledger().restart();
        self.control.reset();
        *self.tasks.lock() = Tasks::new(self.lasting.runtime().clone());
    }

    /// Whether this id was that of an earlier life.
    pub(crate) fn lived_as(&self, id: &str) -> bool {
        self.ids.lock().iter().any(|lived| lived == id)
    }

    pub(crate) fn door(&self) -> &Door {
        &self.door
    }

    pub(crate) fn lasting(&self) -> &Tasks {
        &self.lasting
    }

    pub(crate) fn config(&self) -> &SimConfig {
        &self.config
    }

    pub(crate) fn id(&self) -> String {
        self.ids.lock().last().cloned().unwrap_or_default()
    }

    pub(crate) fn set_side_port(&self, port: u16) {
        self.side_port.store(usize::from(port), Ordering::Relaxed);
    }

    pub(crate) fn side_port(&self) -> usize {
        self.side_port.load(Ordering::Relaxed)
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock()
    }

    pub(crate) fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock()
    }

    pub(crate) fn tasks(&self) -> Tasks {
        self.tasks.lock().clone()
    }

    pub(crate) fn run(self: &Arc<Self>) -> Running {
        self.running.fetch_add(1, Ordering::Relaxed);
        Running(Arc::clone(self))
    }

    pub(crate) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// Requests that wait for a slot or for blocks.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// One of the places in which requests are computed, when there is one.
    pub(crate) async fn slot(&self) -> Option<SemaphorePermit<'_>> {
        if let Ok(slot) = self.slots.try_acquire() {
            return Some(slot);
        }
        let _waiting = Waiting::new(&self.waiting);
        self.slots.acquire().await.ok()
    }

    /// Blocks for so many tokens, when there are enough.
    pub(crate) async fn blocks(&self, tokens: usize) -> Vec<usize> {
        let count = tokens.div_ceil(self.config.block_size.max(1)).max(1);
        let mut waiting = None;
        loop {
            let freed = self.blocks_freed.notified();
            let taken = {
                let mut ledger = self.ledger();
                ledger.expire(self.config.lease);
                ledger.take(count)
            };
            if let Some(blocks) = taken {
                return blocks;
            }
            waiting.get_or_insert_with(|| Waiting::new(&self.waiting));
            tokio::time::timeout(LOOK_AGAIN, freed).await.ok();
        }
    }

    /// Says that blocks may have been given back.
    pub(crate) fn freed(&self) {
        self.blocks_freed.notify_waiters();
    }

    /// The fingerprint of answers: real ones name the version and the configuration, not the engine.
    pub(crate) fn fingerprint(&self) -> String {
        format!("vllm-{}-sim", self.config.version)
    }

    /// Notes what went wrong without a router's fault.
    pub(crate) fn failure(&self, what: impl Into<String>) {
        self.failed_transfers.fetch_add(1, Ordering::Relaxed);
        self.ledger().failure(what.into());
    }

    /// Notes what a router must never do.
    pub(crate) fn violation(&self, what: impl Into<String>) {
        self.ledger().violation(format!("{} {:?}: {}", self.config.model, self.config.role, what.into()));
    }
}

/// An id in the form of a UUID, one a life.
fn new_id() -> String {
    let bits = fastrand::u128(..);
    let part =
        |shift: u32, digits: usize| format!("{:0digits$x}", (bits >> shift) & ((1 << (digits * 4)) - 1));
    format!("{}-{}-4{}-a{}-{}", part(96, 8), part(80, 4), part(68, 3), part(56, 3), part(0, 12))
}
