//! The only place that knows every module: build, bind, run, stop.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::JoinHandle;
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::admin::{self, Admin};
use crate::config::Config;
use crate::dispatch::Context;
use crate::edge;
use crate::fleet::engine::Engine;
use crate::fleet::url::EngineUrl;
use crate::fleet::{Fleet, Snapshot};
use crate::ids::Role;
use crate::leg::pool::LegClient;
use crate::listen::{self, Worker};
use crate::observe::Observe;
use crate::plan::Planner;
use crate::request::api::APIS;
use crate::task::Tasks;

/// How long requests in flight may take to end when the router stops.
const DRAIN_MAX: Duration = Duration::from_secs(30);

/// Why the router does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The address cannot be listened on.
    #[error("cannot listen on {host}:{port} (`--host`, `--port`): {error}")]
    Bind {
        /// The host.
        host: String,
        /// The port.
        port: u16,
        /// The system's error.
        error: io::Error,
    },
    /// The system refused a thread or a runtime.
    #[error("cannot start a worker: {0}")]
    Worker(io::Error),
    /// The metric families collide: a fault of this code.
    #[error("cannot register the metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// A router that serves.
#[derive(Debug)]
pub struct Router {
    address: SocketAddr,
    admin: Arc<Admin>,
    tasks: Tasks,
    stop: CancellationToken,
    end: CancellationToken,
    threads: Vec<JoinHandle<()>>,
}

impl Router {
    /// Binds and serves. The caller's runtime accepts; workers of its own serve.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let bind_error = |error| StartError::Bind { host: config.host.clone(), port: config.port, error };
        let listener = listen::bind(&config.host, config.port).await.map_err(bind_error)?;
        let address = listener.local_addr().map_err(bind_error)?;
        let observe = Arc::new(Observe::new(&APIS.each_ref().map(|api| api.name))?);
        let engines = |role: Role, urls: &[EngineUrl]| -> Vec<_> {
            let handles = |url: &EngineUrl| observe.engines().engine(role, url.as_str());
            urls.iter().map(|url| Engine::new(role, url.clone(), handles(url))).collect()
        };
        let fleet = Arc::new(Fleet::new(Snapshot {
            prefill: engines(Role::Prefill, &config.prefill),
            decode: engines(Role::Decode, &config.decode),
        }));
        let admin = Arc::new(Admin { fleet: Arc::clone(&fleet), observe: Arc::clone(&observe) });
        let mut router = Self {
            address,
            admin: Arc::clone(&admin),
            tasks: Tasks::default(),
            stop: CancellationToken::new(),
            end: CancellationToken::new(),
            threads: Vec::new(),
        };
        let planner = Arc::new(Planner::default());
        let mut workers = Vec::new();
        for index in 0..config.threads.max(1) {
            let context = Context {
                fleet: Arc::clone(&fleet),
                planner: Arc::clone(&planner),
                observe: Arc::clone(&observe),
                client: LegClient::new(config.leg.clone()),
                admit: config.admit.clone(),
                settings: config.dispatch,
            };
            let paths = edge::router(Arc::new(context), &config.routes, &admin);
            workers.push(router.worker(index, paths).map_err(StartError::Worker)?);
        }
        router.serve_metrics(&config, &admin).await;
        let serve =
            listen::serve(listener, workers, config.listen, router.tasks.clone(), router.stop.clone());
        crate::task::background(serve);
        Ok(router)
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it counts.
    #[must_use]
    pub fn observe(&self) -> &Observe {
        &self.admin.observe
    }

    /// The engines.
    #[must_use]
    pub fn fleet(&self) -> &Fleet {
        &self.admin.fleet
    }

    /// Stops accepting, lets requests in flight end, and ends the workers.
    pub async fn stop(self) {
        self.stop.cancel();
        if tokio::time::timeout(DRAIN_MAX, self.tasks.drained()).await.is_err() {
            tracing::warn!(connections = self.tasks.len(), "ended with connections still open");
        }
        self.end.cancel();
        for thread in self.threads {
            thread.join().ok();
        }
    }

    fn worker(&mut self, index: usize, router: axum::Router) -> io::Result<Worker> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let end = self.end.clone();
        let run = move || {
            runtime.block_on(end.cancelled());
        };
        self.threads.push(std::thread::Builder::new().name(format!("worker-{index}")).spawn(run)?);
        Ok(Worker { runtime: handle, router, connections: Arc::new(AtomicUsize::new(0)) })
    }

    /// Serves `/metrics` on a port of its own; a port that is taken costs a warning, not the router.
    async fn serve_metrics(&self, config: &Config, admin: &Arc<Admin>) {
        let Some((host, port)) = &config.prometheus else { return };
        let listener: TcpListener = match listen::bind(host, *port).await {
            Ok(listener) => listener,
            Err(error) => {
                tracing::warn!(%error, "no metrics on {host}:{port} (--prometheus-port); /metrics of the main port has them");
                return;
            }
        };
        let worker = Worker {
            runtime: tokio::runtime::Handle::current(),
            router: admin::metrics_router(admin),
            connections: Arc::default(),
        };
        let serve = listen::serve(listener, vec![worker], config.listen, Tasks::default(), self.stop.clone());
        crate::task::background(serve);
    }
}
