//! A running engine: start, look inside, break, stop, start again.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Handle;

use crate::config::SimConfig;
use crate::engine::Engine;
use crate::fault::Fault;
use crate::ledger::LedgerView;
use crate::log::Recorded;
use crate::task::Tasks;
use crate::{server, side};

/// One simulated engine. Dropping it ends it.
#[derive(Debug)]
pub struct Sim {
    address: SocketAddr,
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
        let listener = listen(address)?;
        let address = listener.local_addr()?;
        let engine = Engine::new(config, Tasks::new(Handle::current()));
        let sim = Sim { address, engine };
        sim.open(listener).await?;
        Ok(sim)
    }

    async fn open(&self, listener: TcpListener) -> io::Result<()> {
        let tasks = self.engine.tasks();
        if self.engine.config().role.prefills() {
            let side = TcpListener::bind((self.address.ip(), 0)).await?;
            self.engine.set_side_port(side.local_addr()?.port());
            tasks.spawn(side::serve(side, Arc::clone(&self.engine)));
        }
        tasks.spawn(server::serve(listener, Arc::clone(&self.engine)));
        Ok(())
    }

    /// Its base URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.address
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

    /// Adds a fault.
    pub fn set_fault(&self, fault: Fault) {
        self.engine.faults().arm(fault);
    }

    /// Removes every fault.
    pub fn clear_faults(&self) {
        self.engine.faults().clear();
    }

    /// Dies: the port is closed and every connection reset.
    pub async fn stop(&self) {
        self.engine.tasks().stop().await;
    }

    /// Starts again on the same port: new id, nothing pinned.
    ///
    /// # Errors
    /// The system's, if another process took the port.
    pub async fn restart(&self) -> io::Result<()> {
        self.stop().await;
        let deadline = server::deadline();
        let listener = loop {
            match listen(self.address) {
                Ok(listener) => break listener,
                Err(error) if std::time::Instant::now() > deadline => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        self.engine.restart(Tasks::new(self.engine.tasks().runtime().clone()));
        self.open(listener).await
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.engine.tasks().cancel();
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(1024)
}
