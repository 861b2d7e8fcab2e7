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

use crate::admin::fan_out::{self, FanOut};
use crate::admin::{self, Admin};
use crate::config::Config;
use crate::dispatch::Context;
use crate::edge::{self, cors::Cors};
use crate::fleet::engine;
use crate::fleet::{self, Fleet};
use crate::ids::Role;
use crate::leg::pool::LegClient;
use crate::listen::{self, Worker};
use crate::observe::history::LOOK_INTERVAL;
use crate::observe::otlp::{Tracing, TracingError};
use crate::observe::{Observe, peer};
use crate::plan::Planner;
use crate::probe::{ProbeError, Prober};
use crate::release::Releaser;
use crate::request::api::APIS;
use crate::retry;
use crate::roster::{self, Refused, Roster};
use crate::task::Tasks;

/// How the router ends.
#[derive(Clone, Copy, Debug)]
pub struct Drain {
    /// How long it still serves after readiness has turned, for load balancers that need time to notice.
    pub grace: Duration,
    /// How long requests in flight may take to end; then streams get an error event.
    pub timeout: Duration,
}

impl Default for Drain {
    fn default() -> Self {
        Self { grace: Duration::ZERO, timeout: Duration::from_secs(300) }
    }
}

/// Descriptors for everything but clients' requests: listeners, runtimes, logs, the metrics port, probes,
/// releases, and connections that are told that there are too many.
const DESCRIPTORS_RESERVED: u64 = 128;

/// Between two times that policies forget what is too old.
const TIDY_INTERVAL: Duration = Duration::from_secs(60);

/// Connections to the metrics port.
const METRICS_CONNECTIONS_MAX: usize = 16;

/// The descriptor limit of most systems.
const SOFT_LIMIT: u64 = 1024;

/// How long connections may take to close once nothing is in flight.
const CLOSE_MAX: Duration = Duration::from_secs(2);

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
    /// The probes' client cannot be built.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The client for calls to all engines cannot be built.
    #[error("cannot build the client of calls to engines: {0}")]
    Control(#[from] reqwest::Error),
    /// Too many engines.
    #[error(transparent)]
    Engines(#[from] Refused),
    /// No spans can be sent.
    #[error(transparent)]
    Traces(#[from] TracingError),
    /// The metric families collide: a fault of this code.
    #[error("cannot register the metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// A router that serves.
#[derive(Debug)]
pub struct Router {
    address: SocketAddr,
    admin: Arc<Admin>,
    drain: Drain,
    refuse: CancellationToken,
    cut: CancellationToken,
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
    pub async fn start(mut config: Config) -> Result<Self, StartError> {
        let bind_error = |error| StartError::Bind { host: config.host.clone(), port: config.port, error };
        let listener = listen::bind(&config.host, config.port).await.map_err(bind_error)?;
        let address = listener.local_addr().map_err(bind_error)?;
        config.listen.connections_max =
            config.listen.connections_max.min(connections_max(raise_descriptor_limit()));
        if let Some(key) = &config.engine_key {
            tracing::info!("{}", key.use_in_words());
        }
        let observe = observe(&config)?;
        let fleet = Arc::new(Fleet::of(config.pools));
        let planner = Arc::new(Planner::new(&config.plan));
        crate::task::background(tidy(Arc::clone(&planner)));
        report(&observe, &fleet, &config);
        let roster = roster(&config, &fleet, &planner, &observe)?;
        let admin = Arc::new(admin(&config, &roster, &fleet, &planner, &observe)?);
        let mut router = Self {
            address,
            admin: Arc::clone(&admin),
            drain: config.drain,
            refuse: CancellationToken::new(),
            cut: CancellationToken::new(),
            tasks: Tasks::default(),
            stop: CancellationToken::new(),
            end: CancellationToken::new(),
            threads: Vec::new(),
        };
        let retries = Arc::new(retry::Budget::default());
        let missing = Arc::default();
        let control = LegClient::new(config.leg.clone());
        let releaser = Releaser::start(Arc::clone(&fleet), control, Arc::clone(&observe));
        let front = edge::Front {
            request_id_headers: config.request_id_headers.clone().into(),
            cors: Arc::new(Cors::new(config.cors.clone(), &config.routes)),
        };
        let mut workers = Vec::new();
        for index in 0..config.threads.max(1) {
            let context = Context {
                fleet: Arc::clone(&fleet),
                planner: Arc::clone(&planner),
                observe: Arc::clone(&observe),
                client: LegClient::new(config.leg.clone()),
                releaser: releaser.clone(),
                retries: Arc::clone(&retries),
                admit: config.admit.clone(),
                queue: Arc::clone(&config.queue),
                key: config.engine_key.clone(),
                missing: Arc::clone(&missing),
                refuse: router.refuse.clone(),
                cut: router.cut.clone(),
                settings: config.dispatch,
            };
            let paths = edge::router(Arc::new(context), &config.routes, &admin, &front);
            workers
                .push(router.worker(index, paths, edge::full(&admin, &front)).map_err(StartError::Worker)?);
        }
        router.serve_metrics(&config, &admin, &front).await;
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
    pub fn observe(&self) -> &Arc<Observe> {
        &self.admin.observe
    }

    /// The engines.
    #[must_use]
    pub fn fleet(&self) -> &Fleet {
        &self.admin.fleet
    }

    /// Waits until every engine is up.
    pub async fn all_up(&self) {
        let down = |role: &Role| {
            let fleet = self.fleet().snapshot();
            fleet.up(*role) < fleet.pool(*role).len()
        };
        while self.fleet().pools().roles().iter().any(down) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends: readiness turns at once, after the grace new requests are refused, requests in flight end or are
    /// told so, and then the workers end.
    pub async fn stop(self) {
        self.admin.draining.cancel();
        tokio::time::sleep(self.drain.grace).await;
        self.refuse.cancel();
        if tokio::time::timeout(self.drain.timeout, self.nothing_in_flight()).await.is_err() {
            tracing::warn!(
                requests = self.admin.observe.in_flight(),
                "requests in flight are cut (--drain-timeout-secs)"
            );
            self.cut.cancel();
            tokio::time::timeout(CLOSE_MAX, self.nothing_in_flight()).await.ok();
        }
        self.stop.cancel();
        if tokio::time::timeout(CLOSE_MAX, self.tasks.drained()).await.is_err() {
            tracing::warn!(connections = self.tasks.len(), "ended with connections still open");
        }
        self.end.cancel();
        let observe = Arc::clone(&self.admin.observe);
        tokio::task::spawn_blocking(move || observe.flush_traces()).await.ok();
        for thread in self.threads {
            thread.join().ok();
        }
    }

    async fn nothing_in_flight(&self) {
        while self.admin.observe.in_flight() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn worker(&mut self, index: usize, router: axum::Router, full: axum::Router) -> io::Result<Worker> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let end = self.end.clone();
        let run = move || {
            runtime.block_on(end.cancelled());
        };
        self.threads.push(std::thread::Builder::new().name(format!("worker-{index}")).spawn(run)?);
        Ok(Worker { runtime: handle, router, full, connections: Arc::new(AtomicUsize::new(0)) })
    }

    /// Serves `/metrics` on a port of its own; a port that is taken costs a warning, not the router.
    async fn serve_metrics(&self, config: &Config, admin: &Arc<Admin>, front: &edge::Front) {
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
            full: edge::full(admin, front),
            connections: Arc::default(),
        };
        let settings = listen::Settings { connections_max: METRICS_CONNECTIONS_MAX, ..config.listen };
        let serve = listen::serve(listener, vec![worker], settings, Tasks::default(), self.stop.clone());
        crate::task::background(serve);
    }
}

fn observe(config: &Config) -> Result<Arc<Observe>, StartError> {
    let observe = Arc::new(Observe::new(&APIS.each_ref().map(|api| api.name))?);
    if config.peer_metrics {
        observe.speak_as_peer(peer::Settings {
            routes: APIS.iter().map(|api| (api.name, api.path)).collect(),
            policies: [config.plan.prefill.as_str(), config.plan.decode.as_str()],
        })?;
    }
    if config.access_log {
        observe.keep_access_record();
    }
    if let Some(traces) = &config.traces {
        observe.trace(Tracing::start(traces, &config.leg.tls)?);
    }
    Ok(observe)
}

/// The fleet with the engines of the configuration.
fn roster(
    config: &Config,
    fleet: &Arc<Fleet>,
    planner: &Arc<Planner>,
    observe: &Arc<Observe>,
) -> Result<Arc<Roster>, StartError> {
    let settings = |in_flight_max| engine::Settings { breaker: config.breaker, in_flight_max };
    let settings = roster::Settings {
        prefill: settings(config.prefill_per_engine_max),
        decode: settings(config.decode_per_engine_max),
    };
    let prober = Prober::new(&config.probe, &config.leg.tls, config.engine_key.as_ref())?;
    let roster = Roster::new(Arc::clone(fleet), Arc::clone(observe), Arc::clone(planner), prober, settings);
    for url in &config.prefill {
        roster.add(Role::Prefill, url)?;
    }
    for url in &config.decode {
        roster.add(config.pools.last(), url)?;
    }
    Ok(roster)
}

fn admin(
    config: &Config,
    roster: &Arc<Roster>,
    fleet: &Arc<Fleet>,
    planner: &Arc<Planner>,
    observe: &Arc<Observe>,
) -> Result<Admin, StartError> {
    Ok(Admin {
        draining: CancellationToken::new(),
        fleet: Arc::clone(fleet),
        planner: Arc::clone(planner),
        observe: Arc::clone(observe),
        roster: Arc::clone(roster),
        policies: [config.plan.prefill.as_str(), config.plan.decode.as_str()],
        strict_health: config.strict_health,
        key: config.admin_key.clone(),
        admit: config.admit.clone(),
        fan_out: FanOut {
            fleet: Arc::clone(fleet),
            client: fan_out::client(config.leg.connect_timeout, &config.leg.tls)?,
            timeout: config.dispatch.request_timeout,
            key: config.engine_key.clone(),
        },
    })
}

/// What the metrics show of the moment in which they are asked for, and of the last minutes.
fn report(observe: &Arc<Observe>, fleet: &Arc<Fleet>, config: &Config) {
    let (fleet, queue, budget) =
        (Arc::clone(fleet), Arc::clone(&config.queue), Arc::clone(&config.admit.budget));
    crate::task::background(watch(Arc::clone(observe)));
    observe.on_scrape(move |observe| {
        observe.queue_depth.set(i64::try_from(queue.waiting()).unwrap_or(i64::MAX));
        observe.buffered_bytes.set(i64::try_from(budget.used()).unwrap_or(i64::MAX));
        fleet::report::report(&fleet.snapshot(), observe);
    });
}

/// Lets the policies forget, off the request path.
async fn tidy(planner: Arc<Planner>) {
    loop {
        tokio::time::sleep(TIDY_INTERVAL).await;
        planner.tidy();
    }
}

/// Keeps the last minutes for who watches, off the request path.
async fn watch(observe: Arc<Observe>) {
    loop {
        observe.look();
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// A stream takes two descriptors, and the soft limit is 1,024 on most systems.
fn raise_descriptor_limit() -> u64 {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(limit) => {
            tracing::info!(limit, "descriptor limit: each request in flight takes two");
            limit
        }
        Err(error) => {
            tracing::warn!(%error, "the descriptor limit could not be raised");
            rlimit::getrlimit(rlimit::Resource::NOFILE).map_or(SOFT_LIMIT, |(soft, _)| soft)
        }
    }
}

/// How many client connections there are descriptors for: each may need one to an engine too.
fn connections_max(descriptors: u64) -> usize {
    let most = descriptors.saturating_sub(DESCRIPTORS_RESERVED) / 2;
    usize::try_from(most).unwrap_or(usize::MAX).max(1)
}
