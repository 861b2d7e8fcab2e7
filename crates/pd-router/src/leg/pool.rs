//! Engine connections, one pool a worker: an idle one is used again for as long as the engine surely keeps
//! it open, and a request that never left is proof that it may be sent elsewhere.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;

use super::body::{AnswerBody, ChainBody};
use super::dial;
use crate::failure::FailureKind;
use crate::fleet::engine::Engine;
use crate::task;

/// How long an idle connection is used again, the default of `--pool-idle-timeout-secs`. uvicorn, which serves vLLM, closes one after 5 s.
pub const IDLE_MAX: Duration = Duration::from_secs(4);

/// The most idle connections kept an engine and worker; more are closed.
const IDLE_CONNECTIONS_MAX: usize = 1024;

/// What a pool needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a connection may take to open.
    pub connect_timeout: Duration,
    /// How long an idle connection is used again.
    pub idle_max: Duration,
    /// TLS for https engines.
    pub tls: Arc<rustls::ClientConfig>,
}

/// The engine connections of one worker.
#[derive(Debug)]
pub struct LegClient {
    settings: Settings,
    shelves: Mutex<HashMap<u64, Vec<Idle>>>,
}

#[derive(Debug)]
struct Idle {
    sender: SendRequest<ChainBody>,
    since: Instant,
    epoch: u64,
}

/// A connection in use for one exchange.
#[derive(Debug)]
pub(super) struct Lease {
    client: Arc<LegClient>,
    engine: u64,
    epoch: u64,
    sender: SendRequest<ChainBody>,
}

impl Lease {
    /// Puts the connection back; its last answer has been read to the end.
    pub(super) fn give_back(self) {
        if self.sender.is_closed() {
            return;
        }
        let idle_max = self.client.settings.idle_max;
        let mut shelves = self.client.shelves.lock();
        let shelf = shelves.entry(self.engine).or_default();
        shelf.retain(|idle| idle.since.elapsed() < idle_max && !idle.sender.is_closed());
        if shelf.len() < IDLE_CONNECTIONS_MAX {
            shelf.push(Idle { sender: self.sender, since: Instant::now(), epoch: self.epoch });
        }
    }
}

/// Whether a request may be sent again when an idle connection dies under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resend {
    /// Only if it never left: a decode leg with a handoff, which is spent once sent.
    Unsent,
    /// Once, on a fresh connection.
    Once,
}

/// Whether any byte of a request may have left, and since when.
#[derive(Debug, Default)]
pub struct Sent(Mutex<Option<Instant>>);

impl Sent {
    /// Whether any byte may have left.
    #[must_use]
    pub fn any(&self) -> bool {
        self.at().is_some()
    }

    /// When the request was handed to its connection.
    #[must_use]
    pub fn at(&self) -> Option<Instant> {
        *self.0.lock()
    }

    fn set(&self, at: Option<Instant>) {
        *self.0.lock() = at;
    }
}

impl LegClient {
    /// An empty pool.
    #[must_use]
    pub fn new(settings: Settings) -> Arc<Self> {
        Arc::new(Self { settings, shelves: Mutex::default() })
    }

    /// Sends a request to an engine and waits for the head of the answer. `make` builds the request, again
    /// where it is sent again. `sent` says whether any byte of it may have left.
    ///
    /// # Errors
    /// [`FailureKind`]; [`FailureKind::nothing_sent`] says whether the engine can have seen any of it.
    pub async fn exchange(
        self: &Arc<Self>,
        engine: &Engine,
        resend: Resend,
        sent: &Sent,
        make: impl Fn() -> Request<ChainBody>,
    ) -> Result<Response<AnswerBody>, FailureKind> {
        let mut request = make();
        while let Some(sender) = self.take_idle(engine) {
            match self.send(engine, sender, sent, request).await {
                Ok(answer) => return Ok(answer),
                Err(Some(unsent)) => request = unsent,
                Err(None) if resend == Resend::Once => {
                    request = make();
                    break;
                }
                Err(None) => return Err(FailureKind::Reset { reused: true }),
            }
        }
        // Boxed, since it is rare: its state would make every request's 1.3 KB larger.
        let sender = Box::pin(self.connect(engine)).await?;
        match self.send(engine, sender, sent, request).await {
            Ok(answer) => Ok(answer),
            Err(Some(_)) => Err(FailureKind::Connect(Cow::Borrowed("closed at once"))),
            Err(None) => Err(FailureKind::Reset { reused: false }),
        }
    }

    /// Sends on one connection. The error holds the request if no byte of it left.
    async fn send(
        self: &Arc<Self>,
        engine: &Engine,
        mut sender: SendRequest<ChainBody>,
        sent: &Sent,
        request: Request<ChainBody>,
    ) -> Result<Response<AnswerBody>, Option<Request<ChainBody>>> {
        sent.set(Some(Instant::now()));
        let result: Result<Response<Incoming>, _> = sender.try_send_request(request).await;
        let answer = result.map_err(|mut error| {
            let unsent = error.take_message();
            if unsent.is_some() {
                sent.set(None);
            }
            unsent
        })?;
        let (client, epoch) = (Arc::clone(self), engine.epoch());
        let lease = Lease { client, engine: engine.id(), epoch, sender };
        Ok(answer.map(|incoming| AnswerBody::new(incoming, lease)))
    }

    /// The idle connection used last, if one is still good.
    fn take_idle(&self, engine: &Engine) -> Option<SendRequest<ChainBody>> {
        let (epoch, idle_max) = (engine.epoch(), self.settings.idle_max);
        let mut shelves = self.shelves.lock();
        let shelf = shelves.get_mut(&engine.id())?;
        let good = |idle: &mut Idle| idle.since.elapsed() < idle_max && !idle.sender.is_closed();
        shelf.retain_mut(|idle| idle.epoch == epoch && good(idle));
        let ready = shelf.iter().rposition(|idle| idle.sender.is_ready())?;
        Some(shelf.remove(ready).sender)
    }

    /// Closes what nobody will use again: engines come and go.
    fn tidy(&self) {
        let idle_max = self.settings.idle_max;
        self.shelves.lock().retain(|_, shelf| {
            shelf.retain(|idle| idle.since.elapsed() < idle_max && !idle.sender.is_closed());
            !shelf.is_empty()
        });
    }

    async fn connect(&self, engine: &Engine) -> Result<SendRequest<ChainBody>, FailureKind> {
        let connecting = async {
            let io = dial::dial(engine.url(), &self.settings.tls).await.map_err(|error| text(&error))?;
            http1::handshake(TokioIo::new(io)).await.map_err(|error| text(&error))
        };
        let (sender, connection) = tokio::time::timeout(self.settings.connect_timeout, connecting)
            .await
            .map_err(|_| FailureKind::ConnectSlow)?
            .map_err(FailureKind::Connect)?;
        self.tidy();
        task::background(async move {
            // How a connection ends is seen by the exchange that it carries.
            connection.await.ok();
        });
        Ok(sender)
    }
}

fn text(error: &dyn std::error::Error) -> Cow<'static, str> {
    Cow::Owned(error.to_string())
}
