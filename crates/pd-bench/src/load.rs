//! The load: clients that wait for their answer before they ask again (closed loop), or requests that come
//! by chance at a fixed mean rate (open loop). Each answer is checked, each time noted.

mod client;
mod note;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::api::{Ask, Bodies, NUMBER_FIRST, NUMBER_LAST};
use crate::check::Wrong;
use crate::workers::Workers;
use client::Client;
pub use note::{Notes, Totals};

/// Requests of an open loop that may be in flight; more are not sent and count as failed.
const IN_FLIGHT_MAX: usize = 16_384;

/// Where requests go.
#[derive(Clone, Debug)]
pub enum Target {
    /// To a router.
    Router(SocketAddr),
    /// To a prefill and then to a decode engine, by the generator itself: what a router adds is measured
    /// against it.
    Direct {
        /// The prefill engines.
        prefill: Vec<SocketAddr>,
        /// The decode engines.
        decode: Vec<SocketAddr>,
    },
}

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loop {
    /// This many clients, started evenly over a time.
    Closed {
        /// Clients.
        clients: usize,
        /// From the first start to the last.
        ramp: Duration,
    },
    /// This many requests a second on average, independent of each other and of the answers; times count
    /// from when a request was to be sent.
    Open {
        /// Requests a second.
        rate: f64,
    },
}

/// One run of load, shared by its clients.
#[derive(Debug)]
pub struct Load {
    ask: Ask,
    bodies: Bodies,
    prefill_bodies: Bodies,
    target: Target,
    patience: Duration,
    number: AtomicU64,
    left: Option<AtomicU64>,
    measuring: AtomicBool,
    ended: AtomicBool,
    in_flight: AtomicUsize,
    notes: Vec<Notes>,
}

impl Load {
    /// A load on one target; `requests` bounds how many are sent.
    #[must_use]
    pub fn new(ask: &Ask, target: Target, requests: Option<u64>, threads: usize) -> Arc<Self> {
        let stream_ms = ask.tokens.saturating_mul(ask.interval_ms);
        Arc::new(Self {
            ask: ask.clone(),
            bodies: Bodies::of(ask),
            prefill_bodies: Bodies::prefill(ask),
            target,
            patience: Duration::from_secs(30) + Duration::from_millis(stream_ms) * 2,
            number: AtomicU64::new(fastrand::u64(0..NUMBER_LAST - NUMBER_FIRST)),
            left: requests.map(AtomicU64::new),
            measuring: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            notes: (0..threads.max(1)).map(|_| Notes::default()).collect(),
        })
    }

    /// From now on times count.
    pub fn measure(&self, on: bool) {
        self.measuring.store(on, Ordering::Relaxed);
    }

    /// No further request is sent.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Whether a request may still be sent; takes it off the bound.
    fn another(&self) -> bool {
        if self.ended.load(Ordering::Relaxed) {
            return false;
        }
        let Some(left) = &self.left else { return true };
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    fn next_number(&self) -> u64 {
        NUMBER_FIRST + self.number.fetch_add(1, Ordering::Relaxed) % (NUMBER_LAST - NUMBER_FIRST)
    }

    /// Right answers and events so far, of all threads; cheap enough to be asked for in a run.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let counts = self.notes.iter().map(Notes::counts);
        counts.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }

    /// What came so far, of all threads; copies every histogram, under the threads' locks.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.notes.iter().map(Notes::totals).fold(Totals::default(), Totals::plus)
    }

    /// Runs until [`Load::end`] or the last request; every request that was sent is waited for.
    ///
    /// # Errors
    /// A client's task broke off, which is a fault of this code.
    pub async fn run(self: &Arc<Self>, workers: &Workers, how: Loop) -> io::Result<()> {
        let mut clients = JoinSet::new();
        match how {
            Loop::Closed { clients: count, ramp } => {
                for id in 0..count {
                    let thread = id % workers.count().max(1);
                    let Some(handle) = workers.handles().get(thread) else { continue };
                    let wait = ramp.mul_f64(id as f64 / count as f64);
                    clients.spawn_on(Arc::clone(self).closed(thread, wait), handle);
                }
            }
            Loop::Open { rate } => {
                for (thread, handle) in workers.handles().iter().enumerate() {
                    let rate = rate / workers.count() as f64;
                    clients.spawn_on(Arc::clone(self).open(thread, rate), handle);
                }
            }
        }
        while let Some(ended) = clients.join_next().await {
            ended.map_err(io::Error::other)?;
        }
        Ok(())
    }

    async fn closed(self: Arc<Self>, thread: usize, wait: Duration) {
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        let mut client = Client::default();
        while self.another() {
            self.one(&mut client, thread, Instant::now()).await;
        }
    }

    async fn open(self: Arc<Self>, thread: usize, rate: f64) {
        let mut running = JoinSet::new();
        let idle = Arc::new(parking_lot::Mutex::new(Vec::<Client>::new()));
        let mut due = Instant::now();
        while self.another() {
            // Time between two arrivals of a Poisson process.
            due += Duration::from_secs_f64(-(1.0 - fastrand::f64()).ln() / rate);
            tokio::time::sleep_until(due).await;
            while running.try_join_next().is_some() {}
            if self.in_flight.load(Ordering::Relaxed) >= IN_FLIGHT_MAX {
                self.failed(thread, &Wrong::NotSent(IN_FLIGHT_MAX));
                continue;
            }
            self.in_flight.fetch_add(1, Ordering::Relaxed);
            let (load, idle) = (Arc::clone(&self), Arc::clone(&idle));
            running.spawn(async move {
                let mut client = idle.lock().pop().unwrap_or_default();
                load.one(&mut client, thread, due).await;
                load.in_flight.fetch_sub(1, Ordering::Relaxed);
                idle.lock().push(client);
            });
        }
        while running.join_next().await.is_some() {}
    }

    fn failed(&self, thread: usize, wrong: &Wrong) {
        if let Some(notes) = self.notes.get(thread) {
            notes.failed(wrong);
        }
    }

    /// One request, counted and noted.
    async fn one(&self, client: &mut Client, thread: usize, start: Instant) {
        let Some(notes) = self.notes.get(thread) else { return };
        let measured = self.measuring.load(Ordering::Relaxed);
        let asked = client.ask(self, notes, start, measured);
        let result = tokio::time::timeout(self.patience, asked).await;
        let result = result.unwrap_or(Err(Wrong::Slow(self.patience.as_secs())));
        match result {
            Ok(()) => notes.served(measured.then(|| start.elapsed())),
            Err(wrong) => {
                *client = Client::default();
                notes.failed(&wrong);
                // A subject that refuses everything must not be asked a million times a second.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}
