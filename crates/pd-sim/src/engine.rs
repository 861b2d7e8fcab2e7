//! What one engine holds: its identity, its ledger, what it was asked, its faults and its counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::config::SimConfig;
use crate::fault::Faults;
use crate::ledger::Ledger;
use crate::log::Log;
use crate::task::Tasks;

/// The state of one engine.
#[derive(Debug)]
pub(crate) struct Engine {
    config: SimConfig,
    id: Mutex<String>,
    side_port: AtomicUsize,
    ledger: Mutex<Ledger>,
    log: Mutex<Log>,
    faults: Mutex<Faults>,
    tasks: Mutex<Tasks>,
    running: AtomicUsize,
    pub(crate) connections: AtomicUsize,
    pub(crate) prompt_tokens: AtomicU64,
    pub(crate) generated_tokens: AtomicU64,
    pub(crate) external_tokens: AtomicU64,
    pub(crate) succeeded: AtomicU64,
}

/// One request that runs; dropping it ends the count.
#[derive(Debug)]
pub(crate) struct Running(Arc<Engine>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Engine {
    pub(crate) fn new(config: SimConfig, tasks: Tasks) -> Arc<Engine> {
        Arc::new(Engine {
            config,
            id: Mutex::new(new_id()),
            side_port: AtomicUsize::new(0),
            ledger: Mutex::default(),
            log: Mutex::default(),
            faults: Mutex::default(),
            tasks: Mutex::new(tasks),
            running: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            prompt_tokens: AtomicU64::new(0),
            generated_tokens: AtomicU64::new(0),
            external_tokens: AtomicU64::new(0),
            succeeded: AtomicU64::new(0),
        })
    }

    /// A new life: new id, nothing pinned.
    pub(crate) fn restart(&self, tasks: Tasks) {
        *self.id.lock() = new_id();
        self.ledger.lock().restart();
        *self.tasks.lock() = tasks;
    }

    pub(crate) fn config(&self) -> &SimConfig {
        &self.config
    }

    pub(crate) fn id(&self) -> String {
        self.id.lock().clone()
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
