//! A running engine: start, look inside, break, stop, start again.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::runtime::Handle;

use crate::config::SimConfig;
use crate::door::Door;
use crate::engine::Engine;
use crate::fault::Fault;
use crate::ledger::LedgerView;
use crate::life;
use crate::log::Recorded;

/// One simulated engine. Dropping it ends it.
#[derive(Debug)]
pub struct Sim {
    engine: Arc<Engine>,
}

impl Sim {
    /// Starts an engine on the calling runtime.
    ///
    /// # Errors
    /// The system's, most often a port that is taken.
    pub async fn start(config: SimConfig) -> io::Result<Sim> {
        let address = tokio::net::lookup_host((config.host.as_str(), config.port))
            .await?
            .next()
            .ok_or(io::ErrorKind::NotFound)?;
        let engine = Engine::new(config, Door::new(address)?, Handle::current());
        life::begin(&engine).await?;
        Ok(Sim { engine })
    }

    /// Its base URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr())
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.engine.door().address()
    }

    /// The POST requests so far, in order; the oldest go when there are too many.
    #[must_use]
    pub fn requests(&self) -> Vec<Recorded> {
        self.engine.log().all()
    }

    /// Forgets the requests so far.
    pub fn clear_requests(&self) {
        self.engine.log().clear();
    }

    /// The ledger now.
    #[must_use]
    pub fn ledger(&self) -> LedgerView {
        let mut ledger = self.engine.ledger();
        ledger.expire(self.engine.config().lease);
        ledger.view().clone()
    }

    /// Inference requests that run now.
    #[must_use]
    pub fn running(&self) -> usize {
        self.engine.running()
    }

    /// Client connections that are open now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.engine.connections.load(Ordering::Relaxed)
    }

    /// The id of this life.
    #[must_use]
    pub fn engine_id(&self) -> String {
        self.engine.id()
    }

    /// Puts a fault in force, beside those that are.
    pub fn set_fault(&self, fault: Fault) {
        life::arm(&self.engine, fault);
    }

    /// Ends every fault.
    pub fn clear_faults(&self) {
        life::heal(&self.engine);
    }

    /// Requests that wait for a slot or for blocks now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.engine.waiting()
    }

    /// Dies: the port is closed and every connection reset.
    pub async fn stop(&self) {
        life::die(&self.engine).await;
    }

    /// Starts again on the same port: new id, nothing pinned.
    ///
    /// # Errors
    /// The system's, if another process took the port.
    pub async fn restart(&self) -> io::Result<()> {
        life::restart(&self.engine).await
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.engine.door().shut();
        self.engine.tasks().cancel();
        self.engine.lasting().cancel();
    }
}
