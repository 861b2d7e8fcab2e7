//! Mock engines, fast enough not to be the limit: a pool of prefill and a pool of decode engines over hyper
//! that look at the ends of a body and drop the rest as it comes.

mod answer;
mod stream;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::workers::{Workers, listen};
use answer::{Engine, Role};

/// Two pools of engines. Dropping them ends them.
#[derive(Debug)]
pub struct Engines {
    /// Where the prefill engines listen.
    pub prefill: Vec<SocketAddr>,
    /// Where the decode engines listen.
    pub decode: Vec<SocketAddr>,
    _doors: JoinSet<()>,
}

impl Engines {
    /// Starts pools of these sizes on free ports; all engines share this many threads.
    ///
    /// # Errors
    /// The system refused a thread or a socket.
    pub async fn start(prefill: usize, decode: usize, threads: usize) -> io::Result<Self> {
        let workers = Arc::new(Workers::start(threads)?);
        let mut doors = JoinSet::new();
        let mut pool = |role: Role, count: usize| {
            let mut addresses = Vec::new();
            for _ in 0..count {
                let listener = listen(0)?;
                let address = listener.local_addr()?;
                addresses.push(address);
                let (workers, engine) = (Arc::clone(&workers), Arc::new(Engine::new(role, address.port())));
                doors.spawn(async move {
                    let serve = move |_worker, stream| connection(stream, Arc::clone(&engine));
                    workers.accept(listener, serve).await;
                });
            }
            Ok::<_, io::Error>(addresses)
        };
        let (prefill, decode) = (pool(Role::Prefill, prefill)?, pool(Role::Decode, decode)?);
        Ok(Self { prefill, decode, _doors: doors })
    }
}

async fn connection(stream: TcpStream, engine: Arc<Engine>) {
    let service = service_fn(move |request| {
        let engine = Arc::clone(&engine);
        async move { engine.answer(request).await }
    });
    // How a connection ends is the router's affair.
    http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok();
}
