//! Accepts connections, hands each to the worker with the fewest, and serves HTTP/1.1 on it.

mod socket;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket::Shared;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::task::Tasks;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 4096;

/// How long accepting rests when the system has no descriptor or memory left.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// What is read of a request that was refused before its end, so that the client gets to see the answer:
/// closing with unread bytes resets the connection.
const LINGER_BYTES_MAX: usize = 64 * 1024 * 1024;
const LINGER_TIME_MAX: Duration = Duration::from_secs(5);

/// Limits on a connection.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// From the first wait for a request head to its end; also how long an idle connection stays open.
    pub header_timeout: Duration,
    /// The most connections that are served; a few more are told so, and only the router's own paths answer
    /// them.
    pub connections_max: usize,
}

/// Connections beyond the most that are served at once; beyond these none is accepted.
pub const CONNECTIONS_EXTRA: usize = 16;

/// A runtime that serves connections.
#[derive(Debug)]
pub struct Worker {
    /// Its runtime.
    pub runtime: Handle,
    /// Its paths, over its own engine connections.
    pub router: Router,
    /// What answers while as many connections are open as may.
    pub full: Router,
    /// How many connections it has.
    pub connections: Arc<AtomicUsize>,
}

/// Opens the listening socket.
///
/// # Errors
/// The system's: most often the address is in use.
pub async fn bind(host: &str, port: u16) -> std::io::Result<TcpListener> {
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the host has no address");
    for address in tokio::net::lookup_host((host, port)).await? {
        match listen(address) {
            Ok(listener) => return Ok(listener),
            // Another address of the same host would be another service.
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => return Err(error),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket =
        if address.is_ipv4() { tokio::net::TcpSocket::new_v4() } else { tokio::net::TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts until `stop`, each connection going to the worker with the fewest.
pub async fn serve(
    listener: TcpListener,
    workers: Vec<Worker>,
    settings: Settings,
    tasks: Tasks,
    stop: CancellationToken,
) {
    let open = || workers.iter().map(|worker| worker.connections.load(Ordering::Relaxed)).sum::<usize>();
    let mut complained = false;
    loop {
        if open() >= settings.connections_max.saturating_add(CONNECTIONS_EXTRA) {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(ACCEPT_REST) => continue,
            }
        }
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let full = open() >= settings.connections_max;
        if full && !complained {
            let most = settings.connections_max;
            tracing::warn!(
                most,
                "as many connections are open as may: raise the descriptor limit (ulimit -n)"
            );
        }
        complained = full;
        match accepted {
            Ok((stream, _)) => hand_over(stream, full, &workers, settings, &tasks, &stop),
            Err(error) => {
                tracing::warn!(%error, "no connection can be accepted now");
                tokio::time::sleep(ACCEPT_REST).await;
            }
        }
    }
}

fn hand_over(
    stream: TcpStream,
    full: bool,
    workers: &[Worker],
    settings: Settings,
    tasks: &Tasks,
    stop: &CancellationToken,
) {
    let Some(worker) = workers.iter().min_by_key(|worker| worker.connections.load(Ordering::Relaxed)) else {
        return;
    };
    // Off this runtime's reactor, onto the worker's.
    let Ok(stream) = stream.into_std() else { return };
    let counted = Counted::new(&worker.connections);
    let router = if full { worker.full.clone() } else { worker.router.clone() };
    let stop = stop.clone();
    tasks.spawn_on(&worker.runtime, async move {
        let _counted = counted;
        if let Ok(stream) = TcpStream::from_std(stream) {
            connection(stream, router, settings, stop).await;
        }
    });
}

struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The mark of a request over loopback: from this machine, or passed on by it.
#[derive(Clone, Copy, Debug)]
pub struct Loopback;

/// Serves one connection to its end.
pub async fn connection(stream: TcpStream, router: Router, settings: Settings, stop: CancellationToken) {
    // A socket without these options still serves.
    stream.set_nodelay(true).ok();
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15));
    SockRef::from(&stream).set_tcp_keepalive(&keepalive).ok();
    let local = stream.peer_addr().is_ok_and(|peer| peer.ip().to_canonical().is_loopback());
    let stream = Arc::new(stream);
    let service = router.map_request(move |mut request: Request<Incoming>| {
        if local {
            request.extensions_mut().insert(Loopback);
        }
        request
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(settings.header_timeout)
        .serve_connection(TokioIo::new(Shared(Arc::clone(&stream))), TowerToHyperService::new(service));
    let mut left = std::pin::pin!(socket::left(&stream));
    let mut stopping = false;
    let result = loop {
        tokio::select! {
            biased;
            result = poll_fn(|cx| connection.poll_without_shutdown(cx)) => break result,
            () = &mut left => return,
            () = stop.cancelled(), if !stopping => {
                stopping = true;
                std::pin::Pin::new(&mut connection).graceful_shutdown();
            }
        }
    };
    let parts = connection.into_parts();
    let mut stream = parts.io.into_inner();
    match &result {
        Err(error) if error.is_timeout() && !parts.read_buf.is_empty() => {
            stream.write_all(head_timeout().as_bytes()).await.ok();
        }
        // An answer that broke off: an HTTP/1.0 client would take a plain end for the end of the answer.
        Err(error) if error.is_user() => {
            SockRef::from(&*stream.0).set_linger(Some(Duration::ZERO)).ok();
            return;
        }
        Ok(()) | Err(_) => {}
    }
    if !stopping {
        linger(stream).await;
    }
}

/// hyper closes without a word when a head is late, so the word is said here.
fn head_timeout() -> String {
    let body = "{\"error\":{\"message\":\"the request head did not arrive in time (--header-timeout-secs)\",\
                \"type\":\"invalid_request_error\",\"param\":null,\"code\":\"head_timeout\"}}";
    format!(
        "HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

async fn linger(mut stream: Shared) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let read = async {
        let mut scratch = vec![0; 16 * 1024];
        let mut left = LINGER_BYTES_MAX;
        while let Ok(read @ 1..) = stream.read(&mut scratch).await {
            left = left.saturating_sub(read);
            if left == 0 {
                break;
            }
        }
    };
    tokio::time::timeout(LINGER_TIME_MAX, read).await.ok();
}
